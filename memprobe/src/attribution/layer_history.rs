//! Layer history: bytes by allocating stack and category, now, at the device's peak and at the peak of each
//! step interval.
//!
//! A new peak copies nothing: peaks are numbered, and an entry saves its level before its first change after
//! a peak. Ended intervals store only differences from the interval before. A late change of a block's
//! category is applied to all intervals at whose peak it was live.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::category::Category;
use super::high_water_mark::{AtMark, AtPeak, HeldBytes};
use super::step_interval::MAX_INTERVALS;

/// Index of the allocating stack, and category.
pub(super) type LayerKey = (u32, Category);

#[derive(Clone, Debug, Default)]
pub(super) struct LayerSample {
    /// Now and at the device's peak.
    pub(super) holding: HeldBytes,
    /// Bytes at the peak of the current interval.
    highest: AtMark<u64>,
    /// Interval for which the entry is listed in [`LayerHistory::changed`].
    changed_in: Option<u64>,
    /// Interval and bytes at its peak, for ended intervals that differ from the one before.
    at_intervals: Vec<(u64, u64)>,
}

impl LayerSample {
    fn see(&mut self, moment: u64) {
        self.highest.save(moment, self.holding.live());
    }

    /// Bytes at the peak of the last ended interval.
    fn last(&self) -> u64 {
        self.at_intervals.last().map_or(0, |(_, bytes)| *bytes)
    }

    fn at_interval(&self, interval: u64) -> u64 {
        let after = self.at_intervals.partition_point(|(of, _)| *of <= interval);
        let last = after
            .checked_sub(1)
            .and_then(|at| self.at_intervals.get(at));
        last.map_or(0, |(_, bytes)| *bytes)
    }

    /// Corrects an interval and all later ones; returns the number of differences added.
    fn put_right(&mut self, interval: u64, change: impl Fn(u64) -> u64) -> usize {
        let before = self.differences();
        let at = self.at_intervals.partition_point(|(of, _)| *of < interval);
        if self
            .at_intervals
            .get(at)
            .is_none_or(|(of, _)| *of != interval)
        {
            let bytes = self.at_interval(interval);
            self.at_intervals.insert(at, (interval, bytes));
        }
        for (_, bytes) in &mut self.at_intervals[at..] {
            *bytes = change(*bytes);
        }
        self.differences() - before
    }

    fn forget(&mut self, before: u64) {
        let first_retained = self.at_intervals.partition_point(|(of, _)| *of <= before);
        self.at_intervals.drain(..first_retained.saturating_sub(1));
    }

    /// Stored differences beyond the first entry, which is never dropped.
    fn differences(&self) -> usize {
        self.at_intervals.len().saturating_sub(1)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct LayerHistory {
    places: HashMap<LayerKey, LayerSample>,
    /// Cap on differences; 0 without history.
    most: usize,
    differences: usize,
    interval: u64,
    /// Number of its peak so far, and of the event that reached it.
    moment: u64,
    ordinal: u64,
    /// Ended intervals, each with the event number of its peak.
    ended: VecDeque<(u64, u64)>,
    /// Entries changed in the current interval or after its predecessor's peak.
    changed: Vec<LayerKey>,
}

impl LayerHistory {
    /// Bytes of a copy.
    pub(super) fn copy_bytes(&self) -> u64 {
        let places = self.places.len() * (size_of::<(LayerKey, LayerSample)>() + 16);
        (places + self.differences * size_of::<(u64, u64)>()) as u64
    }

    /// Empty history, beginning with interval `interval`. Stores at most `most` differences.
    pub(super) fn new(interval: u64, most: usize) -> Self {
        Self {
            most,
            interval,
            ..Self::default()
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&LayerKey, &LayerSample)> {
        self.places.iter()
    }

    /// Adds a block. `peak` is the number of the device's peak.
    pub(super) fn add(&mut self, place: LayerKey, size: u64, peak: u64) {
        let sample = self.change(place);
        sample.holding.add(size, peak, AtPeak::Gone);
    }

    pub(super) fn release(&mut self, place: LayerKey, size: u64, peak: u64) {
        if self.places.contains_key(&place) {
            let sample = self.change(place);
            sample.holding.release(size, peak);
        }
    }

    /// Moves a live block from `ways[0]` to `ways[1]`; `None` means not counted. Intervals before `oldest`
    /// stay unchanged.
    pub(super) fn shift(&mut self, places: [Option<LayerKey>; 2], shift: Shift) {
        let Shift {
            size,
            born,
            peak,
            was,
            oldest,
        } = shift;
        let was_highest = self.ordinal >= born;
        let first = self.first_with(born, oldest);
        let [from, to] = places;
        let from = from.filter(|from| self.places.contains_key(from));
        let goes: Correction = (HeldBytes::remove, u64::saturating_sub);
        let comes: Correction = (HeldBytes::add, u64::saturating_add);
        for (place, (hold, change)) in [(from, goes), (to, comes)] {
            let Some(place) = place else { continue };
            let sample = self.change(place);
            hold(&mut sample.holding, size, peak, was);
            if was_highest {
                sample.highest.level = change(sample.highest.level, size);
            }
            let more = first.map_or(0, |interval| {
                sample.put_right(interval, |bytes| change(bytes, size))
            });
            self.differences += more;
        }
    }

    /// Records that the interval peaks at this event.
    pub(super) fn reach(&mut self, ordinal: u64) {
        self.moment += 1;
        self.ordinal = ordinal;
    }

    /// Ends intervals until `interval` is current; `ordinal` is the last event.
    pub(super) fn pass_to(&mut self, interval: u64, ordinal: u64) {
        while self.interval < interval {
            self.end_interval(ordinal);
        }
    }

    fn end_interval(&mut self, ordinal: u64) {
        let ended = self.interval;
        self.interval += 1;
        let mut changed = std::mem::take(&mut self.changed);
        changed.retain(|place| {
            let Some(sample) = self.places.get_mut(place) else {
                return false;
            };
            sample.see(self.moment);
            let highest = sample.highest.level;
            if highest != sample.last() {
                let before = sample.differences();
                sample.at_intervals.push((ended, highest));
                self.differences += sample.differences() - before;
            }
            // The next interval begins with the current level, which differs from that at the peak.
            let goes_on = sample.holding.live() != highest;
            sample.changed_in = goes_on.then_some(self.interval);
            goes_on
        });
        self.changed = changed;
        if self.most > 0 {
            self.ended.push_back((ended, self.ordinal));
            if self.ended.len() > MAX_INTERVALS {
                self.ended.pop_front();
            }
        }
        self.reach(ordinal);
        if self.differences > self.most {
            self.forget();
        }
    }

    /// Drops the oldest intervals until half the cap is free.
    fn forget(&mut self) {
        while self.differences > self.most / 2 && self.ended.len() > 1 {
            self.ended.drain(..self.ended.len() / 2);
            let Some((oldest, _)) = self.ended.front().copied() else {
                return;
            };
            self.differences = 0;
            for sample in self.places.values_mut() {
                sample.forget(oldest);
                self.differences += sample.differences();
            }
        }
    }

    pub(super) fn knows(&self, interval: u64) -> bool {
        let first = self
            .ended
            .front()
            .map_or(self.interval, |(first, _)| *first);
        (first..=self.interval).contains(&interval)
    }

    pub(super) fn bytes_at_interval(&self, sample: &LayerSample, interval: u64) -> u64 {
        if interval == self.interval {
            sample.highest.at(self.moment, sample.holding.live())
        } else {
            sample.at_interval(interval)
        }
    }

    /// Entry about to change, brought up to the current peak.
    fn change(&mut self, place: LayerKey) -> &mut LayerSample {
        let sample = self.places.entry(place).or_default();
        if self.most > 0 && sample.changed_in != Some(self.interval) {
            sample.changed_in = Some(self.interval);
            self.changed.push(place);
        }
        sample.see(self.moment);
        sample
    }

    /// First ended interval from `oldest` on at whose peak a block allocated by event `born` was live.
    fn first_with(&self, born: u64, oldest: u64) -> Option<u64> {
        let is_before = |(interval, ordinal): &(u64, u64)| *interval < oldest || *ordinal < born;
        let at = self.ended.partition_point(is_before);
        self.ended.get(at).map(|(interval, _)| *interval)
    }
}

/// A moved block, and the period for which it is corrected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shift {
    pub(super) size: u64,
    /// Number of the event that allocated it.
    pub(super) born: u64,
    pub(super) peak: u64,
    pub(super) was: AtPeak,
    pub(super) oldest: u64,
}

/// Correction by a removed or added block, to a holding and to bytes.
type Correction = (fn(&mut HeldBytes, u64, u64, AtPeak), fn(u64, u64) -> u64);

#[cfg(test)]
mod tests;

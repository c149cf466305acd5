//! What is held, by the stack that made it and by what it is for: now, when the device held most, and when it held most in each lap.
//!
//! Nothing is copied when a moment is outdone: moments have numbers, and who changes after one keeps what it was first. Of a lap that
//! has ended, only what differs from the lap before is kept. What a block is for is often known only later: all laps at whose moments it
//! was live are then put right.

use std::collections::{HashMap, VecDeque};

use super::category::Category;
use super::fate::Block;
use super::laps::MOST_LAPS;
use super::rows::{AtPeak, Holding};

/// A stack by its origin, and what its blocks are for.
pub(super) type Place = (u32, Category);

/// What one place holds.
#[derive(Debug, Default)]
pub(super) struct Stratum {
    /// Now, and when the device held most.
    pub(super) holding: Holding,
    /// Bytes at the highest moment of the lap that runs: that of the number `moment`.
    highest: u64,
    moment: u64,
    /// The lap in which it changed last, where that is still to be told to `laps`.
    changed_in: Option<u64>,
    /// Bytes at the highest moments of laps that have ended, where they differ from those of the lap before.
    laps: Vec<(u64, u64)>,
}

impl Stratum {
    fn see(&mut self, moment: u64) {
        if self.moment != moment {
            self.moment = moment;
            self.highest = self.holding.live;
        }
    }

    /// What was held at the last lap that ended.
    fn last(&self) -> u64 {
        self.laps.last().map_or(0, |(_, bytes)| *bytes)
    }

    /// What was held at a lap that has ended.
    fn in_lap(&self, lap: u64) -> u64 {
        let after = self.laps.partition_point(|(of, _)| *of <= lap);
        let last = after.checked_sub(1).and_then(|at| self.laps.get(at));
        last.map_or(0, |(_, bytes)| *bytes)
    }

    /// Puts right this lap and all after it; gives how many differences more are kept.
    fn put_right(&mut self, lap: u64, change: impl Fn(u64) -> u64) -> usize {
        let before = self.differences();
        let at = self.laps.partition_point(|(of, _)| *of < lap);
        if self.laps.get(at).is_none_or(|(of, _)| *of != lap) {
            let bytes = self.in_lap(lap);
            self.laps.insert(at, (lap, bytes));
        }
        for (_, bytes) in &mut self.laps[at..] {
            *bytes = change(*bytes);
        }
        self.differences() - before
    }

    /// Laps before that one are kept no more.
    fn forget(&mut self, before: u64) {
        let kept = self.laps.partition_point(|(of, _)| *of <= before);
        self.laps.drain(..kept.saturating_sub(1));
    }

    /// What its laps take beside the first, which takes its room for good.
    fn differences(&self) -> usize {
        self.laps.len().saturating_sub(1)
    }
}

/// What is held on one device.
#[derive(Debug)]
pub(super) struct Strata {
    places: HashMap<Place, Stratum>,
    /// Differences between laps that are kept; 0 where laps are not told apart.
    most: usize,
    differences: usize,
    /// The lap that runs.
    lap: u64,
    /// The number of its highest moment so far, and that of the event after which that was.
    moment: u64,
    ordinal: u64,
    /// Laps that have ended, each with the event after which it held most.
    ended: VecDeque<(u64, u64)>,
    /// Places of which the lap that runs is not yet told.
    changed: Vec<Place>,
}

impl Strata {
    /// Nothing is held in the lap of that number. Of laps so many differences are kept.
    pub(super) fn new(lap: u64, most: usize) -> Self {
        Self {
            places: HashMap::new(),
            most,
            differences: 0,
            lap,
            moment: 0,
            ordinal: 0,
            ended: VecDeque::new(),
            changed: Vec::new(),
        }
    }

    /// All places.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Place, &Stratum)> {
        self.places.iter()
    }

    /// A block comes. `peak` is the number of the device's highest moment.
    pub(super) fn add(&mut self, place: Place, size: u64, peak: u64) {
        let stratum = self.change(place);
        stratum.holding.add(size, peak, AtPeak::Gone);
    }

    /// A block goes.
    pub(super) fn release(&mut self, place: Place, size: u64, peak: u64) {
        if self.places.contains_key(&place) {
            let stratum = self.change(place);
            stratum.holding.release(size, peak);
        }
    }

    /// A live block turns out to be of another place, or of one at all, or of none. Laps before `oldest` stay as they are.
    pub(super) fn shift(&mut self, block: &Block, ways: [Option<Place>; 2], shift: Shift) {
        let Shift { peak, was, oldest } = shift;
        let size = block.size;
        let was_highest = self.ordinal >= block.born;
        let lap = self.first_with(block.born, oldest);
        let [from, to] = ways;
        let from = from.filter(|from| self.places.contains_key(from));
        let goes: Correction = (Holding::remove, u64::saturating_sub);
        let comes: Correction = (Holding::add, u64::saturating_add);
        for (place, (hold, change)) in [(from, goes), (to, comes)] {
            let Some(place) = place else { continue };
            let stratum = self.change(place);
            hold(&mut stratum.holding, size, peak, was);
            if was_highest {
                stratum.highest = change(stratum.highest, size);
            }
            let more = lap.map_or(0, |lap| stratum.put_right(lap, |bytes| change(bytes, size)));
            self.differences += more;
        }
    }

    /// The lap never held more than after this event.
    pub(super) fn reach(&mut self, ordinal: u64) {
        self.moment += 1;
        self.ordinal = ordinal;
    }

    /// Laps end until that one runs. Nothing happened since this event.
    pub(super) fn pass_to(&mut self, lap: u64, ordinal: u64) {
        while self.lap < lap {
            self.end_lap(ordinal);
        }
    }

    fn end_lap(&mut self, ordinal: u64) {
        let lap = self.lap;
        self.lap += 1;
        let mut changed = std::mem::take(&mut self.changed);
        changed.retain(|place| {
            let Some(stratum) = self.places.get_mut(place) else {
                return false;
            };
            stratum.see(self.moment);
            if stratum.highest != stratum.last() {
                let before = stratum.differences();
                stratum.laps.push((lap, stratum.highest));
                self.differences += stratum.differences() - before;
            }
            // What was not at the highest moment is there when the next lap begins.
            let goes_on = stratum.holding.live != stratum.highest;
            stratum.changed_in = goes_on.then_some(self.lap);
            goes_on
        });
        self.changed = changed;
        if self.most > 0 {
            self.ended.push_back((lap, self.ordinal));
            if self.ended.len() > MOST_LAPS {
                self.ended.pop_front();
            }
        }
        self.reach(ordinal);
        if self.differences > self.most {
            self.forget();
        }
    }

    /// Forgets the oldest laps, until half of the room is free.
    fn forget(&mut self) {
        while self.differences > self.most / 2 && self.ended.len() > 1 {
            self.ended.drain(..self.ended.len() / 2);
            let Some((oldest, _)) = self.ended.front().copied() else {
                return;
            };
            self.differences = 0;
            for stratum in self.places.values_mut() {
                stratum.forget(oldest);
                self.differences += stratum.differences();
            }
        }
    }

    /// Whether it is known what was held at the highest moment of a lap.
    pub(super) fn knows(&self, lap: u64) -> bool {
        let first = self.ended.front().map_or(self.lap, |(first, _)| *first);
        (first..=self.lap).contains(&lap)
    }

    /// What a place held then.
    pub(super) fn in_lap(&self, stratum: &Stratum, lap: u64) -> u64 {
        match (lap == self.lap, stratum.moment == self.moment) {
            (false, _) => stratum.in_lap(lap),
            (true, true) => stratum.highest,
            (true, false) => stratum.holding.live,
        }
    }

    /// A place that changes now, as of the highest moment.
    fn change(&mut self, place: Place) -> &mut Stratum {
        let stratum = self.places.entry(place).or_default();
        if self.most > 0 && stratum.changed_in != Some(self.lap) {
            stratum.changed_in = Some(self.lap);
            self.changed.push(place);
        }
        stratum.see(self.moment);
        stratum
    }

    /// The first lap at whose highest moment a block was live that this event made, of those that have ended and are put right.
    fn first_with(&self, born: u64, oldest: u64) -> Option<u64> {
        let is_before = |(lap, ordinal): &(u64, u64)| *lap < oldest || *ordinal < born;
        let at = self.ended.partition_point(is_before);
        self.ended.get(at).map(|(lap, _)| *lap)
    }
}

/// When a block was live that is shifted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shift {
    /// The number of the device's highest moment.
    pub(super) peak: u64,
    /// Whether it was live then.
    pub(super) was: AtPeak,
    /// The oldest lap that is put right.
    pub(super) oldest: u64,
}

/// What a block that goes or comes does to a holding, and to bytes.
type Correction = (fn(&mut Holding, u64, u64, AtPeak), fn(u64, u64) -> u64);

#[cfg(test)]
mod tests;

//! High-water marks: the peak of each device, and what a table row held then.
//!
//! Of equal peaks the one with the most known categories counts. The ledger of categories chooses it for all tables.
//!
//! A new peak copies nothing: peaks are numbered, and a row saves its level before its first change after a
//! peak. The composition at the peak is exact for any number of peaks, at one comparison per change.

use std::collections::BTreeMap;

use super::groups::BlockChange;
use super::ledger::AttributionLedger;
use crate::event::{Bytes, DeviceIndex, Event, TimeNs};
use crate::ledger::{Analysis, Change, Ledger, Tally, TotalsSample};

/// Follows the changes of a ledger, and the peaks that a ledger of categories chooses.
pub trait PeakAnalysis {
    /// Applies an event that `categories` has applied.
    fn apply(
        &mut self,
        event: &Event,
        change: &Change,
        ledger: &Ledger,
        categories: &AttributionLedger,
    );
}

impl<A: PeakAnalysis, B: PeakAnalysis> PeakAnalysis for (A, B) {
    fn apply(
        &mut self,
        event: &Event,
        change: &Change,
        ledger: &Ledger,
        categories: &AttributionLedger,
    ) {
        self.0.apply(event, change, ledger, categories);
        self.1.apply(event, change, ledger, categories);
    }
}

/// A ledger of categories, and the table of its peaks.
#[derive(Clone, Debug, Default)]
pub struct WithCategories<A> {
    pub categories: AttributionLedger,
    pub table: A,
}

impl<A> WithCategories<A> {
    pub fn new(table: A) -> Self {
        Self {
            categories: AttributionLedger::new(None),
            table,
        }
    }
}

impl<A: PeakAnalysis> Analysis for WithCategories<A> {
    fn apply(&mut self, event: &Event, change: &Change, ledger: &Ledger) {
        let Self { categories, table } = self;
        categories.apply(event, change, ledger);
        table.apply(event, change, ledger, categories);
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HighWaterMark {
    /// Times it was exceeded, which identifies it.
    pub(super) number: u64,
    pub(super) moment: TotalsSample,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct HighWaterMarks(BTreeMap<DeviceIndex, HighWaterMark>);

impl HighWaterMarks {
    /// Marks that begin at the current state of a ledger: earlier peaks are unknown.
    pub(crate) fn from_now(ledger: &Ledger, now: TimeNs) -> Self {
        let moments = ledger.moments(now);
        let marks = moments.map(|(device, moment)| (device, HighWaterMark { number: 1, moment }));
        Self(marks.collect())
    }

    pub(crate) fn get(&self, device: DeviceIndex) -> Option<&HighWaterMark> {
        self.0.get(&device)
    }

    /// Calls `change` with the number of the mark before an event, then raises the mark to the state after it if
    /// that is the peak.
    pub(crate) fn pass(
        &mut self,
        event: &Event,
        ledger: &Ledger,
        categories: &AttributionLedger,
        change: impl FnOnce(u64),
    ) {
        let Some((device, now)) = ledger.moment(event) else {
            return change(0);
        };
        let mark = self.0.entry(device).or_insert_with(|| HighWaterMark {
            number: 0,
            moment: match event {
                Event::Memory(event) => now.before(event),
                _ => now,
            },
        });
        change(mark.number);
        if categories.is_peak {
            mark.number += 1;
            mark.moment = now;
        }
    }
}

/// Level of a row at the last mark. It is the current level if `number` is older: the row has not changed since.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AtMark<T> {
    number: u64,
    pub(super) level: T,
}

impl<T: Copy> AtMark<T> {
    /// Saves the current level before its first change after mark `number`.
    pub(crate) fn save(&mut self, number: u64, level: T) {
        if self.number < number {
            *self = Self { number, level };
        }
    }

    /// Level at mark `number`; `now` is the current one.
    pub(crate) fn at(&self, number: u64, now: T) -> T {
        if self.number < number {
            now
        } else {
            self.level
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeldBytes {
    tally: Tally,
    /// Bytes and blocks.
    at_mark: AtMark<[u64; 2]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtPeak {
    Live,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Holding {
    pub live: Bytes,
    pub live_blocks: u64,
    /// Bytes live at the device's peak.
    pub at_peak: Bytes,
    pub at_peak_blocks: u64,
    /// Highest value of `live` so far; `None` for a sum, whose terms peak at different moments.
    pub peak: Option<Bytes>,
    /// Allocations since attach.
    pub allocs: u64,
    pub alloc_bytes: Bytes,
}

impl HeldBytes {
    /// Applies a change; `mark` is the number of the mark before it.
    pub(crate) fn change(&mut self, change: BlockChange, mark: u64) {
        self.save(mark);
        match change {
            BlockChange::Added(size) => self.tally.count(size.0, true),
            BlockChange::NotTracked(size) => self.tally.count(size.0, false),
            BlockChange::Removed(size) => self.tally.release(size.0),
        }
    }

    /// Adds a block. `was` is [`AtPeak::Live`] for a block counted late, which was live at the peak.
    pub(crate) fn add(&mut self, size: u64, mark: u64, was: AtPeak) {
        self.save(mark);
        self.tally.count(size, true);
        if was == AtPeak::Live {
            let [bytes, blocks] = self.at_mark.level;
            self.at_mark.level = [bytes.saturating_add(size), blocks.saturating_add(1)];
        }
    }

    /// Adds a block from before attach, which was live at the peak. It is no allocation since attach.
    pub(crate) fn hold(&mut self, size: u64, mark: u64) {
        self.save(mark);
        self.tally.hold(size);
        let [bytes, blocks] = self.at_mark.level;
        self.at_mark.level = [bytes.saturating_add(size), blocks.saturating_add(1)];
    }

    pub(crate) fn release(&mut self, size: u64, mark: u64) {
        self.save(mark);
        self.tally.release(size);
    }

    /// Removes a block that was counted in the wrong row.
    pub(crate) fn remove(&mut self, size: u64, mark: u64, was: AtPeak) {
        self.release(size, mark);
        self.tally.allocs = self.tally.allocs.saturating_sub(1);
        self.tally.alloc_bytes = self.tally.alloc_bytes.saturating_sub(size);
        if was == AtPeak::Live {
            let [bytes, blocks] = self.at_mark.level;
            self.at_mark.level = [bytes.saturating_sub(size), blocks.saturating_sub(1)];
        }
    }

    pub(crate) fn live(&self) -> u64 {
        self.tally.live
    }

    pub(crate) fn holding(&self, mark: u64) -> Holding {
        let [bytes, blocks] = self.at_mark.at(mark, [self.tally.live, self.tally.blocks]);
        Holding {
            live: Bytes(self.tally.live),
            live_blocks: self.tally.blocks,
            at_peak: Bytes(bytes),
            at_peak_blocks: blocks,
            peak: Some(Bytes(self.tally.peak)),
            allocs: self.tally.allocs,
            alloc_bytes: Bytes(self.tally.alloc_bytes),
        }
    }

    fn save(&mut self, mark: u64) {
        self.at_mark
            .save(mark, [self.tally.live, self.tally.blocks]);
    }
}

impl Holding {
    pub fn and(self, other: Self) -> Self {
        let bytes = |one: Bytes, other: Bytes| Bytes(one.0.saturating_add(other.0));
        Self {
            live: bytes(self.live, other.live),
            live_blocks: self.live_blocks.saturating_add(other.live_blocks),
            at_peak: bytes(self.at_peak, other.at_peak),
            at_peak_blocks: self.at_peak_blocks.saturating_add(other.at_peak_blocks),
            peak: None,
            allocs: self.allocs.saturating_add(other.allocs),
            alloc_bytes: bytes(self.alloc_bytes, other.alloc_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(row: &HeldBytes, mark: u64) -> (u64, u64, u64) {
        let Holding {
            live,
            at_peak,
            allocs,
            ..
        } = row.holding(mark);
        (live.0, at_peak.0, allocs)
    }

    #[test]
    fn what_was_held_at_the_peak_is_known_without_visiting_every_row() {
        let mut row = HeldBytes::default();
        row.add(512, 0, AtPeak::Gone);
        // The device's first peak: the row has no notice of it.
        row.release(512, 1);
        row.add(64, 1, AtPeak::Gone);
        assert_eq!(figures(&row, 1), (64, 512, 2));
        assert_eq!(figures(&row, 2), (64, 64, 2));
    }

    #[test]
    fn a_reassigned_block_leaves_no_trace_in_its_old_row() {
        let mut row = HeldBytes::default();
        row.add(512, 0, AtPeak::Gone);
        row.remove(512, 1, AtPeak::Live);
        assert_eq!(figures(&row, 1), (0, 0, 0));
    }
}

//! Peak of each device, and the memory of each allocation group at that moment.
//!
//! A new peak copies nothing: peaks are numbered, and a group saves its level before its first change after a
//! peak. The composition at the peak is exact for any number of peaks, at one comparison per change.

use std::collections::BTreeMap;

use super::allocation_groups::{AllocationGroup, AllocationGroups};
use crate::event::{Bytes, DeviceIndex, Event};
use crate::model::groups::{ChangeKind, GroupChange};
use crate::model::snapshot::Grouping;
use crate::model::{Analysis, Change, DeviceTotals, Model};

/// High-water mark of a device so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HighWaterMark {
    /// Times it was exceeded, which identifies it.
    number: u64,
    moment: DeviceTotals,
}

impl HighWaterMark {
    pub(super) fn at(moment: DeviceTotals) -> Self {
        Self { number: 0, moment }
    }

    /// Raises the mark to the current state, once all groups have their changes.
    pub(super) fn reach(&mut self, now: DeviceTotals) {
        if now.totals.allocated > self.moment.totals.allocated {
            self.number += 1;
            self.moment = now;
        }
    }

    /// Sets the mark to the current state: earlier peaks are unknown.
    pub(super) fn begin_here(&mut self, now: DeviceTotals) {
        self.number += 1;
        self.moment = now;
    }

    pub(super) fn moment(&self) -> DeviceTotals {
        self.moment
    }
}

/// Memory held now and at the high-water mark.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeldBytes {
    live: u64,
    peak: u64,
    blocks: u64,
    allocs: u64,
    /// Number of the mark that `live_at` and `blocks_at` belong to.
    at: u64,
    live_at: u64,
    blocks_at: u64,
}

/// Memory held, for views.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Holding {
    /// Bytes live now.
    pub live: Bytes,
    /// Blocks live now.
    pub live_blocks: u64,
    /// Bytes live at the device's peak.
    pub at_peak: Bytes,
    /// Blocks live at the device's peak.
    pub at_peak_blocks: u64,
    /// Highest value of `live` so far; `None` for a sum, whose terms peak at different moments.
    pub peak: Option<Bytes>,
    /// Allocations since attach.
    pub allocs: u64,
}

impl HeldBytes {
    /// Applies a change; `mark` is the mark before it.
    pub(super) fn change(&mut self, change: GroupChange, mark: &HighWaterMark) {
        if self.at < mark.number {
            (self.live_at, self.blocks_at) = (self.live, self.blocks);
            self.at = mark.number;
        }
        let size = change.size.0;
        match change.kind {
            ChangeKind::Added => {
                self.allocs = self.allocs.saturating_add(1);
                self.live = self.live.saturating_add(size);
                self.peak = self.peak.max(self.live);
                self.blocks = self.blocks.saturating_add(1);
            }
            ChangeKind::NotTracked => self.allocs = self.allocs.saturating_add(1),
            ChangeKind::Removed => {
                self.live = self.live.saturating_sub(size);
                self.blocks = self.blocks.saturating_sub(1);
            }
        }
    }

    pub(super) fn holding(&self, mark: &HighWaterMark) -> Holding {
        let (live_at, blocks_at) = match self.at < mark.number {
            true => (self.live, self.blocks),
            false => (self.live_at, self.blocks_at),
        };
        Holding {
            live: Bytes(self.live),
            live_blocks: self.blocks,
            at_peak: Bytes(live_at),
            at_peak_blocks: blocks_at,
            peak: Some(Bytes(self.peak)),
            allocs: self.allocs,
        }
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
        }
    }
}

/// Memory of each allocation group at the peak of each device, updated by every event.
#[derive(Debug)]
pub struct PeakLedger {
    groups: AllocationGroups,
    held: Vec<HeldBytes>,
    high_water_marks: BTreeMap<DeviceIndex, HighWaterMark>,
}

/// Memory of a device at its peak.
#[derive(Clone, Debug)]
pub struct PeakView {
    /// The peak. `parts`, `before_attach` and `unaccounted` add up to `totals.allocated`.
    pub moment: DeviceTotals,
    /// Groups with live memory at the peak, in no particular order.
    pub parts: Vec<PeakPart>,
    /// True if any stack has module information.
    pub knows_modules: bool,
}

/// Memory of a group at the peak of its device.
#[derive(Clone, Debug)]
pub struct PeakPart {
    pub part: AllocationGroup,
    /// Bytes.
    pub live: Bytes,
    pub blocks: u64,
}

impl PeakLedger {
    pub fn new(grouping: Grouping) -> Self {
        Self {
            groups: AllocationGroups::new(grouping),
            held: Vec::new(),
            high_water_marks: BTreeMap::new(),
        }
    }

    /// Memory of a device at its peak; `None` for an unknown device.
    pub fn view(&self, device: DeviceIndex) -> Option<PeakView> {
        let mark = self.high_water_marks.get(&device)?;
        let parts = self.groups.on(device).filter_map(|(name, part)| {
            let holding = self.held.get(name)?.holding(mark);
            (holding.at_peak_blocks > 0).then(|| PeakPart {
                part: part.clone(),
                live: holding.at_peak,
                blocks: holding.at_peak_blocks,
            })
        });
        Some(PeakView {
            moment: mark.moment(),
            parts: parts.collect(),
            knows_modules: self.groups.knows_modules(),
        })
    }
}

impl Analysis for PeakLedger {
    fn apply(&mut self, event: &Event, change: &Change, ledger: &Model) {
        let Some((device, now)) = ledger.moment(event) else {
            return self.groups.apply(change, ledger, |_| {});
        };
        let mark = high_water_mark(&mut self.high_water_marks, device, event, now);
        let held = &mut self.held;
        self.groups.apply(change, ledger, |change| {
            if held.len() <= change.group {
                held.resize(change.group + 1, HeldBytes::default());
            }
            held[change.group].change(change, mark);
        });
        mark.reach(now);
    }
}

/// High-water mark of a device before the event that led to `now`.
pub(super) fn high_water_mark<'a>(
    marks: &'a mut BTreeMap<DeviceIndex, HighWaterMark>,
    device: DeviceIndex,
    event: &Event,
    now: DeviceTotals,
) -> &'a mut HighWaterMark {
    marks.entry(device).or_insert_with(|| match event {
        Event::Memory(event) => HighWaterMark::at(now.before(event)),
        _ => HighWaterMark::at(now),
    })
}

#[cfg(test)]
mod tests;

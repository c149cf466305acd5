//! High-water marks: the peak of each device, and what a table row held then.
//!
//! A new peak copies nothing: peaks are numbered, and a row saves its level before its first change after a
//! peak. The composition at the peak is exact for any number of peaks, at one comparison per change.

use std::collections::BTreeMap;

use super::groups::{BlockChange, ChangeKind};
use crate::event::{Bytes, DeviceIndex, Event, TimeNs};
use crate::ledger::{DeviceTotals, Ledger};

/// High-water mark of a device so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HighWaterMark {
    /// Times it was exceeded, which identifies it.
    number: u64,
    moment: DeviceTotals,
}

impl HighWaterMark {
    /// Raises the mark to the current state, once all groups have their changes.
    fn reach(&mut self, now: DeviceTotals) {
        if now.totals.allocated > self.moment.totals.allocated {
            self.number += 1;
            self.moment = now;
        }
    }

    pub(crate) fn moment(&self) -> DeviceTotals {
        self.moment
    }
}

/// High-water marks of all devices.
#[derive(Debug, Default)]
pub(crate) struct HighWaterMarks(BTreeMap<DeviceIndex, HighWaterMark>);

impl HighWaterMarks {
    /// Marks that begin at the current state of a ledger: earlier peaks are unknown.
    pub(crate) fn from_now(ledger: &Ledger, now: TimeNs) -> Self {
        let moments = ledger.moments(now);
        Self(
            moments
                .map(|(device, moment)| (device, HighWaterMark { number: 1, moment }))
                .collect(),
        )
    }

    pub(crate) fn get(&self, device: DeviceIndex) -> Option<&HighWaterMark> {
        self.0.get(&device)
    }

    /// Calls `change` with the mark before an event, then raises the mark to the state after it.
    pub(crate) fn pass(
        &mut self,
        event: &Event,
        ledger: &Ledger,
        change: impl FnOnce(&HighWaterMark),
    ) {
        let Some((device, now)) = ledger.moment(event) else {
            return change(&HighWaterMark::default());
        };
        let mark = self.0.entry(device).or_insert_with(|| HighWaterMark {
            number: 0,
            moment: match event {
                Event::Memory(event) => now.before(event),
                _ => now,
            },
        });
        change(mark);
        mark.reach(now);
    }
}

/// Memory held now and at the high-water mark.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeldBytes {
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
    pub(crate) fn change(&mut self, change: BlockChange, mark: &HighWaterMark) {
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

    pub(crate) fn holding(&self, mark: &HighWaterMark) -> Holding {
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

//! The moment at which a device held most, and what it held then.
//!
//! Nothing is copied when a new peak is reached: a peak has a number, and who changes after it keeps what it was first. So the
//! composition at the peak is exact, whatever the number of peaks, at the cost of one comparison a change.

use std::collections::BTreeMap;

use super::parts::{Change, Part, Parts, Way};
use crate::event::{Bytes, DeviceIndex, Event, MemoryEvent, TimeNs, Totals};
use crate::model::Model;
use crate::model::applied::Applied;
use crate::model::snapshot::Grouping;

/// What a device held at one moment, all told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Moment {
    /// When.
    pub time: TimeNs,
    /// The allocator's own totals.
    pub totals: Totals,
    /// Bytes from before attach.
    pub before_attach: Bytes,
    /// The allocator's total less all that is known; 0 unless events were lost.
    pub unaccounted: i64,
}

/// The highest moment of a device so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Summit {
    /// How often it was outdone: names it.
    number: u64,
    moment: Moment,
}

impl Summit {
    /// As the device was just before the first event that was heard of it, by what it is after that.
    pub(super) fn before(event: &MemoryEvent, after: Moment) -> Self {
        let totals = event.undo(after.totals);
        let moment = Moment {
            time: event.time,
            totals,
            before_attach: totals.allocated,
            unaccounted: 0,
        };
        Self::at(moment)
    }

    /// As the device was found.
    pub(super) fn at(moment: Moment) -> Self {
        Self { number: 0, moment }
    }

    /// Takes what the device is now, after all who changed have said so.
    pub(super) fn reach(&mut self, now: Moment) {
        if now.totals.allocated > self.moment.totals.allocated {
            self.number += 1;
            self.moment = now;
        }
    }

    /// Takes what the device is now for the highest moment: of those before, nothing is known.
    pub(super) fn begin_here(&mut self, now: Moment) {
        self.number += 1;
        self.moment = now;
    }

    pub(super) fn moment(&self) -> Moment {
        self.moment
    }
}

/// What somebody holds, and what of it was live at the summit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    live: u64,
    peak: u64,
    blocks: u64,
    allocs: u64,
    /// At the summit of that number.
    at: u64,
    live_at: u64,
    blocks_at: u64,
}

/// What somebody holds, for views.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Holding {
    /// Bytes now live.
    pub live: Bytes,
    /// Blocks now live.
    pub live_blocks: u64,
    /// Bytes that were live when the device held most.
    pub at_peak: Bytes,
    /// Blocks that were live then.
    pub at_peak_blocks: u64,
    /// The highest that `live` has been; `None` for a sum of several of which each has its own.
    pub peak: Option<Bytes>,
    /// Allocations since attach.
    pub allocs: u64,
}

impl Held {
    /// Takes a change of its blocks. `summit` is what was reached before it.
    pub(super) fn change(&mut self, change: Change, summit: &Summit) {
        if self.at < summit.number {
            (self.live_at, self.blocks_at) = (self.live, self.blocks);
            self.at = summit.number;
        }
        let size = change.size.0;
        match change.way {
            Way::Came => {
                self.allocs = self.allocs.saturating_add(1);
                self.live = self.live.saturating_add(size);
                self.peak = self.peak.max(self.live);
                self.blocks = self.blocks.saturating_add(1);
            }
            Way::NotFollowed => self.allocs = self.allocs.saturating_add(1),
            Way::Went => {
                self.live = self.live.saturating_sub(size);
                self.blocks = self.blocks.saturating_sub(1);
            }
        }
    }

    pub(super) fn holding(&self, summit: &Summit) -> Holding {
        let (live_at, blocks_at) = match self.at < summit.number {
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
    /// What two hold together.
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

/// What each device held when it held most, brought up to date by each event.
#[derive(Debug)]
pub struct PeakLedger {
    parts: Parts,
    held: Vec<Held>,
    summits: BTreeMap<DeviceIndex, Summit>,
}

/// What a device held when it held most.
#[derive(Clone, Debug)]
pub struct PeakView {
    /// That moment. The sum of `parts`, `before_attach` and `unaccounted` is `totals.allocated`.
    pub moment: Moment,
    /// Who held something then, in no particular order.
    pub parts: Vec<PeakPart>,
    /// Whether the stacks say anything of modules.
    pub knows_modules: bool,
}

/// What a part held when its device held most.
#[derive(Clone, Debug)]
pub struct PeakPart {
    /// Which.
    pub part: Part,
    /// Bytes.
    pub live: Bytes,
    /// Blocks.
    pub blocks: u64,
}

impl PeakLedger {
    /// Nothing is live yet.
    pub fn new(grouping: Grouping) -> Self {
        Self {
            parts: Parts::new(grouping),
            held: Vec::new(),
            summits: BTreeMap::new(),
        }
    }

    /// Takes the next event of the stream, what the ledger of lines made of it, and that ledger.
    pub fn apply(&mut self, event: &Event, applied: &Applied, model: &Model) {
        let Some((device, now)) = model.moment(event) else {
            return self.parts.apply(event, applied, |_| {});
        };
        let summit = summit_of(&mut self.summits, device, event, now);
        let held = &mut self.held;
        self.parts.apply(event, applied, |change| {
            if held.len() <= change.part {
                held.resize(change.part + 1, Held::default());
            }
            held[change.part].change(change, summit);
        });
        summit.reach(now);
    }

    /// What a device held when it held most; `None` of one that was not heard of.
    pub fn view(&self, device: DeviceIndex) -> Option<PeakView> {
        let summit = self.summits.get(&device)?;
        let parts = self.parts.of(device).filter_map(|(name, part)| {
            let holding = self.held.get(name)?.holding(summit);
            (holding.at_peak_blocks > 0).then(|| PeakPart {
                part: part.clone(),
                live: holding.at_peak,
                blocks: holding.at_peak_blocks,
            })
        });
        Some(PeakView {
            moment: summit.moment(),
            parts: parts.collect(),
            knows_modules: self.parts.knows_modules(),
        })
    }
}

/// The summit of a device, before the event that led to `now`.
pub(super) fn summit_of<'a>(
    summits: &'a mut BTreeMap<DeviceIndex, Summit>,
    device: DeviceIndex,
    event: &Event,
    now: Moment,
) -> &'a mut Summit {
    summits.entry(device).or_insert_with(|| match event {
        Event::Memory(event) => Summit::before(event, now),
        _ => Summit::at(now),
    })
}

#[cfg(test)]
mod tests;

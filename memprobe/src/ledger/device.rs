//! Ledger of one device, checked against the allocator's totals on every event.

use super::applied::{Applied, Ended, Freed};
use super::blocks::{Block, Blocks, Owner};
use super::call_sites::CallSites;
use super::caps::Budget;
use super::live_blocks::{BlockOrigin, LiveBlock};
use super::names::Names;
use super::rate::Interval;
use super::snapshot::host::Holder;
use super::snapshot::{BeforeAttach, DeviceSnapshot, Grouping, Site};
use super::timeline::Recorder;

use std::sync::Arc;

use crate::event::{
    Address, AtAttach, Bytes, DeviceIndex, Frame, MemoryEvent, StackId, TimeNs, Totals,
};

/// Totals of a device at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DeviceTotals {
    pub time: TimeNs,
    /// Totals reported by the allocator.
    pub totals: Totals,
    /// Bytes from before attach.
    pub before_attach: Bytes,
    /// The allocator's total minus all known bytes; 0 unless events were lost.
    pub unaccounted: i64,
}

/// Upper bound of block ends and totals (1 EiB). Today's GPUs and processors have addresses of at
/// most 57 bits, so an event beyond it is malformed. Blocks do not overlap, so the bound also holds
/// for their sum: sums and differences fit an `i64`.
pub(crate) const ADDRESS_LIMIT: u64 = 1 << 60;

/// Mismatch between an event and the ledger's expectation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Difference {
    None,
    /// The allocator's total does not follow from the previous one: events in between are missing.
    Gap,
    /// The event contradicts a block in the ledger: an earlier event was missed.
    Stale,
}

/// Returns the device of an allocator event if the event's numbers are plausible.
pub(super) fn plausible_device(event: &MemoryEvent) -> Option<DeviceIndex> {
    let end = event.addr.0.checked_add(event.size.0)?;
    let plausible = end <= ADDRESS_LIMIT && are_plausible(event.totals.unwrap_or_default());
    plausible.then_some(event.device).flatten()
}

/// Returns true if both totals are within [`ADDRESS_LIMIT`].
pub(crate) fn are_plausible(totals: Totals) -> bool {
    totals.allocated.0 <= ADDRESS_LIMIT && totals.reserved.0 <= ADDRESS_LIMIT
}

/// Memory allocated before attach and not freed since.
#[derive(Debug, Default)]
struct Baseline {
    /// Bytes whose blocks are unknown.
    unknown: u64,
    /// Bytes and number of the known blocks.
    held: u64,
    blocks: u64,
    /// Frees since attach of blocks that were unknown.
    unseen_frees: u64,
    /// Reason for unknown blocks.
    unread: Option<Arc<str>>,
}

/// Ledger of one device.
#[derive(Debug)]
pub(super) struct Device {
    totals: Totals,
    peak: Totals,
    before: Baseline,
    ooms: u64,
    blocks: Blocks,
    holders: CallSites,
    timeline: Recorder,
}

impl Device {
    /// State of the device just before `event`, the first seen on it.
    pub(super) fn before(event: &MemoryEvent, started: TimeNs) -> Self {
        let totals = event.totals_before();
        Self::with(totals, totals, started)
    }

    /// State of the device as read at attach.
    pub(super) fn found(found: &AtAttach, started: TimeNs) -> Self {
        let mut device = Self::with(found.totals, found.peak, started);
        device.before.unread = found.unread.clone();
        device
    }

    fn with(totals: Totals, peak: Totals, started: TimeNs) -> Self {
        Self {
            totals,
            peak: totals.higher(peak),
            before: Baseline {
                unknown: totals.allocated.0,
                ..Baseline::default()
            },
            ooms: 0,
            blocks: Blocks::default(),
            holders: CallSites::default(),
            timeline: Recorder::new(started, totals),
        }
    }

    /// Bytes of the live block at an address, and the line that allocated it.
    pub(super) fn block_at(&self, addr: Address) -> Option<(Bytes, Option<&Frame>)> {
        let block = self.blocks.at(addr)?;
        let site = match block.owner {
            Owner::Holder(holder) => self.holders.site_of(holder, Grouping::User),
            Owner::BeforeAttach => None,
        };
        Some((block.size, site.and_then(Site::frame)))
    }

    /// Handles an allocation.
    pub(super) fn alloc(
        &mut self,
        event: &MemoryEvent,
        names: &Names,
        budget: &mut Budget,
    ) -> (Applied, Difference) {
        let mut replaced = Vec::new();
        while let Some(stale) = self.blocks.take_overlapping(event.addr, event.size) {
            replaced.push(self.ended(stale));
            budget.give_block_back();
        }
        let holder = self
            .holders
            .holder_of(event.stack, event.tid, names, budget);
        self.holders.count(holder, event.size);
        let is_tracked = budget.take_block();
        if is_tracked {
            self.blocks.insert(Block {
                addr: event.addr,
                size: event.size,
                owner: Owner::Holder(holder),
            });
            self.holders.hold(holder, event.size);
        }
        let expected = self.totals.allocated.0.saturating_add(event.size.0);
        let difference = self.report(event, expected);
        let difference = difference.or_stale(!replaced.is_empty());
        (
            Applied::Alloc {
                replaced,
                is_tracked,
            },
            difference,
        )
    }

    /// Handles a block that was live at attach: moves its bytes from the unknown to the known ones.
    pub(super) fn hold(
        &mut self,
        event: &MemoryEvent,
        budget: &mut Budget,
    ) -> (Applied, Difference) {
        let Some(rest) = self.before.unknown.checked_sub(event.size.0) else {
            return (Applied::Held { is_tracked: false }, Difference::Stale);
        };
        if !self.blocks.is_vacant(event.addr, event.size) {
            return (Applied::Held { is_tracked: false }, Difference::Stale);
        }
        let is_tracked = budget.take_block();
        if is_tracked {
            self.before.unknown = rest;
            self.before.held = self.before.held.saturating_add(event.size.0);
            self.before.blocks = self.before.blocks.saturating_add(1);
            self.blocks.insert(Block {
                addr: event.addr,
                size: event.size,
                owner: Owner::BeforeAttach,
            });
        }
        (Applied::Held { is_tracked }, Difference::None)
    }

    /// Handles a free.
    pub(super) fn free(
        &mut self,
        event: &MemoryEvent,
        budget: &mut Budget,
    ) -> (Applied, Difference) {
        let (freed, stale) = match self.blocks.take(event.addr) {
            Some(block) => {
                budget.give_block_back();
                let ended = self.ended(block);
                let freed = match block.owner {
                    Owner::BeforeAttach => Freed::BeforeAttach,
                    Owner::Holder(_) => Freed::Known {
                        size: ended.size,
                        stack: ended.stack,
                    },
                };
                (freed, ended.size != event.size)
            }
            None => self.free_unknown(event.size.0),
        };
        let expected = self.totals.allocated.0.saturating_sub(event.size.0);
        let difference = self.report(event, expected).or_stale(stale);
        (Applied::Free(freed), difference)
    }

    /// Handles the free of a block that is not in the ledger. If the unaccounted bytes can cover
    /// it, its allocation was missed or refused; otherwise it is from before attach.
    fn free_unknown(&mut self, size: u64) -> (Freed, bool) {
        let missed = u64::try_from(self.unaccounted()).unwrap_or(0);
        if missed >= size && missed > 0 {
            return (Freed::Unknown, false);
        }
        match self.before.unknown.checked_sub(size) {
            Some(rest) => {
                self.before.unknown = rest;
                self.before.unseen_frees = self.before.unseen_frees.saturating_add(1);
                (Freed::BeforeAttach, false)
            }
            None => (Freed::Unknown, true),
        }
    }

    /// Handles an out-of-memory error.
    pub(super) fn out_of_memory(&mut self, event: &MemoryEvent) -> (Applied, Difference) {
        self.ooms = self.ooms.saturating_add(1);
        let difference = self.report(event, self.totals.allocated.0);
        (Applied::OutOfMemory, difference)
    }

    fn ended(&mut self, block: Block) -> Ended {
        let stack = match block.owner {
            Owner::Holder(holder) => {
                self.holders.release(holder, block.size);
                self.holders.stack_of(holder)
            }
            Owner::BeforeAttach => {
                self.before.held = self.before.held.saturating_sub(block.size.0);
                self.before.blocks = self.before.blocks.saturating_sub(1);
                StackId::NONE
            }
        };
        Ended {
            addr: block.addr,
            size: block.size,
            stack,
        }
    }

    /// Adopts the totals of the event; `expected` is the total that follows from the previous ones.
    fn report(&mut self, event: &MemoryEvent, expected: u64) -> Difference {
        let reserved = self.totals.reserved;
        let predicted = Totals {
            allocated: Bytes(expected.min(ADDRESS_LIMIT)),
            reserved,
        };
        self.totals = event.totals.unwrap_or(predicted);
        self.peak = self.peak.higher(self.totals);
        self.timeline.record(event.time, self.totals);
        if self.totals.allocated.0 == expected {
            Difference::None
        } else {
            Difference::Gap
        }
    }

    /// Allocator total minus the bytes that the ledger knows. All terms are below 2^62 (see
    /// [`ADDRESS_LIMIT`]).
    pub(super) fn unaccounted(&self) -> i64 {
        let known = i128::from(self.before.unknown) + i128::from(self.blocks.live());
        let unaccounted = i128::from(self.totals.allocated.0) - known;
        unaccounted.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }

    /// Bytes allocated before attach and not freed since.
    pub(super) fn before_attach(&self) -> Bytes {
        Bytes(self.before.unknown.saturating_add(self.before.held))
    }

    /// State of the device, labelled with `time`.
    pub(super) fn moment(&self, time: TimeNs) -> DeviceTotals {
        DeviceTotals {
            time,
            totals: self.totals,
            before_attach: self.before_attach(),
            unaccounted: self.unaccounted(),
        }
    }

    /// Live blocks, by address.
    pub(super) fn live_blocks(&self, index: DeviceIndex) -> impl Iterator<Item = LiveBlock<'_>> {
        self.blocks.all().map(move |block| LiveBlock {
            device: index,
            addr: block.addr,
            size: block.size,
            origin: match block.owner {
                Owner::BeforeAttach => BlockOrigin::BeforeAttach,
                Owner::Holder(holder) => {
                    let stack = self.holders.stack(holder);
                    stack.map_or(BlockOrigin::Unknown, BlockOrigin::Stack)
                }
            },
        })
    }

    /// Handles a redefinition: `id` now identifies another stack.
    pub(super) fn forget_stack(&mut self, id: StackId) {
        self.holders.forget(id);
    }

    /// Updates the rates.
    pub(super) fn tick(&mut self, interval: Interval) {
        self.holders.tick(interval);
    }

    /// Starts measuring rates.
    pub(super) fn start_rates(&mut self) {
        self.holders.start_rates();
    }

    /// Allocator totals after the last event.
    pub(super) fn totals(&self) -> Totals {
        self.totals
    }

    /// Highest totals, each at its own time.
    pub(super) fn peak(&self) -> Totals {
        self.peak
    }

    /// Call site or "before attach" that holds most, and its bytes.
    pub(super) fn top_holder(&self, grouping: Grouping) -> Option<(Holder, Bytes)> {
        let before = self.before_attach();
        match self.holders.top(grouping) {
            Some((site, live)) if live >= before => Some((Holder::Site(site.clone()), live)),
            _ if before.0 > 0 => Some((Holder::BeforeAttach, before)),
            _ => None,
        }
    }

    /// Snapshot for views.
    pub(super) fn snapshot(
        &self,
        index: DeviceIndex,
        now: TimeNs,
        grouping: Grouping,
    ) -> DeviceSnapshot {
        DeviceSnapshot {
            index,
            totals: self.totals,
            peak: self.peak,
            before_attach: BeforeAttach {
                live: self.before_attach(),
                unknown: Bytes(self.before.unknown),
                known_blocks: self.before.blocks,
                unseen_frees: self.before.unseen_frees,
                unread: self.before.unread.clone(),
            },
            unaccounted: self.unaccounted(),
            live_blocks: self.blocks.len() as u64,
            ooms: self.ooms,
            lines: self.holders.rows(grouping),
            timeline: self.timeline.up_to(now),
        }
    }
}

impl Difference {
    fn or_stale(self, stale: bool) -> Self {
        if self == Self::None && stale {
            Self::Stale
        } else {
            self
        }
    }
}

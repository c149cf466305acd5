//! Ledger of one device, checked against the allocator's totals on every event.

use super::block_store::{BlockStore, LiveBlock};
use super::call_sites::{CallSiteId, CallSites};
use super::change::{Change, Freed};
use super::definitions::{Definitions, StackRef};
use super::growth::{Floor, GrowthRecorder};
use super::keyframe::{BlockKeyframe, DeviceKeyframe, LedgerKeyframe};
use super::snapshot::host::Holder;
use super::snapshot::{BeforeAttach, DeviceSnapshot, Grouping, GrowthRate, TimelineMarks};
use super::timeline::TotalsRecorder;
use std::sync::Arc;

use crate::event::{AtAttach, Bytes, DeviceIndex, MemoryEvent, PurposeId, TimeNs, Totals};

/// Upper bound of block ends and totals (1 EiB). Today's GPUs and processors have addresses of at
/// most 57 bits, so an event beyond it is malformed. Blocks do not overlap, so the bound also holds
/// for their sum: sums and differences fit an `i64`.
pub(crate) const ADDRESS_LIMIT: u64 = 1 << 60;

/// Mismatch between an event and the ledger's expectation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Disagreement {
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

/// Totals of a device at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TotalsSample {
    pub time: TimeNs,
    pub totals: Totals,
    pub before_attach: Bytes,
    /// The allocator's total minus all known bytes; 0 unless events were lost.
    pub unaccounted: i64,
}

impl TotalsSample {
    /// State before the first event of the device, given the state after it.
    pub fn before(self, event: &MemoryEvent) -> Self {
        let totals = event.undo(self.totals);
        Self {
            time: event.time,
            totals,
            before_attach: totals.allocated,
            unaccounted: 0,
        }
    }
}

/// Memory allocated before attach and not freed since.
#[derive(Clone, Debug, Default)]
struct Baseline {
    /// Bytes at attach.
    found: u64,
    /// Bytes whose blocks are unknown.
    unknown: u64,
    /// Bytes and number of the known blocks.
    held: u64,
    blocks: u64,
    /// Frees since attach of blocks that were unknown.
    unseen_frees: u64,
    unread: Option<Arc<str>>,
}

/// Ledger of one device.
#[derive(Clone, Debug)]
pub(super) struct DeviceLedger {
    index: DeviceIndex,
    /// Allocator totals after the last event.
    pub(super) totals: Totals,
    /// Highest totals, each at its own time.
    pub(super) peak: Totals,
    before: Baseline,
    /// True until the first event.
    is_as_found: bool,
    ooms: u64,
    /// Bytes and number of live blocks. The sum cannot overflow, because blocks do not overlap and lie below
    /// [`ADDRESS_LIMIT`].
    live: u64,
    blocks: u64,
    pub(super) call_sites: CallSites,
    timeline: TotalsRecorder,
    floor: Floor,
    growth: GrowthRecorder,
}

impl DeviceLedger {
    /// State of the device just before `event`, the first seen on it.
    pub(super) fn before(index: DeviceIndex, event: &MemoryEvent, started: TimeNs) -> Self {
        let totals = event.totals_before();
        Self::with(index, totals, totals, started)
    }

    /// State of the device as read at attach.
    pub(super) fn found(index: DeviceIndex, found: &AtAttach, started: TimeNs) -> Self {
        let mut device = Self::with(index, found.totals, found.peak, started);
        device.before.unread = found.unread.clone();
        device
    }

    /// Raises the state at attach: a block was missed whose free had begun. A device that has had events keeps its own,
    /// but for a higher peak.
    pub(super) fn correct(&mut self, found: &AtAttach) {
        // A peak that no event showed: the probes were off.
        self.peak = self.peak.higher(found.peak);
        let missed = (found.totals.allocated.0).checked_sub(self.totals.allocated.0);
        if let Some(missed) = missed.filter(|_| self.is_as_found) {
            self.before.unknown = self.before.unknown.saturating_add(missed);
            self.before.found = self.before.found.saturating_add(missed);
            self.set_totals(found.time, found.totals);
        }
    }

    /// Reason why the blocks from before attach are unknown.
    pub(super) fn unread(&self) -> Option<Arc<str>> {
        self.before.unread.clone()
    }

    pub(super) fn with(index: DeviceIndex, totals: Totals, peak: Totals, started: TimeNs) -> Self {
        Self {
            index,
            totals,
            peak: totals.higher(peak),
            before: Baseline {
                found: totals.allocated.0,
                unknown: totals.allocated.0,
                ..Baseline::default()
            },
            is_as_found: true,
            ooms: 0,
            live: 0,
            blocks: 0,
            call_sites: CallSites::default(),
            timeline: TotalsRecorder::new(started, totals),
            floor: Floor::default(),
            growth: GrowthRecorder::default(),
        }
    }

    /// State without the blocks, which the store has.
    pub(super) fn keyframe(&self) -> DeviceKeyframe {
        DeviceKeyframe {
            index: self.index,
            totals: self.totals,
            peak: self.peak,
            found: self.before.found,
            unknown: self.before.unknown,
            unseen_frees: self.before.unseen_frees,
            unread: self.before.unread.clone(),
            is_as_found: self.is_as_found,
            ooms: self.ooms,
            call_sites: self.call_sites.keyframe(),
            blocks: Vec::new(),
        }
    }

    /// Begins with the state of a keyframe. Its timeline begins there.
    pub(super) fn of_keyframe(
        state: &DeviceKeyframe,
        keyframe: &LedgerKeyframe,
        store: &mut BlockStore,
    ) -> Result<Self, &'static str> {
        let are_plausible = are_plausible(state.totals)
            && are_plausible(state.peak)
            && state.found.max(state.unknown) <= ADDRESS_LIMIT;
        if !are_plausible {
            return Err("a keyframe with impossible totals");
        }
        let from = keyframe.last_event.unwrap_or(keyframe.started);
        let mut device = Self {
            before: Baseline {
                found: state.found,
                unknown: state.unknown,
                unseen_frees: state.unseen_frees,
                unread: state.unread.clone(),
                ..Baseline::default()
            },
            is_as_found: state.is_as_found,
            ooms: state.ooms,
            call_sites: CallSites::of_keyframe(&state.call_sites, store)?,
            ..Self::with(state.index, state.totals, state.peak, from)
        };
        for block in &state.blocks {
            device.restore_block(block, store)?;
        }
        Ok(device)
    }

    fn restore_block(
        &mut self,
        block: &BlockKeyframe,
        store: &mut BlockStore,
    ) -> Result<(), &'static str> {
        let end = block.addr.0.checked_add(block.size.0);
        let is_plausible = end.is_some_and(|end| end <= ADDRESS_LIMIT);
        if !is_plausible || !store.is_vacant(self.index, block.addr, block.size) {
            return Err("a keyframe with impossible blocks");
        }
        let call_site = block.call_site.map(|place| self.call_sites.at(place));
        let call_site = call_site.transpose()?;
        let id = store.add(LiveBlock {
            addr: block.addr,
            size: block.size,
            stack: store.definitions.numbered(block.stack)?,
            purpose: block.purpose,
            call_site: None,
            device: self.index,
            is_baseline: call_site.is_none(),
        });
        if !store.track(id, call_site) {
            return Err("a keyframe with too many blocks");
        }
        self.begin(block.size);
        match call_site {
            Some(call_site) => self.call_sites.restore_block(call_site, block.size),
            None => {
                self.before.held = self.before.held.saturating_add(block.size.0);
                self.before.blocks = self.before.blocks.saturating_add(1);
            }
        }
        Ok(())
    }

    pub(super) fn alloc(
        &mut self,
        event: &MemoryEvent,
        store: &mut BlockStore,
    ) -> (Change, Disagreement) {
        let stack = store.definitions.stack_ref(event.stack);
        let block = LiveBlock {
            addr: event.addr,
            size: event.size,
            stack,
            purpose: event.shape,
            call_site: None,
            device: self.index,
            is_baseline: false,
        };
        let id = store.add(block);
        let mut replaced = Vec::new();
        while let Some(stale) = store.take_overlapping(self.index, event.addr, event.size) {
            let LiveBlock {
                size, call_site, ..
            } = *store.get(stale);
            self.end(size, call_site);
            replaced.push(stale);
        }
        let call_site = self.call_sites.of(stack, event.tid, store);
        let is_tracked = store.track(id, Some(call_site));
        self.call_sites.count(call_site, event.size, is_tracked);
        if is_tracked {
            self.begin(event.size);
        }
        let expected = self.totals.allocated.0.saturating_add(event.size.0);
        let difference = self.report(event, expected);
        let difference = difference.or_stale(!replaced.is_empty());
        let change = Change::Allocated {
            block: id,
            is_tracked,
            replaced,
        };
        (change, difference)
    }

    /// Handles a block that was live at attach: moves its bytes from the unknown to the known ones.
    pub(super) fn hold(
        &mut self,
        event: &MemoryEvent,
        store: &mut BlockStore,
    ) -> (Change, Disagreement) {
        let Some(rest) = self.before.unknown.checked_sub(event.size.0) else {
            return (Change::Held(None), Disagreement::Stale);
        };
        if !store.is_vacant(self.index, event.addr, event.size) {
            return (Change::Held(None), Disagreement::Stale);
        }
        let block = LiveBlock {
            addr: event.addr,
            size: event.size,
            stack: StackRef::UNKNOWN,
            purpose: PurposeId::NONE,
            call_site: None,
            device: self.index,
            is_baseline: true,
        };
        let id = store.add(block);
        let is_tracked = store.track(id, None);
        if is_tracked {
            self.before.unknown = rest;
            self.before.held = self.before.held.saturating_add(event.size.0);
            self.before.blocks = self.before.blocks.saturating_add(1);
            self.begin(event.size);
        }
        (Change::Held(is_tracked.then_some(id)), Disagreement::None)
    }

    pub(super) fn free(
        &mut self,
        event: &MemoryEvent,
        store: &mut BlockStore,
    ) -> (Change, Disagreement) {
        let (freed, stale) = match store.take(self.index, event.addr) {
            Some(id) => {
                let block = store.get(id);
                self.end(block.size, block.call_site);
                let freed = match block.call_site {
                    None => Freed::BeforeAttach(Some(id)),
                    Some(_) => Freed::Known(id),
                };
                (freed, block.size != event.size)
            }
            None => self.free_unknown(event.size.0),
        };
        let expected = self.totals.allocated.0.saturating_sub(event.size.0);
        let difference = self.report(event, expected).or_stale(stale);
        (Change::Freed(freed), difference)
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
                (Freed::BeforeAttach(None), false)
            }
            None => (Freed::Unknown, true),
        }
    }

    pub(super) fn out_of_memory(&mut self, event: &MemoryEvent) -> (Change, Disagreement) {
        self.ooms = self.ooms.saturating_add(1);
        let difference = self.report(event, self.totals.allocated.0);
        self.timeline.mark(event.time, TimelineMarks::of_ooms(1));
        (Change::OutOfMemory, difference)
    }

    pub(super) fn begin(&mut self, size: Bytes) {
        self.live = self.live.saturating_add(size.0);
        self.blocks += 1;
    }

    pub(super) fn end(&mut self, size: Bytes, call_site: Option<CallSiteId>) {
        self.live = self.live.saturating_sub(size.0);
        self.blocks = self.blocks.saturating_sub(1);
        match call_site {
            Some(call_site) => self.call_sites.release(call_site, size),
            None => {
                self.before.held = self.before.held.saturating_sub(size.0);
                self.before.blocks = self.before.blocks.saturating_sub(1);
            }
        }
    }

    /// Adopts the totals of the event; `expected` is the total that follows from the previous ones.
    fn report(&mut self, event: &MemoryEvent, expected: u64) -> Disagreement {
        self.is_as_found = false;
        let predicted = Totals {
            allocated: Bytes(expected.min(ADDRESS_LIMIT)),
            reserved: self.totals.reserved,
        };
        self.set_totals(event.time, event.totals.unwrap_or(predicted));
        if self.totals.allocated.0 == expected {
            Disagreement::None
        } else {
            Disagreement::Gap
        }
    }

    /// Totals of an allocator that reserves what is live.
    pub(super) fn live_totals(&self) -> Totals {
        let live = Bytes(self.live);
        Totals {
            allocated: live,
            reserved: live,
        }
    }

    /// Sets the totals from `time` on.
    pub(super) fn set_totals(&mut self, time: TimeNs, totals: Totals) {
        self.totals = totals;
        self.peak = self.peak.higher(totals);
        self.timeline.record(time, totals);
        self.floor.lower_to(totals.allocated.0);
    }

    /// Begins with the timeline of an earlier state.
    pub(super) fn continue_timeline(&mut self, timeline: TotalsRecorder) {
        self.timeline = timeline;
    }

    /// Marks a moment in the timeline.
    pub(super) fn mark(&mut self, time: TimeNs, marks: TimelineMarks) {
        self.timeline.mark(time, marks);
    }

    pub(super) fn tick_growth(&mut self, now: TimeNs) {
        let allocated = self.totals.allocated.0;
        self.growth.tick(now, allocated, &mut self.floor);
    }

    /// Growth of the allocator's total.
    pub(super) fn growth(&self) -> Option<GrowthRate> {
        self.growth.growth()
    }

    /// Span of time that [`Self::growth`] covers.
    pub(super) fn growth_span(&self) -> Option<(TimeNs, TimeNs)> {
        self.growth.span()
    }

    /// Forgets the peak and growth.
    pub(super) fn reset_peak(&mut self) {
        self.peak = self.totals;
        self.before.found = self.before_attach().0;
        self.growth = GrowthRecorder::default();
    }

    /// Allocator total minus the bytes that the ledger knows. All terms are below 2^62 (see
    /// [`ADDRESS_LIMIT`]).
    pub(super) fn unaccounted(&self) -> i64 {
        let known = i128::from(self.before.unknown) + i128::from(self.live);
        let unaccounted = i128::from(self.totals.allocated.0) - known;
        unaccounted.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }

    /// Bytes allocated before attach and not freed since.
    pub(super) fn before_attach(&self) -> Bytes {
        Bytes(self.before.unknown.saturating_add(self.before.held))
    }

    /// Bytes of the blocks that are known from before attach, and live.
    pub(super) fn held_before_attach(&self) -> Bytes {
        Bytes(self.before.held)
    }

    /// State of the device, labelled with `time`.
    pub(super) fn moment(&self, time: TimeNs) -> TotalsSample {
        TotalsSample {
            time,
            totals: self.totals,
            before_attach: self.before_attach(),
            unaccounted: self.unaccounted(),
        }
    }

    /// Call site or "before attach" that holds most, and its bytes.
    pub(super) fn top_holder(
        &self,
        grouping: Grouping,
        definitions: &Definitions,
    ) -> Option<(Holder, Bytes)> {
        let before = self.before_attach();
        match self.call_sites.top(grouping) {
            Some((site, live)) if live >= before => {
                let site = definitions.site(site, grouping).clone();
                Some((Holder::Site(site), live))
            }
            _ if before.0 > 0 => Some((Holder::BeforeAttach, before)),
            _ => None,
        }
    }

    pub(super) fn snapshot(
        &self,
        now: TimeNs,
        grouping: Grouping,
        definitions: &Definitions,
    ) -> DeviceSnapshot {
        DeviceSnapshot {
            index: self.index,
            totals: self.totals,
            peak: self.peak,
            before_attach: BeforeAttach {
                live: self.before_attach(),
                peak: Bytes(self.before.found),
                unknown: Bytes(self.before.unknown),
                known_blocks: self.before.blocks,
                unseen_frees: self.before.unseen_frees,
                unread: self.before.unread.clone(),
                is_being_read: false,
                labeled: None,
                groups: Vec::new(),
            },
            unaccounted: self.unaccounted(),
            live_blocks: self.blocks,
            ooms: self.ooms,
            growth: self.growth(),
            iterations_per_minute: None,
            lines: self.call_sites.rows(grouping, definitions),
            timeline: self.timeline.up_to(now),
        }
    }
}

impl Disagreement {
    fn or_stale(self, stale: bool) -> Self {
        if self == Self::None && stale {
            Self::Stale
        } else {
            self
        }
    }
}

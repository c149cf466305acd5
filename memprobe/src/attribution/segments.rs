//! The allocator's segments as a map: live blocks from the ledger, the rest from readings of the allocator's tables.
//!
//! A reading gives each segment its pool, stream and extent, and the blocks that await an event. Events keep the map in
//! between: blocks come and go, segments of `cudaMalloc` too, whose pool and stream are unknown until the next reading.
//! Where no block is live, a segment is free. The allocator always joins adjacent free blocks
//! (`DeviceCachingAllocator::free_block`, c10/cuda/CUDACachingAllocator.cpp@v2.0.0 to @v2.15.0), so that each gap is one
//! free block. Events do not say that a freed block awaits an event: it counts as free until the next reading.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::event::{
    Action, Address, Bytes, DeviceIndex, Event, MemoryEvent, MemorySegment, Pool, PoolOwner,
    PoolSize, PrivatePoolState, SegmentReading, TimeNs, Totals,
};
use crate::ledger::snapshot::{Grouping, Snapshot};
use crate::ledger::{Analysis, AnalyzedLedger, Change, CopySize, Ledger};

/// Cap on segments of all devices.
const MAX_SEGMENTS: usize = 1 << 20;

/// Bytes that an expandable segment maps and unmaps at once (`kSmallBuffer` and `kLargeBuffer`,
/// c10/core/AllocatorConfig.h@v2.9.0).
const SMALL_PAGE: u64 = 2 << 20;
const LARGE_PAGE: u64 = 20 << 20;

/// Segments of a process, updated by each event.
#[derive(Clone, Debug, Default)]
pub struct SegmentLedger {
    devices: BTreeMap<DeviceIndex, DeviceSegmentState>,
    unread: Option<Arc<str>>,
    /// Segments of `cudaMalloc` that events announced, counted from the first.
    announced: u64,
    /// Pool and stream of announced segments that a later reading found, by their number.
    facts: BTreeMap<u64, (Pool, u64)>,
}

#[derive(Clone, Debug, Default)]
struct DeviceSegmentState {
    segments: BTreeMap<u64, KnownSegment>,
    /// Freed blocks that await an event, by address.
    awaiting: BTreeMap<u64, u64>,
    read: Option<TimeNs>,
    active: Bytes,
    requested: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KnownSegment {
    size: u64,
    /// Pool and stream; `None` for a segment that came after the last reading.
    owner: Option<(Pool, u64)>,
    expandable: Option<Address>,
    announced: Option<u64>,
}

/// Addresses of a segment, and what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentExtent {
    pub addr: Address,
    pub size: Bytes,
    /// Pool and stream; `None` if the allocator's tables were not read since it came.
    pub owner: Option<(Pool, u64)>,
    pub is_expandable: bool,
}

/// Segments of a device at a moment. `unplaced` is what the allocator has reserved beyond them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentMap {
    pub index: DeviceIndex,
    pub totals: Totals,
    /// Time of the last reading; `None` before the first.
    pub read: Option<TimeNs>,
    /// The reason why the allocator's tables could not be read.
    pub unread: Option<Arc<str>>,
    /// Bytes requested in active blocks at the last reading.
    pub requested: Option<Bytes>,
    /// Bytes of active blocks at the last reading.
    pub active: Option<Bytes>,
    /// `reserved` minus the sizes of all segments here: not 0 if segments changed since the last reading.
    pub unplaced: i64,
    /// Live bytes outside the segments here.
    pub outside: Bytes,
    /// By address.
    pub segments: Vec<SegmentRow>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentRow {
    pub addr: Address,
    pub size: Bytes,
    /// `None` if the allocator's tables were not read since it came.
    pub pool: Option<Pool>,
    pub stream: Option<u64>,
    pub is_expandable: bool,
    /// All blocks, by address.
    pub pieces: Vec<SegmentBlock>,
    /// Bytes that `torch.cuda.empty_cache()` would return.
    pub returnable: Bytes,
}

/// A block, as `torch.cuda.memory_snapshot()` lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentBlock {
    pub addr: Address,
    pub size: Bytes,
    pub state: SegmentBlockState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum SegmentBlockState {
    Live,
    /// Freed, but another stream may still use it.
    AwaitingEvent,
    /// Free, in a segment or mapped range that could be returned.
    Cached,
    /// Free beside blocks in use: the segment cannot be returned.
    InactiveSplit,
}

impl SegmentBlockState {
    pub const ALL: [Self; 4] = [
        Self::Live,
        Self::AwaitingEvent,
        Self::Cached,
        Self::InactiveSplit,
    ];

    /// True for memory that a request can get.
    pub const fn is_free(self) -> bool {
        matches!(self, Self::Cached | Self::InactiveSplit)
    }
}

impl SegmentRow {
    pub fn bytes(&self, state: SegmentBlockState) -> Bytes {
        let pieces = self.pieces.iter().filter(|piece| piece.state == state);
        Bytes(pieces.map(|piece| piece.size.0).sum())
    }

    pub fn free(&self) -> impl Iterator<Item = Bytes> {
        let free = self.pieces.iter().filter(|piece| piece.state.is_free());
        free.map(|piece| piece.size)
    }

    pub fn largest_free(&self) -> Bytes {
        self.free().max().unwrap_or_default()
    }

    pub fn live_blocks(&self) -> u64 {
        let live = self.pieces.iter();
        live.filter(|piece| piece.state == SegmentBlockState::Live)
            .count() as u64
    }
}

impl SegmentMap {
    /// Bytes that the allocator had added to the requests of active blocks at the last reading.
    pub fn rounding(&self) -> Option<Bytes> {
        let (active, requested) = (self.active?, self.requested?);
        Some(Bytes(active.0.saturating_sub(requested.0)))
    }

    pub fn bytes(&self, state: SegmentBlockState) -> Bytes {
        Bytes(self.segments.iter().map(|row| row.bytes(state).0).sum())
    }

    pub fn returnable(&self) -> Bytes {
        Bytes(self.segments.iter().map(|row| row.returnable.0).sum())
    }
}

impl SegmentLedger {
    /// A ledger that knows the pools of segments from an earlier replay of the same events.
    pub fn with_facts_of(earlier: &Self) -> Self {
        Self {
            facts: earlier.facts.clone(),
            ..Self::default()
        }
    }

    /// Starts from the last reading that a ledger has.
    pub fn late(ledger: &Ledger) -> Self {
        let mut late = Self::default();
        if let Some(reading) = ledger.last_segments() {
            late.read(reading);
        }
        late
    }

    /// Pool and stream of the segment at an address; `None` if they or the segment are not known.
    pub fn owner_at(&self, device: DeviceIndex, addr: Address) -> Option<(Pool, u64)> {
        let segments = &self.devices.get(&device)?.segments;
        let (start, segment) = segments.range(..=addr.0).next_back()?;
        let is_inside = addr.0 - start < segment.size;
        segment.owner.filter(|_| is_inside)
    }

    /// Extents of the segments of a device now, by address.
    pub fn extents(&self, device: DeviceIndex) -> impl Iterator<Item = SegmentExtent> {
        let segments = self.devices.get(&device).map(|state| &state.segments);
        let segments = segments.into_iter().flatten();
        segments.map(|(addr, segment)| SegmentExtent::of(*addr, segment))
    }

    /// Extent of the segment that begins at an address.
    pub fn extent_at(&self, device: DeviceIndex, addr: Address) -> Option<SegmentExtent> {
        let segment = self.devices.get(&device)?.segments.get(&addr.0)?;
        Some(SegmentExtent::of(addr.0, segment))
    }

    fn read(&mut self, reading: &SegmentReading) {
        self.unread.clone_from(&reading.unread);
        for device in &reading.devices {
            let state = self.devices.entry(device.device).or_default();
            let known = std::mem::take(&mut state.segments);
            let segments = device.segments.iter().take(MAX_SEGMENTS);
            state.segments = segments
                .map(|segment| (segment.addr.0, KnownSegment::read(segment, &known)))
                .collect();
            for segment in state.segments.values() {
                if let (Some(number), Some(owner)) = (segment.announced, segment.owner) {
                    self.facts.insert(number, owner);
                }
            }
            state.awaiting = device
                .awaiting
                .iter()
                .map(|(addr, size)| (addr.0, size.0))
                .collect();
            state.read = Some(reading.time);
            state.active = device.active;
            state.requested = device.requested;
        }
    }

    fn memory(&mut self, event: &MemoryEvent) {
        let Some(index) = event.device else { return };
        let has_address = |event: &MemoryEvent| !event.is_of_expandable_segment();
        match event.action {
            Action::SegmentAlloc if has_address(event) => {
                let number = self.announced;
                self.announced += 1;
                let count: usize = self.devices.values().map(|it| it.segments.len()).sum();
                let state = self.devices.entry(index).or_default();
                if count < MAX_SEGMENTS {
                    let segment = KnownSegment {
                        size: event.size.0,
                        owner: self.facts.get(&number).copied(),
                        expandable: None,
                        announced: Some(number),
                    };
                    state.segments.insert(event.addr.0, segment);
                }
            }
            Action::SegmentFree if has_address(event) => {
                if let Some(state) = self.devices.get_mut(&index) {
                    state.segments.remove(&event.addr.0);
                    let end = event.addr.0.saturating_add(event.size.0);
                    state
                        .awaiting
                        .retain(|addr, _| !(event.addr.0..end).contains(addr));
                }
            }
            Action::Alloc => {
                let state = self.devices.get_mut(&index);
                let state = state.filter(|state| !state.awaiting.is_empty());
                if let Some(state) = state {
                    let end = event.addr.0.saturating_add(event.size.0);
                    let before = state.awaiting.range(..end).next_back();
                    let reused = before.filter(|(addr, size)| *addr + *size > event.addr.0);
                    if let Some(addr) = reused.map(|(addr, _)| *addr) {
                        state.awaiting.remove(&addr);
                    }
                }
            }
            _ => {}
        }
    }

    /// The map of each device, at the moment of a snapshot of the ledger.
    pub fn maps(&self, ledger: &Ledger, snapshot: &Snapshot) -> Vec<SegmentMap> {
        let mut live: BTreeMap<DeviceIndex, Vec<(u64, u64)>> = BTreeMap::new();
        for (_, block) in ledger.blocks() {
            let blocks = live.entry(block.device).or_default();
            blocks.push((block.addr.0, block.size.0));
        }
        let devices = snapshot.devices.iter();
        let devices = devices.filter(|device| device.index != DeviceIndex::CPU);
        let maps = devices.filter_map(|device| {
            let none = DeviceSegmentState::default();
            let state = self.devices.get(&device.index);
            if state.is_none() && self.unread.is_none() {
                return None;
            }
            let blocks = live.get(&device.index).map_or(&[][..], Vec::as_slice);
            let mut map = state.unwrap_or(&none).map(blocks, device.totals);
            map.index = device.index;
            map.unread.clone_from(&self.unread);
            Some(map)
        });
        maps.collect()
    }
}

impl CopySize for SegmentLedger {
    fn copy_bytes(&self) -> u64 {
        let devices = self.devices.values();
        let entries = devices.map(|device| device.segments.len() + device.awaiting.len());
        let entry = size_of::<(u64, KnownSegment)>();
        ((entries.sum::<usize>() + self.facts.len()) * entry) as u64
    }
}

impl Analysis for SegmentLedger {
    fn apply(&mut self, event: &Event, _change: &Change, _ledger: &Ledger) {
        match event {
            Event::Segments(reading) => self.read(reading),
            Event::Memory(memory) => self.memory(memory),
            _ => {}
        }
    }
}

impl SegmentExtent {
    fn of(addr: u64, segment: &KnownSegment) -> Self {
        Self {
            addr: Address(addr),
            size: Bytes(segment.size),
            owner: segment.owner,
            is_expandable: segment.expandable.is_some(),
        }
    }
}

impl KnownSegment {
    fn read(segment: &MemorySegment, known: &BTreeMap<u64, Self>) -> Self {
        let before = known.get(&segment.addr.0);
        let before = before.filter(|before| before.size == segment.size.0);
        Self {
            size: segment.size.0,
            owner: Some((segment.pool, segment.stream)),
            expandable: segment.expandable,
            announced: before.and_then(|before| before.announced),
        }
    }

    /// True if `empty_cache()` returns free memory of this segment: not that of a private pool in use
    /// (`DeviceCachingAllocator::release_cached_blocks`, c10/cuda/CUDACachingAllocator.cpp@v2.15.0).
    fn is_releasable(&self) -> bool {
        match self.owner.map(|(pool, _)| pool.owner) {
            Some(PoolOwner::Private { state, .. }) => state == PrivatePoolState::Freeable,
            Some(PoolOwner::Default) | None => true,
        }
    }

    /// Bytes of whole pages between two addresses.
    fn pages(&self, from: u64, to: u64) -> u64 {
        let Some(base) = self.expandable else {
            return 0;
        };
        let page = match self.owner.map(|(pool, _)| pool.size) {
            Some(PoolSize::Small) => SMALL_PAGE,
            _ => LARGE_PAGE,
        };
        let first = from.saturating_sub(base.0).div_ceil(page);
        let end = to.saturating_sub(base.0) / page;
        end.saturating_sub(first) * page
    }
}

impl DeviceSegmentState {
    /// Divides the segments by live blocks, which are sorted by address.
    fn map(&self, live: &[(u64, u64)], totals: Totals) -> SegmentMap {
        let mut used: Vec<(u64, u64, SegmentBlockState)> = live
            .iter()
            .map(|(addr, size)| (*addr, *size, SegmentBlockState::Live))
            .collect();
        let awaiting = self.awaiting.iter();
        used.extend(awaiting.map(|(addr, size)| (*addr, *size, SegmentBlockState::AwaitingEvent)));
        used.sort_unstable();
        let mut rest = used.as_slice();
        let mut outside = 0;
        let mut rows = Vec::with_capacity(self.segments.len());
        for (addr, segment) in &self.segments {
            let before = rest.partition_point(|(at, ..)| at < addr);
            outside += live_bytes(&rest[..before]);
            let end = addr.saturating_add(segment.size);
            let inside = rest[before..].partition_point(|(at, ..)| *at < end);
            rows.push(segment.row(*addr, &rest[before..before + inside]));
            rest = &rest[before + inside..];
        }
        outside += live_bytes(rest);
        let placed: u64 = self.segments.values().map(|segment| segment.size).sum();
        SegmentMap {
            index: DeviceIndex::UNKNOWN,
            totals,
            read: self.read,
            unread: None,
            requested: self.read.map(|_| self.requested),
            active: self.read.map(|_| self.active),
            unplaced: totals
                .reserved
                .0
                .cast_signed()
                .wrapping_sub(placed.cast_signed()),
            outside: Bytes(outside),
            segments: rows,
        }
    }
}

fn live_bytes(pieces: &[(u64, u64, SegmentBlockState)]) -> u64 {
    let live = pieces
        .iter()
        .filter(|(.., state)| *state == SegmentBlockState::Live);
    live.map(|(_, size, _)| size).sum()
}

impl KnownSegment {
    /// `used` are its blocks in use, by address.
    fn row(&self, addr: u64, used: &[(u64, u64, SegmentBlockState)]) -> SegmentRow {
        let end = addr.saturating_add(self.size);
        let free = if used.is_empty() || self.expandable.is_some() {
            SegmentBlockState::Cached
        } else {
            SegmentBlockState::InactiveSplit
        };
        let mut pieces = Vec::with_capacity(used.len() * 2 + 1);
        let mut push = |from: u64, to: u64, state: SegmentBlockState| {
            if from < to {
                pieces.push(SegmentBlock {
                    addr: Address(from),
                    size: Bytes(to - from),
                    state,
                });
            }
        };
        let mut next = addr;
        for (at, size, state) in used {
            let (at, until) = ((*at).max(next), at.saturating_add(*size).min(end));
            push(next, at, free);
            push(at, until, *state);
            next = next.max(until);
        }
        push(next, end, free);
        SegmentRow {
            addr: Address(addr),
            size: Bytes(self.size),
            pool: self.owner.map(|(pool, _)| pool),
            stream: self.owner.map(|(_, stream)| stream),
            is_expandable: self.expandable.is_some(),
            returnable: self.returnable(&pieces),
            pieces,
        }
    }

    /// Bytes that `empty_cache()` would return. It waits for the events of freed blocks first.
    fn returnable(&self, pieces: &[SegmentBlock]) -> Bytes {
        if !self.is_releasable() {
            return Bytes(0);
        }
        let mut returned = 0;
        let runs = pieces.chunk_by(|one, other| {
            (one.state == SegmentBlockState::Live) == (other.state == SegmentBlockState::Live)
        });
        for run in runs {
            let [first, .., last] = run else {
                let [only] = run else { continue };
                returned += self.returnable_run(only.addr.0, only.addr.0 + only.size.0, only.state);
                continue;
            };
            returned += self.returnable_run(first.addr.0, last.addr.0 + last.size.0, first.state);
        }
        Bytes(returned)
    }

    fn returnable_run(&self, from: u64, to: u64, state: SegmentBlockState) -> u64 {
        match self.expandable {
            _ if state == SegmentBlockState::Live => 0,
            Some(_) => self.pages(from, to),
            None if to - from == self.size => self.size,
            None => 0,
        }
    }
}

/// The maps of a replayed recording, and the time of its last event.
pub fn maps_of(played: &AnalyzedLedger<SegmentLedger>) -> (Option<TimeNs>, Vec<SegmentMap>) {
    let last = played.ledger.last_event();
    let now = last.unwrap_or_default();
    let snapshot = played.ledger.snapshot(now, Grouping::default());
    (last, played.analyses.maps(&played.ledger, &snapshot))
}

/// Moments of a recording at which its segments matter, as numbers of its events.
#[derive(Clone, Debug, Default)]
pub struct SegmentMoments {
    events: u64,
    allocated: BTreeMap<DeviceIndex, u64>,
    most: u64,
    /// The highest allocated bytes of all devices together.
    pub peak: Option<u64>,
    /// The last out-of-memory error.
    pub out_of_memory: Option<u64>,
}

impl Analysis for SegmentMoments {
    fn apply(&mut self, event: &Event, _change: &Change, _ledger: &Ledger) {
        self.events += 1;
        let Event::Memory(memory) = event else { return };
        if memory.action == Action::OutOfMemory {
            self.out_of_memory = Some(self.events);
        }
        let device = memory.device.filter(|device| *device != DeviceIndex::CPU);
        // Blocks from before attach come one by one, with the totals of all.
        if let (Some(device), Some(totals), false) =
            (device, memory.totals, memory.action == Action::Held)
        {
            self.allocated.insert(device, totals.allocated.0);
            let all: u64 = self.allocated.values().sum();
            if all > self.most {
                self.most = all;
                self.peak = Some(self.events);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;

//! Addresses to which libraries map physical memory (`cuMemMap`), and the segments among them.
//!
//! vLLM's sleep mode and torch_memory_saver release the memory of a segment, keep its addresses, and map new memory
//! there later. The allocator does not notice. A segment that sleeps is gone only with its addresses.

use std::collections::{BTreeMap, VecDeque};

use hashbrown::HashMap;

use crate::event::{Action, Address, Bytes, CudaCall, CudaMemoryKind, DeviceIndex, MemoryEvent};
use crate::event::{SegmentReading, Tid};

/// Most ranges that are followed.
const MAX_RANGES: usize = 1 << 20;

/// Most unmapped ranges whose memory may be released next.
const MAX_UNMAPPED: usize = 1024;

#[derive(Default)]
pub(super) struct MappedRanges {
    /// By address. Ranges do not overlap.
    ranges: BTreeMap<u64, MappedRange>,
    /// Address by handle.
    by_handle: HashMap<u64, u64>,
    /// Segments of the allocator at its last reading: size and device by address.
    segments: BTreeMap<u64, (u64, DeviceIndex)>,
    /// Ranges from before attach that a thread has just unmapped.
    unmapped: VecDeque<(Tid, u64, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct MappedRange {
    size: u64,
    state: RangeState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RangeState {
    /// Memory of this handle, which no segment has claimed.
    Foreign(u64),
    /// Memory of a segment.
    Backs(Option<DeviceIndex>),
    /// Addresses of a segment without memory.
    Asleep(Option<DeviceIndex>),
}

impl MappedRanges {
    /// Records that memory is mapped. Returns the device of the segment that it wakes, if it does.
    pub(super) fn map(&mut self, handle: u64, addr: u64, size: u64) -> Option<Option<DeviceIndex>> {
        let inside = self.inside(addr, size);
        let asleep = inside
            .iter()
            .find_map(|at| match self.ranges.get(at)?.state {
                RangeState::Asleep(device) => Some(device),
                _ => None,
            });
        let woken = asleep.or_else(|| self.segment_at(addr, size).map(Some));
        for at in inside {
            self.ranges.remove(&at);
        }
        if self.ranges.len() < MAX_RANGES {
            let state = match woken {
                Some(device) => RangeState::Backs(device),
                None => RangeState::Foreign(handle),
            };
            self.ranges.insert(addr, MappedRange { size, state });
            self.by_handle.insert(handle, addr);
        }
        woken
    }

    /// Records that the memory at an address belongs to a segment.
    pub(super) fn back(&mut self, addr: u64, device: Option<DeviceIndex>) {
        if let Some(range) = self.ranges.get_mut(&addr) {
            range.state = RangeState::Backs(device);
        }
    }

    /// Unclaimed memory at these addresses: address and handle.
    pub(super) fn claimed_by(&self, addr: u64, size: u64) -> Vec<(u64, u64)> {
        if self.by_handle.is_empty() {
            return Vec::new();
        }
        let foreign = |at: &u64| match self.ranges.get(at)?.state {
            RangeState::Foreign(handle) => Some((*at, handle)),
            _ => None,
        };
        self.inside(addr, size).iter().filter_map(foreign).collect()
    }

    /// Records that no address leads to memory any more that is still held. A segment keeps it until it is released.
    pub(super) fn unmap(&mut self, addr: u64) {
        if let Some(MappedRange {
            state: RangeState::Foreign(handle),
            ..
        }) = self.ranges.get(&addr).copied()
        {
            self.ranges.remove(&addr);
            self.by_handle.remove(&handle);
        }
    }

    /// Records that memory was released. The segment that it backs falls asleep: `event` says so.
    pub(super) fn release(&mut self, handle: u64, is_segment: bool, event: &mut MemoryEvent) {
        let Some(addr) = self.by_handle.remove(&handle) else {
            return;
        };
        match self.ranges.get_mut(&addr) {
            Some(range) if is_segment => {
                range.state = RangeState::Asleep(event.device);
                event.action = Action::SegmentSleep;
                event.addr = Address(addr);
            }
            Some(_) => _ = self.ranges.remove(&addr),
            None => {}
        }
    }

    /// Notes that a thread unmapped addresses that were mapped before attach.
    pub(super) fn note_unmap(&mut self, tid: Tid, addr: u64, size: u64) {
        if self.segment_at(addr, size).is_none() {
            return;
        }
        if self.unmapped.len() >= MAX_UNMAPPED {
            self.unmapped.pop_front();
        }
        self.unmapped.push_back((tid, addr, size));
    }

    /// Completes the event of a release: the segment that the thread has unmapped falls asleep. Returns false if there
    /// is none.
    pub(super) fn release_unknown(&mut self, event: &mut MemoryEvent) -> bool {
        let mut unmapped = self.unmapped.iter();
        let at = unmapped.position(|(tid, ..)| *tid == event.tid);
        let Some((_, addr, size)) = at.and_then(|at| self.unmapped.remove(at)) else {
            return false;
        };
        let Some(device) = self.segment_at(addr, size) else {
            return false;
        };
        let state = RangeState::Asleep(Some(device));
        self.ranges.insert(addr, MappedRange { size, state });
        *event = MemoryEvent {
            action: Action::SegmentSleep,
            addr: Address(addr),
            size: Bytes(size),
            device: Some(device),
            call: event.call.map(|call| CudaCall {
                space: CudaMemoryKind::Virtual,
                ..call
            }),
            ..*event
        };
        true
    }

    /// Removes the segments that sleep at addresses which are given back. Returns their address, size and device.
    pub(super) fn free_addresses(
        &mut self,
        addr: u64,
        size: u64,
    ) -> Vec<(u64, u64, Option<DeviceIndex>)> {
        let end = addr.saturating_add(size);
        let is_inside = |at: u64| (addr..end).contains(&at);
        self.unmapped.retain(|(_, at, _)| !is_inside(*at));
        self.segments.retain(|at, _| !is_inside(*at));
        let mut gone = Vec::new();
        for at in self.inside(addr, size) {
            if let Some(range) = self.ranges.get(&at).copied()
                && let RangeState::Asleep(device) = range.state
                && is_inside(at)
            {
                self.ranges.remove(&at);
                gone.push((at, range.size, device));
            }
        }
        gone
    }

    /// Takes the allocator's own list of segments. What sleeps elsewhere is none of its segments any more.
    pub(super) fn read(&mut self, reading: &SegmentReading) {
        if reading.unread.is_some() {
            return;
        }
        let segments = reading.devices.iter().flat_map(|device| {
            let all = device.segments.iter();
            all.map(|segment| (segment.addr.0, (segment.size.0, device.device)))
        });
        self.segments = segments.collect();
        let segments = &self.segments;
        self.ranges.retain(|addr, range| {
            let is_asleep = matches!(range.state, RangeState::Asleep(_));
            !is_asleep || overlapping(segments, *addr, range.size).is_some()
        });
    }

    /// Forgets a segment that the allocator has freed.
    pub(super) fn forget_segment(&mut self, addr: u64) {
        self.segments.remove(&addr);
    }

    /// Device of the allocator's segment at addresses.
    fn segment_at(&self, addr: u64, size: u64) -> Option<DeviceIndex> {
        overlapping(&self.segments, addr, size)
    }

    /// Begins of the ranges that reach into addresses.
    fn inside(&self, addr: u64, size: u64) -> Vec<u64> {
        let end = addr.saturating_add(size.max(1));
        let before = self.ranges.range(..addr).next_back();
        let before = before.filter(|(at, range)| at.saturating_add(range.size) > addr);
        let inside = self.ranges.range(addr..end);
        before
            .into_iter()
            .chain(inside)
            .map(|(at, _)| *at)
            .collect()
    }
}

fn overlapping(
    segments: &BTreeMap<u64, (u64, DeviceIndex)>,
    addr: u64,
    size: u64,
) -> Option<DeviceIndex> {
    let end = addr.saturating_add(size.max(1));
    let (at, (size, device)) = segments.range(..end).next_back()?;
    (at.saturating_add(*size) > addr).then_some(*device)
}

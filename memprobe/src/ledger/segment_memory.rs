//! Memory behind the caching allocator's segments, as far as events announced it.
//!
//! `reserved` counts segments whose memory was given back behind the allocator's back, as vLLM's sleep mode does. They
//! stay here, asleep, until they wake, are freed, or are missing from the allocator's own list.

use std::collections::BTreeMap;

use super::definitions::StackRef;
use crate::event::{
    Action, Address, Bytes, CudaMemoryKind, DeviceIndex, MAX_TAGS, MemoryEvent, SegmentReading,
    TaggedAllocation,
};

/// Cap on segments; later ones are not tracked.
const MAX_SEGMENTS: usize = 1 << 20;

/// Memory of a segment, or of a mapped part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentMemory {
    pub addr: Address,
    pub size: Bytes,
    pub device: Option<DeviceIndex>,
    pub kind: CudaMemoryKind,
    /// True if the memory was given back to CUDA.
    pub is_asleep: bool,
    /// Stack of the allocation; [`StackRef::UNKNOWN`] for a segment from before attach.
    pub stack: StackRef,
}

#[derive(Clone, Debug, Default)]
pub(super) struct SegmentMemories {
    by_addr: BTreeMap<u64, SegmentMemory>,
    /// Tags that the program gave to its allocations, by address.
    tags: BTreeMap<u64, TaggedAllocation>,
}

impl SegmentMemories {
    pub(super) fn apply(&mut self, event: &MemoryEvent, stack: StackRef) {
        let kind = event.call.map_or(CudaMemoryKind::Device, |call| call.space);
        let memory = SegmentMemory {
            addr: event.addr,
            size: event.size,
            device: event.device,
            kind,
            is_asleep: event.action == Action::SegmentSleep,
            stack,
        };
        if matches!(event.action, Action::SegmentAlloc | Action::SegmentFree)
            && let Some(tagged) = self.tagged(event.addr)
        {
            let ended = tagged.addr.0;
            self.tags.remove(&ended);
        }
        match event.action {
            Action::SegmentAlloc => self.insert(memory),
            Action::SegmentFree => _ = self.by_addr.remove(&event.addr.0),
            Action::SegmentSleep => match self.by_addr.get_mut(&event.addr.0) {
                Some(known) => known.is_asleep = true,
                None => self.insert(memory),
            },
            Action::SegmentWake => {
                let known = self
                    .by_addr
                    .get(&event.addr.0)
                    .filter(|known| known.is_asleep);
                let stack = known.map_or(stack, |known| known.stack);
                self.insert(SegmentMemory { stack, ..memory });
            }
            _ => {}
        }
    }

    pub(super) fn insert(&mut self, memory: SegmentMemory) {
        // No segment of a process is beyond the last address, but a recording can say so.
        if memory.addr.0.checked_add(memory.size.0).is_none() {
            return;
        }
        let is_within_cap = self.by_addr.len() < MAX_SEGMENTS;
        if is_within_cap || self.by_addr.contains_key(&memory.addr.0) {
            self.by_addr.insert(memory.addr.0, memory);
        }
    }

    /// Drops what sleeps in none of the segments that the allocator lists.
    pub(super) fn read(&mut self, reading: &SegmentReading) {
        let has_asleep = self.iter().any(|memory| memory.is_asleep);
        if !has_asleep || reading.unread.is_some() {
            return;
        }
        let segments = reading.devices.iter().flat_map(|device| &device.segments);
        let segments: BTreeMap<u64, u64> = segments
            .map(|segment| (segment.addr.0, segment.size.0))
            .collect();
        self.by_addr.retain(|addr, memory| {
            let before = segments.range(..=addr).next_back();
            !memory.is_asleep || before.is_some_and(|(at, size)| addr - at < *size)
        });
    }

    /// Handles the tags of a reading, which replace earlier ones. A tag ends with its memory.
    pub(super) fn tag(&mut self, tags: &[TaggedAllocation]) {
        if !tags.is_empty() {
            let tags = tags.iter().take(MAX_TAGS);
            self.tags = tags.map(|tagged| (tagged.addr.0, tagged.clone())).collect();
        }
    }

    /// By address.
    pub(super) fn tags(&self) -> Vec<TaggedAllocation> {
        self.tags.values().cloned().collect()
    }

    /// Tagged allocation at an address; `None` if it is not known.
    pub(super) fn tagged(&self, addr: Address) -> Option<&TaggedAllocation> {
        let (at, tagged) = self.tags.range(..=addr.0).next_back()?;
        (addr.0 - at < tagged.size.0).then_some(tagged)
    }

    /// By address.
    pub(super) fn iter(&self) -> impl Iterator<Item = &SegmentMemory> {
        self.by_addr.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{
        CudaCall, DeviceSegments, MemorySegment, Pool, PoolOwner, PoolSize, PurposeId, StackId,
        Tgid, Tid, TimeNs, Totals,
    };

    fn event(action: Action, addr: u64) -> MemoryEvent {
        MemoryEvent {
            time: TimeNs(1),
            tgid: Tgid(1),
            tid: Tid(1),
            action,
            addr: Address(addr),
            size: Bytes(0x1000),
            device: Some(DeviceIndex(0)),
            totals: None,
            stack: StackId::NONE,
            shape: PurposeId::NONE,
            call: Some(CudaCall {
                function: "cuMemCreate",
                space: CudaMemoryKind::Virtual,
            }),
        }
    }

    fn state(memories: &SegmentMemories) -> Vec<(u64, bool)> {
        let all = memories.iter();
        all.map(|memory| (memory.addr.0, memory.is_asleep))
            .collect()
    }

    #[test]
    fn a_segment_sleeps_until_it_wakes_or_is_freed() {
        let mut memories = SegmentMemories::default();
        let mut apply = |action, addr| {
            memories.apply(&event(action, addr), StackRef::UNKNOWN);
            state(&memories)
        };
        apply(Action::SegmentAlloc, 0x1000);
        apply(Action::SegmentAlloc, 0x2000);
        let asleep = apply(Action::SegmentSleep, 0x1000);
        assert_eq!(asleep, [(0x1000, true), (0x2000, false)]);
        let awake = apply(Action::SegmentWake, 0x1000);
        assert_eq!(awake, [(0x1000, false), (0x2000, false)]);
        apply(Action::SegmentSleep, 0x2000);
        assert_eq!(apply(Action::SegmentFree, 0x2000), [(0x1000, false)]);
    }

    #[test]
    fn a_tag_ends_with_its_segment() {
        let mut memories = SegmentMemories::default();
        let mut apply = |action| memories.apply(&event(action, 0x1000), StackRef::UNKNOWN);
        apply(Action::SegmentAlloc);
        apply(Action::SegmentSleep);
        let tagged = TaggedAllocation {
            addr: Address(0x1000),
            size: Bytes(0x1000),
            tag: "weights".into(),
        };
        let tags = [tagged];
        for ends in [Action::SegmentFree, Action::SegmentAlloc] {
            memories.tag(&tags);
            for action in [Action::SegmentWake, Action::SegmentSleep] {
                memories.apply(&event(action, 0x1000), StackRef::UNKNOWN);
                assert_eq!(memories.tags(), tags);
                assert_eq!(memories.tagged(Address(0x1fff)), tags.first());
                assert_eq!(memories.tagged(Address(0x2000)), None);
            }
            memories.apply(&event(ends, 0x1000), StackRef::UNKNOWN);
            assert_eq!(memories.tags(), []);
        }
    }

    #[test]
    fn what_sleeps_outside_the_listed_segments_is_dropped() {
        let mut memories = SegmentMemories::default();
        for addr in [0x1000, 0x2000, 0x3000] {
            memories.apply(&event(Action::SegmentSleep, addr), StackRef::UNKNOWN);
        }
        memories.apply(&event(Action::SegmentAlloc, 0x9000), StackRef::UNKNOWN);
        let segment = MemorySegment {
            addr: Address(0x1000),
            size: Bytes(0x2000),
            stream: 0,
            pool: Pool {
                owner: PoolOwner::Default,
                size: PoolSize::Large,
            },
            expandable: None,
        };
        memories.read(&SegmentReading {
            time: TimeNs(2),
            tgid: Tgid(1),
            devices: vec![DeviceSegments {
                device: DeviceIndex(0),
                totals: Totals::default(),
                active: Bytes(0),
                requested: Bytes(0),
                segments: vec![segment],
                awaiting: Vec::new(),
            }],
            unread: None,
        });
        let left: Vec<u64> = state(&memories).iter().map(|(addr, _)| *addr).collect();
        assert_eq!(left, [0x1000, 0x2000, 0x9000]);
    }
}

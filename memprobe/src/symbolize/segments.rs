//! Tells segments of the caching allocator from other CUDA allocations.
//!
//! CUDA calls do not state their purpose. The caching allocator allocates a segment and immediately hands out
//! a block in it, on the same thread; the block's event also names the device. Therefore new device memory,
//! and every event after it, is held back until the next event of its thread.

use std::collections::{BTreeMap, VecDeque};

use hashbrown::HashMap;

use crate::event::{
    Action, Address, Bytes, CudaCall, CudaMemoryKind, DeviceIndex, Event, MemoryEvent, PurposeId,
    StackId, Tgid, Tid, TimeNs,
};

/// The most events that are held back for a segment.
const HELD: usize = 65_536;

/// The most live CUDA allocations that are tracked, so that a free finds its allocation.
const REMEMBERED: usize = 1 << 20;

/// The most frees that are in progress at once. Records of others are lost.
const FREEING: usize = 1024;

/// Events in order, with CUDA allocations attributed to the caching allocator or to others.
#[derive(Default)]
pub struct Segments {
    held: VecDeque<Event>,
    /// CUDA memory in `held` that may be a segment.
    waiting: Vec<Waiting>,
    /// The position of the front of `held`, counted from the first event ever.
    front: u64,
    live: HashMap<MemoryKey, Live>,
    /// Frees that were recorded for a call that had not returned: place, and the time by which it was entered.
    early_frees: VecDeque<(MemoryKey, TimeNs)>,
    /// Live blocks of an allocator observed through its tracepoints, by address: its frees have no size.
    blocks: HashMap<u64, Live>,
    /// Device memory that is not a segment: size by address.
    others: BTreeMap<u64, u64>,
    /// True after the first event of the caching allocator.
    allocator_speaks: bool,
    /// Threads that got memory of another device than they were believed to work on.
    disputed: Vec<Tid>,
}

struct Waiting {
    position: u64,
    tid: Tid,
    addr: Address,
    size: Bytes,
}

/// The name of live CUDA memory. Handles and addresses may have the same number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum MemoryKey {
    Address(u64),
    /// A `cudaArray_t` or `CUarray`.
    Array(u64),
    /// A `CUmemGenericAllocationHandle`.
    Handle(u64),
}

impl MemoryKey {
    pub const fn number(self) -> u64 {
        let (Self::Address(number) | Self::Array(number) | Self::Handle(number)) = self;
        number
    }
}

/// Latest end of memory that nobody frees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// End of a context; `None` for the device's primary one.
    ContextEnds(Option<u64>),
    ProcessEnds,
}

#[derive(Clone, Copy, Debug)]
pub struct Live {
    pub size: Bytes,
    pub device: Option<DeviceIndex>,
    pub until: Until,
    /// The return of the call that allocated it.
    since: TimeNs,
    call: CudaCall,
    is_segment: bool,
}

/// The caller that asks for memory or frees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// PyTorch's caching allocator. Mappings of its physical memory are expandable segments.
    Allocator,
    Other,
}

impl Segments {
    pub fn push(&mut self, event: Event) {
        if let Event::Memory(memory) = &event {
            self.settle(memory);
            if matches!(memory.action, Action::Alloc | Action::Free) {
                self.allocator_speaks = true;
            }
            if memory.action == Action::Alloc {
                self.reclassify(memory);
            }
        }
        self.pass(event);
    }

    /// Records a CUDA allocation. `event` contains the call; its action is [`Action::CudaAlloc`], or
    /// [`Action::SegmentAlloc`] if the caller certainly is the caching allocator.
    ///
    /// Memory that is still live there is freed first: another thread's free has taken effect, and its
    /// call has not returned yet, or its record is lost.
    pub fn record_alloc(&mut self, place: MemoryKey, until: Until, event: MemoryEvent) {
        self.settle(&event);
        let Some(live) = Live::of(&event, until) else {
            return;
        };
        if let Some(replaced) = self.live.remove(&place) {
            let mut free = MemoryEvent {
                stack: StackId::NONE,
                call: None,
                ..event
            };
            replaced.describe(&mut free);
            self.pass(Event::Memory(free));
            self.early_frees.push_back((place, event.time));
            if self.early_frees.len() > FREEING {
                self.early_frees.pop_front();
            }
            // It was freed before a block came: no segment.
            self.waiting
                .retain(|waiting| place != MemoryKey::Address(waiting.addr.0));
        }
        self.others.remove(&place.number());
        if self.live.len() < REMEMBERED {
            self.live.insert(place, live);
        }
        if !live.is_segment && live.call.space == CudaMemoryKind::Device {
            self.waiting.push(Waiting {
                position: self.front + self.held.len() as u64,
                tid: event.tid,
                addr: event.addr,
                size: event.size,
            });
        }
        self.pass(Event::Memory(event));
    }

    /// Records that the caching allocator handed out a block, according to its tracepoint.
    pub fn record_block(&mut self, event: MemoryEvent) {
        let Some(block) = Live::of(&event, Until::ProcessEnds) else {
            return;
        };
        self.allocator_speaks = true;
        self.settle(&event);
        self.reclassify(&event);
        if self.blocks.len() < REMEMBERED {
            self.blocks.insert(event.addr.0, block);
        }
        self.pass(Event::Memory(event));
    }

    pub fn record_block_free(&mut self, mut event: MemoryEvent) {
        self.settle(&event);
        if let Some(block) = self.blocks.remove(&event.addr.0) {
            block.describe(&mut event);
        }
        self.pass(Event::Memory(event));
    }

    /// Records a free by a call that was entered at `entered`. `event` lacks the size and the kind of memory,
    /// which the tracked allocation supplies. If other memory was allocated there after `entered`, the free was recorded
    /// then: the other may be live, or freed too by now.
    pub fn record_free(
        &mut self,
        place: MemoryKey,
        giver: Owner,
        entered: TimeNs,
        event: MemoryEvent,
    ) {
        let mut early = self.early_frees.iter();
        let early = early.position(|(freed, time)| *freed == place && *time > entered);
        if let Some(early) = early {
            self.early_frees.remove(early);
            self.settle(&event);
        } else {
            self.free(place, giver, entered, event);
        }
    }

    fn free(&mut self, place: MemoryKey, giver: Owner, entered: TimeNs, mut event: MemoryEvent) {
        self.settle(&event);
        let live = self.live.get(&place);
        if live.is_some_and(|live| live.since > entered) {
            return;
        }
        match self.live.remove(&place) {
            Some(live) => live.describe(&mut event),
            None if giver == Owner::Allocator && self.allocator_speaks => {
                event.action = Action::SegmentFree;
            }
            None => {}
        }
        if let MemoryKey::Address(addr) = place {
            self.others.remove(&addr);
        }
        self.pass(Event::Memory(event));
    }

    /// Frees all memory that `gone` matches, by a call that was entered at `entered`.
    pub fn free_matching(
        &mut self,
        gone: impl Fn(MemoryKey, &Live) -> bool,
        entered: TimeNs,
        event: MemoryEvent,
    ) {
        let live = self.live.iter();
        let mut places: Vec<_> = live
            .filter(|(place, live)| gone(**place, live))
            .map(|(place, _)| *place)
            .collect();
        places.sort_unstable();
        for place in places {
            let event = MemoryEvent {
                addr: Address(place.number()),
                ..event
            };
            self.free(place, Owner::Other, entered, event);
        }
    }

    /// Accepts an event that does not concern CUDA memory.
    pub fn pass(&mut self, event: Event) {
        self.held.push_back(event);
        if self.held.len() > HELD {
            self.give_up();
        }
    }

    /// Decides whether waiting memory is a segment, if `event` is the next event of the same thread.
    fn settle(&mut self, event: &MemoryEvent) {
        if self.waiting.is_empty() {
            return;
        }
        for waiting in std::mem::take(&mut self.waiting) {
            let offset = event.addr.0.checked_sub(waiting.addr.0);
            let inside = offset.is_some_and(|at| at < waiting.size.0);
            if waiting.tid != event.tid {
                self.waiting.push(waiting);
            } else if is_block(event) && inside {
                self.is_segment(&waiting, event.device);
            } else {
                self.is_other(&waiting);
            }
        }
    }

    fn is_segment(&mut self, waiting: &Waiting, device: Option<DeviceIndex>) {
        if let Some(live) = self.live.get_mut(&MemoryKey::Address(waiting.addr.0)) {
            live.device = device;
            live.is_segment = true;
        }
        let at = usize::try_from(waiting.position - self.front).unwrap_or(usize::MAX);
        if let Some(Event::Memory(segment)) = self.held.get_mut(at) {
            if segment.device.is_some() && device.is_some() && segment.device != device {
                self.disputed.push(segment.tid);
            }
            segment.action = Action::SegmentAlloc;
            segment.device = device;
        }
    }

    /// Threads that were believed to work on another device than the caching allocator says that they do.
    pub fn take_disputed(&mut self) -> Vec<Tid> {
        std::mem::take(&mut self.disputed)
    }

    fn is_other(&mut self, waiting: &Waiting) {
        if self.live.contains_key(&MemoryKey::Address(waiting.addr.0)) {
            self.others.insert(waiting.addr.0, waiting.size.0);
        }
    }

    /// Makes memory a segment by a free and a segment allocation: a late block event shows that it is one.
    fn reclassify(&mut self, block: &MemoryEvent) {
        if self.others.is_empty() {
            return;
        }
        let before = self.others.range(..=block.addr.0).next_back();
        let Some((addr, _)) = before.filter(|(addr, size)| block.addr.0 - **addr < **size) else {
            return;
        };
        let addr = *addr;
        self.others.remove(&addr);
        let Some(live) = self.live.get_mut(&MemoryKey::Address(addr)) else {
            return;
        };
        let mut event = MemoryEvent {
            addr: Address(addr),
            totals: None,
            stack: StackId::NONE,
            shape: PurposeId::NONE,
            ..*block
        };
        live.describe(&mut event);
        live.is_segment = true;
        live.device = block.device;
        self.held.push_back(Event::Memory(event));
        self.held.push_back(Event::Memory(MemoryEvent {
            action: Action::SegmentAlloc,
            device: block.device,
            ..event
        }));
    }

    pub fn pop(&mut self) -> Option<Event> {
        if (self.waiting.iter()).any(|waiting| waiting.position <= self.front) {
            return None;
        }
        let event = self.held.pop_front()?;
        self.front += 1;
        Some(event)
    }

    /// Stops waiting: memory held back so far is not a segment.
    pub fn give_up(&mut self) {
        for waiting in std::mem::take(&mut self.waiting) {
            self.is_other(&waiting);
        }
    }

    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

impl Live {
    fn of(event: &MemoryEvent, until: Until) -> Option<Self> {
        Some(Self {
            size: event.size,
            device: event.device,
            until,
            since: event.time,
            call: event.call?,
            is_segment: event.action == Action::SegmentAlloc,
        })
    }

    /// Completes a free event with the facts of the allocation.
    fn describe(&self, event: &mut MemoryEvent) {
        event.action = if self.is_segment {
            Action::SegmentFree
        } else {
            Action::CudaFree
        };
        event.size = self.size;
        event.device = self.device;
        event.call = Some(CudaCall {
            function: event.call.map_or(self.call.function, |call| call.function),
            space: self.call.space,
        });
    }
}

fn is_block(event: &MemoryEvent) -> bool {
    let by_tracepoint = |call: CudaCall| crate::cuda::calls::is_tracepoint(call.function);
    match event.action {
        Action::Alloc => true,
        Action::CudaAlloc => event.call.is_some_and(by_tracepoint),
        _ => false,
    }
}

/// Returns an event of a CUDA call with only time, process and thread set.
pub fn event_of(time: TimeNs, tgid: Tgid, tid: Tid) -> MemoryEvent {
    MemoryEvent {
        time,
        tgid,
        tid,
        action: Action::CudaFree,
        addr: Address(0),
        size: Bytes(0),
        device: None,
        totals: None,
        stack: StackId::NONE,
        shape: PurposeId::NONE,
        call: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Tgid, Totals};

    const CALL: CudaCall = CudaCall {
        function: "cudaMalloc",
        space: CudaMemoryKind::Device,
    };

    fn event(action: Action, tid: u32, addr: u64, size: u64, device: Option<u8>) -> MemoryEvent {
        MemoryEvent {
            action,
            addr: Address(addr),
            size: Bytes(size),
            device: device.map(DeviceIndex),
            totals: device.map(|_| Totals::default()),
            stack: StackId::NONE,
            ..event_of(TimeNs(1), Tgid(1), Tid(tid))
        }
    }

    fn block(segments: &mut Segments, tid: u32, addr: u64, device: u8) {
        segments.push(Event::Memory(event(
            Action::Alloc,
            tid,
            addr,
            8,
            Some(device),
        )));
    }

    fn malloc(segments: &mut Segments, tid: u32, addr: u64) {
        let event = MemoryEvent {
            call: Some(CALL),
            ..event(Action::CudaAlloc, tid, addr, 0x1000, None)
        };
        segments.record_alloc(MemoryKey::Address(addr), Until::ContextEnds(None), event);
    }

    fn free(segments: &mut Segments, tid: u32, addr: u64, giver: Owner) {
        let event = event(Action::CudaFree, tid, addr, 0, None);
        segments.record_free(MemoryKey::Address(addr), giver, TimeNs(1), event);
    }

    fn drain(segments: &mut Segments) -> Vec<(Action, Option<u8>, u64)> {
        std::iter::from_fn(|| segments.pop())
            .filter_map(|event| match event {
                Event::Memory(memory) => {
                    Some((memory.action, memory.device.map(|d| d.0), memory.size.0))
                }
                _ => None,
            })
            .collect()
    }

    #[test]
    fn memory_in_which_a_block_of_the_same_thread_follows_is_a_segment_of_its_device() {
        let mut segments = Segments::default();
        malloc(&mut segments, 1, 0x1000);
        block(&mut segments, 2, 0x9000, 0);
        assert_eq!(
            drain(&mut segments),
            [],
            "the order is kept, so everything waits"
        );
        block(&mut segments, 1, 0x1200, 3);
        let seen = drain(&mut segments);
        assert_eq!(seen[0], (Action::SegmentAlloc, Some(3), 0x1000));
        assert_eq!(seen.len(), 3);
    }

    #[test]
    fn a_segment_on_another_device_than_its_thread_is_disputed() {
        let mut segments = Segments::default();
        for (tid, addr, believed, device) in [
            (1, 0x1000, Some(1), 1),
            (2, 0x3000, Some(0), 1),
            (3, 0x5000, None, 1),
        ] {
            let event = MemoryEvent {
                call: Some(CALL),
                ..event(Action::CudaAlloc, tid, addr, 0x1000, believed)
            };
            segments.record_alloc(MemoryKey::Address(addr), Until::ContextEnds(None), event);
            block(&mut segments, tid, addr, device);
        }
        assert_eq!(segments.take_disputed(), [Tid(2)]);
        assert_eq!(segments.take_disputed(), []);
    }

    #[test]
    fn memory_in_which_no_block_follows_is_somebody_elses() {
        let mut segments = Segments::default();
        malloc(&mut segments, 1, 0x1000);
        block(&mut segments, 1, 0x9000, 0);
        assert_eq!(drain(&mut segments)[0], (Action::CudaAlloc, None, 0x1000));
        malloc(&mut segments, 1, 0x3000);
        assert!(segments.is_waiting());
        segments.give_up();
        assert_eq!(drain(&mut segments), [(Action::CudaAlloc, None, 0x1000)]);
    }

    #[test]
    fn a_block_that_was_long_in_coming_makes_it_a_segment_after_all() {
        let mut segments = Segments::default();
        malloc(&mut segments, 1, 0x1000);
        segments.give_up();
        block(&mut segments, 1, 0x1800, 2);
        free(&mut segments, 1, 0x1000, Owner::Allocator);
        assert_eq!(
            drain(&mut segments),
            [
                (Action::CudaAlloc, None, 0x1000),
                (Action::CudaFree, None, 0x1000),
                (Action::SegmentAlloc, Some(2), 0x1000),
                (Action::Alloc, Some(2), 8),
                (Action::SegmentFree, Some(2), 0x1000),
            ]
        );
    }

    #[test]
    fn distinguishes_tracepoint_blocks_from_their_segments() {
        let mut segments = Segments::default();
        let block = |action, tid| MemoryEvent {
            call: Some(CudaCall {
                function: "pytorch:malloc",
                space: CudaMemoryKind::Device,
            }),
            ..event(action, tid, 0x1000, 0x80, Some(1))
        };
        malloc(&mut segments, 1, 0x1000);
        segments.record_block(block(Action::CudaAlloc, 1));
        segments.record_block_free(MemoryEvent {
            size: Bytes(0),
            ..block(Action::CudaFree, 2)
        });
        free(&mut segments, 1, 0x1000, Owner::Allocator);
        assert_eq!(
            drain(&mut segments),
            [
                (Action::SegmentAlloc, Some(1), 0x1000),
                (Action::CudaAlloc, Some(1), 0x80),
                (Action::CudaFree, Some(1), 0x80),
                (Action::SegmentFree, Some(1), 0x1000),
            ]
        );
    }

    #[test]
    fn a_free_yields_the_freed_allocation() {
        let mut segments = Segments::default();
        malloc(&mut segments, 1, 0x1000);
        block(&mut segments, 1, 0x1000, 1);
        malloc(&mut segments, 1, 0x4000);
        free(&mut segments, 1, 0x1000, Owner::Other);
        free(&mut segments, 1, 0x4000, Owner::Allocator);
        free(&mut segments, 1, 0x7000, Owner::Allocator);
        free(&mut segments, 1, 0x8000, Owner::Other);
        let seen = drain(&mut segments);
        assert_eq!(
            seen[3..],
            [
                (Action::SegmentFree, Some(1), 0x1000),
                (Action::CudaFree, None, 0x1000),
                (Action::SegmentFree, None, 0),
                (Action::CudaFree, None, 0),
            ],
            "the last two are from before attach"
        );
    }

    #[test]
    fn a_context_takes_along_what_was_given_out_in_it() {
        let mut segments = Segments::default();
        for (addr, context) in [(0x1000, Some(7)), (0x3000, None), (0x2000, Some(7))] {
            let event = MemoryEvent {
                call: Some(CALL),
                ..event(Action::CudaAlloc, 1, addr, addr, Some(0))
            };
            segments.record_alloc(MemoryKey::Address(addr), Until::ContextEnds(context), event);
        }
        segments.give_up();
        let gone = event(Action::CudaFree, 1, 0, 0, None);
        let in_context = |_, live: &Live| live.until == Until::ContextEnds(Some(7));
        segments.free_matching(in_context, TimeNs(1), gone);
        let seen = drain(&mut segments);
        assert_eq!(
            seen[3..],
            [
                (Action::CudaFree, Some(0), 0x1000),
                (Action::CudaFree, Some(0), 0x2000)
            ]
        );
        assert!(segments.live.contains_key(&MemoryKey::Address(0x3000)));
        assert!(!segments.live.contains_key(&MemoryKey::Address(0x1000)));
    }

    #[test]
    fn handles_and_addresses_of_the_same_number_are_not_mixed_up() {
        let mut segments = Segments::default();
        malloc(&mut segments, 1, 0x1000);
        let event = event(Action::CudaFree, 1, 0x1000, 0, None);
        segments.record_free(MemoryKey::Array(0x1000), Owner::Other, TimeNs(1), event);
        assert!(segments.live.contains_key(&MemoryKey::Address(0x1000)));
    }

    #[test]
    fn a_free_that_returns_after_its_address_was_allocated_again_frees_the_old_memory() {
        let mut segments = Segments::default();
        let at = |action, tid, size, time| MemoryEvent {
            time: TimeNs(time),
            call: Some(CALL),
            ..event(action, tid, 0x1000, size, None)
        };
        let place = MemoryKey::Address(0x1000);
        let give = |segments: &mut Segments, event| {
            segments.record_alloc(place, Until::ContextEnds(None), event);
            segments.give_up();
        };
        give(&mut segments, at(Action::CudaAlloc, 1, 0x100, 10));
        // Thread 1 enters the free at 20 and returns at 40; thread 2 gets the address at 30.
        give(&mut segments, at(Action::CudaAlloc, 2, 0x200, 30));
        let late = at(Action::CudaFree, 1, 0, 40);
        segments.record_free(place, Owner::Other, TimeNs(20), late);
        let expected = [
            (Action::CudaAlloc, None, 0x100),
            (Action::CudaFree, None, 0x100),
            (Action::CudaAlloc, None, 0x200),
        ];
        assert_eq!(drain(&mut segments), expected);
        let own = at(Action::CudaFree, 2, 0, 60);
        segments.record_free(place, Owner::Other, TimeNs(50), own);
        assert_eq!(drain(&mut segments), [(Action::CudaFree, None, 0x200)]);
        // The same, and thread 2 frees what it got before thread 1 returns.
        give(&mut segments, at(Action::CudaAlloc, 1, 0x100, 110));
        give(&mut segments, at(Action::CudaAlloc, 2, 0x200, 130));
        let own = at(Action::CudaFree, 2, 0, 140);
        segments.record_free(place, Owner::Other, TimeNs(135), own);
        drain(&mut segments);
        let late = at(Action::CudaFree, 1, 0, 150);
        segments.record_free(place, Owner::Other, TimeNs(120), late);
        assert_eq!(drain(&mut segments), []);
    }

    #[test]
    fn a_target_that_never_allocates_in_its_segments_cannot_hold_back_events_without_end() {
        let mut segments = Segments::default();
        malloc(&mut segments, 1, 0x1000);
        for _ in 0..=HELD {
            segments.push(Event::Memory(event(Action::Free, 2, 0x10, 8, Some(0))));
        }
        assert!(segments.pop().is_some());
    }
}

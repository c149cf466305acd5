//! Tells segments of the caching allocator from other CUDA allocations.
//!
//! CUDA calls do not state their purpose. The caching allocator allocates a segment and immediately hands out
//! a block in it, on the same thread; the block's event also names the device. Therefore new device memory,
//! and every event after it, is held back until the next event of its thread.
//!
//! An allocator of a `torch.cuda.MemPool` may get a segment in any way: by `cudaMalloc`, as managed memory, or as
//! physical memory that it maps (`mapped.rs`). Blocks claim memory of each kind by its addresses.

mod mapped;

use std::collections::{BTreeMap, VecDeque};

use hashbrown::HashMap;
use mapped::MappedRanges;

use crate::event::{
    Action, Address, Bytes, CudaCall, CudaMemoryKind, DeviceIndex, Event, MemoryEvent,
    MemorySegment, PurposeId, SegmentReading, StackId, Tgid, Tid, TimeNs,
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
    /// Memory that is not a segment: size by address.
    others: BTreeMap<u64, u64>,
    mapped: MappedRanges,
    /// True after the first event of the caching allocator.
    allocator_speaks: bool,
    /// Threads that got memory of another device than they were believed to work on.
    disputed: Vec<Tid>,
}

#[derive(Clone, Copy)]
struct Waiting {
    position: u64,
    tid: Tid,
    key: MemoryKey,
    /// Addresses of the memory; none for physical memory that is not mapped yet.
    addr: Address,
    size: Bytes,
}

impl Waiting {
    fn contains(&self, addr: Address) -> bool {
        (addr.0.checked_sub(self.addr.0)).is_some_and(|offset| offset < self.size.0)
    }

    fn is_mapped(&self) -> bool {
        matches!(self.key, MemoryKey::Handle(_)) && self.size.0 > 0
    }

    fn touches(&self, other: &Self) -> bool {
        self.addr.0 + self.size.0 == other.addr.0 || other.addr.0 + other.size.0 == self.addr.0
    }
}

/// The name of live CUDA memory. Handles and addresses may have the same number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum MemoryKey {
    Address(u64),
    /// An object of the driver: a `cudaArray_t` or `CUarray`, or a context.
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
            self.waiting.retain(|waiting| place != waiting.key);
        }
        if let MemoryKey::Address(addr) = place {
            self.others.remove(&addr);
        }
        if self.live.len() < REMEMBERED {
            self.live.insert(place, live);
        }
        let (addr, size) = match live.call.space {
            _ if live.is_segment => (Address(0), None),
            CudaMemoryKind::Device | CudaMemoryKind::Pool | CudaMemoryKind::Managed => {
                (event.addr, Some(event.size))
            }
            CudaMemoryKind::Virtual => (Address(0), Some(Bytes(0))),
            CudaMemoryKind::Pinned => {
                self.others.insert(event.addr.0, event.size.0);
                (Address(0), None)
            }
            CudaMemoryKind::Array
            | CudaMemoryKind::Registered
            | CudaMemoryKind::Imported
            | CudaMemoryKind::Context => (Address(0), None),
        };
        if let Some(size) = size {
            self.waiting.push(Waiting {
                position: self.front + self.held.len() as u64,
                tid: event.tid,
                key: place,
                addr,
                size,
            });
        }
        self.pass(Event::Memory(event));
    }

    /// True for memory whose allocation was recorded, and not its free.
    pub fn is_live(&self, key: MemoryKey) -> bool {
        self.live.contains_key(&key)
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
            Some(live) => {
                live.describe(&mut event);
                if let MemoryKey::Handle(handle) = place {
                    self.mapped.release(handle, live.is_segment, &mut event);
                }
            }
            None if giver == Owner::Allocator && self.allocator_speaks => {
                event.action = Action::SegmentFree;
            }
            None => {}
        }
        if let MemoryKey::Address(addr) = place {
            self.others.remove(&addr);
            self.mapped.forget_segment(addr);
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

    /// Decides whether waiting memory is a segment, if `event` is the next event of the same thread. Physical memory
    /// may be one of several pieces, which are created one after the other.
    fn settle(&mut self, event: &MemoryEvent) {
        if self.waiting.is_empty() {
            return;
        }
        let is_next_piece = event.action == Action::CudaAlloc
            && (event.call).is_some_and(|call| call.space == CudaMemoryKind::Virtual);
        let keeps = |waiting: &Waiting| {
            waiting.tid != event.tid || is_next_piece && matches!(waiting.key, MemoryKey::Handle(_))
        };
        let waiting = std::mem::take(&mut self.waiting);
        let (kept, settled): (Vec<_>, Vec<_>) = waiting.into_iter().partition(keeps);
        self.waiting = kept;
        let is_segment = |waiting: &Waiting| is_block(event) && waiting.contains(event.addr);
        let (mut segments, mut others): (Vec<_>, Vec<_>) =
            settled.into_iter().partition(is_segment);
        // Pieces beside each other are one segment.
        while let Some(at) = others.iter().position(|other| {
            let mut pieces = segments.iter().filter(|piece| piece.is_mapped());
            other.is_mapped() && pieces.any(|piece| piece.touches(other))
        }) {
            segments.push(others.remove(at));
        }
        for waiting in segments {
            self.is_segment(&waiting, event.device);
        }
        for waiting in others {
            self.is_other(&waiting);
        }
    }

    fn is_segment(&mut self, waiting: &Waiting, device: Option<DeviceIndex>) {
        if let Some(live) = self.live.get_mut(&waiting.key) {
            live.device = device;
            live.is_segment = true;
        }
        if let MemoryKey::Handle(_) = waiting.key {
            self.mapped.back(waiting.addr.0, device);
        }
        if let Some(segment) = self.held_at(waiting.position) {
            let is_disputed =
                segment.device.is_some() && device.is_some() && segment.device != device;
            segment.action = Action::SegmentAlloc;
            segment.addr = waiting.addr;
            segment.device = device;
            let tid = segment.tid;
            if is_disputed {
                self.disputed.push(tid);
            }
        }
    }

    /// Event that is held back at a position.
    fn held_at(&mut self, position: u64) -> Option<&mut MemoryEvent> {
        let at = usize::try_from(position.checked_sub(self.front)?).ok()?;
        match self.held.get_mut(at) {
            Some(Event::Memory(event)) => Some(event),
            _ => None,
        }
    }

    /// Threads that were believed to work on another device than the caching allocator says that they do.
    pub fn take_disputed(&mut self) -> Vec<Tid> {
        std::mem::take(&mut self.disputed)
    }

    fn is_other(&mut self, waiting: &Waiting) {
        if let MemoryKey::Address(addr) = waiting.key
            && self.live.contains_key(&waiting.key)
        {
            self.others.insert(addr, waiting.size.0);
        }
    }

    /// Makes memory a segment by a free and a segment allocation: a late block event shows that it is one.
    fn reclassify(&mut self, block: &MemoryEvent) {
        let at = |(addr, size): (&u64, &u64)| (block.addr.0 - addr < *size).then_some(*addr);
        let before = self.others.range(..=block.addr.0).next_back();
        if let Some(addr) = before.and_then(at) {
            self.others.remove(&addr);
            let becomes = (
                MemoryKey::Address(addr),
                Address(addr),
                Action::SegmentAlloc,
            );
            self.replace(becomes, block);
        }
        for (addr, handle) in self.mapped.claimed_by(block.addr.0, block.size.0) {
            self.mapped.back(addr, block.device);
            let becomes = (
                MemoryKey::Handle(handle),
                Address(addr),
                Action::SegmentAlloc,
            );
            self.replace(becomes, block);
        }
    }

    /// Ends live memory, and begins it as the memory of a segment on the device of `event`.
    fn replace(&mut self, (key, addr, action): (MemoryKey, Address, Action), event: &MemoryEvent) {
        let live = self.live.get_mut(&key);
        let Some(live) = live.filter(|live| live.since <= event.time) else {
            return;
        };
        let mut free = MemoryEvent {
            addr: Address(key.number()),
            totals: None,
            stack: StackId::NONE,
            shape: PurposeId::NONE,
            ..*event
        };
        live.describe(&mut free);
        live.is_segment = true;
        live.device = event.device;
        self.held.push_back(Event::Memory(free));
        self.held.push_back(Event::Memory(MemoryEvent {
            action,
            addr,
            device: event.device,
            ..free
        }));
    }

    /// Records that a library mapped physical memory that it had created. `event` has the addresses. Memory for a
    /// segment that the allocator has already wakes the segment.
    pub fn record_map(&mut self, handle: u64, mut event: MemoryEvent) {
        let key = MemoryKey::Handle(handle);
        let waiting = self.waiting.iter().position(|waiting| waiting.key == key);
        let Some(device) = self.mapped.map(handle, event.addr.0, event.size.0) else {
            if let Some(waiting) = waiting {
                self.waiting[waiting].addr = event.addr;
                self.waiting[waiting].size = event.size;
            }
            return;
        };
        event.device = device;
        match waiting.map(|at| self.waiting.remove(at)) {
            Some(waiting) => {
                if let Some(live) = self.live.get_mut(&key) {
                    live.device = device;
                    live.is_segment = true;
                }
                if let Some(held) = self.held_at(waiting.position) {
                    held.action = Action::SegmentWake;
                    held.addr = event.addr;
                    held.device = device;
                }
            }
            None => self.replace((key, event.addr, Action::SegmentWake), &event),
        }
    }

    /// Records that addresses are mapped no more, whose memory is still held.
    pub fn record_unmap(&mut self, addr: u64) {
        self.mapped.unmap(addr);
    }

    /// Records an unmapping of addresses that were mapped before attach.
    pub fn record_unknown_unmap(&mut self, tid: Tid, addr: u64, size: u64) {
        self.mapped.note_unmap(tid, addr, size);
    }

    /// Records a release of memory from before attach, by the thread that unmapped it.
    pub fn record_unknown_release(&mut self, mut event: MemoryEvent) {
        self.settle(&event);
        if self.mapped.release_unknown(&mut event) {
            self.pass(Event::Memory(event));
        }
    }

    /// Records that a library gave addresses back, and with them the segments that sleep there.
    pub fn record_address_free(&mut self, event: MemoryEvent) {
        self.settle(&event);
        for (addr, size, device) in self.mapped.free_addresses(event.addr.0, event.size.0) {
            self.pass(Event::Memory(MemoryEvent {
                addr: Address(addr),
                size: Bytes(size),
                device,
                stack: StackId::NONE,
                ..event
            }));
        }
    }

    /// Compares with the segments that the allocator lists: memory in them belongs to it. All records from before the
    /// reading must be there, and none from after it.
    pub fn note_reading(&mut self, reading: &SegmentReading) {
        self.mapped.read(reading);
        for device in &reading.devices {
            let event = MemoryEvent {
                device: Some(device.device),
                ..event_of(reading.time, reading.tgid, Tid(reading.tgid.0))
            };
            for segment in &device.segments {
                self.claim(segment, &event);
            }
        }
    }

    /// Gives the memory in a listed segment to the allocator.
    fn claim(&mut self, segment: &MemorySegment, event: &MemoryEvent) {
        let (addr, size) = (segment.addr.0, segment.size.0);
        let waiting = std::mem::take(&mut self.waiting);
        let is_inside = |waiting: &Waiting| {
            waiting.size.0 > 0 && waiting.addr.0.checked_sub(addr).is_some_and(|at| at < size)
        };
        let (claimed, kept): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_inside);
        self.waiting = kept;
        for waiting in claimed {
            self.is_segment(&waiting, event.device);
        }
        let inside = self.others.range(addr..addr.saturating_add(size));
        let inside: Vec<u64> = inside.map(|(addr, _)| *addr).collect();
        for addr in inside {
            self.others.remove(&addr);
            let becomes = (
                MemoryKey::Address(addr),
                Address(addr),
                Action::SegmentAlloc,
            );
            self.replace(becomes, event);
        }
        for (addr, handle) in self.mapped.claimed_by(addr, size) {
            self.mapped.back(addr, event.device);
            let becomes = (
                MemoryKey::Handle(handle),
                Address(addr),
                Action::SegmentAlloc,
            );
            self.replace(becomes, event);
        }
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
mod tests;

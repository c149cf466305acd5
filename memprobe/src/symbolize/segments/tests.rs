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

const VIRTUAL: CudaCall = CudaCall {
    function: "cuMemCreate",
    space: CudaMemoryKind::Virtual,
};

fn create(segments: &mut Segments, tid: u32, handle: u64) {
    let event = MemoryEvent {
        call: Some(VIRTUAL),
        ..event(Action::CudaAlloc, tid, handle, 0x1000, None)
    };
    segments.record_alloc(MemoryKey::Handle(handle), Until::ProcessEnds, event);
}

fn map(segments: &mut Segments, tid: u32, handle: u64, addr: u64) {
    let event = MemoryEvent {
        call: Some(VIRTUAL),
        ..event(Action::SegmentWake, tid, addr, 0x1000, None)
    };
    segments.record_map(handle, event);
}

fn release(segments: &mut Segments, tid: u32, handle: u64) {
    let event = MemoryEvent {
        call: Some(VIRTUAL),
        ..event(Action::CudaFree, tid, handle, 0, None)
    };
    segments.record_free(MemoryKey::Handle(handle), Owner::Other, TimeNs(1), event);
}

fn free_addresses(segments: &mut Segments, tid: u32, addr: u64, size: u64) {
    let event = MemoryEvent {
        call: Some(VIRTUAL),
        ..event(Action::SegmentFree, tid, addr, size, None)
    };
    segments.record_address_free(event);
}

/// Actions with addresses, without those of blocks.
fn segments_of(segments: &mut Segments) -> Vec<(Action, u64)> {
    let events = std::iter::from_fn(|| segments.pop());
    let events = events.filter_map(|event| match event {
        Event::Memory(memory) if memory.action != Action::Alloc => {
            Some((memory.action, memory.addr.0))
        }
        _ => None,
    });
    events.collect()
}

fn reading(addr: u64, size: u64) -> SegmentReading {
    use crate::event::{DeviceSegments, MemorySegment, Pool, PoolOwner, PoolSize};
    SegmentReading {
        time: TimeNs(5),
        tgid: Tgid(1),
        devices: vec![DeviceSegments {
            device: DeviceIndex(0),
            totals: Totals::default(),
            active: Bytes(0),
            requested: Bytes(0),
            segments: vec![MemorySegment {
                addr: Address(addr),
                size: Bytes(size),
                stream: 0,
                pool: Pool {
                    owner: PoolOwner::Default,
                    size: PoolSize::Large,
                },
                expandable: None,
            }],
            awaiting: Vec::new(),
        }],
        unread: None,
    }
}

#[test]
fn mapped_memory_in_which_a_block_follows_sleeps_and_wakes_as_a_segment() {
    let mut segments = Segments::default();
    // Two pieces of one segment, and memory of somebody else between them in time.
    create(&mut segments, 1, 7);
    map(&mut segments, 1, 7, 0x1_0000);
    create(&mut segments, 2, 9);
    create(&mut segments, 1, 8);
    map(&mut segments, 1, 8, 0x1_1000);
    map(&mut segments, 2, 9, 0x9_0000);
    block(&mut segments, 1, 0x1_0200, 0);
    segments.give_up();
    assert_eq!(
        segments_of(&mut segments),
        [
            (Action::SegmentAlloc, 0x1_0000),
            (Action::CudaAlloc, 9),
            (Action::SegmentAlloc, 0x1_1000),
        ]
    );
    release(&mut segments, 3, 7);
    release(&mut segments, 3, 9);
    create(&mut segments, 3, 10);
    map(&mut segments, 3, 10, 0x1_0000);
    release(&mut segments, 3, 8);
    free_addresses(&mut segments, 3, 0x1_0000, 0x2000);
    segments.give_up();
    assert_eq!(
        segments_of(&mut segments),
        [
            (Action::SegmentSleep, 0x1_0000),
            (Action::CudaFree, 9),
            (Action::SegmentWake, 0x1_0000),
            (Action::SegmentSleep, 0x1_1000),
            (Action::SegmentFree, 0x1_1000),
        ]
    );
}

#[test]
fn a_late_block_or_the_list_of_segments_claims_mapped_and_managed_memory() {
    let mut segments = Segments::default();
    for handle in [7, 8] {
        create(&mut segments, 1, handle);
        map(&mut segments, 1, handle, handle << 16);
        segments.give_up();
    }
    let managed = MemoryEvent {
        call: Some(CudaCall {
            function: "cudaMallocManaged",
            space: CudaMemoryKind::Managed,
        }),
        ..event(Action::CudaAlloc, 1, 0x20_0000, 0x1000, None)
    };
    let place = MemoryKey::Address(0x20_0000);
    segments.record_alloc(place, Until::ProcessEnds, managed);
    segments.give_up();
    segments_of(&mut segments);
    block(&mut segments, 1, 0x7_0800, 0);
    segments.note_reading(&reading(0x8_0000, 0x1000));
    segments.note_reading(&reading(0x20_0000, 0x1000));
    assert_eq!(
        segments_of(&mut segments),
        [
            (Action::CudaFree, 7),
            (Action::SegmentAlloc, 0x7_0000),
            (Action::CudaFree, 8),
            (Action::SegmentAlloc, 0x8_0000),
            (Action::CudaFree, 0x20_0000),
            (Action::SegmentAlloc, 0x20_0000),
        ]
    );
}

#[test]
fn a_segment_from_before_attach_sleeps_and_wakes_by_its_addresses() {
    let mut segments = Segments::default();
    segments.note_reading(&reading(0x1_0000, 0x1000));
    segments.record_unknown_unmap(Tid(1), 0x1_0000, 0x1000);
    segments.record_unknown_unmap(Tid(1), 0x5_0000, 0x1000);
    let freed = |tid| MemoryEvent {
        call: Some(VIRTUAL),
        ..event(Action::CudaFree, tid, 77, 0, None)
    };
    segments.record_unknown_release(freed(2));
    assert_eq!(segments_of(&mut segments), [], "of another thread");
    segments.record_unknown_release(freed(1));
    segments.record_unknown_release(freed(1));
    create(&mut segments, 1, 7);
    map(&mut segments, 1, 7, 0x1_0000);
    assert_eq!(
        segments_of(&mut segments),
        [
            (Action::SegmentSleep, 0x1_0000),
            (Action::SegmentWake, 0x1_0000)
        ]
    );
}

#[test]
fn what_sleeps_in_no_listed_segment_is_gone() {
    let mut segments = Segments::default();
    create(&mut segments, 1, 7);
    map(&mut segments, 1, 7, 0x1_0000);
    block(&mut segments, 1, 0x1_0000, 0);
    release(&mut segments, 1, 7);
    segments.note_reading(&reading(0x9_0000, 0x1000));
    segments_of(&mut segments);
    create(&mut segments, 1, 8);
    map(&mut segments, 1, 8, 0x1_0000);
    segments.give_up();
    assert_eq!(segments_of(&mut segments), [(Action::CudaAlloc, 8)]);
}

#[test]
fn memory_that_waits_for_a_block_is_a_segment_once_it_is_listed() {
    let mut segments = Segments::default();
    create(&mut segments, 1, 7);
    map(&mut segments, 1, 7, 0x1_0000);
    create(&mut segments, 2, 8);
    map(&mut segments, 2, 8, 0x2_0000);
    segments.note_reading(&reading(0x1_0000, 0x1000));
    segments.give_up();
    assert_eq!(
        segments_of(&mut segments),
        [(Action::SegmentAlloc, 0x1_0000), (Action::CudaAlloc, 8)]
    );
}

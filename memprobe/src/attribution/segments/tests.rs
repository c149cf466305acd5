use super::*;
use crate::event::{DeviceSegments, PoolId, Target, Tgid};
use crate::ledger::AnalyzedLedger;
use crate::ledger::snapshot::Grouping;
use crate::recording::samples::{MIB, memory, totals};

const CUDA: DeviceIndex = DeviceIndex(0);
const LARGE: Pool = Pool {
    owner: PoolOwner::Default,
    size: PoolSize::Large,
};

fn private(state: PrivatePoolState) -> Pool {
    Pool {
        owner: PoolOwner::Private {
            id: PoolId(0, 1),
            state,
        },
        size: PoolSize::Large,
    }
}

fn segment(addr: u64, mib: u64, pool: Pool) -> MemorySegment {
    MemorySegment {
        addr: Address(addr),
        size: Bytes(mib * MIB),
        stream: 0,
        pool,
        expandable: None,
    }
}

/// A reading of `cuda:0`.
pub(crate) fn reading(segments: Vec<MemorySegment>, awaiting: &[(u64, u64)]) -> Event {
    let reserved = segments.iter().map(|segment| segment.size.0).sum();
    Event::Segments(Arc::new(SegmentReading {
        time: TimeNs(5_000_000_500),
        tgid: Tgid(1234),
        devices: vec![DeviceSegments {
            device: CUDA,
            totals: Totals::of(0, reserved),
            active: Bytes(0),
            requested: Bytes(7 * MIB),
            segments,
            awaiting: awaiting
                .iter()
                .map(|(addr, size)| (Address(*addr), Bytes(*size)))
                .collect(),
        }],
        unread: None,
    }))
}

/// An event of the allocator after which these MiB are allocated and reserved.
fn block(action: Action, addr: u64, mib: u64, [allocated, reserved]: [u64; 2]) -> Event {
    Event::Memory(MemoryEvent {
        totals: totals(allocated * MIB, reserved * MIB),
        ..memory(action, 1, addr, mib * MIB)
    })
}

fn played(events: &[Event]) -> (SegmentLedger, SegmentMap) {
    let mut played = AnalyzedLedger::new(Target::default(), TimeNs(0), SegmentLedger::default());
    for event in events {
        played.apply(event);
    }
    let snapshot = played.ledger.snapshot(TimeNs(9), Grouping::User);
    let maps = played.analyses.maps(&played.ledger, &snapshot);
    let [map] = <[SegmentMap; 1]>::try_from(maps).expect("one device");
    (played.analyses, map)
}

fn states(row: &SegmentRow) -> Vec<(u64, u64, &'static str)> {
    let pieces = row.pieces.iter();
    let piece = |piece: &SegmentBlock| {
        let offset = (piece.addr.0 - row.addr.0) / MIB;
        (offset, piece.size.0 / MIB, piece.state.into_str())
    };
    pieces.map(piece).collect()
}

#[test]
fn gaps_between_live_blocks_are_split_and_a_segment_without_one_is_cached() {
    let segments = vec![
        segment(0x1000_0000, 20, LARGE),
        segment(0x3000_0000, 30, LARGE),
    ];
    let (_, map) = played(&[
        block(Action::Alloc, 0x1000_0000, 2, [2, 50]),
        block(Action::Alloc, 0x1000_0000 + 5 * MIB, 3, [5, 50]),
        reading(segments, &[]),
    ]);
    assert_eq!(
        states(&map.segments[0]),
        [
            (0, 2, "live"),
            (2, 3, "inactive_split"),
            (5, 3, "live"),
            (8, 12, "inactive_split")
        ]
    );
    assert_eq!(states(&map.segments[1]), [(0, 30, "cached")]);
    assert_eq!(map.returnable(), Bytes(30 * MIB));
    assert_eq!((map.unplaced, map.outside), (0, Bytes(0)));
    assert_eq!(map.segments[0].largest_free(), Bytes(12 * MIB));
}

#[test]
fn a_block_that_awaits_an_event_is_neither_live_nor_free_until_it_is_used_again() {
    let at = 0x1000_0000;
    let before = [
        block(Action::Alloc, at, 4, [4, 20]),
        reading(vec![segment(at, 20, LARGE)], &[(at + 4 * MIB, 6 * MIB)]),
    ];
    let (_, map) = played(&before);
    assert_eq!(
        states(&map.segments[0]),
        [
            (0, 4, "live"),
            (4, 6, "awaiting_event"),
            (10, 10, "inactive_split")
        ]
    );
    let mut events = before.to_vec();
    events.push(block(Action::Alloc, at + 4 * MIB, 3, [7, 20]));
    let (_, map) = played(&events);
    assert_eq!(
        states(&map.segments[0]),
        [(0, 4, "live"), (4, 3, "live"), (7, 13, "inactive_split")]
    );
}

#[test]
fn empty_cache_returns_nothing_of_a_private_pool_in_use_and_waits_for_events() {
    let returned = |pool| {
        let at = 0x1000_0000;
        let segments = vec![segment(at, 20, pool)];
        let (_, map) = played(&[
            block(Action::Alloc, 0x9000_0000, 1, [1, 20]),
            reading(segments, &[(at, 6 * MIB)]),
        ]);
        map.returnable().0 / MIB
    };
    assert_eq!(returned(LARGE), 20);
    assert_eq!(returned(private(PrivatePoolState::InUse)), 0);
    assert_eq!(returned(private(PrivatePoolState::Freeable)), 20);
}

#[test]
fn empty_cache_returns_whole_unused_pages_of_an_expandable_segment() {
    let base = 0x1000_0000;
    let range = MemorySegment {
        expandable: Some(Address(base)),
        ..segment(base, 100, LARGE)
    };
    let (_, map) = played(&[
        block(Action::Alloc, base, 30, [30, 100]),
        block(Action::Alloc, base + 85 * MIB, 5, [35, 100]),
        reading(vec![range], &[]),
    ]);
    // Free are 30 to 85 and 90 to 100 MiB: pages 2 and 3 of 20 MiB each.
    assert_eq!(map.returnable(), Bytes(40 * MIB));
    assert_eq!(map.bytes(SegmentBlockState::Cached), Bytes(65 * MIB));
    assert_eq!(map.bytes(SegmentBlockState::InactiveSplit), Bytes(0));
}

#[test]
fn a_segment_after_the_reading_has_no_pool_until_the_next_one_even_in_a_second_replay() {
    let new = 0x5000_0000;
    let announced = Event::Memory(memory(Action::SegmentAlloc, 2, new, 40 * MIB));
    let mut events = vec![
        reading(vec![segment(0x1000_0000, 20, LARGE)], &[]),
        announced,
        block(Action::Alloc, new, 40, [40, 60]),
    ];
    let (_, map) = played(&events);
    assert_eq!(map.segments[1].pool, None);
    assert_eq!(map.unplaced, 0);
    let pool = private(PrivatePoolState::InUse);
    events.push(reading(
        vec![segment(0x1000_0000, 20, LARGE), segment(new, 40, pool)],
        &[],
    ));
    let (known, map) = played(&events);
    assert_eq!(map.segments[1].pool, Some(pool));
    let mut again = AnalyzedLedger::new(
        Target::default(),
        TimeNs(0),
        SegmentLedger::with_facts_of(&known),
    );
    events[..3].iter().for_each(|event| again.apply(event));
    let snapshot = again.ledger.snapshot(TimeNs(9), Grouping::User);
    let maps = again.analyses.maps(&again.ledger, &snapshot);
    assert_eq!(maps[0].segments[1].pool, Some(pool));
}

#[test]
fn a_freed_segment_is_gone_and_bytes_of_unknown_segments_are_said() {
    let at = 0x1000_0000;
    let segments = vec![segment(at, 20, LARGE), segment(0x3000_0000, 30, LARGE)];
    let (_, map) = played(&[
        reading(segments, &[(0x3000_0000, MIB)]),
        Event::Memory(memory(Action::SegmentFree, 2, 0x3000_0000, 30 * MIB)),
        block(Action::Alloc, 0x7000_0000, 2, [2, 44]),
    ]);
    assert_eq!(map.segments.len(), 1);
    assert_eq!(map.unplaced, 24 * MIB as i64);
    assert_eq!(map.outside, Bytes(2 * MIB));
}

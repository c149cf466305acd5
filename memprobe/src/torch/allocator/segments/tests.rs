use proptest::prelude::*;

use super::*;
use crate::event::PoolId;
use crate::process::memory::ReadMemory;
use crate::process::memory::fake::FakeMemory;
use crate::torch::allocator::fake::Counting;
use crate::torch::allocator::fake::{self, ALLOCATORS};
use crate::torch::allocator::layout::LAYOUTS;

const MIB: u64 = 1 << 20;
const POOLS: u64 = ALLOCATORS + 0x428;
const SLOTS: u64 = 0x7000_0000;
const NODES: u64 = 0x7100_0000;
const OBJECTS: u64 = 0x5600_0000_0000;
const STEP: u64 = 0xa0;
const PRIVATE: u64 = 0x7200_0000;
/// Bytes of a fake `BlockPool`: two sets, the flag, the owner.
const POOL: u64 = 112;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FakeState {
    Live,
    Awaiting,
    Free,
    Unmapped,
}

/// Blocks of one segment, or of one expandable segment's address range: size in MiB.
#[derive(Clone, Debug)]
struct FakeSegment {
    is_small: bool,
    is_private: bool,
    blocks: Vec<(u64, FakeState)>,
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn layout() -> Layout {
    LAYOUTS[LAYOUTS.len() - 1]
}

/// Address of a pool: large or small, default or private.
fn pool_at(segment: &FakeSegment) -> u64 {
    let base = if segment.is_private {
        PRIVATE + 32
    } else {
        POOLS
    };
    base + if segment.is_small { POOL } else { 0 }
}

/// A process with these segments on `cuda:0`, and the addresses of words that lead further.
fn process(segments: &[FakeSegment]) -> (FakeMemory, AllocatorVariable, Vec<u64>) {
    let (mut memory, variable) = fake::process(&layout(), 1, &[]);
    let mut places = Vec::new();
    let mut heap = Vec::new();
    let mut sets: std::collections::BTreeMap<u64, Vec<u64>> = std::collections::BTreeMap::new();
    let mut active = Vec::new();
    let [mut allocated, mut reserved, mut used] = [0_u64; 3];
    for (number, segment) in (1..).zip(segments) {
        let mut addr = 0x7f00_0000_0000 + number * (1 << 36);
        for (index, (mib, state)) in segment.blocks.iter().enumerate() {
            let object = OBJECTS + heap.len() as u64;
            let size = mib * MIB;
            let neighbour = |exists: bool, at: u64| if exists { at } else { 0 };
            let mut bytes = vec![0; STEP as usize];
            let mut put = |at: usize, word: u64| {
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            };
            let fields = layout().block.size;
            put(8, 7);
            put(fields, size);
            put(fields + TO_REQUESTED, size);
            put(fields + TO_POOL, pool_at(segment));
            put(fields + TO_PTR, addr);
            put(
                fields + TO_PREV,
                neighbour(index > 0, object.wrapping_sub(STEP)),
            );
            let has_next = index + 1 < segment.blocks.len();
            put(fields + TO_NEXT, neighbour(has_next, object + STEP));
            put(fields + TO_EVENTS, u64::from(*state == FakeState::Awaiting));
            bytes[fields + TO_ALLOCATED] = u8::from(*state == FakeState::Live);
            bytes[fields + TO_MAPPED] = u8::from(*state != FakeState::Unmapped);
            places.extend((0..STEP / 8).map(|word| object + word * 8));
            heap.extend(bytes);
            addr += size;
            reserved += if *state == FakeState::Unmapped {
                0
            } else {
                size
            };
            match state {
                FakeState::Live | FakeState::Awaiting => {
                    active.push((object, object));
                    used += size;
                    allocated += if *state == FakeState::Live { size } else { 0 };
                }
                FakeState::Free => sets.entry(pool_at(segment)).or_default().push(object),
                FakeState::Unmapped => {
                    sets.entry(pool_at(segment) + 48).or_default().push(object);
                }
            }
        }
    }
    memory.map(OBJECTS, heap);
    let counters = layout().counters;
    for (at, bytes) in [
        (counters.allocated, allocated),
        (counters.reserved, reserved),
        (counters.reserved + STAT_ARRAY, used),
        (counters.reserved + 3 * STAT_ARRAY, used),
    ] {
        memory.write(ALLOCATORS + at, &words(&[bytes, bytes]));
    }
    memory.map(PRIVATE, vec![0; 0x1000]);
    memory.map(NODES, vec![0; 0x8000]);
    let mut node = NODES;
    for (base, owner) in [(POOLS, 0), (PRIVATE + 32, PRIVATE)] {
        for small in 0..2 {
            let pool = base + small * POOL;
            for set in [pool, pool + 48] {
                let objects = sets.remove(&set).unwrap_or_default();
                node = write_set(&mut memory, set, &objects, node);
                places.extend((0..6).map(|word| set + word * 8));
            }
            memory.write(pool + 96, &words(&[small, owner]));
        }
    }
    places.extend((NODES..node).step_by(8));
    write_tables(&mut memory, &active);
    (memory, variable, places)
}

/// Writes a set as a tree whose nodes each lead to the next on the right; returns the first address after them.
fn write_set(memory: &mut FakeMemory, set: u64, objects: &[u64], first: u64) -> u64 {
    let header = set + 8;
    let [root, left, right] = match objects.len() as u64 {
        0 => [0, header, header],
        count => [first, first, first + (count - 1) * 40],
    };
    memory.write(set, &words(&[0xbad, 0, root, left, right]));
    memory.write(set + 40, &words(&[objects.len() as u64]));
    let mut node = first;
    for (index, object) in objects.iter().enumerate() {
        let parent = if index == 0 { header } else { node - 40 };
        let next = if index + 1 < objects.len() {
            node + 40
        } else {
            0
        };
        memory.write(node, &words(&[1, parent, 0, next, *object]));
        node += 40;
    }
    node
}

/// Writes `active_blocks` behind the default pools, and `graph_pools` with the pool (0, 1) behind that.
fn write_tables(memory: &mut FakeMemory, active: &[(u64, u64)]) {
    let (header, slots) = fake::hash_table(SLOTS, active);
    let entries = slots.chunks(24).flat_map(|entry| entry[..16].to_vec());
    memory.map(SLOTS, entries.collect());
    memory.write(POOLS + 2 * POOL, &header);
    let at = SLOTS + 0x10_0000;
    let (header, slots) = fake::hash_table(at, &[(1, PRIVATE)]);
    let entries = slots.chunks(24).flat_map(|entry| {
        let [distance, key, value] = [&entry[..8], &entry[8..16], &entry[16..24]];
        [distance, &[0; 8], key, value].concat()
    });
    memory.map(at, entries.collect());
    memory.write(POOLS + 2 * POOL + 0x40, &header);
}

fn read(memory: &impl ReadMemory, variable: AllocatorVariable) -> Vec<DeviceSegments> {
    match super::read(memory, variable, Some("2.14.1")) {
        Ok(SegmentTables::Whole(devices)) => devices,
        other => panic!("{other:?}"),
    }
}

fn segment(is_small: bool, is_private: bool, blocks: &[(u64, FakeState)]) -> FakeSegment {
    FakeSegment {
        is_small,
        is_private,
        blocks: blocks.to_vec(),
    }
}

fn sample() -> Vec<FakeSegment> {
    use FakeState::{Awaiting, Free, Live, Unmapped};
    vec![
        segment(false, false, &[(4, Live), (6, Free), (10, Live)]),
        segment(true, false, &[(2, Free)]),
        segment(false, true, &[(3, Live), (5, Awaiting), (12, Free)]),
        segment(
            false,
            false,
            &[
                (20, Live),
                (40, Unmapped),
                (15, Live),
                (5, Free),
                (60, Unmapped),
            ],
        ),
    ]
}

#[test]
fn segments_are_read_with_pool_and_stream_and_what_awaits_an_event() {
    let (memory, variable, _) = process(&sample());
    let devices = read(&memory, variable);
    let [device] = &devices[..] else {
        panic!("{devices:?}")
    };
    let default = |size| Pool {
        owner: PoolOwner::Default,
        size,
    };
    let private = Pool {
        owner: PoolOwner::Private {
            id: PoolId(0, 1),
            state: PrivatePoolState::InUse,
        },
        size: PoolSize::Large,
    };
    let base = |number: u64| 0x7f00_0000_0000 + number * (1 << 36);
    let found: Vec<_> = device
        .segments
        .iter()
        .map(|it| (it.addr.0, it.size.0 / MIB, it.pool, it.expandable))
        .collect();
    let range = Some(Address(base(4)));
    let large = default(PoolSize::Large);
    assert_eq!(
        found,
        [
            (base(1), 20, large, None),
            (base(2), 2, default(PoolSize::Small), None),
            (base(3), 20, private, None),
            (base(4), 20, large, range),
            (base(4) + 60 * MIB, 20, large, range),
        ]
    );
    assert!(device.segments.iter().all(|segment| segment.stream == 7));
    assert_eq!(
        device.awaiting,
        [(Address(base(3) + 3 * MIB), Bytes(5 * MIB))]
    );
    assert_eq!(device.active, Bytes(57 * MIB));
}

#[test]
fn segments_that_do_not_add_up_are_no_reading() {
    let (mut memory, variable, _) = process(&sample());
    let reserved = ALLOCATORS + layout().counters.reserved;
    memory.write(reserved, &words(&[90 * MIB, 90 * MIB]));
    let read = super::read(&memory, variable, Some("2.14.1"));
    assert_eq!(read, Ok(SegmentTables::Changed));
}

/// A known version whose tables do not fit was caught in the middle of a change; nothing of it is a lasting refusal.
#[test]
fn tables_of_a_known_version_that_do_not_fit_are_read_again() {
    let (mut memory, variable, _) = process(&sample());
    memory.write(POOLS, &[0xff; 64]);
    let known = super::read(&memory, variable, Some("2.14.1"));
    assert_eq!(known, Ok(SegmentTables::Changed));
    let unknown = super::read(&memory, variable, Some("9.9.9"));
    assert!(
        matches!(unknown, Err(TablesError::UnknownLayout(_))),
        "{unknown:?}"
    );
}

proptest! {
    #[test]
    fn memory_that_lies_is_read_in_bounds_and_adds_up_or_is_refused(
        lies in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u64>(), any::<bool>()),
            1..20,
        ),
    ) {
        let (mut memory, variable, places) = process(&sample());
        for (at, pointer, number, is_pointer) in lies {
            // A lie that points to another object leads further than a random one.
            let lie = if is_pointer { places[pointer.index(places.len())] } else { number };
            memory.write(places[at.index(places.len())], &lie.to_le_bytes());
        }
        let counting = Counting::of(&memory);
        let read = super::read(&counting, variable, Some("2.14.1"));
        prop_assert!(counting.reads.get() < 200_000, "{} reads", counting.reads.get());
        prop_assert!(counting.bytes.get() < 1 << 30, "{} bytes", counting.bytes.get());
        if let Ok(SegmentTables::Whole(devices)) = read {
            for device in devices {
                let sum: u64 = device.segments.iter().map(|segment| segment.size.0).sum();
                prop_assert_eq!(sum, device.totals.reserved.0);
            }
        }
    }
}

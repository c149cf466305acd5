use super::*;

const MIB: u64 = 1 << 20;

fn allocated(allocator: &CachingAllocator) -> (u64, u64) {
    let totals = allocator.totals;
    (totals.allocated.0, totals.reserved.0)
}

fn malloc(allocator: &mut CachingAllocator, bytes: u64) -> GpuBlock {
    allocator.malloc(Bytes(bytes)).expect("there is room")
}

#[test]
fn blocks_are_multiples_of_512_bytes_and_none_is_empty() {
    let mut allocator = CachingAllocator::default();
    malloc(&mut allocator, 0);
    malloc(&mut allocator, 1);
    malloc(&mut allocator, 513);
    assert_eq!(allocated(&allocator), (2048, 2 * MIB));
}

#[test]
fn small_blocks_share_segments_of_2_mib_and_large_ones_of_20() {
    let mut allocator = CachingAllocator::default();
    malloc(&mut allocator, MIB);
    malloc(&mut allocator, MIB);
    assert_eq!(allocated(&allocator), (2 * MIB, 2 * MIB));
    malloc(&mut allocator, MIB + 1);
    malloc(&mut allocator, 9 * MIB);
    assert_eq!(allocator.totals.reserved.0, 22 * MIB);
}

#[test]
fn blocks_of_10_mib_and_more_have_segments_of_their_own_size() {
    let mut allocator = CachingAllocator::default();
    malloc(&mut allocator, 10 * MIB);
    assert_eq!(allocator.totals.reserved.0, 10 * MIB);
    malloc(&mut allocator, 11 * MIB + 1);
    assert_eq!(allocator.totals.reserved.0, 22 * MIB);
}

#[test]
fn the_end_of_a_large_block_is_cut_off_only_if_it_is_more_than_1_mib() {
    let mut allocator = CachingAllocator::default();
    let whole = malloc(&mut allocator, 12 * MIB);
    allocator.free(whole);
    let most = malloc(&mut allocator, 11 * MIB);
    assert_eq!(allocator.size(most), Bytes(12 * MIB), "1 MiB is of no use");
    allocator.free(most);
    let less = malloc(&mut allocator, 11 * MIB - 512);
    assert_eq!(allocator.size(less), Bytes(11 * MIB - 512));
    assert_eq!(allocator.totals.reserved.0, 12 * MIB);
}

#[test]
fn the_smallest_block_that_is_large_enough_is_taken_and_of_equal_ones_the_first() {
    let mut allocator = CachingAllocator::default();
    let ids: Vec<_> = (0..6).map(|_| malloc(&mut allocator, 4 * MIB)).collect();
    let second = allocator.addr(ids[1]);
    for id in [ids[3], ids[1], ids[5]] {
        allocator.free(id);
    }
    let first = malloc(&mut allocator, 3 * MIB + 1);
    assert_eq!(allocator.addr(first), second);
    assert_eq!(
        allocator.size(first),
        Bytes(4 * MIB),
        "the end is too small"
    );
}

#[test]
fn free_neighbours_become_one_block_again() {
    let mut allocator = CachingAllocator::default();
    let ids: Vec<_> = (0..5).map(|_| malloc(&mut allocator, 4 * MIB)).collect();
    for at in [1, 3, 2] {
        allocator.free(ids[at]);
    }
    let joined = malloc(&mut allocator, 12 * MIB);
    assert_eq!(allocator.totals.reserved.0, 20 * MIB);
    allocator.free(joined);
    allocator.free(ids[0]);
    allocator.free(ids[4]);
    assert_eq!(allocated(&allocator), (0, 20 * MIB));
    allocator.empty_cache();
    assert_eq!(allocated(&allocator), (0, 0));
}

#[test]
fn what_is_freed_twice_is_freed_once() {
    let mut allocator = CachingAllocator::default();
    let id = malloc(&mut allocator, 4 * MIB);
    let other = malloc(&mut allocator, 4 * MIB);
    allocator.free(id);
    allocator.free(id);
    assert_eq!(allocated(&allocator), (4 * MIB, 20 * MIB));
    allocator.free(other);
    assert_eq!(allocated(&allocator), (0, 20 * MIB));
}

#[test]
fn a_full_device_gets_its_cached_segments_back_before_there_is_an_error() {
    let mut allocator = CachingAllocator::with_capacity(Bytes(32 * MIB));
    let first = malloc(&mut allocator, 20 * MIB);
    allocator.free(first);
    let second = malloc(&mut allocator, 24 * MIB);
    assert_eq!(allocator.flushes, 1);
    assert_eq!(allocated(&allocator), (24 * MIB, 24 * MIB));
    let refused = allocator.malloc(Bytes(9 * MIB));
    let segment = Bytes(20 * MIB);
    assert_eq!(refused, Err(OutOfMemory { segment }));
    allocator.free(second);
    malloc(&mut allocator, 9 * MIB);
}

#[test]
fn a_request_that_no_device_could_grant_is_refused() {
    let mut allocator = CachingAllocator::default();
    assert!(allocator.malloc(Bytes(u64::MAX)).is_err());
    assert_eq!(allocated(&allocator), (0, 0));
}

fn with(settings: &str) -> CachingAllocator {
    let settings = AllocatorSettings::parse(settings).expect("settings");
    CachingAllocator::with_settings(settings, Ties::OldestSegment, None)
}

#[test]
fn an_expandable_segment_grows_by_pages_and_is_cut_at_any_size() {
    let mut allocator = with("expandable_segments:True");
    let first = malloc(&mut allocator, 30 * MIB);
    assert_eq!(allocated(&allocator), (30 * MIB, 40 * MIB));
    let second = malloc(&mut allocator, 15 * MIB);
    assert_eq!(allocated(&allocator), (45 * MIB, 60 * MIB));
    allocator.free(first);
    // The free 30 MiB and what follows the second block are apart.
    malloc(&mut allocator, 29 * MIB);
    assert_eq!(allocated(&allocator), (44 * MIB, 60 * MIB));
    allocator.free(second);
    malloc(&mut allocator, 40 * MIB);
    assert_eq!(allocated(&allocator), (69 * MIB, 80 * MIB));
}

#[test]
fn empty_cache_unmaps_whole_pages_of_an_expandable_segment() {
    let mut allocator = with("expandable_segments:True");
    let blocks = [10, 50, 10].map(|mib| malloc(&mut allocator, mib * MIB));
    assert_eq!(allocated(&allocator), (70 * MIB, 80 * MIB));
    allocator.free(blocks[1]);
    allocator.empty_cache();
    // Of 10 to 60 MiB the pages from 20 to 60.
    assert_eq!(allocated(&allocator), (20 * MIB, 40 * MIB));
    // The gap is used again, from its begin.
    malloc(&mut allocator, 25 * MIB);
    assert_eq!(allocated(&allocator), (45 * MIB, 60 * MIB));
    allocator.free(blocks[0]);
    allocator.free(blocks[2]);
    allocator.empty_cache();
    assert_eq!(allocator.totals.reserved.0, 40 * MIB);
}

#[test]
fn small_blocks_of_an_expandable_segment_have_pages_of_2_mib() {
    let mut allocator = with("expandable_segments:True");
    let blocks: Vec<_> = (0..3).map(|_| malloc(&mut allocator, MIB)).collect();
    assert_eq!(allocated(&allocator), (3 * MIB, 4 * MIB));
    for block in blocks {
        allocator.free(block);
    }
    allocator.empty_cache();
    assert_eq!(allocated(&allocator), (0, 0));
    malloc(&mut allocator, 512);
    assert_eq!(allocated(&allocator), (512, 2 * MIB));
}

#[test]
fn blocks_above_the_split_limit_are_neither_cut_nor_given_to_smaller_requests() {
    let mut allocator = with("max_split_size_mb:64");
    let large = malloc(&mut allocator, 100 * MIB);
    allocator.free(large);
    malloc(&mut allocator, 30 * MIB);
    assert_eq!(allocator.totals.reserved.0, 130 * MIB);
    let again = malloc(&mut allocator, 90 * MIB);
    assert_eq!(allocator.size(again), Bytes(100 * MIB), "within 20 MiB");
    allocator.free(again);
    malloc(&mut allocator, 70 * MIB);
    assert_eq!(allocator.totals.reserved.0, 200 * MIB, "too large for it");
}

#[test]
fn a_full_device_gets_oversize_blocks_back_first() {
    let settings = AllocatorSettings::parse("max_split_size_mb:64").expect("settings");
    let capacity = Some(Bytes(250 * MIB));
    let mut allocator = CachingAllocator::with_settings(settings, Ties::OldestSegment, capacity);
    let blocks = [100, 80, 30].map(|mib| malloc(&mut allocator, mib * MIB));
    for block in blocks {
        allocator.free(block);
    }
    malloc(&mut allocator, 130 * MIB);
    // Both oversize blocks went, and the small one stayed.
    assert_eq!(allocated(&allocator), (130 * MIB, 160 * MIB));
    assert_eq!(allocator.flushes, 0);
}

#[test]
fn streams_and_private_pools_share_no_free_block() {
    let mut allocator = CachingAllocator::default();
    let place = |stream, private| PoolPlace { stream, private };
    let places = [place(0, None), place(7, None), place(0, Some(PoolId(0, 1)))];
    for at in places {
        let block = allocator.malloc_at(Bytes(12 * MIB), at).expect("room");
        allocator.free(block);
    }
    assert_eq!(allocated(&allocator), (0, 36 * MIB));
    allocator.empty_cache();
    assert_eq!(
        allocated(&allocator),
        (0, 12 * MIB),
        "the private pool is kept"
    );
}

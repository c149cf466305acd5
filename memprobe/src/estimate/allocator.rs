//! Simulation of PyTorch's caching allocator, without memory: blocks, segments and totals.
//!
//! The rules are those of `DeviceCachingAllocator` with default settings and a single stream
//! (c10/cuda/CUDACachingAllocator.cpp@v2.15.0: `round_size`, `get_allocation_size`,
//! `get_free_block`, `should_split`, `free_block`, `release_cached_blocks`; the constants in
//! c10/core/AllocatorConfig.h). Apart from [`Ties`] they are unchanged since 2.0.

use std::collections::BTreeSet;

use crate::event::{Address, Bytes, Totals};

/// Granularity of block sizes (`kMinBlockSize`).
const LEAST: u64 = 512;
/// Largest block of the small pool (`kSmallSize`).
const SMALL: u64 = 1 << 20;
/// Size of segments of the small pool (`kSmallBuffer`).
const SMALL_SEGMENT: u64 = 2 << 20;
/// Size of segments of the large pool for blocks below [`OWN_SEGMENT`] (`kLargeBuffer`).
const LARGE_SEGMENT: u64 = 20 << 20;
/// Smallest block that gets a segment of its own size if no free block fits (`kMinLargeAlloc`).
const OWN_SEGMENT: u64 = 10 << 20;
/// Granularity of such segments (`kRoundLarge`).
const SEGMENT_UNIT: u64 = 2 << 20;
const FIRST: u64 = 1 << 40;
/// Requests above this are rejected: no device has as much memory.
const MOST: u64 = 1 << 48;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GpuBlock(usize);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfMemory {
    /// Size of the segment that did not fit on the device.
    pub segment: Bytes,
}

#[derive(Debug, Default)]
pub struct CachingAllocator {
    /// Bytes that CUDA can give; `None` for unlimited.
    capacity: Option<Bytes>,
    ties: Ties,
    blocks: Vec<Block>,
    /// Unused indices of `blocks`.
    vacant: Vec<usize>,
    /// Free blocks by [`Pool`].
    free: [BTreeSet<Key>; 2],
    pub totals: Totals,
    pub peak: Totals,
    /// Number of times that all cached segments were released because the device was full.
    pub flushes: u64,
    /// Address of the next segment, if the caller chose one.
    next: Option<Address>,
    segments: u64,
    /// Bytes of all segments so far. By default each segment follows the last; no address is
    /// reused.
    mapped: u64,
}

/// Sort key of free blocks: smallest first, equal ones in the order of [`Ties`].
type Key = (u64, u64, u64, usize);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ties {
    /// The first of the oldest segment, as seen in 2.15.0. It is also the lowest address as long as
    /// CUDA returns ascending addresses.
    #[default]
    OldestSegment,
    /// The lowest address, as seen in 2.0.1 and 2.6.0.
    LowestAddress,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pool {
    Small,
    Large,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    addr: u64,
    size: u64,
    /// Rank of its segment among blocks of equal size.
    segment: u64,
    pool: Pool,
    is_live: bool,
    before: Option<usize>,
    after: Option<usize>,
}

impl Block {
    fn is_segment(&self) -> bool {
        self.before.is_none() && self.after.is_none()
    }
}

impl CachingAllocator {
    /// Returns an unlimited allocator with another choice among blocks of equal size.
    pub fn with_ties(ties: Ties) -> Self {
        Self {
            ties,
            ..Self::default()
        }
    }

    /// Returns an allocator that gets at most `capacity` from CUDA.
    pub fn with_capacity(capacity: Bytes) -> Self {
        Self {
            capacity: Some(capacity),
            ..Self::default()
        }
    }

    /// Allocates a block of at least `requested` bytes.
    ///
    /// # Errors
    /// If the device has no room, even after all cached segments were released.
    pub fn malloc(&mut self, requested: Bytes) -> Result<GpuBlock, OutOfMemory> {
        if requested.0 > MOST {
            return Err(OutOfMemory { segment: requested });
        }
        let size = requested.0.next_multiple_of(LEAST).max(LEAST);
        let pool = if size <= SMALL {
            Pool::Small
        } else {
            Pool::Large
        };
        let found = match self.free_of(pool).range((size, 0, 0, 0)..).next().copied() {
            Some(key) => {
                self.free_of(pool).remove(&key);
                key.3
            }
            None => self.segment(size, pool)?,
        };
        self.split(found, size);
        let block = &mut self.blocks[found];
        block.is_live = true;
        self.totals.allocated.0 = self.totals.allocated.0.saturating_add(block.size);
        self.peak = self.peak.higher(self.totals);
        Ok(GpuBlock(found))
    }

    /// Frees a block. Does nothing if the block is not live.
    pub fn free(&mut self, id: GpuBlock) {
        let Some(block) = self.blocks.get_mut(id.0).filter(|block| block.is_live) else {
            return;
        };
        block.is_live = false;
        self.totals.allocated.0 = self.totals.allocated.0.saturating_sub(block.size);
        let (before, after, pool) = (block.before, block.after, block.pool);
        let mut whole = id.0;
        if let Some(before) = before.filter(|at| !self.blocks[*at].is_live) {
            self.take_free(before);
            self.join(before, whole);
            whole = before;
        }
        if let Some(after) = after.filter(|at| !self.blocks[*at].is_live) {
            self.take_free(after);
            self.join(whole, after);
        }
        let key = self.key(whole);
        self.free_of(pool).insert(key);
    }

    /// Releases all segments without live blocks (`torch.cuda.empty_cache()`).
    pub fn empty_cache(&mut self) {
        for pool in [Pool::Small, Pool::Large] {
            let free = self.free[pool as usize].iter();
            let whole = free.filter(|key| self.blocks[key.3].is_segment());
            let whole: Vec<Key> = whole.copied().collect();
            for key in whole {
                self.free_of(pool).remove(&key);
                self.totals.reserved.0 = self.totals.reserved.0.saturating_sub(key.0);
                self.vacant.push(key.3);
            }
        }
    }

    /// Sets the address of the next segment. By default segments follow one another.
    pub fn place_next_segment(&mut self, addr: Address) {
        self.next = Some(addr);
    }

    pub fn size(&self, id: GpuBlock) -> Bytes {
        Bytes(self.blocks.get(id.0).map_or(0, |block| block.size))
    }

    pub fn addr(&self, id: GpuBlock) -> Address {
        Address(self.blocks.get(id.0).map_or(0, |block| block.addr))
    }

    fn free_of(&mut self, pool: Pool) -> &mut BTreeSet<Key> {
        &mut self.free[pool as usize]
    }

    fn key(&self, at: usize) -> Key {
        let block = &self.blocks[at];
        (block.size, block.segment, block.addr, at)
    }

    fn take_free(&mut self, at: usize) {
        let key = self.key(at);
        self.free_of(self.blocks[at].pool).remove(&key);
    }

    /// Requests a segment from CUDA with room for `size` bytes.
    fn segment(&mut self, size: u64, pool: Pool) -> Result<usize, OutOfMemory> {
        let bytes = segment_bytes(size);
        if self.is_beyond_capacity(bytes) {
            // Whole segments are released, and requested again later.
            self.flushes += 1;
            self.empty_cache();
            if self.is_beyond_capacity(bytes) {
                return Err(OutOfMemory {
                    segment: Bytes(bytes),
                });
            }
        }
        self.segments += 1;
        let addr = match self.next.take() {
            Some(addr) => addr.0,
            None => FIRST.wrapping_add(self.mapped),
        };
        self.mapped = self.mapped.wrapping_add(bytes);
        self.totals.reserved.0 = self.totals.reserved.0.saturating_add(bytes);
        Ok(self.put(Block {
            addr,
            size: bytes,
            segment: match self.ties {
                Ties::OldestSegment => self.segments,
                Ties::LowestAddress => 0,
            },
            pool,
            is_live: false,
            before: None,
            after: None,
        }))
    }

    fn is_beyond_capacity(&self, more: u64) -> bool {
        let wanted = self.totals.reserved.0.saturating_add(more);
        self.capacity.is_some_and(|capacity| wanted > capacity.0)
    }

    fn put(&mut self, block: Block) -> usize {
        match self.vacant.pop() {
            Some(at) => {
                self.blocks[at] = block;
                at
            }
            None => {
                self.blocks.push(block);
                self.blocks.len() - 1
            }
        }
    }

    /// Splits off the end of a block, unless the remainder is too small (`should_split`).
    fn split(&mut self, at: usize, size: u64) {
        let block = self.blocks[at];
        let rest = block.size - size;
        let is_of_use = match block.pool {
            Pool::Small => rest >= LEAST,
            Pool::Large => rest > SMALL,
        };
        if !is_of_use {
            return;
        }
        let end = self.put(Block {
            addr: block.addr.wrapping_add(size),
            size: rest,
            before: Some(at),
            is_live: false,
            ..block
        });
        if let Some(after) = block.after {
            self.blocks[after].before = Some(end);
        }
        self.blocks[at].size = size;
        self.blocks[at].after = Some(end);
        let key = self.key(end);
        self.free_of(block.pool).insert(key);
    }

    fn join(&mut self, first: usize, second: usize) {
        let gone = self.blocks[second];
        self.blocks[first].size += gone.size;
        self.blocks[first].after = gone.after;
        if let Some(after) = gone.after {
            self.blocks[after].before = Some(first);
        }
        self.blocks[second].is_live = false;
        self.vacant.push(second);
    }
}

/// Size of a new segment for a block of `size` bytes (`get_allocation_size`).
fn segment_bytes(size: u64) -> u64 {
    if size <= SMALL {
        SMALL_SEGMENT
    } else if size < OWN_SEGMENT {
        LARGE_SEGMENT
    } else {
        size.next_multiple_of(SEGMENT_UNIT)
    }
}

#[cfg(test)]
mod tests {
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
}

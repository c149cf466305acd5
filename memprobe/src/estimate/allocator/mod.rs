//! Simulation of PyTorch's caching allocator, without memory: blocks, segments and totals.
//!
//! The rules are those of `DeviceCachingAllocator` (c10/cuda/CUDACachingAllocator.cpp@v2.15.0: `round_size`,
//! `get_allocation_size`, `get_free_block`, `should_split`, `free_block`, `release_available_cached_blocks`,
//! `release_cached_blocks`; the constants in c10/core/AllocatorConfig.h). Apart from [`Ties`] they are unchanged since
//! 2.0.

mod expandable;
mod release;
pub mod settings;

use std::collections::{BTreeSet, HashMap};

use crate::event::{Address, Bytes, PoolId, Totals};
use settings::AllocatorSettings;

/// Granularity of block sizes (`kMinBlockSize`).
const LEAST: u64 = 512;
/// Largest block of the small pool (`kSmallSize`).
const SMALL: u64 = 1 << 20;
/// Size of segments of the small pool (`kSmallBuffer`).
const SMALL_SEGMENT: u64 = 2 << 20;
/// Size of segments of the large pool for blocks below [`OWN_SEGMENT`], by default (`kLargeBuffer`).
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
    /// Size of the segment, or of the pages, that did not fit on the device.
    pub segment: Bytes,
}

/// Stream and private pool of a request: each has free blocks of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PoolPlace {
    pub stream: u64,
    /// `None` for the default pools.
    pub private: Option<PoolId>,
}

#[derive(Debug, Default)]
pub struct CachingAllocator {
    /// Bytes that CUDA can give; `None` for unlimited.
    capacity: Option<Bytes>,
    settings: AllocatorSettings,
    ties: Ties,
    blocks: Vec<Block>,
    /// Unused indices of `blocks`.
    vacant: Vec<usize>,
    pools: Vec<PoolBlocks>,
    by_place: HashMap<(PoolPlace, PoolKind), usize>,
    pub totals: Totals,
    pub peak: Totals,
    /// Number of times that all cached segments were released because the device was full.
    pub flushes: u64,
    /// True if the last block was cut from a larger one, so that it is as large as its rounded request.
    pub was_cut: bool,
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

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum PoolKind {
    Small,
    Large,
}

/// Blocks of a pool that are not live.
#[derive(Debug)]
struct PoolBlocks {
    place: PoolPlace,
    kind: PoolKind,
    free: BTreeSet<Key>,
    /// Parts of expandable segments without pages, by address.
    unmapped: BTreeSet<(u64, usize)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BlockUse {
    Live,
    Free,
    /// Address space of an expandable segment without pages.
    Unmapped,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    addr: u64,
    size: u64,
    /// Rank of its segment among blocks of equal size.
    segment: u64,
    /// Index of its pool.
    pool: usize,
    usage: BlockUse,
    is_expandable: bool,
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

    /// Returns an allocator with settings of `PYTORCH_CUDA_ALLOC_CONF`; without a capacity it is unlimited.
    pub fn with_settings(settings: AllocatorSettings, ties: Ties, capacity: Option<Bytes>) -> Self {
        Self {
            capacity,
            settings,
            ties,
            ..Self::default()
        }
    }

    /// Allocates a block of at least `requested` bytes on the default stream.
    ///
    /// # Errors
    /// If the device has no room, even after all cached segments were released.
    pub fn malloc(&mut self, requested: Bytes) -> Result<GpuBlock, OutOfMemory> {
        self.malloc_at(requested, PoolPlace::default())
    }

    /// Allocates a block of at least `requested` bytes on a stream, in a private pool or outside one.
    ///
    /// # Errors
    /// As [`Self::malloc`].
    pub fn malloc_at(
        &mut self,
        requested: Bytes,
        place: PoolPlace,
    ) -> Result<GpuBlock, OutOfMemory> {
        if requested.0 > MOST {
            return Err(OutOfMemory { segment: requested });
        }
        let size = self.settings.rounded(requested.0);
        let kind = if size <= SMALL {
            PoolKind::Small
        } else {
            PoolKind::Large
        };
        let pool = self.pool(place, kind);
        let found = match self.free_block(size, pool) {
            Some(key) => {
                self.pools[pool].free.remove(&key);
                key.3
            }
            None => self.obtain(size, pool)?,
        };
        self.split(found, size);
        let block = &mut self.blocks[found];
        block.usage = BlockUse::Live;
        self.totals.allocated.0 = self.totals.allocated.0.saturating_add(block.size);
        self.peak = self.peak.higher(self.totals);
        Ok(GpuBlock(found))
    }

    /// Frees a block. Does nothing if the block is not live.
    pub fn free(&mut self, id: GpuBlock) {
        let block = self.blocks.get_mut(id.0);
        let Some(block) = block.filter(|block| block.usage == BlockUse::Live) else {
            return;
        };
        block.usage = BlockUse::Free;
        self.totals.allocated.0 = self.totals.allocated.0.saturating_sub(block.size);
        let whole = self.join_around(id.0);
        let key = self.key(whole);
        let pool = self.blocks[whole].pool;
        self.pools[pool].free.insert(key);
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

    fn pool(&mut self, place: PoolPlace, kind: PoolKind) -> usize {
        *self.by_place.entry((place, kind)).or_insert_with(|| {
            self.pools.push(PoolBlocks {
                place,
                kind,
                free: BTreeSet::new(),
                unmapped: BTreeSet::new(),
            });
            self.pools.len() - 1
        })
    }

    /// The free block that serves a request (`get_free_block`).
    fn free_block(&self, size: u64, pool: usize) -> Option<Key> {
        let mut fitting = self.pools[pool].free.range((size, 0, 0, 0)..).copied();
        let mut found = fitting.next()?;
        if self.settings.expandable {
            // A block counts with the address space behind it. Of neighbours in size, the one that can grow least is taken.
            let reach = |key: Key| self.reach(key.3);
            for next in fitting {
                if reach(next) >= reach(found) {
                    break;
                }
                found = next;
            }
        }
        let most = self.settings.max_split;
        let is_oversize = size < most && found.0 >= most;
        let is_too_large =
            size >= most && found.0 >= size.saturating_add(self.settings.max_non_split_rounding);
        (!is_oversize && !is_too_large).then_some(found)
    }

    fn key(&self, at: usize) -> Key {
        let block = &self.blocks[at];
        (block.size, block.segment, block.addr, at)
    }

    fn take_free(&mut self, at: usize) {
        let key = self.key(at);
        self.pools[self.blocks[at].pool].free.remove(&key);
    }

    /// Obtains memory for a block from CUDA, after cached memory was released if there is no room.
    fn obtain(&mut self, size: u64, pool: usize) -> Result<usize, OutOfMemory> {
        let first = self.obtain_once(size, pool);
        if first.is_ok() {
            return first;
        }
        if self.release_oversize(size, pool)
            && let Ok(found) = self.obtain_once(size, pool)
        {
            return Ok(found);
        }
        // Whole segments are released, and requested again later.
        self.flushes += 1;
        self.empty_cache();
        self.obtain_once(size, pool)
    }

    fn obtain_once(&mut self, size: u64, pool: usize) -> Result<usize, OutOfMemory> {
        if self.settings.expandable {
            self.expand(size, pool)
        } else {
            self.segment(size, pool)
        }
    }

    /// Requests a segment from CUDA with room for `size` bytes.
    fn segment(&mut self, size: u64, pool: usize) -> Result<usize, OutOfMemory> {
        let bytes = segment_bytes(size, &self.settings);
        self.check_capacity(bytes)?;
        let addr = self.next_address(bytes);
        self.totals.reserved.0 = self.totals.reserved.0.saturating_add(bytes);
        let segment = self.next_segment();
        Ok(self.put(Block {
            addr,
            size: bytes,
            segment,
            pool,
            usage: BlockUse::Free,
            is_expandable: false,
            before: None,
            after: None,
        }))
    }

    fn next_address(&mut self, bytes: u64) -> u64 {
        let addr = match self.next.take() {
            Some(addr) => addr.0,
            None => FIRST.wrapping_add(self.mapped),
        };
        self.mapped = self.mapped.wrapping_add(bytes);
        addr
    }

    fn next_segment(&mut self) -> u64 {
        self.segments += 1;
        match self.ties {
            Ties::OldestSegment => self.segments,
            Ties::LowestAddress => 0,
        }
    }

    fn check_capacity(&self, more: u64) -> Result<(), OutOfMemory> {
        let wanted = self.totals.reserved.0.saturating_add(more);
        if self.capacity.is_some_and(|capacity| wanted > capacity.0) {
            return Err(OutOfMemory {
                segment: Bytes(more),
            });
        }
        Ok(())
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
        let is_of_use =
            if self.settings.expandable || self.pools[block.pool].kind == PoolKind::Small {
                rest >= LEAST
            } else {
                size < self.settings.max_split && rest > SMALL
            };
        self.was_cut = is_of_use;
        if !is_of_use {
            return;
        }
        let end = self.cut(at, size, BlockUse::Free);
        let key = self.key(end);
        self.pools[block.pool].free.insert(key);
    }

    /// Cuts a block in two; returns the second. Neither is in a list of free blocks.
    fn cut(&mut self, at: usize, size: u64, usage: BlockUse) -> usize {
        let block = self.blocks[at];
        let end = self.put(Block {
            addr: block.addr.wrapping_add(size),
            size: block.size - size,
            before: Some(at),
            usage,
            ..block
        });
        if let Some(after) = block.after {
            self.blocks[after].before = Some(end);
        }
        self.blocks[at].size = size;
        self.blocks[at].after = Some(end);
        end
    }

    /// Joins a block with neighbours of the same use; returns the whole, which is in no list.
    fn join_around(&mut self, at: usize) -> usize {
        let Block {
            before,
            after,
            usage,
            ..
        } = self.blocks[at];
        let mut whole = at;
        if let Some(before) = before.filter(|at| self.blocks[*at].usage == usage) {
            self.take_out(before);
            self.join(before, whole);
            whole = before;
        }
        if let Some(after) = after.filter(|at| self.blocks[*at].usage == usage) {
            self.take_out(after);
            self.join(whole, after);
        }
        whole
    }

    /// Takes a block out of its list.
    fn take_out(&mut self, at: usize) {
        let block = self.blocks[at];
        match block.usage {
            BlockUse::Unmapped => {
                self.pools[block.pool].unmapped.remove(&(block.addr, at));
            }
            BlockUse::Free | BlockUse::Live => self.take_free(at),
        }
    }

    fn join(&mut self, first: usize, second: usize) {
        let gone = self.blocks[second];
        self.blocks[first].size += gone.size;
        self.blocks[first].after = gone.after;
        if let Some(after) = gone.after {
            self.blocks[after].before = Some(first);
        }
        self.blocks[second].usage = BlockUse::Free;
        self.vacant.push(second);
    }
}

/// Size of a new segment for a block of `size` bytes (`get_allocation_size`).
fn segment_bytes(size: u64, settings: &AllocatorSettings) -> u64 {
    if size <= SMALL {
        SMALL_SEGMENT
    } else if size < OWN_SEGMENT {
        settings.large_segment
    } else {
        size.next_multiple_of(SEGMENT_UNIT)
    }
}

#[cfg(test)]
mod tests;

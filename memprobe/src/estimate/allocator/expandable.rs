//! Expandable segments: address space that pages are mapped into as blocks need them.
//!
//! The rules are those of `find_expandable_block`, `map_block`, `try_allocate_expandable_block` and `unmap_block`
//! (c10/cuda/CUDACachingAllocator.cpp@v2.1.0 to @v2.15.0).

use super::{Block, BlockUse, CachingAllocator, OutOfMemory, PoolKind, SMALL_SEGMENT};
use crate::event::Bytes;

/// Address space of an expandable segment, more than any device has.
const ADDRESS_SPACE: u64 = 10 << 42;

impl CachingAllocator {
    /// Bytes that a free block can have with the unmapped part behind it.
    pub(super) fn reach(&self, at: usize) -> u64 {
        let block = &self.blocks[at];
        let after = block.after.map(|after| &self.blocks[after]);
        let more = after.filter(|after| after.usage == BlockUse::Unmapped);
        block
            .size
            .saturating_add(more.map_or(0, |after| after.size))
    }

    /// Maps pages until a free block of `size` bytes exists; returns it, in no list.
    pub(super) fn expand(&mut self, size: u64, pool: usize) -> Result<usize, OutOfMemory> {
        let mut candidate = self.expandable_block(size, pool);
        if self.blocks[candidate].usage == BlockUse::Unmapped {
            let wanted = size.min(self.blocks[candidate].size);
            candidate = self.map(candidate, wanted)?;
        }
        while self.blocks[candidate].size < size {
            let rest = size - self.blocks[candidate].size;
            let Some(next) = self.blocks[candidate].after else {
                return Err(OutOfMemory {
                    segment: Bytes(size),
                });
            };
            let wanted = rest.min(self.blocks[next].size);
            candidate = self.map(next, wanted)?;
        }
        self.take_free(candidate);
        Ok(candidate)
    }

    /// The lowest place of an expandable segment with room for `size` bytes, in a new segment if there is none.
    fn expandable_block(&mut self, size: u64, pool: usize) -> usize {
        let places = self.pools[pool].unmapped.iter();
        let found = places.map(|(_, at)| {
            let before = self.blocks[*at].before;
            before
                .filter(|before| self.blocks[*before].usage != BlockUse::Live)
                .unwrap_or(*at)
        });
        let mut found = found.filter(|at| self.has_address_space(*at, size));
        if let Some(at) = found.next() {
            return at;
        }
        let addr = self.next_address(ADDRESS_SPACE);
        let segment = self.next_segment();
        let at = self.put(Block {
            addr,
            size: ADDRESS_SPACE,
            segment,
            pool,
            usage: BlockUse::Unmapped,
            is_expandable: true,
            before: None,
            after: None,
        });
        self.pools[pool].unmapped.insert((addr, at));
        at
    }

    fn has_address_space(&self, from: usize, size: u64) -> bool {
        let mut space = 0_u64;
        let mut next = Some(from);
        while let Some(at) = next {
            let block = &self.blocks[at];
            if block.usage == BlockUse::Live || space >= size {
                break;
            }
            space = space.saturating_add(block.size);
            next = block.after;
        }
        space >= size
    }

    /// Maps pages at the begin of an unmapped block; returns the free block that they become part of.
    fn map(&mut self, at: usize, size: u64) -> Result<usize, OutOfMemory> {
        let block = self.blocks[at];
        let page = self.page(self.pools[block.pool].kind);
        let bytes = size.next_multiple_of(page).min(block.size);
        self.check_capacity(bytes)?;
        self.pools[block.pool].unmapped.remove(&(block.addr, at));
        if bytes < block.size {
            let rest = self.cut(at, bytes, BlockUse::Unmapped);
            let key = (self.blocks[rest].addr, rest);
            self.pools[block.pool].unmapped.insert(key);
        }
        self.blocks[at].usage = BlockUse::Free;
        self.totals.reserved.0 = self.totals.reserved.0.saturating_add(bytes);
        // As in PyTorch, pages that were mapped for a request that then fails stay.
        self.peak = self.peak.higher(self.totals);
        let whole = self.join_around(at);
        let key = self.key(whole);
        self.pools[block.pool].free.insert(key);
        Ok(whole)
    }

    /// Unmaps the whole pages of a free block (`unmap_block`).
    pub(super) fn unmap(&mut self, at: usize) {
        let block = self.blocks[at];
        let page = self.page(self.pools[block.pool].kind);
        // Bytes from the begin of the segment, whose address may be any number.
        let first = block.addr.wrapping_sub(self.segment_begin(at));
        let begin = first.next_multiple_of(page);
        let end = (first + block.size) / page * page;
        if begin >= end {
            return;
        }
        self.take_free(at);
        let mut unmapped = at;
        if begin > first {
            unmapped = self.cut(at, begin - first, BlockUse::Free);
            let key = self.key(at);
            self.pools[block.pool].free.insert(key);
        }
        if end < first + block.size {
            let rest = self.cut(unmapped, end - begin, BlockUse::Free);
            let key = self.key(rest);
            self.pools[block.pool].free.insert(key);
        }
        self.blocks[unmapped].usage = BlockUse::Unmapped;
        self.totals.reserved.0 = self.totals.reserved.0.saturating_sub(end - begin);
        let whole = self.join_around(unmapped);
        if self.blocks[whole].is_segment() {
            // Nothing of the segment is left.
            self.blocks[whole].usage = BlockUse::Free;
            self.vacant.push(whole);
            return;
        }
        let key = (self.blocks[whole].addr, whole);
        self.pools[block.pool].unmapped.insert(key);
    }

    /// Size of the pages that are mapped at once.
    const fn page(&self, kind: PoolKind) -> u64 {
        match kind {
            PoolKind::Small => SMALL_SEGMENT,
            PoolKind::Large => self.settings.large_segment,
        }
    }

    fn segment_begin(&self, at: usize) -> u64 {
        let mut first = at;
        while let Some(before) = self.blocks[first].before {
            first = before;
        }
        self.blocks[first].addr
    }
}

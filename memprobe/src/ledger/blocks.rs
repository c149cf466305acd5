//! Live blocks of one device, by address.

use std::collections::BTreeMap;

use super::call_sites::CallSiteId;
use crate::event::{Address, Bytes};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Block {
    pub(super) addr: Address,
    pub(super) size: Bytes,
    pub(super) owner: Owner,
}

/// Call site of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    Holder(CallSiteId),
    /// Unknown: the block was live when memprobe attached.
    BeforeAttach,
}

/// Live blocks of one device, which never overlap.
///
/// An ordered map finds overlaps, gives memory back, and never pauses to rehash a million blocks. A
/// hash table would also hold two tables at once while it grows.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    by_addr: BTreeMap<u64, (u64, Owner)>,
    live: u64,
}

impl Blocks {
    /// Sum of the sizes. It cannot overflow: blocks do not overlap and lie below
    /// [`super::device::ADDRESS_LIMIT`].
    pub(super) fn live(&self) -> u64 {
        self.live
    }

    pub(super) fn len(&self) -> usize {
        self.by_addr.len()
    }

    /// Adds a block, which must not overlap another: see [`Self::take_overlapping`].
    pub(super) fn insert(&mut self, block: Block) {
        self.by_addr
            .insert(block.addr.0, (block.size.0, block.owner));
        self.live = self.live.saturating_add(block.size.0);
    }

    /// Returns true if no block shares a byte with `addr..addr + size`.
    pub(super) fn is_vacant(&self, addr: Address, size: Bytes) -> bool {
        self.last_overlapping(addr, size).is_none()
    }

    /// All blocks, by address.
    pub(super) fn all(&self) -> impl Iterator<Item = Block> {
        let all = self.by_addr.iter();
        all.map(|(addr, (size, owner))| Block {
            addr: Address(*addr),
            size: Bytes(*size),
            owner: *owner,
        })
    }

    pub(super) fn at(&self, addr: Address) -> Option<Block> {
        let &(size, owner) = self.by_addr.get(&addr.0)?;
        Some(Block {
            addr,
            size: Bytes(size),
            owner,
        })
    }

    /// Removes the block at `addr`.
    pub(super) fn take(&mut self, addr: Address) -> Option<Block> {
        let (size, owner) = self.by_addr.remove(&addr.0)?;
        self.live = self.live.saturating_sub(size);
        Some(Block {
            addr,
            size: Bytes(size),
            owner,
        })
    }

    /// Removes the last block that overlaps `addr..addr + size`. A size of 0 counts as one byte.
    pub(super) fn take_overlapping(&mut self, addr: Address, size: Bytes) -> Option<Block> {
        self.take(self.last_overlapping(addr, size)?)
    }

    fn last_overlapping(&self, addr: Address, size: Bytes) -> Option<Address> {
        // Blocks do not overlap, so the last that begins before the end also ends last.
        let (start, last) = self.by_addr.range(..end(addr.0, size.0)).next_back()?;
        (end(*start, last.0) > addr.0).then_some(Address(*start))
    }
}

/// Address one past the last byte; an empty block still occupies its address.
fn end(addr: u64, size: u64) -> u64 {
    addr.saturating_add(size.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(addr: u64, size: u64) -> Block {
        Block {
            addr: Address(addr),
            size: Bytes(size),
            owner: Owner::BeforeAttach,
        }
    }

    fn blocks(ranges: &[(u64, u64)]) -> Blocks {
        let mut blocks = Blocks::default();
        for (addr, size) in ranges {
            blocks.insert(block(*addr, *size));
        }
        blocks
    }

    fn overlapping(blocks: &mut Blocks, addr: u64, size: u64) -> Vec<u64> {
        std::iter::from_fn(|| blocks.take_overlapping(Address(addr), Bytes(size)))
            .map(|block| block.addr.0)
            .collect()
    }

    #[test]
    fn neighbours_do_not_overlap() {
        let mut blocks = blocks(&[(0, 512), (1024, 512)]);
        assert_eq!(overlapping(&mut blocks, 512, 512), [0_u64; 0]);
        assert_eq!(blocks.live(), 1024);
    }

    #[test]
    fn all_that_share_a_byte_are_taken_out() {
        let mut blocks = blocks(&[(0, 512), (512, 512), (1024, 512), (2048, 512)]);
        assert_eq!(overlapping(&mut blocks, 1000, 100), [1024, 512]);
        assert_eq!((blocks.len(), blocks.live()), (2, 1024));
    }

    #[test]
    fn the_same_address_overlaps_even_without_bytes() {
        let mut blocks = blocks(&[(512, 0)]);
        assert_eq!(overlapping(&mut blocks, 512, 0), [512]);
    }

    #[test]
    fn a_block_within_another_overlaps_it() {
        let mut blocks = blocks(&[(0, 4096)]);
        assert_eq!(overlapping(&mut blocks, 512, 512), [0]);
        assert_eq!(blocks.live(), 0);
    }
}

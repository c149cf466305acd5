//! Ordered index of the live blocks of a device, by address.
//!
//! Sorted leaves of up to [`LEAF_BLOCKS`] blocks, and the sorted first addresses of the leaves. Two binary searches
//! find a block, without the unpredictable branches of a tree. The place of the last search is stored: an allocation
//! looks for overlaps first, and then inserts its block where that search ended.

use super::block_store::BlockId;
use super::dense::Dense as _;

const LEAF_BLOCKS: usize = 64;
/// Neighbours with at most so many blocks together become one leaf, so that leaves are at least a quarter full on average.
const MERGED_BLOCKS: usize = LEAF_BLOCKS / 2;

/// Blocks of neighbouring addresses; at least one.
#[derive(Clone, Debug)]
struct Leaf {
    addrs: [u64; LEAF_BLOCKS],
    blocks: [BlockId; LEAF_BLOCKS],
    len: usize,
}

impl Leaf {
    fn new() -> Box<Self> {
        Box::new(Self {
            addrs: [0; LEAF_BLOCKS],
            blocks: [BlockId::from_index(0); LEAF_BLOCKS],
            len: 0,
        })
    }

    fn addrs(&self) -> &[u64] {
        &self.addrs[..self.len]
    }

    fn blocks(&self) -> &[BlockId] {
        &self.blocks[..self.len]
    }

    /// Inserts into a leaf that is not full.
    fn insert(&mut self, at: usize, addr: u64, block: BlockId) {
        self.addrs.copy_within(at..self.len, at + 1);
        self.blocks.copy_within(at..self.len, at + 1);
        (self.addrs[at], self.blocks[at]) = (addr, block);
        self.len += 1;
    }

    fn remove(&mut self, at: usize) -> BlockId {
        let block = self.blocks[at];
        self.addrs.copy_within(at + 1..self.len, at);
        self.blocks.copy_within(at + 1..self.len, at);
        self.len -= 1;
        block
    }

    /// Moves the blocks from `at` on to a leaf of their own.
    fn split(&mut self, at: usize) -> Box<Self> {
        let mut rest = Self::new();
        rest.append(&self.addrs()[at..], &self.blocks()[at..]);
        self.len = at;
        rest
    }

    fn append(&mut self, addrs: &[u64], blocks: &[BlockId]) {
        let end = self.len + addrs.len();
        self.addrs[self.len..end].copy_from_slice(addrs);
        self.blocks[self.len..end].copy_from_slice(blocks);
        self.len = end;
    }
}

/// Index of a leaf, and an index within it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct LeafPosition {
    leaf: usize,
    at: usize,
}

#[derive(Clone, Debug, Default)]
pub(super) struct BlockAddresses {
    /// First address of each leaf.
    starts: Vec<u64>,
    #[expect(
        clippy::vec_box,
        reason = "an inserted leaf moves pointers, not leaves"
    )]
    leaves: Vec<Box<Leaf>>,
    /// Result of the last search, which may be outdated.
    last: LeafPosition,
}

impl BlockAddresses {
    pub(super) fn get(&self, addr: u64) -> Option<BlockId> {
        let LeafPosition { leaf, at } = self.position(addr);
        let leaf = self.leaves.get(leaf)?;
        let is_there = leaf.addrs().get(at) == Some(&addr);
        is_there.then(|| leaf.blocks[at])
    }

    /// Returns the last block that begins before `end`, and its address.
    pub(super) fn last_before(&self, end: u64) -> Option<(u64, BlockId)> {
        self.before(self.position(end))
    }

    /// Like [`Self::last_before`], and keeps the place for a block that is inserted behind it.
    pub(super) fn find_last_before(&mut self, end: u64) -> Option<(u64, BlockId)> {
        self.last = self.position(end);
        self.before(self.last)
    }

    /// Inserts a block at an address that has none.
    pub(super) fn insert(&mut self, addr: u64, block: BlockId) {
        let LeafPosition { leaf, at } = match self.is_place_of(self.last, addr) {
            true => self.last,
            false => self.position(addr),
        };
        let is_last = leaf + 1 >= self.leaves.len();
        match self.leaves.get_mut(leaf) {
            Some(found) if found.len < LEAF_BLOCKS => {
                found.insert(at, addr, block);
                self.starts[leaf] = found.addrs[0];
            }
            // Rising addresses fill whole leaves.
            Some(full) if !(is_last && at == LEAF_BLOCKS) => {
                let rest = full.split(LEAF_BLOCKS / 2);
                self.insert_leaf(leaf + 1, rest);
                self.insert(addr, block);
            }
            _ => {
                let mut next = Leaf::new();
                next.insert(0, addr, block);
                self.insert_leaf(self.leaves.len(), next);
            }
        }
    }

    pub(super) fn remove(&mut self, addr: u64) -> Option<BlockId> {
        let LeafPosition { leaf, at } = self.position(addr);
        let found = self.leaves.get_mut(leaf)?;
        if found.addrs().get(at) != Some(&addr) {
            return None;
        }
        let block = found.remove(at);
        if found.len == 0 {
            self.starts.remove(leaf);
            self.leaves.remove(leaf);
            return Some(block);
        }
        self.starts[leaf] = found.addrs[0];
        if found.len <= MERGED_BLOCKS / 2 {
            self.merge(leaf);
            if leaf > 0 {
                self.merge(leaf - 1);
            }
        }
        Some(block)
    }

    /// Blocks by address.
    pub(super) fn blocks(&self) -> impl Iterator<Item = BlockId> {
        self.leaves.iter().flat_map(|leaf| leaf.blocks()).copied()
    }

    /// Returns the place of the first block at or behind an address.
    fn position(&self, addr: u64) -> LeafPosition {
        let leaves = self.starts.partition_point(|start| *start <= addr);
        let leaf = leaves.saturating_sub(1);
        let addrs = self.leaves.get(leaf).map_or(&[][..], |leaf| leaf.addrs());
        let at = addrs.partition_point(|start| *start < addr);
        LeafPosition { leaf, at }
    }

    /// Returns the last block before a place, and its address.
    fn before(&self, LeafPosition { leaf, at }: LeafPosition) -> Option<(u64, BlockId)> {
        let (leaf, at) = match at.checked_sub(1) {
            Some(before) => (self.leaves.get(leaf)?, before),
            None => {
                let leaf = self.leaves.get(leaf.checked_sub(1)?)?;
                (leaf, leaf.len.checked_sub(1)?)
            }
        };
        Some((*leaf.addrs().get(at)?, leaf.blocks[at]))
    }

    /// True if a block at an address belongs at a place.
    fn is_place_of(&self, place: LeafPosition, addr: u64) -> bool {
        let Some(leaf) = self.leaves.get(place.leaf) else {
            return false;
        };
        let next = match leaf.addrs().get(place.at) {
            Some(next) => Some(next),
            None if place.at == leaf.len => self.starts.get(place.leaf + 1),
            None => return false,
        };
        let is_first = place == LeafPosition::default();
        let before = self.before(place);
        before.map_or(is_first, |(before, _)| before < addr) && next.is_none_or(|next| addr < *next)
    }

    fn insert_leaf(&mut self, at: usize, leaf: Box<Leaf>) {
        self.starts.insert(at, leaf.addrs[0]);
        self.leaves.insert(at, leaf);
    }

    /// Joins a leaf and the next one, if they are small.
    fn merge(&mut self, leaf: usize) {
        let Some([one, next]) = self.leaves.get_mut(leaf..).and_then(<[_]>::first_chunk_mut) else {
            return;
        };
        if one.len + next.len <= MERGED_BLOCKS {
            one.append(next.addrs(), next.blocks());
            self.starts.remove(leaf + 1);
            self.leaves.remove(leaf + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::collections::btree_map::Entry;

    use super::*;

    fn id(number: usize) -> BlockId {
        BlockId::from_index(number)
    }

    impl BlockAddresses {
        /// Returns the blocks with their addresses, after a check of the bounds on leaves.
        fn checked(&self) -> Vec<(u64, BlockId)> {
            let starts: Vec<u64> = self.leaves.iter().map(|leaf| leaf.addrs()[0]).collect();
            assert_eq!(self.starts, starts);
            let pairs = self.leaves.windows(2);
            let smallest = pairs.map(|pair| pair[0].len + pair[1].len).min();
            assert!(smallest.is_none_or(|blocks| blocks > MERGED_BLOCKS));
            let leaves = self.leaves.iter();
            let blocks = leaves.flat_map(|leaf| {
                leaf.addrs()
                    .iter()
                    .copied()
                    .zip(leaf.blocks().iter().copied())
            });
            blocks.collect()
        }
    }

    /// Makes random changes, of which `insertions` in 100 are insertions, and compares the index with a map.
    fn change(
        index: &mut BlockAddresses,
        map: &mut BTreeMap<u64, BlockId>,
        changes: u64,
        insertions: u64,
    ) {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64 ^ changes;
        for number in 0..changes {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let addr = random % 6000;
            let expected = map.range(..addr).next_back();
            let expected = expected.map(|(addr, block)| (*addr, *block));
            assert_eq!(index.find_last_before(addr), expected);
            assert_eq!(index.get(addr), map.get(&addr).copied());
            let is_insertion = (random >> 32) % 100 < insertions;
            if !is_insertion {
                assert_eq!(index.remove(addr), map.remove(&addr));
            } else if let Entry::Vacant(entry) = map.entry(addr) {
                let block = id(number as usize);
                index.insert(addr, block);
                entry.insert(block);
            }
        }
        let all: Vec<_> = map.iter().map(|(addr, block)| (*addr, *block)).collect();
        assert_eq!(index.checked(), all);
        let blocks: Vec<_> = index.blocks().collect();
        assert_eq!(blocks, map.values().copied().collect::<Vec<_>>());
    }

    #[test]
    fn it_has_the_blocks_of_an_ordered_map() {
        let (mut index, mut map) = (BlockAddresses::default(), BTreeMap::new());
        for (changes, insertions) in [
            (9000, 70),
            (9000, 50),
            (20_000, 20),
            (9000, 80),
            (60_000, 0),
        ] {
            change(&mut index, &mut map, changes, insertions);
        }
        assert!(map.is_empty() && index.leaves.is_empty());
    }

    #[test]
    fn rising_addresses_fill_whole_leaves() {
        let mut index = BlockAddresses::default();
        let blocks = 10 * LEAF_BLOCKS;
        for number in 0..blocks {
            index.insert(512 * number as u64, id(number));
        }
        assert_eq!(index.leaves.len(), 10);
        assert_eq!(index.checked().len(), blocks);
    }

    #[test]
    fn falling_addresses_in_a_gap_leave_no_leaves_nearly_empty() {
        let mut index = BlockAddresses::default();
        for number in 0..LEAF_BLOCKS {
            index.insert(number as u64, id(number));
        }
        for number in (1000..5000).rev() {
            index.insert(number, id(0));
        }
        assert!(
            index.leaves.len() <= 4200 / (LEAF_BLOCKS / 2),
            "{}",
            index.leaves.len()
        );
        index.checked();
    }

    #[test]
    fn a_place_that_is_outdated_is_not_used() {
        let mut index = BlockAddresses::default();
        for number in 0..1000 {
            index.insert(10 * number, id(number as usize));
        }
        assert_eq!(index.find_last_before(5001), Some((5000, id(500))));
        for number in 200..500 {
            index.remove(10 * number);
        }
        index.insert(5001, id(1));
        assert_eq!(index.find_last_before(5010), Some((5001, id(1))));
        index.checked();
    }
}

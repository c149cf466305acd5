//! Store of live blocks: a slab of blocks, and an ordered index of addresses for each device.

use super::block_addresses::BlockAddresses;
use super::call_sites::CallSiteId;
use super::caps::{Budget, Caps};
use super::definitions::{Definitions, StackRef};
use super::dense::Dense;
use super::keyframe::BlockKeyframe;
use crate::event::{Address, Bytes, DeviceIndex, PurposeId};

/// Identifies a block in the store. The number of an ended block is reused from the next event on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BlockId(u32);

impl Dense for BlockId {
    fn index(self) -> usize {
        self.0 as usize
    }

    fn from_index(index: usize) -> Self {
        // `Caps::blocks` keeps the slab far below 2^32 entries.
        Self(u32::try_from(index).unwrap_or(u32::MAX))
    }
}

/// A live block, or one that the last event ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveBlock {
    pub addr: Address,
    pub size: Bytes,
    /// Stack of its allocation; [`StackRef::UNKNOWN`] if lost.
    pub stack: StackRef,
    /// Purpose of its allocation; [`PurposeId::NONE`] if not recorded.
    pub purpose: PurposeId,
    /// Call site that counts the block; `None` if it was live at attach.
    pub(super) call_site: Option<CallSiteId>,
    pub device: DeviceIndex,
    /// True if the block was live at attach.
    pub is_baseline: bool,
}

impl LiveBlock {
    pub(super) fn keyframe(&self) -> BlockKeyframe {
        BlockKeyframe {
            addr: self.addr,
            size: self.size,
            stack: self.stack.index() as u32,
            purpose: self.purpose,
            call_site: self.call_site.map(CallSiteId::place),
        }
    }
}

// A million live blocks are common: the fields of a block fill four words.
const _: () = assert!(size_of::<LiveBlock>() == 32);

/// Live blocks of all devices, and what their fields refer to. Blocks of a device never overlap.
///
/// An ordered index finds overlaps, gives memory back, and never pauses to rehash a million blocks. A
/// hash table would also hold two tables at once while it grows. The index has only numbers of blocks: what depends on
/// a block is read from the slab anyway.
#[derive(Clone, Debug)]
pub(super) struct BlockStore {
    pub(super) definitions: Definitions,
    pub(super) budget: Budget,
    blocks: Vec<LiveBlock>,
    /// Numbers without a live block.
    vacant: Vec<BlockId>,
    /// Number of those that can be reused; the last event ended the others.
    reusable: usize,
    /// Live blocks by address, indexed by device.
    by_address: Vec<BlockAddresses>,
}

impl Default for BlockStore {
    fn default() -> Self {
        Self::new(Caps::default())
    }
}

impl BlockStore {
    pub(super) fn new(caps: Caps) -> Self {
        Self {
            definitions: Definitions::new(caps),
            budget: Budget::new(&caps),
            blocks: Vec::new(),
            vacant: Vec::new(),
            reusable: 0,
            by_address: Vec::new(),
        }
    }

    /// Number of blocks that there is memory for.
    pub(super) fn slots(&self) -> usize {
        self.blocks.len()
    }

    /// Lets the numbers of ended blocks be reused. To be called before the next event.
    pub(super) fn release_ended(&mut self) {
        self.reusable = self.vacant.len();
    }

    /// Adds a block without its address: see [`Self::track`]. If that comes only after the search for overlaps, the
    /// processor fetches the memory of both at once.
    pub(super) fn add(&mut self, block: LiveBlock) -> BlockId {
        match self.reusable.checked_sub(1) {
            Some(last) => {
                self.reusable = last;
                let id = self.vacant.swap_remove(last);
                self.blocks[id.index()] = block;
                id
            }
            None => {
                self.blocks.push(block);
                BlockId::from_index(self.blocks.len() - 1)
            }
        }
    }

    /// Tracks an added block, which must not overlap another: see [`Self::take_overlapping`]. Returns false beyond the
    /// cap: the block then ends with this event.
    pub(super) fn track(&mut self, id: BlockId, call_site: Option<CallSiteId>) -> bool {
        if !self.budget.take_block() {
            self.vacant.push(id);
            return false;
        }
        let block = &mut self.blocks[id.index()];
        block.call_site = call_site;
        let (device, addr) = (usize::from(block.device.0), block.addr);
        if self.by_address.len() <= device {
            self.by_address
                .resize_with(device + 1, BlockAddresses::default);
        }
        self.by_address[device].insert(addr.0, id);
        true
    }

    /// Ends the block at an address.
    pub(super) fn take(&mut self, device: DeviceIndex, addr: Address) -> Option<BlockId> {
        let blocks = self.by_address.get_mut(usize::from(device.0))?;
        let ended = blocks.remove(addr.0)?;
        self.vacant.push(ended);
        self.budget.give_block_back();
        Some(ended)
    }

    /// Ends the last block that overlaps `addr..addr + size`. A size of 0 counts as one byte.
    pub(super) fn take_overlapping(
        &mut self,
        device: DeviceIndex,
        addr: Address,
        size: Bytes,
    ) -> Option<BlockId> {
        let blocks = self.by_address.get_mut(usize::from(device.0))?;
        let last = blocks.find_last_before(end(addr, size));
        self.take(device, self.overlapping(last, addr)?)
    }

    /// Returns true if no block shares a byte with `addr..addr + size`.
    pub(super) fn is_vacant(&self, device: DeviceIndex, addr: Address, size: Bytes) -> bool {
        let blocks = self.by_address.get(usize::from(device.0));
        let last = blocks.and_then(|blocks| blocks.last_before(end(addr, size)));
        self.overlapping(last, addr).is_none()
    }

    pub(super) fn get(&self, id: BlockId) -> &LiveBlock {
        &self.blocks[id.index()]
    }

    pub(super) fn at(&self, device: DeviceIndex, addr: Address) -> Option<BlockId> {
        let blocks = self.by_address.get(usize::from(device.0))?;
        blocks.get(addr.0)
    }

    /// Live blocks, by device and address.
    pub(super) fn live(&self) -> impl Iterator<Item = (BlockId, &LiveBlock)> {
        let blocks = self.by_address.iter().flat_map(BlockAddresses::blocks);
        blocks.map(|id| (id, self.get(id)))
    }

    /// Returns the address of the last block before an end, if it reaches beyond the start.
    fn overlapping(&self, last: Option<(u64, BlockId)>, start: Address) -> Option<Address> {
        // Blocks do not overlap, so the last that begins before the end also ends last.
        let (addr, id) = last?;
        let addr = Address(addr);
        (end(addr, self.get(id).size) > start.0).then_some(addr)
    }
}

/// Address one past the last byte; an empty block still occupies its address.
fn end(addr: Address, size: Bytes) -> u64 {
    addr.0.saturating_add(size.0.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceIndex = DeviceIndex(1);

    fn store(ranges: &[(u64, u64)]) -> BlockStore {
        let mut store = BlockStore::new(Caps::default());
        for (addr, size) in ranges {
            insert(&mut store, block(*addr, *size));
        }
        store
    }

    fn block(addr: u64, size: u64) -> LiveBlock {
        LiveBlock {
            addr: Address(addr),
            size: Bytes(size),
            stack: StackRef::UNKNOWN,
            purpose: PurposeId::NONE,
            call_site: None,
            device: DEVICE,
            is_baseline: true,
        }
    }

    fn insert(store: &mut BlockStore, block: LiveBlock) -> BlockId {
        let id = store.add(block);
        assert!(store.track(id, None));
        id
    }

    fn overlapping(store: &mut BlockStore, addr: u64, size: u64) -> Vec<u64> {
        let take = || store.take_overlapping(DEVICE, Address(addr), Bytes(size));
        let taken: Vec<BlockId> = std::iter::from_fn(take).collect();
        let taken = taken.into_iter();
        taken.map(|block| store.get(block).addr.0).collect()
    }

    fn live(store: &BlockStore) -> Vec<u64> {
        store.live().map(|(_, block)| block.size.0).collect()
    }

    #[test]
    fn neighbours_do_not_overlap() {
        let mut store = store(&[(0, 512), (1024, 512)]);
        assert_eq!(overlapping(&mut store, 512, 512), [0_u64; 0]);
        assert_eq!(live(&store), [512, 512]);
    }

    #[test]
    fn takes_all_blocks_that_share_a_byte() {
        let mut store = store(&[(0, 512), (512, 512), (1024, 512), (2048, 512)]);
        assert_eq!(overlapping(&mut store, 1000, 100), [1024, 512]);
        assert_eq!(live(&store), [512, 512]);
    }

    #[test]
    fn the_same_address_overlaps_even_without_bytes() {
        let mut store = store(&[(512, 0)]);
        assert_eq!(overlapping(&mut store, 512, 0), [512]);
    }

    #[test]
    fn a_block_within_another_overlaps_it() {
        let mut store = store(&[(0, 4096)]);
        assert_eq!(overlapping(&mut store, 512, 512), [0]);
        assert!(live(&store).is_empty());
    }

    #[test]
    fn an_ended_block_stays_readable_until_the_next_event() {
        let mut store = store(&[(0, 512)]);
        let ended = store.take(DEVICE, Address(0)).expect("a block");
        let next = insert(&mut store, block(0, 1024));
        assert_ne!(ended, next);
        assert_eq!(store.get(ended).size, Bytes(512));
        store.release_ended();
        let reused = insert(&mut store, block(4096, 2048));
        assert_eq!(reused, ended);
    }
}

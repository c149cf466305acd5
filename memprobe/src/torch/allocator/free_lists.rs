//! The allocator's pools of free blocks on a device: where they lie in a `DeviceCachingAllocator`, and their blocks.
//!
//! A `BlockPool` is one `std::set<Block*>` of cached blocks, from 2.1 on one more of ranges without memory, then
//! `bool is_small` and `PrivatePool* owner_PrivatePool` (c10/cuda/CUDACachingAllocator.cpp@v2.0.0 to @v2.14.0). 2.15.0
//! has a third set, of the cached blocks in another order. Sets and pools are recognized by this structure, not by their
//! offset, which has changed often.

use hashbrown::HashSet;

use super::block::read_each;
use super::hash_table::{self, Element, HEADER, TableHeader};
use super::tables::{Fitting, MAX_BLOCKS, Misfit};
use crate::event::PoolId;
use crate::process::memory::ReadMemory;
use crate::python::heap::word_at;

/// Size of a `std::set`: the word of its comparison, then the header of the tree (libstdc++, `_Rb_tree_impl`).
const SET: usize = 48;
/// Most sets of a pool.
const MAX_SETS: usize = 4;
/// Bytes of a node of the tree: colour, parent, left, right, value.
const NODE: usize = 40;

/// Bytes searched of a `DeviceCachingAllocator` and of a `PrivatePool`.
const ALLOCATOR_BYTES: usize = 0x2000;
const PRIVATE_BYTES: usize = 0x200;
/// Most private pools of a device.
const MAX_POOLS: usize = 1 << 16;
const PAGE: u64 = 4096;
const USER_END: u64 = 1 << 47;

/// The two pools of one owner, small and large requests, and what the allocator lists beside them.
#[derive(Clone, Debug, Default)]
pub(super) struct FreeLists {
    pub(super) pools: Vec<BlockPool>,
    /// Blocks in use, and those that await an event (`active_blocks`).
    pub(super) active: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockPool {
    /// Address of the object, which `Block::pool` points to.
    pub(super) at: u64,
    pub(super) is_small: bool,
    /// `None` for the two default pools.
    pub(super) owner: Option<PrivatePool>,
    /// Number of its sets, which lie one behind another from its start on.
    sets: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PrivatePool {
    pub(super) id: PoolId,
    /// True if `graph_pools_freeable` lists it.
    pub(super) is_freeable: bool,
}

impl BlockPool {
    /// True from 2.1 on: blocks can be ranges without memory.
    pub fn has_unmapped(&self) -> bool {
        self.sets > 1
    }
}

impl FreeLists {
    /// Finds the pools of the device allocator at `object`.
    pub fn read(memory: &impl ReadMemory, object: u64) -> Fitting<Self> {
        let bytes = readable(memory, object, ALLOCATOR_BYTES);
        let (mut pools, end) = pair(memory, &bytes, object, 0).ok_or(Misfit::Layout)?;
        // `active_blocks` follows (`ska::flat_hash_set<Block*>`), and after it the tables of private pools.
        let mut active = Vec::new();
        let at = (end..end + 128).step_by(8);
        let at = at.into_iter().find(|at| header_at(&bytes, *at).is_some());
        let at = at.ok_or(Misfit::Layout)?;
        hash_table::read_set(memory, object + at as u64, &mut active)?;
        for private in private_pools(memory, object, &bytes, at + HEADER)? {
            pools.extend(private);
        }
        Ok(Self { pools, active })
    }

    /// Addresses of all `Block` objects that the lists lead to, some of them twice: 2.15 has the cached ones in two
    /// orders.
    pub fn blocks(&self, memory: &impl ReadMemory) -> Fitting<Vec<u64>> {
        let mut blocks = self.active.clone();
        for pool in &self.pools {
            for set in 0..pool.sets {
                values(memory, pool.at + (set * SET) as u64, &mut blocks)?;
            }
        }
        Ok(blocks)
    }
}

/// The private pools by the tables of `MempoolId_t` to `PrivatePool*` in the allocator. `graph_pools_freeable` comes
/// after `graph_pools` and lists some of them again.
fn private_pools(
    memory: &impl ReadMemory,
    object: u64,
    bytes: &[u8],
    from: usize,
) -> Fitting<Vec<[BlockPool; 2]>> {
    let mut found: Vec<(u64, [BlockPool; 2])> = Vec::new();
    for at in (from..bytes.len()).step_by(8) {
        if header_at(bytes, at).is_none_or(|header| header.count == 0) {
            continue;
        }
        let mut entries = Vec::new();
        if hash_table::read_pools(memory, object + at as u64, &mut entries).is_err() {
            continue;
        }
        for (id, private) in entries {
            if let Some((_, pools)) = found.iter_mut().find(|(known, _)| *known == private) {
                for owner in pools.iter_mut().filter_map(|pool| pool.owner.as_mut()) {
                    owner.is_freeable = true;
                }
                continue;
            }
            let bytes = readable(memory, private, PRIVATE_BYTES);
            if let Some((mut pools, _)) = pair(memory, &bytes, private, private) {
                let is_freeable = false;
                for pool in &mut pools {
                    pool.owner = Some(PrivatePool { id, is_freeable });
                }
                let pools = <[BlockPool; 2]>::try_from(pools).map_err(|_| Misfit::Layout)?;
                found.push((private, pools));
            }
            if found.len() > MAX_POOLS {
                return Err(Misfit::TooManyBlocks);
            }
        }
    }
    Ok(found.into_iter().map(|(_, pools)| pools).collect())
}

fn header_at(bytes: &[u8], at: usize) -> Option<TableHeader> {
    TableHeader::parse(bytes.get(at..at + HEADER)?)
}

/// Reads up to `most` bytes of an object; fewer if the memory after it is unmapped.
fn readable(memory: &impl ReadMemory, object: u64, most: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < most {
        let at = object.wrapping_add(bytes.len() as u64);
        match memory.read_bytes(at, PAGE - at % PAGE, PAGE as usize) {
            Ok(page) => bytes.extend_from_slice(&page),
            Err(_) => break,
        }
    }
    bytes.truncate(most);
    bytes
}

/// Finds the pool of large requests and behind it the one of small requests, whose owner is `owner` (0 for none), in the
/// bytes of the object at `object`. Returns the offset after them too.
fn pair(
    memory: &impl ReadMemory,
    bytes: &[u8],
    object: u64,
    owner: u64,
) -> Option<(Vec<BlockPool>, usize)> {
    (0..bytes.len()).step_by(8).find_map(|start| {
        let pool = |start| pool_at(memory, bytes, object, start, owner);
        let (large, next) = pool(start)?;
        // A counter may stand between the two.
        let (small, end) = [0, 8, 16, 24]
            .into_iter()
            .find_map(|gap| pool(next + gap))?;
        (!large.is_small && small.is_small).then(|| (vec![large, small], end))
    })
}

/// Parses a `BlockPool`, and returns the offset after its known fields.
fn pool_at(
    memory: &impl ReadMemory,
    bytes: &[u8],
    object: u64,
    start: usize,
    owner: u64,
) -> Option<(BlockPool, usize)> {
    let is_set = |set: &usize| is_set(memory, bytes, object, start + set * SET);
    let sets = (0..MAX_SETS).take_while(is_set).count();
    if sets == 0 {
        return None;
    }
    let fields = start + sets * SET;
    let is_small = match bytes.get(fields)? {
        0 => false,
        1 => true,
        _ => return None,
    };
    bytes.get(fields + 8..fields + 16)?;
    (word_at(&bytes[fields + 8..], 0) == owner).then(|| {
        let pool = BlockPool {
            at: object + start as u64,
            is_small,
            owner: None,
            sets,
        };
        (pool, fields + 16)
    })
}

/// True if a `std::set` begins at `start`: an empty one leads to itself, the root of another one leads back.
fn is_set(memory: &impl ReadMemory, bytes: &[u8], object: u64, start: usize) -> bool {
    if bytes.get(start..start + SET).is_none() {
        return false;
    }
    let [colour, root, left, right, count] =
        [8, 16, 24, 32, 40].map(|at| word_at(&bytes[start..], at));
    let header = object + start as u64 + 8;
    let is_node = |word: u64| (1..USER_END).contains(&word) && word.is_multiple_of(8);
    // The colour of the header is red, which is 0.
    let is_tree = colour as u32 == 0 && count <= MAX_BLOCKS as u64;
    if count == 0 {
        return is_tree && root == 0 && left == header && right == header;
    }
    is_tree
        && [root, left, right].into_iter().all(is_node)
        && memory.read_u64(root.wrapping_add(8)) == Ok(header)
}

/// Adds the values of the set at `at`: of as many nodes as can be reached while the process runs.
fn values(memory: &impl ReadMemory, at: u64, into: &mut Vec<u64>) -> Fitting<()> {
    let header: [u8; SET] = memory.read_array(at)?;
    let count = word_at(&header, 40);
    let root = word_at(&header, 16);
    let mut seen = HashSet::new();
    let mut level: Vec<Element> = Vec::new();
    let push = |node: u64, level: &mut Vec<Element>, seen: &mut HashSet<u64>| {
        if node != 0 && node.is_multiple_of(8) && seen.insert(node) {
            let (key, value) = (node, node);
            level.push(Element { key, value });
        }
    };
    push(root, &mut level, &mut seen);
    while !level.is_empty() {
        // A tree that changes may lead anywhere.
        if seen.len() as u64 > count.saturating_mul(2) + 64 || seen.len() > MAX_BLOCKS {
            return Err(Misfit::TooManyBlocks);
        }
        let mut next = Vec::new();
        read_each(memory, &mut level, NODE, |_, bytes| {
            let Some(bytes) = bytes else { return };
            push(word_at(bytes, 16), &mut next, &mut seen);
            push(word_at(bytes, 24), &mut next, &mut seen);
            into.push(word_at(bytes, 32));
        });
        level = next;
    }
    Ok(())
}

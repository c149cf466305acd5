//! Reads the segments of the native caching allocator, and the pools they belong to.
//!
//! Every `Block` of a segment knows its neighbours, its pool and its state, as `torch.cuda.memory_snapshot()` reports
//! them. Live blocks and those that await an event are in one table, free ones in the pools' sets. The process keeps
//! running, so the result counts only if it adds up to the allocator's own totals.

use hashbrown::{HashMap, HashSet};

use super::active::{AllocatorVariable, Backend, active_allocator};
use super::block::{ROUNDING, TO_ALLOCATED, TO_PTR, TO_REQUESTED, read_each};
use super::calibrate;
use super::counters::{self, DeviceCounters, Stat};
use super::free_lists::{BlockPool, FreeLists};
use super::hash_table::{Element, HEADER, TableHeader};
use super::layout::{self, BlockLayout, Layout, STAT_ARRAY};
use super::tables::{Fitting, MAX_BLOCKS, Misfit, TablesError};
use crate::event::{
    Address, Bytes, DeviceIndex, DeviceSegments, MemorySegment, Pool, PoolOwner, PoolSize,
    PrivatePoolState,
};
use crate::process::memory::ReadMemory;
use crate::python::heap::word_at;
use crate::torch::versions::is_of;

/// Distances from `Block::size` to fields that the table of live blocks does not need, the same from 2.0 to 2.15:
/// `pool`, `mapped` (from 2.1 on), `prev`, `next`, `event_count`.
const TO_POOL: usize = 16;
const TO_MAPPED: usize = TO_ALLOCATED + 1;
const TO_PREV: usize = 40;
const TO_NEXT: usize = 48;
const TO_EVENTS: usize = 56;
/// Offset of the number of streams in `Block::stream_uses`, a hash table at 16.
const STREAM_USES: usize = 40;

/// Most rounds in which neighbours of known blocks lead to unknown ones.
const ROUNDS: usize = 64;

/// Outcome of one reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SegmentTables {
    /// Segments of every device, which add up to the allocator's totals.
    Whole(Vec<DeviceSegments>),
    /// The tables changed while they were read: the next reading may succeed.
    Changed,
}

/// The tables of an allocator that is not set up yet.
impl Default for SegmentTables {
    fn default() -> Self {
        Self::Whole(Vec::new())
    }
}

/// Reads the segments of the allocator that `variable` points to. `version` is the target's version of PyTorch, if
/// known. An allocator that is not set up yet has no devices.
/// Fails with [`TablesError`] if the allocator has no segments or memprobe does not know its tables.
pub fn read(
    memory: &impl ReadMemory,
    variable: AllocatorVariable,
    version: Option<&str>,
) -> Result<SegmentTables, TablesError> {
    let Some(active) = active_allocator(memory, variable)? else {
        return Ok(SegmentTables::Whole(Vec::new()));
    };
    if active.backend != Backend::Native {
        return Err(TablesError::Backend(active.backend));
    }
    let mut is_known = false;
    for layout in layout::candidates(version) {
        match read_as(memory, active.object, &layout) {
            // A layout of another version may lead to no device at all.
            Ok(Some(devices)) if is_of(&layout.versions, version) || !devices.is_empty() => {
                return Ok(SegmentTables::Whole(devices));
            }
            Ok(None) if is_of(&layout.versions, version) => return Ok(SegmentTables::Changed),
            Ok(_) => {}
            Err(Misfit::TooManyBlocks) => return Err(TablesError::TooManyBlocks),
            Err(Misfit::Layout) => is_known |= is_of(&layout.versions, version),
        }
    }
    let calibrated = calibrate::calibrate(memory, active.object);
    match calibrated.map(|layout| read_as(memory, active.object, &layout)) {
        Some(Ok(Some(devices))) => return Ok(SegmentTables::Whole(devices)),
        Some(Ok(None)) => return Ok(SegmentTables::Changed),
        _ => {}
    }
    memory
        .read_u64(active.object)
        .map_err(TablesError::Unreadable)?;
    // The tables of a known version fit, unless they changed while they were read.
    match is_known {
        true => Ok(SegmentTables::Changed),
        false => Err(TablesError::UnknownLayout(version.map(str::to_owned))),
    }
}

/// Returns `None` if the segments of a device do not add up to its total.
fn read_as(
    memory: &impl ReadMemory,
    object: u64,
    layout: &Layout,
) -> Fitting<Option<Vec<DeviceSegments>>> {
    let allocators = counters::allocators(memory, object, &layout.counters)?;
    let before = counters::read(memory, object, &layout.counters)?;
    let mut devices = Vec::new();
    for counters in before {
        let DeviceIndex(index) = counters.device;
        let allocator = *allocators.get(usize::from(index)).ok_or(Misfit::Layout)?;
        if counters.totals.reserved.0 == 0 && counters.peak.reserved.0 == 0 {
            continue;
        }
        let Some(device) = read_device(memory, allocator, layout, &counters)? else {
            return Ok(None);
        };
        devices.push(device);
    }
    Ok(Some(devices))
}

fn read_device(
    memory: &impl ReadMemory,
    allocator: u64,
    layout: &Layout,
    counters: &DeviceCounters,
) -> Fitting<Option<DeviceSegments>> {
    let lists = FreeLists::read(memory, allocator)?;
    let has_unmapped = lists.pools.iter().any(BlockPool::has_unmapped);
    let blocks = read_blocks(memory, &lists, layout.block, has_unmapped)?;
    let (segments, awaiting) = assemble(blocks, &lists);
    let reserved: u64 = sum(segments.iter().map(|segment| segment.size));
    let reserved_at = allocator.wrapping_add(layout.counters.reserved);
    let after = Stat::read(memory, reserved_at)?;
    let active_at = behind_reserved(memory, reserved_at)?;
    let active = Stat::read(memory, active_at)?;
    let requested = memory.read_u64(active_at.wrapping_add(2 * STAT_ARRAY))?;
    let is_steady = after.current == counters.totals.reserved.0;
    Ok(
        (is_steady && reserved == after.current).then_some(DeviceSegments {
            device: counters.device,
            totals: counters.totals,
            active: Bytes(active.current),
            requested: Bytes(requested),
            segments,
            awaiting,
        }),
    )
}

/// Address of `active_bytes`, which follows `reserved_bytes`. 2.15.0 has a table of private pools between them
/// (`DeviceStats`, c10/core/CachingDeviceAllocator.h).
fn behind_reserved(memory: &impl ReadMemory, reserved: u64) -> Fitting<u64> {
    let next = reserved.wrapping_add(STAT_ARRAY);
    let bytes: [u8; HEADER] = memory.read_array(next)?;
    Ok(match TableHeader::parse(&bytes) {
        Some(_) => next.wrapping_add(HEADER as u64),
        None => next,
    })
}

fn sum(sizes: impl Iterator<Item = Bytes>) -> u64 {
    sizes.fold(0, |sum, size| sum.saturating_add(size.0))
}

/// A `Block`, live or free.
#[derive(Clone, Copy, Debug)]
struct BlockObject {
    /// Address of the object.
    at: u64,
    addr: u64,
    size: u64,
    stream: u64,
    pool: u64,
    previous: u64,
    next: u64,
    is_mapped: bool,
    is_awaiting: bool,
}

impl BlockObject {
    fn parse(bytes: &[u8], at: u64, layout: BlockLayout, has_unmapped: bool) -> Option<Self> {
        let word = |offset: usize| {
            let word = bytes.get(offset..offset + 8)?;
            Some(word_at(word, 0))
        };
        let field = |distance: usize| word(layout.size + distance);
        let flag = |distance: usize| bytes.get(layout.size + distance).copied();
        let is_allocated = flag(TO_ALLOCATED).filter(|flag| *flag <= 1)? == 1;
        let events = field(TO_EVENTS)? as u32;
        let block = Self {
            at,
            addr: field(TO_PTR)?,
            size: field(0)?,
            stream: word(8)?,
            pool: field(TO_POOL)?,
            previous: field(TO_PREV)?,
            next: field(TO_NEXT)?,
            is_mapped: !has_unmapped || flag(TO_MAPPED).filter(|flag| *flag <= 1)? == 1,
            is_awaiting: !is_allocated && (events > 0 || word(STREAM_USES)? > 0),
        };
        let is_plausible = block.size > 0
            && block.size.is_multiple_of(ROUNDING)
            && block.addr.checked_add(block.size)? <= 1 << 60
            && field(TO_REQUESTED)? <= 1 << 60;
        is_plausible.then_some(block)
    }
}

/// Reads the blocks of the lists, and those that their neighbours lead to, each once.
fn read_blocks(
    memory: &impl ReadMemory,
    lists: &FreeLists,
    layout: BlockLayout,
    has_unmapped: bool,
) -> Fitting<Vec<BlockObject>> {
    let mut wanted = lists.blocks(memory)?;
    let mut blocks = Vec::with_capacity(wanted.len());
    let mut tried = HashSet::with_capacity(wanted.len());
    for _ in 0..ROUNDS {
        wanted.retain(|at| *at != 0 && tried.insert(*at));
        if wanted.is_empty() {
            break;
        }
        if tried.len() > MAX_BLOCKS {
            return Err(Misfit::TooManyBlocks);
        }
        let elements = wanted.drain(..).map(|at| Element { key: at, value: at });
        let mut elements: Vec<Element> = elements.collect();
        let len = layout.size + TO_EVENTS + 8;
        read_each(memory, &mut elements, len, |element, bytes| {
            let parse = |bytes| BlockObject::parse(bytes, element.key, layout, has_unmapped);
            if let Some(block) = bytes.and_then(parse) {
                let neighbours = [block.previous, block.next];
                wanted.extend(neighbours.into_iter().filter(|at| !tried.contains(at)));
                blocks.push(block);
            }
        });
    }
    Ok(blocks)
}

/// Blocks by the address of their object; empty if all have memory.
type BlocksOfRanges<'a> = HashMap<u64, &'a BlockObject>;

/// Joins blocks to segments: each begins with a block without a mapped one before it, as in
/// `DeviceCachingAllocator::snapshot` (c10/cuda/CUDACachingAllocator.cpp@v2.15.0).
fn assemble(
    mut blocks: Vec<BlockObject>,
    lists: &FreeLists,
) -> (Vec<MemorySegment>, Vec<(Address, Bytes)>) {
    let pools: HashMap<u64, &BlockPool> = lists.pools.iter().map(|pool| (pool.at, pool)).collect();
    blocks.sort_unstable_by_key(|block| block.addr);
    let has_ranges = blocks.iter().any(|block| !block.is_mapped);
    let of_ranges = blocks.iter().filter(|_| has_ranges);
    let of_ranges: BlocksOfRanges<'_> = of_ranges.map(|block| (block.at, block)).collect();
    let mut segments: Vec<MemorySegment> = Vec::new();
    let mut last: Option<&BlockObject> = None;
    let mut awaiting = Vec::new();
    for block in blocks.iter().filter(|block| block.is_mapped) {
        let Some(pool) = pools.get(&block.pool) else {
            continue;
        };
        if block.is_awaiting {
            awaiting.push((Address(block.addr), Bytes(block.size)));
        }
        let continues = last
            .is_some_and(|last| last.at == block.previous && last.addr + last.size == block.addr);
        last = Some(block);
        if let Some(segment) = segments.last_mut().filter(|_| continues) {
            segment.size.0 += block.size;
            if segment.expandable.is_none() && leads_to_unmapped(block.next, &of_ranges) {
                segment.expandable = first_of(block, &of_ranges);
            }
            continue;
        }
        let is_expandable = [block.previous, block.next]
            .into_iter()
            .any(|neighbour| leads_to_unmapped(neighbour, &of_ranges));
        segments.push(MemorySegment {
            addr: Address(block.addr),
            size: Bytes(block.size),
            stream: block.stream,
            pool: pool.described(),
            expandable: if is_expandable {
                first_of(block, &of_ranges)
            } else {
                None
            },
        });
    }
    (segments, awaiting)
}

/// True if a neighbour is a range without memory: only expandable segments have those.
fn leads_to_unmapped(neighbour: u64, blocks: &BlocksOfRanges<'_>) -> bool {
    blocks.get(&neighbour).is_some_and(|block| !block.is_mapped)
}

/// Start of the address range that a block is a part of.
fn first_of(block: &BlockObject, blocks: &BlocksOfRanges<'_>) -> Option<Address> {
    let mut first = block;
    for _ in 0..blocks.len() {
        match blocks.get(&first.previous) {
            Some(before) if before.addr < first.addr => first = before,
            _ => break,
        }
    }
    Some(Address(first.addr))
}

impl BlockPool {
    fn described(&self) -> Pool {
        Pool {
            size: if self.is_small {
                PoolSize::Small
            } else {
                PoolSize::Large
            },
            owner: self
                .owner
                .map_or(PoolOwner::Default, |private| PoolOwner::Private {
                    id: private.id,
                    state: if private.is_freeable {
                        PrivatePoolState::Freeable
                    } else {
                        PrivatePoolState::InUse
                    },
                }),
        }
    }
}

#[cfg(test)]
mod tests;

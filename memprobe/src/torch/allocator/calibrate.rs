//! Finds the allocator's tables in a version of unknown layout, by their structure and by their sums: the bytes
//! and the number of each device's blocks must equal two counters in its allocator's statistics.

use super::block::{TO_ALLOCATED, TO_PTR};
use super::counters::{Stat, device_allocators};
use super::hash_table::{Element, Extent, HEADER, TableHeader};
use super::layout::{BlockLayout, CounterLayout, Layout, STAT_ARRAY, TableLayout};
use super::tables::{HeldBlock, look_at, read_elements};
use crate::event::DeviceIndex;
use crate::process::memory::ReadMemory;
use crate::python::heap::word_at;
use crate::torch::only;

/// Bytes searched of the allocator object, which has 22,720 bytes in 2.15.
const LARGEST_OBJECT: usize = 128 << 10;

/// Bytes per read: the memory after the object may be unmapped.
const PAGE: u64 = 4096;

/// Bytes searched of a `Block` and of a `DeviceCachingAllocator`.
const BLOCK_BYTES: usize = 0x90;
const STATISTICS_BYTES: u64 = 0x400;

/// `MAX_SHARDS`: most adjacent tables. `SAMPLES`: elements that determine the layout of blocks.
const MAX_SHARDS: usize = 1024;
const SAMPLES: usize = 64;

/// Distance from `allocation`, the number of blocks, to `allocated_bytes`: four statistics (`DeviceStats`,
/// c10/core/CachingDeviceAllocator.h@v2.6.0).
const COUNT_TO_BYTES: u64 = 4 * STAT_ARRAY;

/// Determines the layout of the allocator at `object`. Returns `None` unless exactly one layout adds up.
pub fn calibrate(memory: &impl ReadMemory, object: u64) -> Option<Layout> {
    let bytes = readable(memory, object);
    let tables = tables_in(&bytes).into_iter();
    only(tables.filter_map(|tables| fit(memory, object, &bytes, tables)))
}

fn readable(memory: &impl ReadMemory, object: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < LARGEST_OBJECT {
        let at = object.wrapping_add(bytes.len() as u64);
        match memory.read_bytes(at, PAGE - at % PAGE, PAGE as usize) {
            Ok(page) => bytes.extend_from_slice(&page),
            Err(_) => break,
        }
    }
    bytes
}

fn tables_in(bytes: &[u8]) -> Vec<TableLayout> {
    let mut found = Vec::new();
    let mut at = 0;
    while at + HEADER <= bytes.len() {
        let headers = bytes[at..].chunks_exact(HEADER);
        let headers = headers.map_while(TableHeader::parse);
        let counts = headers.take(MAX_SHARDS).map(|header| header.count);
        let counts: Vec<u64> = counts.collect();
        if counts.iter().any(|count| *count > 0) {
            found.push(TableLayout {
                offset: at as u64,
                shards: counts.len() as u64,
            });
        }
        at += (counts.len() * HEADER).max(8);
    }
    found
}

/// Determines the rest of the layout, assuming that `tables` hold the live blocks.
fn fit(memory: &impl ReadMemory, object: u64, bytes: &[u8], tables: TableLayout) -> Option<Layout> {
    let elements = read_elements(memory, object, tables, Extent::All).ok()?;
    let block = block_layout(memory, &elements)?;
    let live = look_at(memory, elements, block);
    if !live.gone.is_empty() {
        return None;
    }
    let words = bytes.chunks_exact(8).map(|word| word_at(word, 0));
    let words: Vec<u64> = words.collect();
    let counters = words
        .windows(3)
        .zip((0..).step_by(8))
        .find_map(|(vector, devices)| {
            let (begin, end, room) = (vector[0], vector[1], vector[2]);
            if begin == 0 || !begin.is_multiple_of(8) || begin >= end || end > room {
                return None;
            }
            let allocators = device_allocators(memory, [begin, end]).ok()?;
            let allocated = statistics(memory, &allocators, &live.blocks)?;
            Some(CounterLayout {
                devices,
                allocated,
                reserved: allocated + STAT_ARRAY,
            })
        })?;
    Some(Layout {
        versions: [(0, 0); 2],
        tables,
        block,
        counters,
    })
}

/// Determines the layout of blocks: every sample must repeat the address that it is listed under.
fn block_layout(memory: &impl ReadMemory, elements: &[Element]) -> Option<BlockLayout> {
    let samples = elements.iter().take(SAMPLES);
    let objects: Vec<(u64, [u8; BLOCK_BYTES])> = samples
        .map(|element| Some((element.key, memory.read_array(element.value).ok()?)))
        .collect::<Option<_>>()?;
    let ends = (TO_PTR..BLOCK_BYTES + TO_PTR - TO_ALLOCATED).step_by(8);
    let layouts = ends.map(|ptr| BlockLayout { size: ptr - TO_PTR });
    only(layouts.filter(|layout| {
        let mut all = objects.iter();
        !objects.is_empty() && all.all(|(key, bytes)| layout.parse(bytes, *key).is_some())
    }))
}

/// Offset in the device allocators of the statistic that counts the bytes of these blocks: the lowest that fits.
/// The total over all pools precedes each pool, and `allocated` precedes `active`.
fn statistics(memory: &impl ReadMemory, allocators: &[u64], blocks: &[HeldBlock]) -> Option<u64> {
    let mut sums = vec![(0_u64, 0_u64); allocators.len()];
    for block in blocks {
        let DeviceIndex(device) = block.device;
        let (bytes, count) = sums.get_mut(usize::from(device))?;
        *bytes = bytes.checked_add(block.size.0)?;
        *count += 1;
    }
    if blocks.is_empty() || allocators.contains(&0) {
        return None;
    }
    (COUNT_TO_BYTES..STATISTICS_BYTES).step_by(8).find(|at| {
        allocators
            .iter()
            .zip(&sums)
            .all(|(allocator, sums)| counted(memory, allocator.wrapping_add(*at)) == Some(*sums))
    })
}

/// Bytes and number of blocks according to the statistic at `address`. Returns `None` unless the reserved
/// bytes that follow are at least as many.
fn counted(memory: &impl ReadMemory, address: u64) -> Option<(u64, u64)> {
    let allocated = Stat::read(memory, address).ok()?;
    let reserved = Stat::read(memory, address.wrapping_add(STAT_ARRAY)).ok()?;
    let count = memory.read_u64(address.wrapping_sub(COUNT_TO_BYTES)).ok()?;
    let covered = reserved.current >= allocated.current && reserved.peak >= allocated.peak;
    covered.then_some((allocated.current, count))
}

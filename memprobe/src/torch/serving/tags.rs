//! vLLM's allocator for its sleep mode: it keeps the tag of each allocation in a dict of Python.
//!
//! vllm/device_allocator/cumem.py@9ac9658 and @010c211 (`CuMemAllocator`), __init__.py@e5337d9 (`AllocationData`);
//! vllm/backends/platform/device_allocator@7ffc3d0. An entry with other contents has no tag; nothing is guessed.

use super::blocks::items;
use super::{MAX_TAGS, field};
use crate::event::{Address, Bytes, TaggedAllocation};
use crate::process::memory::ReadMemory;
use crate::python::heap::Heap;

/// Reads the allocations of an allocator, by address.
pub(super) fn read(heap: &Heap<'_, impl ReadMemory>, allocator: u64) -> Vec<TaggedAllocation> {
    let Some(table) = field(heap, allocator, "pointer_to_data") else {
        return Vec::new();
    };
    let mut tags = Vec::new();
    // A table that changes is read as far as it can be: what is missing has no tag.
    let _ = heap.entries(table, |entry| {
        if tags.len() < MAX_TAGS {
            tags.extend(allocation(heap, entry.key, entry.value));
        }
    });
    tags.sort_by_key(|tagged: &TaggedAllocation| tagged.addr);
    tags
}

/// An entry: the address, and an object with the tag and the handle, which is device, size, address and the driver's
/// handle.
fn allocation(
    heap: &Heap<'_, impl ReadMemory>,
    address: u64,
    data: u64,
) -> Option<TaggedAllocation> {
    let address = heap.natural(address)?;
    let handle = items(heap, field(heap, data, "handle")?)?;
    let [_, size, own_address, _] = handle[..] else {
        return None;
    };
    let tag = field(heap, data, "tag")?;
    let is_same = heap.natural(own_address)? == address;
    Some(TaggedAllocation {
        addr: Address(address),
        size: Bytes(heap.natural(size)?),
        tag: heap.string(tag).filter(|_| is_same)?,
    })
}

//! torch_memory_saver's pools: it keeps tags in C++, and in a dict of Python the pool of each tag.
//!
//! torch_memory_saver/entrypoint.py@4a43c97 and 0.0.10 (`_TorchMemorySaverImpl._mem_pools`): the key is a tuple that begins
//! with the tag, the value is a `torch.cuda.MemPool`. All memory of such a pool has the tag. An entry with other contents
//! has none.

use super::blocks::items;
use super::field;
use crate::event::PoolId;
use crate::process::memory::ReadMemory;
use crate::python::heap::Heap;
use std::sync::Arc;

/// Most pools of a process.
const MAX_POOLS: usize = 1 << 12;

/// Offset of the pointer to the C++ object in an object of pybind11, after the header of every Python object. The holder
/// follows, here a `std::shared_ptr`, which begins with the same pointer (include/pybind11/detail/common.h@v2.13.6).
const VALUE: u64 = 16;

/// Offsets of `id_` in `MemPool`: 8 in ATen/cuda/MemPool.h@v2.15.0 and @00d512a, 16 in
/// c10/cuda/CUDACachingAllocator.h@v2.6.0 to @v2.9.0. Only a pool that the program made has 0 as its first number, and
/// another as its second. An object that fits both is of neither.
const ID: [u64; 2] = [8, 16];

/// Pool whose memory has a tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaggedPool {
    pub id: PoolId,
    pub tag: Arc<str>,
}

/// Reads the pools that an object of torch_memory_saver has made.
pub(super) fn read(heap: &Heap<'_, impl ReadMemory>, saver: u64) -> Vec<TaggedPool> {
    let Some(table) = field(heap, saver, "_mem_pools") else {
        return Vec::new();
    };
    let mut pools = Vec::new();
    // A table that changes is read as far as it can be: what is missing has no tag.
    let _ = heap.entries(table, |entry| {
        if pools.len() < MAX_POOLS {
            pools.extend(pool(heap, entry.key, entry.value));
        }
    });
    pools
}

fn pool(heap: &Heap<'_, impl ReadMemory>, key: u64, pool: u64) -> Option<TaggedPool> {
    let tag = *items(heap, key)?.first()?;
    Some(TaggedPool {
        id: id(heap, pool)?,
        tag: heap.string(tag)?,
    })
}

/// Number of a `torch.cuda.MemPool`; `None` if the object is none, or laid out in another way.
fn id(heap: &Heap<'_, impl ReadMemory>, pool: u64) -> Option<PoolId> {
    let word = |address: u64| heap.memory.read_u64(address).ok();
    let class = heap.class_of(pool)?;
    let value = word(pool.checked_add(VALUE)?)?;
    let is_held = word(pool.checked_add(VALUE + 8)?)? == value;
    if class.short_name() != "MemPool" || !is_held {
        return None;
    }
    let mut ids = ID.into_iter().filter_map(|offset| {
        let at = value.checked_add(offset)?;
        let id = PoolId(word(at)?, word(at.checked_add(8)?)?);
        (id.0 == 0 && id.1 > 0).then_some(id)
    });
    let found = ids.next();
    found.filter(|_| ids.next().is_none())
}

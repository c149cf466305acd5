//! SGLang's token pool: slots by request, from the lengths that the scheduler keeps.
//!
//! The indices of free slots are a tensor on the GPU, which memprobe does not read. Its length is in host memory.

use super::{LayoutUnknown, ServingObjects, ServingRole, class_name, count, field, is_none};
use crate::event::{KvPool, KvRequest, KvUnit};
use crate::process::memory::ReadMemory;
use crate::python::heap::Heap;
use crate::python::heap::optimizers::tensors_in;

/// Reads the one pool of a process; `None` if it has none.
pub(super) fn read(
    heap: &Heap<'_, impl ReadMemory>,
    objects: &ServingObjects,
    length: impl Fn(u64) -> Option<u64>,
) -> Option<Result<KvPool, LayoutUnknown>> {
    let mut allocators = objects.of(ServingRole::TokenAllocator);
    let allocator = allocators.next()?;
    let class = class_name(heap, allocator);
    Some(match allocators.next() {
        Some(_) => Err(LayoutUnknown(format!("several pools ({class})"))),
        None => pool(heap, objects, allocator, length)
            .ok_or_else(|| LayoutUnknown(format!("the slots of {class}"))),
    })
}

/// `None` if the objects contradict each other or lack an attribute.
fn pool(
    heap: &Heap<'_, impl ReadMemory>,
    objects: &ServingObjects,
    allocator: u64,
    length: impl Fn(u64) -> Option<u64>,
) -> Option<KvPool> {
    let size = count(heap, allocator, "size")?;
    let page = count(heap, allocator, "page_size")?;
    let mut free = length(field(heap, allocator, "free_pages")?)?;
    // Freed pages that are not sorted in yet (allocator/token.py and allocator/paged.py@v0.5.23).
    for name in ["release_pages", "staged_pages"] {
        let held = field(heap, allocator, name).filter(|held| !is_none(heap, *held));
        for (_, tensor) in held.map_or_else(Vec::new, |held| tensors_in(heap, held)) {
            free = free.checked_add(length(tensor)?)?;
        }
    }
    let free = free.checked_mul(page)?;
    let prefixes = prefixes(heap, objects)?;
    let (cached, shared) = match prefixes {
        PrefixCounts::Known { cached, shared } => (cached, shared),
        PrefixCounts::Unknown => (0, 0),
    };
    let requests = objects.of(ServingRole::TokenRequest);
    let requests: Vec<KvRequest> = requests.filter_map(|at| request(heap, at)).collect();
    let own = requests
        .iter()
        .fold(0_u64, |sum, request| sum.saturating_add(request.own));
    let known = free
        .checked_add(cached)?
        .checked_add(shared)?
        .checked_add(own)?;
    // Slots of pages that are not full, and of requests that are about to end.
    let rest = size.checked_sub(known)?;
    let (unclaimed, undivided) = match prefixes {
        PrefixCounts::Known { .. } => (rest, 0),
        PrefixCounts::Unknown => (0, rest),
    };
    Some(KvPool {
        scheduler: None,
        class: class_name(heap, allocator),
        unit: KvUnit::Token,
        // The first page is a dummy for padded tokens (sglang/srt/mem_cache/memory_pool.py@v0.5.23).
        total: size.checked_add(page)?,
        tokens_per_unit: Some(1),
        requests,
        shared,
        cached,
        free,
        reserved: page,
        unclaimed,
        undivided,
        configured: None,
    })
}

/// Slots in a prefix tree.
#[derive(Clone, Copy)]
enum PrefixCounts {
    /// Slots that no request uses, and those of running requests.
    Known { cached: u64, shared: u64 },
    /// The counts are not in Python: the default tree of 0.5.23 is written in Rust.
    Unknown,
}

/// Reads the one prefix tree of a process; `None` if there are several, or it lacks an attribute.
fn prefixes(heap: &Heap<'_, impl ReadMemory>, objects: &ServingObjects) -> Option<PrefixCounts> {
    let known = |cached, shared| PrefixCounts::Known { cached, shared };
    let single = objects.of(ServingRole::PrefixTree);
    let unified = objects.of(ServingRole::UnifiedTree);
    let trees: Vec<_> = (single.map(|tree| (tree, None)))
        .chain(unified.map(|tree| (tree, field(heap, tree, "tree_core"))))
        .collect();
    Some(match trees[..] {
        [] => known(0, 0),
        [(tree, None)] => known(
            count(heap, tree, "evictable_size_")?,
            count(heap, tree, "protected_size_")?,
        ),
        [(_, Some(core))] => {
            let sizes = ["component_evictable_size_", "component_protected_size_"];
            match sizes.map(|name| field(heap, core, name)) {
                [Some(cached), Some(shared)] => {
                    known(full_size(heap, cached)?, full_size(heap, shared)?)
                }
                _ => PrefixCounts::Unknown,
            }
        }
        _ => return None,
    })
}

/// Size of the component `FULL`, whose number is 0, in a dict by component
/// (sglang/srt/mem_cache/unified_cache/component_type.py@v0.5.23).
fn full_size(heap: &Heap<'_, impl ReadMemory>, sizes: u64) -> Option<u64> {
    let mut size = None;
    let read = heap.entries(sizes, |entry| {
        if heap.natural(entry.key) == Some(0) {
            size = heap.natural(entry.value);
        }
    });
    read.ok().and(size)
}

/// Returns a request that has slots. Those of its prefix belong to the tree
/// (sglang/srt/managers/schedule_batch.py@v0.5.23, `ReqKvInfo`).
fn request(heap: &Heap<'_, impl ReadMemory>, at: u64) -> Option<KvRequest> {
    let state = field(heap, at, "kv").unwrap_or(at);
    let row = field(heap, state, "req_pool_idx")?;
    if is_none(heap, row) {
        return None;
    }
    let shared = count(heap, state, "cache_protected_len")?;
    let all = count(heap, state, "kv_allocated_len")?;
    Some(KvRequest {
        id: heap.text(field(heap, at, "rid")?)?,
        own: all.saturating_sub(shared),
        shared,
    })
}

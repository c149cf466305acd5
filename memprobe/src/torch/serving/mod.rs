//! Reads how a server divides its KV cache among requests, and the tags of memory that can sleep: from the Python
//! objects of vLLM, SGLang or torch_memory_saver.
//!
//! Names of classes and modules change from version to version, so objects are recognized by their attributes. An
//! object with other contents than expected makes the layout unknown; nothing is guessed.

mod blocks;
mod scheduler;
mod tagged_pools;
mod tags;
mod tokens;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use scheduler::{SchedulerError, pools_of};
pub use tagged_pools::TaggedPool;

use crate::event::{KvCaches, KvGap, MAX_TAGS, TaggedAllocation};
use crate::process::memory::ReadMemory;
use crate::python::heap::Heap;
use crate::python::heap::capture::CaptureMode;
use crate::python::heap::class::{Class, ContainerKind, TorchKind};
use crate::python::heap::optimizers::tensors_in;
use crate::python::heap::process_scan::Object;

/// Objects of a class that are looked at: the first may be under construction.
const EXAMINED: u8 = 3;

/// Most objects of one role, and most requests.
const MAX_OBJECTS: usize = 1 << 10;
const MAX_REQUESTS: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServingRole {
    BlockPool,
    RequestBlocks,
    CacheConfig,
    Runner,
    TokenAllocator,
    PrefixTree,
    /// Prefix tree whose counts are in an object of its own.
    UnifiedTree,
    TokenRequest,
    /// Allocator whose allocations have tags.
    TagTable,
    /// Object whose pools have tags.
    TaggedPools,
    /// A block pool without the attributes that a known version has.
    ForeignPool,
}

/// Attributes that show the role of an object.
const ROLES: &[(ServingRole, &[&str])] = &[
    // vllm/v1/core/block_pool.py@v0.9.0 to @v0.33.0 (`BlockPool`).
    (
        ServingRole::BlockPool,
        &["blocks", "free_block_queue", "num_gpu_blocks"],
    ),
    // vllm/v1/core/single_type_kv_cache_manager.py@v0.9.0 to @v0.33.0 (`SingleTypeKVCacheManager`).
    (ServingRole::RequestBlocks, &["req_to_blocks", "block_pool"]),
    // vllm/v1/kv_cache_interface.py@v0.9.0 to @v0.33.0 (`KVCacheConfig`).
    (
        ServingRole::CacheConfig,
        &["num_blocks", "kv_cache_tensors"],
    ),
    // vllm/v1/worker/gpu_model_runner.py and worker/gpu/model_runner.py@v0.33.0 (`GPUModelRunner`).
    (ServingRole::Runner, &["kv_caches", "kv_cache_config"]),
    // sglang/srt/mem_cache/allocator/base.py@v0.5.23 (`BaseTokenToKVPoolAllocator`).
    (
        ServingRole::TokenAllocator,
        &["free_pages", "page_size", "size", "_kvcache"],
    ),
    // sglang/srt/mem_cache/radix_cache.py@v0.5.23 (`RadixCache`).
    (
        ServingRole::PrefixTree,
        &["evictable_size_", "protected_size_", "root_node"],
    ),
    // sglang/srt/mem_cache/unified_radix_cache.py@v0.5.23 (`UnifiedRadixCache`), the default.
    (
        ServingRole::UnifiedTree,
        &["tree_core", "token_to_kv_pool_allocator"],
    ),
    // sglang/srt/managers/schedule_batch.py@v0.5.23 (`Req`).
    (
        ServingRole::TokenRequest,
        &["rid", "origin_input_ids", "output_ids"],
    ),
    // vllm/device_allocator/cumem.py@9ac9658, @010c211 and later (`CuMemAllocator`).
    (ServingRole::TagTable, &["pointer_to_data", "current_tag"]),
    // torch_memory_saver/entrypoint.py@4a43c97 (`_TorchMemorySaverImpl`).
    (ServingRole::TaggedPools, &["_mem_pools", "_binary_wrapper"]),
    // An object that counts a GPU's blocks, in a version with other names.
    (ServingRole::ForeignPool, &["free_block_queue"]),
    (ServingRole::ForeignPool, &["num_gpu_blocks", "block_pool"]),
];

/// Every attribute of [`ROLES`].
const NAMES: [&str; 25] = [
    "blocks",
    "free_block_queue",
    "num_gpu_blocks",
    "req_to_blocks",
    "block_pool",
    "num_blocks",
    "kv_cache_tensors",
    "kv_caches",
    "kv_cache_config",
    "free_pages",
    "page_size",
    "size",
    "_kvcache",
    "evictable_size_",
    "protected_size_",
    "root_node",
    "tree_core",
    "token_to_kv_pool_allocator",
    "rid",
    "origin_input_ids",
    "output_ids",
    "pointer_to_data",
    "current_tag",
    "_mem_pools",
    "_binary_wrapper",
];

/// Objects of a server, by address.
#[derive(Clone, Debug, Default)]
pub struct ServingObjects {
    found: Vec<(ServingRole, u64)>,
}

/// State of the search for the role of a class.
#[derive(Clone, Copy)]
enum ClassRole {
    Examined(u8),
    None,
    Known(ServingRole),
}

impl ServingObjects {
    pub(super) fn find(heap: &Heap<'_, impl ReadMemory>, objects: &[Object]) -> Self {
        let mut roles: Vec<ClassRole> = Vec::new();
        let mut found = Vec::new();
        let mut counts = [0; ROLES.len()];
        for object in objects {
            let at = object.class() as usize;
            if roles.len() <= at {
                roles.resize(at + 1, ClassRole::Examined(0));
            }
            if let ClassRole::Examined(times) = roles[at] {
                roles[at] = match heap.class_at(object.class()) {
                    Some(class) if may_serve(&class) => {
                        match role(heap, &class, object.address()) {
                            Some(role) => ClassRole::Known(role),
                            None if times + 1 < EXAMINED => ClassRole::Examined(times + 1),
                            None => ClassRole::None,
                        }
                    }
                    _ => ClassRole::None,
                };
            }
            let ClassRole::Known(role) = roles[at] else {
                continue;
            };
            let count = &mut counts[role as usize];
            if *count < limit(role) {
                *count += 1;
                found.push((role, object.address()));
            }
        }
        Self { found }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    fn of(&self, role: ServingRole) -> impl Iterator<Item = u64> {
        let found = self.found.iter();
        found.filter(move |(is, _)| *is == role).map(|(_, at)| *at)
    }

    /// Tensor objects of the caches that runners and allocators hold.
    pub(super) fn cache_tensors(&self, heap: &Heap<'_, impl ReadMemory>) -> Vec<u64> {
        let mut held = Vec::new();
        for runner in self.of(ServingRole::Runner) {
            held.extend(field(heap, runner, "kv_caches"));
        }
        for allocator in self.of(ServingRole::TokenAllocator) {
            if let Some(cache) = field(heap, allocator, "_kvcache") {
                let buffers = ["k_buffer", "v_buffer", "kv_buffer"];
                held.extend(
                    buffers
                        .into_iter()
                        .filter_map(|name| field(heap, cache, name)),
                );
            }
        }
        let tensors = held.into_iter().flat_map(|held| tensors_in(heap, held));
        tensors.map(|(_, tensor)| tensor).collect()
    }

    /// Allocations that an allocator in Python has tagged.
    pub(super) fn tags(&self, heap: &Heap<'_, impl ReadMemory>) -> Vec<TaggedAllocation> {
        let tables = self.of(ServingRole::TagTable);
        let mut tags: Vec<_> = tables.flat_map(|table| tags::read(heap, table)).collect();
        tags.truncate(MAX_TAGS);
        tags
    }

    /// Pools whose memory has a tag.
    pub(super) fn tagged_pools(&self, heap: &Heap<'_, impl ReadMemory>) -> Vec<TaggedPool> {
        let savers = self.of(ServingRole::TaggedPools);
        savers
            .flat_map(|saver| tagged_pools::read(heap, saver))
            .collect()
    }

    /// Reads everything into the image that may lie elsewhere than in an earlier scan.
    pub(super) fn follow(&self, heap: &Heap<'_, impl ReadMemory>) {
        for table in self.of(ServingRole::TagTable) {
            tags::read(heap, table);
        }
        self.tagged_pools(heap);
        for manager in self.of(ServingRole::RequestBlocks) {
            blocks::follow(heap, manager);
        }
    }

    /// Reads the pools, so that everything they need is in the image. `length` returns the number of elements of a one-dimensional tensor object.
    pub(super) fn pools(
        &self,
        heap: &Heap<'_, impl ReadMemory>,
        length: impl Fn(u64) -> Option<u64>,
        manner: CaptureMode,
    ) -> KvCaches {
        let mut caches = KvCaches::default();
        let pools = self.of(ServingRole::BlockPool);
        let pools = pools.filter_map(|pool| blocks::read(heap, self, pool).transpose());
        let tokens = tokens::read(heap, self, length).into_iter();
        for read in pools.chain(tokens) {
            match read {
                Ok(pool) => caches.pools.push(pool),
                Err(unknown) => caches.gap = Some(KvGap::Other(unknown.words(manner).into())),
            }
        }
        if caches.pools.is_empty() && caches.gap.is_none() {
            if let Some(foreign) = self.of(ServingRole::ForeignPool).next() {
                let unknown = LayoutUnknown(class_name(heap, foreign).to_string());
                caches.gap = Some(KvGap::Other(unknown.words(manner).into()));
            } else if self.of(ServingRole::Runner).next().is_some() {
                caches.gap = Some(KvGap::NoScheduler);
            }
        }
        caches
    }
}

/// An object of a server has contents that no known version has; its description.
#[derive(Debug, PartialEq, Eq)]
struct LayoutUnknown(String);

impl LayoutUnknown {
    fn words(&self, manner: CaptureMode) -> String {
        let Self(what) = self;
        match manner {
            CaptureMode::Running => format!(
                "{what} could not be read while the process runs on, or its layout is not known: read it without \
                 --nonblocking"
            ),
            CaptureMode::Paused | CaptureMode::AtOnce => {
                format!("the layout of {what} is not known")
            }
        }
    }
}

const fn limit(role: ServingRole) -> usize {
    match role {
        ServingRole::TokenRequest => MAX_REQUESTS,
        _ => MAX_OBJECTS,
    }
}

fn may_serve(class: &Class) -> bool {
    class.holds == ContainerKind::Other && class.role == TorchKind::Other && class.has_attributes()
}

fn role(heap: &Heap<'_, impl ReadMemory>, class: &Class, object: u64) -> Option<ServingRole> {
    // An object that cannot be read has no role.
    let (values, _) = heap.attributes_of(class, object, NAMES);
    let has = |name: &&str| {
        let at = NAMES.iter().position(|known| known == name);
        at.is_some_and(|at| values[at].is_some())
    };
    let row = ROLES.iter().find(|(_, names)| names.iter().all(&has));
    row.map(|(role, _)| *role)
}

/// Value of an attribute or slot of an object.
fn field(heap: &Heap<'_, impl ReadMemory>, object: u64, name: &str) -> Option<u64> {
    let class = heap.class_of(object)?;
    let member = class.members.iter().find(|member| &*member.name == name);
    if let Some(member) = member {
        let value = heap.memory.read_u64(object.wrapping_add(member.offset));
        return value.ok().filter(|&value| value != 0);
    }
    let ([value], _) = heap.attributes_of(&class, object, [name]);
    value
}

/// Value of an int attribute that is not negative.
fn count(heap: &Heap<'_, impl ReadMemory>, object: u64, name: &str) -> Option<u64> {
    heap.natural(field(heap, object, name)?)
}

fn is_none(heap: &Heap<'_, impl ReadMemory>, object: u64) -> bool {
    let class = heap.class_of(object);
    class.is_some_and(|class| &*class.name == "NoneType")
}

fn class_name(heap: &Heap<'_, impl ReadMemory>, object: u64) -> Arc<str> {
    let class = heap.class_of(object);
    class.map_or_else(|| "an object".into(), |class| class.short_name().into())
}

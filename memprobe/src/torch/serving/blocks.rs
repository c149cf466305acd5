//! vLLM's block pool: blocks by request, from reference counts and the lists of each request.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::{LayoutUnknown, MAX_REQUESTS, ServingObjects, ServingRole};
use super::{class_name, count, field, is_none};
use crate::event::{Bytes, KvPool, KvRequest, KvUnit};
use crate::process::memory::ReadMemory;
use crate::python::heap::Heap;
use crate::python::heap::class::ContainerKind;
use crate::python::heap::contents::Step;

/// Most blocks of a pool: 64 TiB of cache in blocks of 16 MiB.
const MAX_BLOCKS: u64 = 1 << 22;

/// Most blocks in the lists of all requests, shared ones counted each time.
const MAX_LISTED: usize = 1 << 24;

/// Facts of a block itself (vllm/v1/core/kv_cache_utils.py@v0.9.0 to @v0.33.0, `KVCacheBlock`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CacheBlock {
    references: u64,
    /// True if its contents are kept for requests with the same prefix.
    has_hash: bool,
}

/// Users of a block among the requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BlockUse {
    #[default]
    None,
    One(u32),
    Several,
}

/// Reads a pool. Returns `None` for one without blocks: under construction.
pub(super) fn read(
    heap: &Heap<'_, impl ReadMemory>,
    objects: &ServingObjects,
    pool: u64,
) -> Result<Option<KvPool>, LayoutUnknown> {
    let class = class_name(heap, pool);
    let unknown = |what: &str| LayoutUnknown(format!("{what} of {class}"));
    let total = count(heap, pool, "num_gpu_blocks").filter(|total| *total <= MAX_BLOCKS);
    let total = total.ok_or_else(|| unknown("the number of blocks"))?;
    if total == 0 {
        return Ok(None);
    }
    let listed = field(heap, pool, "blocks").and_then(|blocks| items(heap, blocks));
    let listed = listed.filter(|listed| listed.len() as u64 == total);
    let listed = listed.ok_or_else(|| unknown("the list of blocks"))?;
    let blocks = read_blocks(heap, &listed).ok_or_else(|| unknown("the blocks"))?;
    let null = field(heap, pool, "null_block");
    let null = listed.iter().position(|block| Some(*block) == null);
    let requests = Requests::read(heap, objects, pool, &listed)?;
    let config = objects.of(ServingRole::CacheConfig);
    let mut config = config.filter(|config| count(heap, *config, "num_blocks") == Some(total));
    let mut counted = KvPool {
        scheduler: None,
        class,
        unit: KvUnit::Block,
        total,
        tokens_per_unit: requests.tokens_per_block,
        requests: Vec::new(),
        shared: 0,
        cached: 0,
        free: 0,
        reserved: 0,
        unclaimed: 0,
        undivided: 0,
        configured: config.find_map(|config| configured(heap, config)),
    };
    requests.count(&blocks, null, &mut counted);
    Ok(Some(counted))
}

/// Reads the lists of requests, which move as requests come and go.
pub(super) fn follow(heap: &Heap<'_, impl ReadMemory>, manager: u64) {
    if let Some(lists) = field(heap, manager, "req_to_blocks") {
        let _ = heap.entries(lists, |entry| {
            heap.text(entry.key);
            items(heap, entry.value);
        });
    }
}

fn read_blocks(heap: &Heap<'_, impl ReadMemory>, blocks: &[u64]) -> Option<Vec<CacheBlock>> {
    let mut none = None;
    let blocks = blocks.iter().map(|&block| {
        heap.natural(field(heap, block, "block_id")?)?;
        let hash = ["_block_hash", "block_hash"];
        let hash = hash.iter().find_map(|name| field(heap, block, name))?;
        // The null block comes first, without a hash. A new hash lies on a page that a copy may lack.
        if none.is_none() && is_none(heap, hash) {
            none = Some(hash);
        }
        Some(CacheBlock {
            references: count(heap, block, "ref_cnt")?,
            has_hash: none != Some(hash),
        })
    });
    blocks.collect()
}

/// Requests of a pool, of all groups of layers.
struct Requests {
    of_requests: Vec<KvRequest>,
    /// Blocks of each request, the null block left out.
    lengths: Vec<u64>,
    /// Use of each block, in the order of the pool.
    uses: Vec<BlockUse>,
    tokens_per_block: Option<u64>,
    /// Blocks in all lists so far.
    listed: usize,
}

impl Requests {
    fn read(
        heap: &Heap<'_, impl ReadMemory>,
        objects: &ServingObjects,
        pool: u64,
        listed: &[u64],
    ) -> Result<Self, LayoutUnknown> {
        let managers = objects.of(ServingRole::RequestBlocks);
        let managers: Vec<u64> = managers
            .filter(|manager| field(heap, *manager, "block_pool") == Some(pool))
            .collect();
        if managers.is_empty() {
            let class = class_name(heap, pool);
            return Err(LayoutUnknown(format!("the requests of {class}")));
        }
        let null = field(heap, pool, "null_block");
        let places = listed.iter().zip(0..).map(|(block, at)| (*block, at));
        let places: HashMap<u64, usize> = places.filter(|(at, _)| Some(*at) != null).collect();
        let mut requests = Self {
            of_requests: Vec::new(),
            lengths: Vec::new(),
            uses: vec![BlockUse::None; listed.len()],
            tokens_per_block: None,
            listed: 0,
        };
        let mut known = HashMap::new();
        let mut sizes = HashSet::new();
        for manager in managers {
            sizes.insert(count(heap, manager, "block_size"));
            requests.add_lists(heap, manager, &places, &mut known)?;
        }
        if let [Some(size)] = sizes.into_iter().collect::<Vec<_>>()[..] {
            requests.tokens_per_block = Some(size);
        }
        Ok(requests)
    }

    /// Counts each block of a pool by its use; `null` is the place of the null block.
    fn count(self, blocks: &[CacheBlock], null: Option<usize>, counted: &mut KvPool) {
        counted.requests = self.of_requests;
        for (at, (block, used)) in blocks.iter().zip(&self.uses).enumerate() {
            let place = match used {
                _ if Some(at) == null => &mut counted.reserved,
                BlockUse::Several => &mut counted.shared,
                BlockUse::One(request) => &mut counted.requests[*request as usize].own,
                BlockUse::None if block.references > 0 => &mut counted.unclaimed,
                BlockUse::None if block.has_hash => &mut counted.cached,
                BlockUse::None => &mut counted.free,
            };
            *place += 1;
        }
        for (request, blocks) in counted.requests.iter_mut().zip(self.lengths) {
            request.shared = blocks.saturating_sub(request.own);
        }
    }

    /// Adds the lists of one group of layers. `known` has the place of each request by its id.
    fn add_lists(
        &mut self,
        heap: &Heap<'_, impl ReadMemory>,
        manager: u64,
        places: &HashMap<u64, usize>,
        known: &mut HashMap<Arc<str>, u32>,
    ) -> Result<(), LayoutUnknown> {
        let unknown = || LayoutUnknown(format!("req_to_blocks of {}", class_name(heap, manager)));
        let lists = field(heap, manager, "req_to_blocks").ok_or_else(unknown)?;
        let mut entries = Vec::new();
        let read = heap.entries(lists, |entry| entries.push(entry));
        read.map_err(|_| unknown())?;
        for entry in entries {
            let id = match heap.class_of(entry.key).map(|class| class.holds) {
                Some(ContainerKind::Text) => heap.text(entry.key).ok_or_else(unknown)?,
                _ => heap.key(entry.key).into(),
            };
            let at = *known.entry(id.clone()).or_insert_with(|| {
                self.of_requests.push(KvRequest {
                    id,
                    own: 0,
                    shared: 0,
                });
                self.lengths.push(0);
                self.of_requests.len() as u32 - 1
            });
            if self.of_requests.len() > MAX_REQUESTS {
                return Err(LayoutUnknown("more than a million requests".to_owned()));
            }
            let blocks = items(heap, entry.value).ok_or_else(unknown)?;
            self.listed = self.listed.saturating_add(blocks.len());
            if self.listed > MAX_LISTED {
                return Err(LayoutUnknown(
                    "more than 16 million blocks of requests".to_owned(),
                ));
            }
            let listed = blocks.iter().filter_map(|block| places.get(block));
            // A list may name a block twice.
            let listed: HashSet<usize> = listed.copied().collect();
            for place in listed {
                let used = &mut self.uses[place];
                match *used {
                    BlockUse::None => *used = BlockUse::One(at),
                    BlockUse::One(other) if other == at => continue,
                    BlockUse::One(_) | BlockUse::Several => *used = BlockUse::Several,
                }
                self.lengths[at as usize] += 1;
            }
        }
        Ok(())
    }
}

/// Bytes of the cache on each device that runs all layers. From 0.33 on all tensors are parts of one, before
/// that each has memory of its own (vllm/v1/kv_cache_interface.py@v0.33.0 and @v0.9.0, `KVCacheTensor`).
fn configured(heap: &Heap<'_, impl ReadMemory>, config: u64) -> Option<Bytes> {
    let tensors = items(heap, field(heap, config, "kv_cache_tensors")?)?;
    let sizes = tensors.iter().map(|tensor| count(heap, *tensor, "size"));
    let sizes: Option<Vec<u64>> = sizes.collect();
    let sizes = sizes?;
    let are_parts = field(heap, *tensors.first()?, "layer_stride").is_some();
    let sum = || {
        sizes
            .iter()
            .fold(0_u64, |sum, size| sum.saturating_add(*size))
    };
    let whole = are_parts.then(|| sizes.iter().max().copied()).flatten();
    Some(Bytes(whole.unwrap_or_else(sum)))
}

/// Items of a list or tuple; `None` for any other object, and for one that cannot be read as a whole.
pub(super) fn items(heap: &Heap<'_, impl ReadMemory>, object: u64) -> Option<Vec<u64>> {
    let class = heap.class_of(object)?;
    if !matches!(class.holds, ContainerKind::List | ContainerKind::Tuple) {
        return None;
    }
    let mut items = Vec::new();
    let read = heap.contents(&class, object, |step, item| {
        if matches!(step, Step::Index(_)) {
            items.push(item);
        }
    });
    read.ok()?;
    Some(items)
}

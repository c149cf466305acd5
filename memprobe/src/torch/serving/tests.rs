use super::*;
use crate::event::{KvPool, KvRequest, KvUnit, PoolId};
use crate::process::memory::fake::FakeMemory;
use crate::python::heap::collector::{self, WalkExtent};
use crate::python::heap::fake::FakeHeap;
use crate::python::heap::process_scan::ProcessScan;
use crate::python::layout::PythonLayout;
use crate::python::versions::LAYOUTS;

/// Reads a heap whose tensors have the lengths in `lengths`.
fn caches(heap: FakeHeap, lengths: &[(u64, u64)]) -> (KvCaches, Vec<u64>) {
    let layout = heap.layout;
    let (memory, interpreter) = heap.finish();
    read(&memory, layout, interpreter, lengths)
}

fn tags(heap: FakeHeap) -> Vec<(u64, u64, String)> {
    let layout = heap.layout;
    let (memory, interpreter) = heap.finish();
    let heap = Heap::of(&memory, layout);
    let tags = found(&heap, &memory, interpreter).tags(&heap);
    let tags = tags.iter();
    tags.map(|tagged| (tagged.addr.0, tagged.size.0, tagged.tag.to_string()))
        .collect()
}

fn found(heap: &Heap<'_, FakeMemory>, memory: &FakeMemory, interpreter: u64) -> ServingObjects {
    let collector = &heap.layout.heap.collector;
    // A damaged list ends early.
    let (listed, _) = collector::listed(memory, collector, interpreter, WalkExtent::All);
    let scan = ProcessScan::of(heap, &listed);
    ServingObjects::find(heap, &scan.objects)
}

fn read(
    memory: &FakeMemory,
    layout: &'static PythonLayout,
    interpreter: u64,
    lengths: &[(u64, u64)],
) -> (KvCaches, Vec<u64>) {
    let heap = Heap::of(memory, layout);
    let objects = found(&heap, memory, interpreter);
    let length = |object| {
        let known = lengths.iter().find(|(tensor, _)| *tensor == object);
        known.map(|(_, length)| *length)
    };
    let caches = objects.pools(&heap, length, CaptureMode::Paused);
    (caches, objects.cache_tensors(&heap))
}

fn request(id: &str, own: u64, shared: u64) -> KvRequest {
    let id = id.into();
    KvRequest { id, own, shared }
}

/// A pool of blocks with these reference counts and hashes, and the blocks of each request. Block 0 is the null block.
fn block_pool(heap: &mut FakeHeap, blocks: &[(i32, bool)], requests: &[(&str, &[usize])]) -> u64 {
    let none_class = heap.class("NoneType", 0, 0);
    let none = heap.object(none_class, 16);
    let block_class = heap.python_class("KVCacheBlock", "engine", &["block_id"]);
    let hash = heap.text("hash");
    let made: Vec<u64> = (0..)
        .zip(blocks)
        .map(|(number, &(references, has_hash))| {
            let (number, references) = (heap.int(number), heap.int(references));
            let fields = [
                ("block_id", number),
                ("ref_cnt", references),
                ("_block_hash", if has_hash { hash } else { none }),
            ];
            heap.with_dict(block_class, &fields)
        })
        .collect();
    let lists: Vec<_> = requests
        .iter()
        .map(|(id, places)| {
            let items: Vec<u64> = places.iter().map(|&at| made[at]).collect();
            (heap.text(id), heap.list(&items))
        })
        .collect();
    let lists = heap.dict(&lists);
    let (list, count) = (heap.list(&made), heap.int(blocks.len() as i32));
    let queue = heap.list(&[]);
    let pool_class = heap.python_class("BlockPool", "engine", &["blocks"]);
    let fields = [
        ("num_gpu_blocks", count),
        ("blocks", list),
        ("free_block_queue", queue),
        ("null_block", made[0]),
    ];
    let pool = heap.with_dict(pool_class, &fields);
    let manager_class = heap.python_class("GroupManager", "engine", &["block_pool"]);
    let size = heap.int(16);
    let fields = [
        ("block_pool", pool),
        ("req_to_blocks", lists),
        ("block_size", size),
    ];
    heap.with_dict(manager_class, &fields);
    pool
}

#[test]
fn each_block_counts_once() {
    for layout in &LAYOUTS {
        let mut heap = FakeHeap::new(layout);
        let blocks = [
            (0, false),
            (2, true),
            (1, true),
            (1, false),
            (1, false),
            (0, true),
            (0, false),
            (1, false),
        ];
        let requests: &[(&str, &[usize])] = &[("a", &[0, 1, 2, 3, 3]), ("b", &[1, 4]), ("c", &[])];
        block_pool(&mut heap, &blocks, requests);
        let (caches, _) = caches(heap, &[]);
        let expected = KvPool {
            scheduler: None,
            class: "BlockPool".into(),
            unit: KvUnit::Block,
            total: 8,
            tokens_per_unit: Some(16),
            requests: vec![request("a", 2, 1), request("b", 1, 1), request("c", 0, 0)],
            shared: 1,
            cached: 1,
            free: 1,
            reserved: 1,
            unclaimed: 1,
            undivided: 0,
            configured: None,
        };
        assert_eq!(caches.pools, [expected]);
        assert_eq!(caches.pools[0].counted(), 8);
        assert_eq!(caches.gap, None);
    }
}

#[test]
fn a_pool_with_other_blocks_has_no_known_layout() {
    let layout = &LAYOUTS[LAYOUTS.len() - 1];
    let mut heap = FakeHeap::new(layout);
    let (list, count) = (heap.list(&[]), heap.int(4));
    let class = heap.python_class("BlockPool", "engine", &["blocks"]);
    let fields = [
        ("blocks", list),
        ("free_block_queue", list),
        ("num_gpu_blocks", count),
    ];
    heap.with_dict(class, &fields);
    let (found, _) = caches(heap, &[]);
    assert!(found.pools.is_empty());
    let words = "the layout of the list of blocks of BlockPool is not known";
    assert_eq!(found.gap, Some(KvGap::Other(words.into())));

    let mut heap = FakeHeap::new(layout);
    let queue = heap.list(&[]);
    let class = heap.python_class("NewPool", "engine", &["free_block_queue"]);
    heap.with_dict(class, &[("free_block_queue", queue)]);
    let (found, _) = caches(heap, &[]);
    let words = "the layout of NewPool is not known";
    assert_eq!(found.gap, Some(KvGap::Other(words.into())));
}

#[test]
fn a_worker_without_a_scheduler_says_so() {
    for layout in &LAYOUTS {
        let mut heap = FakeHeap::new(layout);
        let tensor_class = heap.class("torch._C.TensorBase", 0, 0);
        let tensors = [(); 2].map(|()| heap.object(tensor_class, 32));
        let list = heap.list(&tensors);
        let class = heap.python_class("ModelRunner", "engine", &["kv_caches"]);
        let config = heap.list(&[]);
        heap.with_dict(class, &[("kv_caches", list), ("kv_cache_config", config)]);
        let (found, held) = caches(heap, &[]);
        assert_eq!(found.gap, Some(KvGap::NoScheduler));
        assert_eq!(held, tensors);
    }
}

/// Tree that keeps prefixes of requests.
#[derive(Clone, Copy, Debug)]
enum Tree {
    Single,
    Unified,
    /// Without counts in Python.
    Foreign,
}

/// Makes a tree with 200 cached slots and 40 of running requests.
fn make_tree(heap: &mut FakeHeap, tree: Tree, other: u64) {
    let [evictable, protected, full, swa] = [200, 40, 0, 1].map(|it| heap.int(it));
    match tree {
        Tree::Single => {
            let class = heap.python_class("Tree", "engine", &["root_node"]);
            let fields = [
                ("root_node", other),
                ("evictable_size_", evictable),
                ("protected_size_", protected),
            ];
            heap.with_dict(class, &fields);
        }
        Tree::Unified | Tree::Foreign => {
            let class = heap.python_class("Core", "engine", &["page_size"]);
            let sizes = [evictable, protected].map(|size| heap.dict(&[(swa, full), (full, size)]));
            let fields = [
                ("page_size", full),
                ("component_evictable_size_", sizes[0]),
                ("component_protected_size_", sizes[1]),
            ];
            let known = match tree {
                Tree::Unified => &fields[..],
                _ => &fields[..1],
            };
            let core = heap.with_dict(class, known);
            let class = heap.python_class("UnifiedTree", "engine", &["tree_core"]);
            let fields = [("tree_core", core), ("token_to_kv_pool_allocator", other)];
            heap.with_dict(class, &fields);
        }
    }
}

/// Makes an allocator of 1000 slots in pages of 10, and a request with 25 slots of its own. Returns the tensors of its
/// free pages, with their lengths.
fn token_pool(heap: &mut FakeHeap, tree: Tree) -> [(u64, u64); 2] {
    let tensor_class = heap.class("torch._C.TensorBase", 0, 0);
    let [free, staged, keys] = [(); 3].map(|()| heap.object(tensor_class, 32));
    let staging = heap.list(&[staged]);
    let keys = heap.list(&[keys]);
    let [size, page, number, protected, all] = [1000, 10, 3, 40, 65].map(|it| heap.int(it));
    let class = heap.python_class("Pool", "engine", &["k_buffer"]);
    let cache = heap.with_dict(class, &[("k_buffer", keys)]);
    let class = heap.python_class("Allocator", "engine", &["size"]);
    let fields = [
        ("size", size),
        ("page_size", page),
        ("free_pages", free),
        ("staged_pages", staging),
        ("_kvcache", cache),
    ];
    heap.with_dict(class, &fields);
    make_tree(heap, tree, cache);
    let class = heap.python_class("State", "engine", &["req_pool_idx"]);
    let fields = [
        ("req_pool_idx", number),
        ("cache_protected_len", protected),
        ("kv_allocated_len", all),
    ];
    let state = heap.with_dict(class, &fields);
    let class = heap.python_class("Req", "engine", &["rid"]);
    let id = heap.text("abc");
    let fields = [
        ("rid", id),
        ("origin_input_ids", keys),
        ("output_ids", keys),
        ("kv", state),
    ];
    heap.with_dict(class, &fields);
    [(free, 70), (staged, 2)]
}

#[test]
fn slots_of_tokens_are_counted_by_lengths() {
    for layout in &LAYOUTS {
        for tree in [Tree::Single, Tree::Unified, Tree::Foreign] {
            let mut heap = FakeHeap::new(layout);
            let lengths = token_pool(&mut heap, tree);
            let (caches, _) = caches(heap, &lengths);
            let [pool] = &caches.pools[..] else {
                panic!("one pool: {caches:?}");
            };
            assert_eq!(pool.requests, [request("abc", 25, 40)]);
            assert_eq!([pool.free, pool.reserved], [720, 10]);
            let divided = [pool.cached, pool.shared, pool.unclaimed, pool.undivided];
            let expected = match tree {
                Tree::Single | Tree::Unified => [200, 40, 15, 0],
                Tree::Foreign => [0, 0, 0, 255],
            };
            assert_eq!(divided, expected, "{tree:?}");
            assert_eq!(pool.counted(), pool.total);
        }
    }
}

#[test]
fn allocations_of_an_allocator_in_python_have_tags() {
    for layout in &LAYOUTS {
        let mut heap = FakeHeap::new(layout);
        let texts = ["weights", "kv_cache", "default"].map(|text| heap.text(text));
        let [weights, kv_cache, current] = texts;
        let class = heap.python_class("AllocationData", "engine", &["tag"]);
        let entry = |heap: &mut FakeHeap, addr: i32, own: i32, tag: u64| {
            let [device, size, key, own, handle] = [0, 4096, addr, own, 7].map(|it| heap.int(it));
            let handle = heap.tuple(&[device, size, own, handle]);
            let data = heap.with_dict(class, &[("tag", tag), ("handle", handle)]);
            (key, data)
        };
        let entries = [
            entry(&mut heap, 0x20000, 0x20000, kv_cache),
            entry(&mut heap, 0x10000, 0x10000, weights),
            // Another address in the handle; a tag that is no text.
            entry(&mut heap, 0x30000, 0x40000, weights),
            entry(&mut heap, 0x50000, 0x50000, 0),
        ];
        let table = heap.dict(&entries);
        let class = heap.python_class("Allocator", "engine", &["current_tag"]);
        let fields = [("pointer_to_data", table), ("current_tag", current)];
        heap.with_dict(class, &fields);
        let expected = [
            (0x10000, 4096, "weights".to_owned()),
            (0x20000, 4096, "kv_cache".to_owned()),
        ];
        assert_eq!(tags(heap), expected);
    }
}

#[test]
fn pools_of_a_saver_have_the_tags_of_their_keys() {
    for layout in &LAYOUTS {
        let mut heap = FakeHeap::new(layout);
        let [weights, kv_cache] = ["weights", "kv_cache"].map(|text| heap.text(text));
        let number = heap.int(1);
        let (ours, other) = (heap.class("MemPool", 0, 0), heap.class("Pool", 0, 0));
        // A Python object whose C++ object has these words.
        let pool = |heap: &mut FakeHeap, class: u64, words: [u64; 4]| {
            let value = heap.reserve(32);
            for (offset, word) in (0_u64..).step_by(8).zip(words) {
                heap.put_word(value, offset, word);
            }
            let object = heap.object(class, 48);
            heap.put_word(object, 16_u64, value);
            heap.put_word(object, 24_u64, value);
            object
        };
        let pools = [
            (weights, pool(&mut heap, ours, [1, 0, 7, 0])),
            (kv_cache, pool(&mut heap, ours, [0x7000, 1, 0, 8])),
            // Another class; the pool of a graph; a tag that is no text.
            (weights, pool(&mut heap, other, [1, 0, 9, 0])),
            (weights, pool(&mut heap, ours, [1, 3, 0, 0])),
            (number, pool(&mut heap, ours, [1, 0, 11, 0])),
        ];
        let entries = pools.map(|(tag, pool)| (heap.tuple(&[tag, number]), pool));
        let table = heap.dict(&entries);
        let class = heap.python_class("Saver", "saver", &["_binary_wrapper"]);
        let fields = [("_mem_pools", table), ("_binary_wrapper", number)];
        heap.with_dict(class, &fields);
        let (memory, interpreter) = heap.finish();
        let heap = Heap::of(&memory, layout);
        let read = found(&heap, &memory, interpreter).tagged_pools(&heap);
        let tagged = |number, tag: &str| TaggedPool {
            id: PoolId(0, number),
            tag: tag.into(),
        };
        assert_eq!(read, [tagged(7, "weights"), tagged(8, "kv_cache")]);
    }
}

#[test]
fn a_hostile_heap_ends() {
    let layout = &LAYOUTS[LAYOUTS.len() - 1];
    let (mut with_pool, mut without) = (0, 0);
    for at in 0..200 {
        let mut heap = FakeHeap::new(layout);
        let pool = block_pool(&mut heap, &[(0, false), (1, false)], &[("a", &[1])]);
        let (mut memory, interpreter) = heap.finish();
        memory.write(pool - 800 + 8 * at, &u64::MAX.to_le_bytes());
        let (found, _) = read(&memory, layout, interpreter, &[]);
        let whole = |pool: &KvPool| pool.counted() == pool.total;
        assert!(found.pools.iter().all(whole));
        match found.pools.len() {
            0 => without += 1,
            _ => with_pool += 1,
        }
    }
    // Some of the words matter, and others do not.
    assert!(with_pool > 0 && without > 0, "{with_pool}, {without}");
}

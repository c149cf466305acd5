//! Objects of the interpreter's own classes whose references no member table lists: caches, thread-locals, context
//! variables, queues, views and iterators.

use super::contents::Step;
use super::{Heap, word_at};
use crate::process::memory::{Cause, ReadMemory, ReadResult};
use crate::python::layout::{ClassLayout, HeapLayout};

/// A reference of every object of a class: its name in paths, in brackets if Python code cannot ask for it, and its
/// offset.
type Reference = (&'static str, u16);

/// References by `tp_name` of the classes, the same from 3.9 to 3.15 (`Objects/iterobject.c`, `listobject.c`, `tupleobject.c`,
/// `dictobject.c`, `setobject.c`, `enumobject.c`, `descrobject.c`, `methodobject.h`, `Python/bltinmodule.c`,
/// `Python/context.c`, `Modules/itertoolsmodule.c`, `Modules/_collectionsmodule.c` @v3.9.18 to @v3.15.2).
pub(super) const HIDDEN: [(&str, &[Reference]); 22] = [
    ("mappingproxy", &[("<mapping>", 16)]),
    ("builtin_function_or_method", &[("__self__", 24)]),
    ("dict_keys dict_values dict_items", &[("mapping", 16)]),
    (
        "dict_keyiterator dict_valueiterator dict_itemiterator",
        &[("<dict>", 16)],
    ),
    ("set_iterator", &[("<set>", 16)]),
    ("list_iterator list_reverseiterator", &[("<list>", 24)]),
    ("tuple_iterator", &[("<tuple>", 24)]),
    ("iterator reversed", &[("<sequence>", 24)]),
    ("callable_iterator", &[("<function>", 16)]),
    (
        "_collections._deque_iterator collections._deque_iterator",
        &[("<deque>", 32)],
    ),
    ("enumerate", &[("<iterator>", 24)]),
    ("zip", &[("<iterators>", 24)]),
    ("map", &[("<iterators>", 16), ("<function>", 24)]),
    ("itertools.cycle", &[("<iterator>", 16), ("<saved>", 24)]),
    (
        "itertools.chain",
        &[("<iterators>", 16), ("<iterator>", 24)],
    ),
    ("itertools.repeat", &[("<object>", 16)]),
    (
        "itertools.islice itertools.pairwise itertools.batched itertools.groupby",
        &[("<iterator>", 16)],
    ),
    (
        "filter itertools.starmap itertools.takewhile itertools.dropwhile itertools.filterfalse",
        &[("<function>", 16), ("<iterator>", 24)],
    ),
    (
        "itertools.compress",
        &[("<iterator>", 16), ("<selectors>", 24)],
    ),
    (
        "itertools.accumulate",
        &[("<total>", 16), ("<iterator>", 24)],
    ),
    ("itertools.zip_longest", &[("<iterators>", 32)]),
    // The default value.
    ("ContextVar _contextvars.ContextVar", &[("get()", 24)]),
];

/// `cache` of `functools._lru_cache_wrapper`, a dict; `result` of `functools._lru_list_elem`, which is its value if
/// the cache is bounded (`Modules/_functoolsmodule.c`@v3.9.18 to @v3.15.2).
const CACHE: u16 = 72;
const RESULT: u16 = 48;
const RESULT_CLASS: &str = "functools._lru_list_elem";

/// `buf` of `_queue.SimpleQueue`: `put_idx`, `get_idx`, `items`, `items_cap`, `num_items`
/// (`Modules/_queuemodule.c`@v3.13.0 to @v3.15.2).
const RING: u64 = 24;

/// `lst` of `_queue.SimpleQueue` up to 3.12, a list; `lst_pos`, the index of the next item, follows
/// (`Modules/_queuemodule.c`@v3.9.18 to @v3.12.1).
const LIST: u16 = 32;
const MAX_QUEUED: u64 = 1 << 24;

/// First pair of key and value in a leaf of the mapping of a context (`PyHamtNode_Bitmap` in `Python/hamt.c`@v3.9.18
/// to @v3.15.2); `ob_size` counts both. A pair without a key leads to another node.
const PAIRS: u64 = 32;
const MAX_PAIRS: u64 = 1 << 10;

impl<M: ReadMemory> Heap<'_, M> {
    /// Calls `each` with the results that `functools.lru_cache` keeps, by the arguments, and with the arguments.
    pub(super) fn cached(&self, object: u64, mut each: impl FnMut(Step, u64)) -> ReadResult<()> {
        self.entries(self.word(object, CACHE)?, |entry| {
            // Up to 3.9 no `PyType_Ready` is called for this class.
            let name = self.type_of(entry.value);
            let name = name.and_then(|class| self.word(class, ClassLayout::NAME));
            let name = name.and_then(|name| self.c_string(name));
            let result = match name.is_ok_and(|name| &*name == RESULT_CLASS) {
                true => self.word(entry.value, RESULT).unwrap_or(0),
                false => entry.value,
            };
            each(Step::Key(entry.key), result);
            each(Step::Element, entry.key);
        })
    }

    /// Calls `each` with the attributes that the threads have set on a `threading.local`.
    pub(super) fn of_threads(
        &self,
        object: u64,
        mut each: impl FnMut(Step, u64),
    ) -> ReadResult<()> {
        let dicts = self.word(object, self.layout.heap.thread_dicts)?;
        let mut of_threads = Vec::new();
        self.entries(dicts, |entry| of_threads.push(entry.value))?;
        of_threads.into_iter().try_for_each(|dict| {
            self.entries(dict, |entry| each(Step::Attribute(entry.key), entry.value))
        })
    }

    /// Calls `each` with the items of a `SimpleQueue`, the next one first.
    pub(super) fn queued(&self, object: u64, mut each: impl FnMut(Step, u64)) -> ReadResult<()> {
        let [next, items, room, count] = if self.layout.heap.queue_has_list {
            let (list, next) = (self.word(object, LIST)?, self.word(object, LIST + 8)?);
            let count = self.word(list, HeapLayout::SIZE)?;
            let items = self.word(list, HeapLayout::LIST_ITEMS)?;
            [next, items, count, count.saturating_sub(next)]
        } else {
            let ring: [u8; 40] = self.memory.read_array(object.wrapping_add(RING))?;
            [8, 16, 24, 32].map(|at| word_at(&ring, at))
        };
        if count > room || room > MAX_QUEUED || next > room {
            return Err(Cause::NotAsExpected.at(object));
        }
        let mut all = Vec::new();
        self.words(items, room, 8, |item| all.push(item))?;
        all.rotate_left(next as usize);
        let queued = (0..).zip(all).take(count as usize);
        queued.for_each(|(index, item)| each(Step::Index(index), item));
        Ok(())
    }

    /// Calls `each` with the context variables of a leaf and their values.
    pub(super) fn context_values(
        &self,
        leaf: u64,
        mut each: impl FnMut(u64, u64),
    ) -> ReadResult<()> {
        let count = self.word(leaf, HeapLayout::SIZE)?;
        if count > MAX_PAIRS {
            return Err(Cause::TooLong.at(leaf));
        }
        let mut words = Vec::new();
        self.words(leaf.wrapping_add(PAIRS), count, 8, |word| words.push(word))?;
        for pair in words.chunks_exact(2).filter(|pair| pair[0] != 0) {
            each(pair[0], pair[1]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::heap::fake::FakeHeap;
    use crate::python::versions::LAYOUTS;

    /// A queue of which 2 items wait, after `next` of 4 places.
    fn queued(heap: &mut FakeHeap, next: u64, room: u64) -> u64 {
        let class = heap.class("_queue.SimpleQueue", 0, 0);
        let queue = heap.object(class, 72);
        let items = heap.list(&[11, 12, 13, 14]);
        if heap.layout.heap.queue_has_list {
            heap.put_word(queue, LIST, items);
            heap.put_word(queue, LIST + 8, next);
            heap.put_word(items, HeapLayout::SIZE, room);
        } else {
            let items = heap.word(items, HeapLayout::LIST_ITEMS);
            let ring = [0, next, items, room, 2];
            for (number, word) in (0..).zip(ring) {
                heap.put_word(queue, RING + 8 * number, word);
            }
        }
        queue
    }

    #[test]
    fn waiting_items_are_read_in_their_order_and_impossible_queues_are_not() {
        for layout in &LAYOUTS {
            for (next, room, wanted) in [
                (2, 4, Some(vec![13, 14])),
                (9, 4, None),
                (2, u64::MAX, None),
                (u64::MAX, 4, None),
            ] {
                let mut heap = FakeHeap::new(layout);
                let queue = queued(&mut heap, next, room);
                let (memory, _) = heap.finish();
                let mut found = Vec::new();
                let heap = Heap::of(&memory, layout);
                let read = heap.queued(queue, |_, item| found.push(item));
                assert_eq!(read.ok().map(|()| found), wanted, "3.{}", layout.minor);
            }
        }
    }

    #[test]
    fn the_values_of_a_context_are_those_of_its_variables() {
        for layout in &LAYOUTS {
            let mut heap = FakeHeap::new(layout);
            let class = heap.class("hamt_bitmap_node", 0, 0);
            let [leaf, long] = [(); 2].map(|()| heap.object(class, 64));
            let pairs = [4, 0, 7, 21, 22, 0, 0];
            for (number, word) in (0..).zip(&pairs[1..5]) {
                heap.put_word(leaf, PAIRS + 8 * number, *word);
            }
            heap.put_word(leaf, HeapLayout::SIZE, pairs[0]);
            heap.put_word(long, HeapLayout::SIZE, u64::MAX);
            let (memory, _) = heap.finish();
            let mut found = Vec::new();
            let heap = Heap::of(&memory, layout);
            let read = heap.context_values(leaf, |variable, value| found.push((variable, value)));
            assert!(read.is_ok());
            assert_eq!(found, [(21, 22)]);
            assert!(heap.context_values(long, |_, _| ()).is_err());
        }
    }

    #[test]
    fn references_lie_within_the_objects_of_their_class() {
        for layout in &LAYOUTS {
            let mut heap = FakeHeap::new(layout);
            let large = heap.class("list_iterator", 0, 0);
            heap.put_word(large, ClassLayout::BASIC_SIZE, 32);
            let small = heap.class("list_iterator", 0, 0);
            let made = heap.python_class("list_iterator", "other", &[]);
            let (memory, _) = heap.finish();
            let heap = Heap::of(&memory, layout);
            let members = [large, small, made].map(|class| {
                let class = heap.class_at(heap.class_index(class).unwrap()).unwrap();
                class.members.len()
            });
            assert_eq!(members, [1, 0, 0]);
        }
    }
}

//! Objects that no list of the collector has: arrays of objects, and dicts and tuples of nothing but untracked
//! objects. Only arrays can lead from them to tensors, so nothing is searched in a process without numpy.
//!
//! Most untracked objects are texts and numbers. To tell them apart, the search peeks at their classes: the pause
//! does not copy them. What leads on is read as any other object.

use hashbrown::HashMap;

use super::Heap;
use super::class::ContainerKind;
use crate::process::memory::{ReadMemory, ReadResult};

/// Most untracked containers that are looked at: as many as there may be tracked objects.
const MAX_OBJECTS: usize = 1 << 24;

/// Most untracked containers within each other that are followed.
const MAX_DEPTH: usize = 8;

/// Memory of which everything is only peeked at.
#[derive(Debug)]
pub(super) struct Peeked<'a, M>(pub(super) &'a M);

impl<M: ReadMemory> ReadMemory for Peeked<'_, M> {
    fn read(&self, address: u64, into: &mut [u8]) -> ReadResult<()> {
        self.0.peek(address, into)
    }
}

#[derive(Debug)]
pub(super) struct Untracked<'a, 'p, M> {
    heap: &'a Heap<'a, M>,
    peeked: Heap<'p, Peeked<'a, M>>,
    /// Indices of classes in `heap` by address; `None` for classes whose objects lead nowhere.
    classes: HashMap<u64, Option<u32>>,
    /// Containers that were looked at; true for those that lead on.
    seen: HashMap<u64, bool>,
}

impl<'a, 'p, M: ReadMemory> Untracked<'a, 'p, M> {
    pub(super) fn of(heap: &'a Heap<'a, M>, peeked: &'p Peeked<'a, M>) -> Self {
        Self {
            heap,
            peeked: Heap::of(peeked, heap.layout),
            classes: HashMap::new(),
            seen: HashMap::new(),
        }
    }

    /// Appends an untracked object that leads to a known one, and the untracked ones between them, with the indices
    /// of their classes. Every object is looked at once.
    pub(super) fn find(
        &mut self,
        object: u64,
        is_known: &impl Fn(u64) -> bool,
        found: &mut Vec<(u64, u32)>,
    ) {
        self.leads_on(object, MAX_DEPTH, is_known, found);
    }

    /// The depth bounds the recursion.
    fn leads_on(
        &mut self,
        object: u64,
        depth: usize,
        is_known: &impl Fn(u64) -> bool,
        found: &mut Vec<(u64, u32)>,
    ) -> bool {
        // Texts and numbers are not remembered: there are millions, and another peek takes no longer.
        let Some(class) = self.class_of_container(object) else {
            return false;
        };
        if let Some(&leads_on) = self.seen.get(&object) {
            return leads_on;
        }
        if depth == 0 || self.seen.len() == MAX_OBJECTS {
            return false;
        }
        // An object within itself leads nowhere.
        self.seen.insert(object, false);
        let Some(values) = self.values(class, object) else {
            return false;
        };
        let mut leads_on = false;
        for value in values {
            leads_on |= is_known(value) || self.leads_on(value, depth - 1, is_known, found);
        }
        if leads_on {
            self.seen.insert(object, true);
            found.push((object, class));
        }
        leads_on
    }

    /// Index of the class of a container; `None` for any other object.
    fn class_of_container(&mut self, object: u64) -> Option<u32> {
        if object == 0 || !object.is_multiple_of(8) {
            return None;
        }
        let peeked = &self.peeked;
        let address = peeked.type_of(object).ok()?;
        *self.classes.entry(address).or_insert_with(|| {
            let class = peeked.class_at(peeked.class_index(address)?)?;
            use ContainerKind::{Array, Entries, Tuple};
            let is_container = matches!(class.holds, Array | Entries | Tuple);
            is_container.then(|| self.heap.class_index(address))?
        })
    }

    /// References of a container.
    fn values(&self, class: u32, object: u64) -> Option<Vec<u64>> {
        let known = self.heap.class_at(class)?;
        let mut values = Vec::new();
        let read = (self.peeked).contents(&known, object, |_, value| values.push(value));
        read.ok().map(|()| values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::heap::collector::{Generation, Listed};
    use crate::python::heap::fake::FakeHeap;
    use crate::python::heap::image::Image;
    use crate::python::heap::paths::Paths;
    use crate::python::heap::process_scan::ProcessScan;
    use crate::python::versions::LAYOUTS;

    const OBJECTS: ([u8; 2], u32) = (*b"OO", 17);

    /// Names of tensors in arrays, read twice: from memory, and from a copy of what the first reading needed. The
    /// module has this name.
    fn names(library: &str) -> [Vec<String>; 2] {
        let layout = &LAYOUTS[0];
        let mut heap = FakeHeap::new(layout);
        let class = heap.class("torch._C.TensorBase", 0, 0);
        let tensors = [(); 3].map(|()| heap.object(class, 32));
        let array = |heap: &mut FakeHeap, tensor| {
            let data = heap.reserve(8);
            heap.put_word(data, 0_u64, tensor);
            heap.array(data, (&[1], &[8]), OBJECTS)
        };
        let arrays = tensors.map(|tensor| array(&mut heap, tensor));
        let key = heap.text("kept");
        let pair = heap.tuple(&[key, arrays[1]]);
        let pair = heap.untrack(pair);
        let dict = heap.dict(&[(key, pair)]);
        let dict = heap.untrack(dict);
        // A tuple within itself.
        let ring = heap.tuple(&[0, key]);
        let ring = heap.untrack(ring);
        heap.put_word(ring, layout.heap.tuple_items, ring);
        let list = heap.list(&[ring, arrays[2]]);
        let globals = [("array", arrays[0]), ("dict", dict), ("list", list)];
        let modules = [heap.module("__main__", &globals), heap.module(library, &[])];
        let (memory, _) = heap.finish();
        let image = Image::of(&memory, 1 << 30);
        let read = || {
            let heap = Heap::of(&image, layout);
            let listed = [&modules[..], &tensors, &[list]].concat();
            let listed: Vec<_> = listed
                .into_iter()
                .map(|address| Listed {
                    address,
                    class: heap.type_of(address).unwrap(),
                    generation: Generation::Old,
                })
                .collect();
            let scan = ProcessScan::of(&heap, &listed);
            let paths = Paths::search(&heap, &scan, &[]);
            let paths = tensors
                .iter()
                .flat_map(|&tensor| paths.to_tensor(tensor, 8));
            paths.map(|path| path.name).collect()
        };
        let running = read();
        image.renew();
        image.close();
        let copied = read();
        assert_eq!(image.extent().missed, 0);
        [running, copied]
    }

    #[test]
    fn arrays_are_followed_through_untracked_containers() {
        let expected = ["array[0]", "dict['kept'][1][0]", "list[1][0]"];
        assert_eq!(
            names("numpy"),
            [(); 2].map(|()| expected.map(String::from).to_vec())
        );
    }

    #[test]
    fn without_numpy_nothing_untracked_is_looked_at() {
        assert_eq!(names("other"), [(); 2].map(|()| Vec::<String>::new()));
    }
}

//! All Python objects of a process with their classes, and lists of those that matter to PyTorch.

use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashSet;

use super::Heap;
use super::class::{Class, Classes, ContainerKind, MAX_CLASSES, TorchKind};
use super::collector::{Endings, Generation, Listed};
use super::image::Image;
use super::progress::ReadProgress;
use crate::process::memory::ReadMemory;
use crate::python::layout::CollectorLayout;

/// An object in 8 bytes: its class, its generation, and its address without the bits that are always zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object(u64);

/// Bits of a class.
const CLASS: u32 = MAX_CLASSES.ilog2();
/// Bits of a generation.
const GENERATION: u32 = 2;
/// Bits of an address that are zero, since every allocator aligns at least to a word.
const ALIGNMENT: u32 = size_of::<u64>().ilog2();
/// Bits of an address of a process (Documentation/arch/x86/x86_64/mm.rst@v6.18), except in mappings beyond them, which a
/// process must ask for (5level-paging.rst).
const ADDRESS: u32 = 47;
const _: () = assert!(ADDRESS - ALIGNMENT + CLASS + GENERATION == u64::BITS);

impl Object {
    /// `None` for an address at which no object can lie.
    pub fn new(address: u64, class: u32, generation: Generation) -> Option<Self> {
        let is_possible = address.is_multiple_of(1 << ALIGNMENT) && address >> ADDRESS == 0;
        let is_known = class < 1 << CLASS;
        let address = address >> ALIGNMENT << (CLASS + GENERATION);
        let class = u64::from(class) << GENERATION;
        (is_possible && is_known).then_some(Self(address | class | generation as u64))
    }

    pub const fn address(self) -> u64 {
        self.0 >> (CLASS + GENERATION) << ALIGNMENT
    }

    /// Index of its class in [`Classes`](super::class::Classes).
    pub const fn class(self) -> u32 {
        (self.0 >> GENERATION) as u32 & ((1 << CLASS) - 1)
    }

    pub const fn generation(self) -> Generation {
        match self.0 & ((1 << GENERATION) - 1) {
            0 => Generation::New,
            1 => Generation::Young,
            2 => Generation::Old,
            _ => Generation::Frozen,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct PreviousScan {
    pub endings: Endings,
    /// Containers with movable contents, in the order of addresses.
    containers: Vec<u64>,
    /// The lists of modules, optimizers and so on, without objects and tensors.
    chosen: ProcessScan,
}

impl PreviousScan {
    /// `classes` are those of the scan.
    pub fn of(scan: ProcessScan, classes: &Classes) -> Self {
        let objects = scan.objects.iter();
        let moves = |object: &&Object| {
            let class = classes.get(object.class());
            class.is_some_and(|class| class.holds.has_movable_contents())
        };
        let containers = objects.clone().filter(moves);
        let mut containers: Vec<u64> = containers.map(|object| object.address()).collect();
        containers.sort_unstable();
        Self {
            endings: Endings::of(objects.map(|object| (object.address(), object.generation()))),
            containers,
            chosen: ProcessScan {
                objects: Vec::new(),
                tensors: Vec::new(),
                ..scan
            },
        }
    }

    /// Reads the contents of the containers again that lie on pages that have changed.
    pub fn keep_moved_contents(&self, heap: &Heap<'_, Image<impl ReadMemory>>) {
        let changed = heap.memory.changed();
        for container in self.containers_in(&changed).take(MAX_AGAIN) {
            if let Some(class) = heap.class_of(container) {
                // Another object may lie there. A later read of a missing part reports the error.
                let _ = heap.keep_contents(&class, container);
            }
        }
    }

    /// Containers that lie in these ranges, which are in the order of addresses.
    fn containers_in<'a>(&'a self, ranges: &'a [Range<u64>]) -> impl Iterator<Item = u64> + 'a {
        ranges.iter().flat_map(|range| {
            let [first, behind] = [range.start, range.end]
                .map(|bound| self.containers.partition_point(|&address| address < bound));
            self.containers[first..behind].iter().copied()
        })
    }
}

/// Most containers whose contents are read again in a pause. A collection of everything changes the pages of all objects.
const MAX_AGAIN: usize = 1 << 16;

/// Objects of a process, in the order of the collector's lists.
#[derive(Clone, Debug, Default)]
pub struct ProcessScan {
    /// Every object whose class can be read.
    pub objects: Vec<Object>,
    pub unknown: u64,
    pub tensors: Vec<u64>,
    pub modules: Vec<u64>,
    pub optimizers: Vec<u64>,
    pub kv_caches: Vec<u64>,
    /// Python module objects (`types.ModuleType`).
    pub globals: Vec<u64>,
    pub suspended: Vec<u64>,
    pub frames: Vec<u64>,
    pub contexts: Vec<u64>,
}

/// Objects between two reports of progress.
const REPORT_EVERY: usize = 4096;

impl ProcessScan {
    /// Objects that the collector lists.
    pub fn of(heap: &Heap<'_, impl ReadMemory>, listed: &[Listed]) -> Self {
        let mut scan = Self::default();
        for object in listed {
            scan.add(heap, *object);
        }
        scan.add_context_variables(heap);
        scan
    }

    /// Adds an object of the collector's lists.
    pub fn add(&mut self, heap: &Heap<'_, impl ReadMemory>, listed: Listed) {
        let class = heap.class_index(listed.class);
        let object = class.and_then(|class| Object::new(listed.address, class, listed.generation));
        let Some(object) = object else {
            self.unknown += 1;
            return;
        };
        self.objects.push(object);
        self.choose(heap.class_at(object.class()), object.address());
    }

    /// Adds context variables that the collector does not track: those without a default value (`contextvar_new` in
    /// `Python/context.c`@v3.9.18 to @v3.15.2).
    pub fn add_context_variables(&mut self, heap: &Heap<'_, impl ReadMemory>) {
        let mut variables = HashSet::new();
        for &leaf in &self.contexts {
            // Variables that cannot be read have no name.
            let _ = heap.context_values(leaf, |variable, _| variables.extend([variable]));
        }
        for address in variables {
            let head = address.wrapping_sub(CollectorLayout::HEAD_SIZE);
            let class = heap.type_of(address).ok();
            let class = class.and_then(|class| heap.class_index(class));
            let class = class.filter(|_| heap.memory.read_u64(head) == Ok(0));
            let object = class.and_then(|class| Object::new(address, class, Generation::Frozen));
            self.objects.extend(object);
        }
    }

    fn choose(&mut self, class: Option<Arc<Class>>, object: u64) {
        let Some(class) = class else { return };
        // Class objects themselves have another class, so they are in no list.
        let list = match (class.role, class.holds) {
            (TorchKind::Tensor, _) => &mut self.tensors,
            (TorchKind::Module, _) => &mut self.modules,
            (TorchKind::Optimizer, _) => &mut self.optimizers,
            (TorchKind::KvCache, _) => &mut self.kv_caches,
            (TorchKind::Other, ContainerKind::Globals) => &mut self.globals,
            (TorchKind::Other, ContainerKind::Suspended) => &mut self.suspended,
            (TorchKind::Other, ContainerKind::Frame) => &mut self.frames,
            (TorchKind::Other, ContainerKind::Context) => &mut self.contexts,
            (TorchKind::Other, _) => return,
        };
        list.push(object);
    }

    /// Adds the objects of an earlier scan that have variables, if such objects still lie there. Its tensors are too
    /// many: [`HeapReader::follow`](super::capture::HeapReader::follow) looks at those that may have changed.
    pub fn add_known(&mut self, heap: &Heap<'_, impl ReadMemory>, known: &PreviousScan) {
        let ProcessScan {
            globals,
            suspended,
            frames,
            contexts,
            ..
        } = &known.chosen;
        self.add_each(heap, [globals, suspended, frames, contexts]);
    }

    /// Adds the modules, optimizers and caches of an earlier scan, if such objects still lie there.
    pub fn add_known_holders(&mut self, heap: &Heap<'_, impl ReadMemory>, known: &PreviousScan) {
        let ProcessScan {
            modules,
            optimizers,
            kv_caches,
            ..
        } = &known.chosen;
        self.add_each(heap, [modules, optimizers, kv_caches]);
    }

    fn add_each<const N: usize>(
        &mut self,
        heap: &Heap<'_, impl ReadMemory>,
        lists: [&Vec<u64>; N],
    ) {
        let own: HashSet<u64> = self.objects.iter().map(|object| object.address()).collect();
        for &address in lists.into_iter().flatten() {
            if !own.contains(&address) {
                self.choose(heap.class_of(address), address);
            }
        }
    }

    pub fn keep_contents(&self, heap: &Heap<'_, Image<impl ReadMemory>>) {
        self.keep_contents_with(heap, &ReadProgress::default());
    }

    pub fn keep_contents_with(
        &self,
        heap: &Heap<'_, Image<impl ReadMemory>>,
        progress: &ReadProgress,
    ) {
        progress.expect(self.objects.len());
        for (number, object) in self.objects.iter().enumerate() {
            if number % REPORT_EVERY == 0 {
                progress.reach(number);
            }
            if let Some(class) = heap.class_at(object.class()) {
                // A later read of a missing part reports the error.
                let _ = heap.keep_contents(&class, object.address());
            }
        }
        progress.reach(self.objects.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_as_it_was_put_in() {
        let generations = [
            Generation::New,
            Generation::Young,
            Generation::Old,
            Generation::Frozen,
        ];
        for generation in generations {
            for address in [0, 8, 0x7fff_ffff_fff8] {
                for class in [0, 1, MAX_CLASSES as u32 - 1] {
                    let object = Object::new(address, class, generation).unwrap();
                    let parts = (object.address(), object.class(), object.generation());
                    assert_eq!(parts, (address, class, generation));
                }
            }
        }
    }

    #[test]
    fn no_object_lies_at_an_odd_address_or_in_the_kernel() {
        for address in [4, 0x8000_0000_0000, u64::MAX] {
            assert_eq!(Object::new(address, 0, Generation::Old), None);
        }
    }
}

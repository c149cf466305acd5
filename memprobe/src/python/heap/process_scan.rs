//! All Python objects of a process with their classes, and lists of those that matter to PyTorch.

use std::sync::Arc;

use hashbrown::HashSet;

use super::Heap;
use super::class::{Class, ContainerKind, TorchKind};
use super::collector::{self, Generation, Listed};
use super::image::Image;
use super::progress::ReadProgress;
use crate::process::memory::ReadMemory;
use crate::python::layout::CollectorLayout;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    pub address: u64,
    /// Index of its class in [`Classes`](super::class::Classes).
    pub class: u32,
    pub age: Generation,
}

#[derive(Clone, Debug, Default)]
pub struct PreviousScan {
    pub endings: HashSet<u64>,
    /// The lists of modules, optimizers and so on, without objects and tensors.
    chosen: ProcessScan,
}

impl PreviousScan {
    pub fn of(scan: ProcessScan) -> Self {
        let objects = scan.objects.iter();
        Self {
            endings: collector::endings(objects.map(|object| (object.address, object.age))),
            chosen: ProcessScan {
                objects: Vec::new(),
                tensors: Vec::new(),
                ..scan
            },
        }
    }
}

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
    pub fn of(heap: &Heap<'_, impl ReadMemory>, listed: &[Listed]) -> Self {
        Self::with_progress(heap, listed, &ReadProgress::default())
    }

    pub fn with_progress(
        heap: &Heap<'_, impl ReadMemory>,
        listed: &[Listed],
        progress: &ReadProgress,
    ) -> Self {
        progress.expect(listed.len());
        let mut scan = Self {
            objects: Vec::with_capacity(listed.len()),
            ..Self::default()
        };
        for (number, object) in listed.iter().enumerate() {
            if number % REPORT_EVERY == 0 {
                progress.reach(number);
            }
            let (address, age) = (object.address, object.generation);
            let Some(class) = heap.class_index(object.class) else {
                scan.unknown += 1;
                continue;
            };
            scan.objects.push(Object {
                address,
                class,
                age,
            });
            scan.choose(heap.class_at(class), address);
        }
        progress.reach(listed.len());
        scan.add_context_variables(heap);
        scan
    }

    /// Adds context variables that the collector does not track: those without a default value (`contextvar_new` in
    /// `Python/context.c`@v3.9.18 to @v3.15.2).
    fn add_context_variables(&mut self, heap: &Heap<'_, impl ReadMemory>) {
        let mut variables = HashSet::new();
        for &leaf in &self.contexts {
            // Variables that cannot be read have no name.
            let _ = heap.context_values(leaf, |variable, _| variables.extend([variable]));
        }
        for address in variables {
            let head = address.wrapping_sub(CollectorLayout::HEAD_SIZE);
            let class = heap.type_of(address).ok();
            let class = class.and_then(|class| heap.class_index(class));
            if let Some(class) = class.filter(|_| heap.memory.read_u64(head) == Ok(0)) {
                self.objects.push(Object {
                    address,
                    class,
                    age: Generation::Frozen,
                });
            }
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
        let own: HashSet<u64> = self.objects.iter().map(|object| object.address).collect();
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
            if let Some(class) = heap.class_at(object.class) {
                // A later read of a missing part reports the error.
                let _ = heap.keep_contents(&class, object.address);
            }
        }
        progress.reach(self.objects.len());
    }
}

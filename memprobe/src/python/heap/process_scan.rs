//! All Python objects of a process with their classes, and lists of those that matter to PyTorch.

use hashbrown::HashSet;

use super::Heap;
use super::class::{Class, Classes, ContainerKind, TorchKind};
use super::collector::{self, Generation, Listed};
use super::image::Image;
use crate::process::memory::ReadMemory;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    pub address: u64,
    /// Index of its class in [`Classes`].
    pub class: u32,
    pub age: Generation,
}

/// Result of an earlier scan, made before the process was paused.
#[derive(Clone, Debug, Default)]
pub struct PreviousScan {
    /// The last objects of each collector list.
    pub endings: HashSet<u64>,
    /// The lists of tensors, modules and so on, without the complete list of objects.
    chosen: ProcessScan,
}

impl PreviousScan {
    /// Reduces a census to what the next scan needs.
    pub fn of(scan: ProcessScan) -> Self {
        let objects = scan.objects.iter();
        Self {
            endings: collector::endings(objects.map(|object| (object.address, object.age))),
            chosen: ProcessScan {
                objects: Vec::new(),
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
    /// Number of objects whose class cannot be read.
    pub unknown: u64,
    pub tensors: Vec<u64>,
    pub modules: Vec<u64>,
    pub optimizers: Vec<u64>,
    /// Python module objects (`types.ModuleType`).
    pub globals: Vec<u64>,
    pub suspended: Vec<u64>,
    pub frames: Vec<u64>,
}

impl ProcessScan {
    /// Determines the class of every object.
    pub fn of(heap: &Heap<'_, impl ReadMemory>, classes: &mut Classes, listed: &[Listed]) -> Self {
        let mut scan = Self {
            objects: Vec::with_capacity(listed.len()),
            ..Self::default()
        };
        for &Listed {
            address,
            class,
            generation: age,
        } in listed
        {
            let Some(class) = classes.place(heap, class) else {
                scan.unknown += 1;
                continue;
            };
            scan.objects.push(Object {
                address,
                class,
                age,
            });
            if let Some(list) = classes.get(class).and_then(|class| scan.list_of(class)) {
                list.push(address);
            }
        }
        scan
    }

    /// The list for objects of this class; `None` if there is none.
    fn list_of(&mut self, class: &Class) -> Option<&mut Vec<u64>> {
        // Class objects themselves have another class, so they are in no list.
        match (class.role, class.holds) {
            (TorchKind::Tensor, _) => Some(&mut self.tensors),
            (TorchKind::Module, _) => Some(&mut self.modules),
            (TorchKind::Optimizer, _) => Some(&mut self.optimizers),
            (TorchKind::Other, ContainerKind::Globals) => Some(&mut self.globals),
            (TorchKind::Other, ContainerKind::Suspended) => Some(&mut self.suspended),
            (TorchKind::Other, ContainerKind::Frame) => Some(&mut self.frames),
            (TorchKind::Other, _) => None,
        }
    }

    /// Adds the tensors, modules and so on of an earlier scan, as long as such objects still lie at their
    /// addresses.
    pub fn add_known(
        &mut self,
        heap: &Heap<'_, impl ReadMemory>,
        classes: &mut Classes,
        known: &PreviousScan,
    ) {
        let chosen = &known.chosen;
        let own: HashSet<u64> = self.objects.iter().map(|object| object.address).collect();
        for list in [
            &chosen.tensors,
            &chosen.modules,
            &chosen.optimizers,
            &chosen.globals,
            &chosen.suspended,
            &chosen.frames,
        ] {
            for &address in list.iter().filter(|address| !own.contains(*address)) {
                let class = classes.of(heap, address);
                if let Some(list) = class.and_then(|class| self.list_of(class)) {
                    list.push(address);
                }
            }
        }
    }

    /// Reads into the image everything that the objects refer to directly.
    pub fn keep_contents(&self, heap: &Heap<'_, Image<impl ReadMemory>>, classes: &Classes) {
        for object in &self.objects {
            if let Some(class) = classes.get(object.class) {
                // A later read of a missing part reports the error.
                let _ = heap.keep_contents(class, object.address);
            }
        }
    }
}

//! Which objects there are: every one by its class, and those that matter to PyTorch.

use hashbrown::HashSet;

use super::Heap;
use super::class::{Class, Classes, Holds, Role};
use super::collector::{self, Age, Listed};
use super::image::Image;
use crate::target::memory::ReadMemory;

/// An object and its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its address.
    pub address: u64,
    /// The place of its class among [`Classes`].
    pub class: u32,
    /// How long it has been there.
    pub age: Age,
}

/// What was known of a process before it stood still.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The last objects of each list.
    pub endings: HashSet<u64>,
    /// What matters to PyTorch and to names, without the rest of the objects.
    chosen: Census,
}

impl Known {
    /// What a census says.
    pub fn of(census: Census) -> Self {
        let objects = census.objects.iter();
        Self {
            endings: collector::endings(objects.map(|object| (object.address, object.age))),
            chosen: Census {
                objects: Vec::new(),
                ..census
            },
        }
    }
}

/// The objects of a process, each list in the order in which the collector has them.
#[derive(Clone, Debug, Default)]
pub struct Census {
    /// Every object whose class can be read.
    pub objects: Vec<Object>,
    /// How many there are whose class cannot.
    pub unknown: u64,
    /// `torch.Tensor`s.
    pub tensors: Vec<u64>,
    /// `torch.nn.Module`s.
    pub modules: Vec<u64>,
    /// `torch.optim.Optimizer`s.
    pub optimizers: Vec<u64>,
    /// Module objects of Python.
    pub globals: Vec<u64>,
    /// Generators, coroutines and asynchronous generators.
    pub suspended: Vec<u64>,
    /// Frame objects.
    pub frames: Vec<u64>,
}

impl Census {
    /// Looks up the class of every object.
    pub fn of(heap: &Heap<'_, impl ReadMemory>, classes: &mut Classes, listed: &[Listed]) -> Self {
        let mut census = Self {
            objects: Vec::with_capacity(listed.len()),
            ..Self::default()
        };
        for &Listed {
            address,
            class,
            age,
        } in listed
        {
            let Some(class) = classes.place(heap, class) else {
                census.unknown += 1;
                continue;
            };
            census.objects.push(Object {
                address,
                class,
                age,
            });
            if let Some(list) = classes.get(class).and_then(|class| census.list_of(class)) {
                list.push(address);
            }
        }
        census
    }

    /// Which list objects of a class are in; `None` where they are in none.
    fn list_of(&mut self, class: &Class) -> Option<&mut Vec<u64>> {
        // A class is an object too, and none of these.
        match (class.role, class.holds) {
            (Role::Tensor, _) => Some(&mut self.tensors),
            (Role::Module, _) => Some(&mut self.modules),
            (Role::Optimizer, _) => Some(&mut self.optimizers),
            (Role::Other, Holds::Globals) => Some(&mut self.globals),
            (Role::Other, Holds::Suspended) => Some(&mut self.suspended),
            (Role::Other, Holds::Frame) => Some(&mut self.frames),
            (Role::Other, _) => None,
        }
    }

    /// Adds what was known before of what matters to PyTorch and to names, as far as such objects still lie there.
    pub fn add_known(
        &mut self,
        heap: &Heap<'_, impl ReadMemory>,
        classes: &mut Classes,
        known: &Known,
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

    /// Reads into the image all that is needed to know what objects hold.
    pub fn keep_contents(&self, heap: &Heap<'_, Image<impl ReadMemory>>, classes: &Classes) {
        for object in &self.objects {
            if let Some(class) = classes.get(object.class) {
                // Whoever wants what cannot be read is told then.
                let _ = heap.keep_contents(class, object.address);
            }
        }
    }
}

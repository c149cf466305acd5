//! Which objects there are: every one by its class, and those that matter to PyTorch.

use super::Heap;
use super::class::{Classes, Holds, Role};
use super::collector::{Age, Listed};
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

/// Which objects' contents are kept beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// Those of young objects: what old ones hold was looked at before, and most likely lies where it
    /// lay.
    Young,
    /// Those of all.
    All,
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
            let Some(known) = classes.get(class) else {
                continue;
            };
            // A class is an object too, and none of these.
            match (known.role, known.holds) {
                (Role::Tensor, _) => census.tensors.push(address),
                (Role::Module, _) => census.modules.push(address),
                (Role::Optimizer, _) => census.optimizers.push(address),
                (Role::Other, Holds::Globals) => census.globals.push(address),
                (Role::Other, Holds::Suspended) => census.suspended.push(address),
                (Role::Other, Holds::Frame) => census.frames.push(address),
                (Role::Other, _) => {}
            }
        }
        census
    }

    /// Reads into the image all that is needed to know what objects hold.
    pub fn keep_contents(
        &self,
        heap: &Heap<'_, Image<impl ReadMemory>>,
        classes: &Classes,
        care: Care,
    ) {
        let wanted = |object: &&Object| care == Care::All || object.age == Age::Young;
        for object in self.objects.iter().filter(wanted) {
            if let Some(class) = classes.get(object.class) {
                // Whoever wants what cannot be read is told then.
                let _ = heap.keep_contents(class, object.address);
            }
        }
    }
}

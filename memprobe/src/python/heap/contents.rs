//! Lists the objects that an object refers to, with the step that leads to each.

use super::class::{Class, ContainerKind, Store, TorchKind};
use super::dict::Entry;
use super::image::Image;
use super::{Heap, word_at};
use crate::process::memory::{Cause, ReadMemory, Unreadable};
use crate::python::layout::{ClassLayout, HeapLayout};

/// Most items of one list, tuple or set that are read.
const MAX_ITEMS: u64 = 1 << 24;

const BLOCK: u64 = 256;

/// Dicts whose entries a PyTorch module exposes as attributes (`Module.__getattr__` in
/// `torch/nn/modules/module.py`@v2.15.0).
pub(super) const PARAMETERS: &str = "_parameters";
pub(super) const BUFFERS: &str = "_buffers";
pub(super) const MODULES: &str = "_modules";

/// One step of a path, from an object to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// `.name`, with the address of the str.
    Attribute(u64),
    /// `.name` of a parameter, buffer or submodule registered with a PyTorch module, with the address of the
    /// str.
    Registered(u64),
    /// `.name` of a class member, with the index of the class in [`Classes`](super::class::Classes) and of
    /// the member in that class.
    Member(u32, u32),
    /// `[key]`, with the address of the key.
    Key(u64),
    Index(u64),
    Element,
    Cell,
}

impl<M: ReadMemory> Heap<'_, M> {
    /// Calls `each` with every reference of an object. `place` is the index of its class.
    /// Fails with [`Unreadable`]. `each` has still been called with every reference that can be read.
    pub fn contents(
        &self,
        class: &Class,
        place: u32,
        object: u64,
        mut each: impl FnMut(Step, u64),
    ) -> Result<(), Unreadable> {
        let attributes = self.attributes(class, object, |Entry { key, value, .. }| {
            if class.role == TorchKind::Module && self.is_gate(key) {
                // The entries of these dicts count as attributes of the module.
                let _ = self.entries(value, |entry| {
                    each(Step::Registered(entry.key), entry.value)
                });
            } else {
                each(Step::Attribute(key), value);
            }
        });
        for (number, member) in (0..).zip(&class.members) {
            let value = self.memory.read_u64(object.wrapping_add(member.offset));
            if let Some(value) = value.ok().filter(|&value| value != 0) {
                each(Step::Member(place, number), value);
            }
        }
        attributes.and(self.held(class, object, each))
    }

    /// True for the name of a dict whose entries a module exposes as attributes.
    fn is_gate(&self, key: u64) -> bool {
        let name = self.text(key);
        name.is_some_and(|name| matches!(&*name, PARAMETERS | BUFFERS | MODULES))
    }

    /// Calls `each` with the references of an object as a container.
    fn held(
        &self,
        class: &Class,
        object: u64,
        mut each: impl FnMut(Step, u64),
    ) -> Result<(), Unreadable> {
        match class.holds {
            ContainerKind::Entries => {
                self.entries(object, |entry| each(Step::Key(entry.key), entry.value))
            }
            ContainerKind::Globals => {
                let dict = self.word(object, HeapLayout::MODULE_DICT)?;
                self.entries(dict, |entry| each(Step::Attribute(entry.key), entry.value))
            }
            ContainerKind::Class => match self.word(object, ClassLayout::DICT)? {
                0 => Ok(()),
                dict => self.entries(dict, |entry| each(Step::Attribute(entry.key), entry.value)),
            },
            ContainerKind::Cell => {
                let value = self.word(object, HeapLayout::CELL)?;
                if value != 0 {
                    each(Step::Cell, value);
                }
                Ok(())
            }
            ContainerKind::List | ContainerKind::Tuple => {
                let (first, count) = self.items(class, object)?;
                let mut index = 0..;
                self.words(first, count, 8, |item| {
                    let index = index.next().unwrap_or_default();
                    if item != 0 {
                        each(Step::Index(index), item);
                    }
                })
            }
            ContainerKind::Deque => {
                let mut index = 0..;
                self.deque_items(object, self.word(object, HeapLayout::SIZE)?, |item| {
                    let index = index.next().unwrap_or_default();
                    if item != 0 {
                        each(Step::Index(index), item);
                    }
                })
            }
            ContainerKind::Set => {
                let (table, count) = self.table(object)?;
                self.words(table, count, 16, |item| {
                    if item != 0 {
                        each(Step::Element, item);
                    }
                })
            }
            // The variables of frames are roots of their own.
            ContainerKind::Suspended | ContainerKind::Frame => Ok(()),
            ContainerKind::Text | ContainerKind::Number | ContainerKind::Other => Ok(()),
        }
    }

    /// Address of the first item of a list or tuple, and the number of items.
    pub(super) fn items(&self, class: &Class, object: u64) -> Result<(u64, u64), Unreadable> {
        let count = self.word(object, HeapLayout::SIZE)?;
        let first = match class.holds {
            ContainerKind::List => self.word(object, HeapLayout::LIST_ITEMS)?,
            _ => object.wrapping_add(self.layout.heap.tuple_items.into()),
        };
        bounded(object, count).map(|count| (first, count))
    }

    /// Address of a set's table, and its number of entries.
    fn table(&self, object: u64) -> Result<(u64, u64), Unreadable> {
        let head: [u8; 16] = self
            .memory
            .read_array(object.wrapping_add(HeapLayout::SET_MASK.into()))?;
        let count = word_at(&head, 0).wrapping_add(1);
        bounded(object, count).map(|count| (word_at(&head, 8), count))
    }

    /// Calls `each` with the first word of each of `count` entries of `size` bytes: 8 or 16.
    fn words(
        &self,
        first: u64,
        count: u64,
        size: u64,
        mut each: impl FnMut(u64),
    ) -> Result<(), Unreadable> {
        self.spend(first, count)?;
        let mut block = [0; BLOCK as usize * 16];
        let mut done = 0;
        while done < count {
            let now = BLOCK.min(count - done);
            let bytes = &mut block[..(now * size) as usize];
            self.memory.read(first.wrapping_add(done * size), bytes)?;
            for entry in bytes.chunks_exact(size as usize) {
                each(word_at(entry, 0));
            }
            done += now;
        }
        Ok(())
    }
}

impl<M: ReadMemory> Heap<'_, Image<M>> {
    /// Reads everything into the image that [`Self::contents`] of an object will read.
    pub fn keep_contents(&self, class: &Class, object: u64) -> Result<(), Unreadable> {
        match class.holds {
            ContainerKind::Entries => self.keep_dict(object)?,
            ContainerKind::Globals => {
                self.keep_dict(self.word(object, HeapLayout::MODULE_DICT)?)?
            }
            ContainerKind::Class => match self.word(object, ClassLayout::DICT)? {
                0 => {}
                dict => self.keep_dict(dict)?,
            },
            ContainerKind::List | ContainerKind::Tuple => {
                let (first, count) = self.items(class, object)?;
                self.memory.keep(first..first.saturating_add(8 * count));
            }
            ContainerKind::Set => {
                let (table, count) = self.table(object)?;
                self.memory.keep(table..table.saturating_add(16 * count));
            }
            // Each block leads to the next, so reading the items loads all blocks.
            ContainerKind::Deque => {
                self.deque_items(object, self.word(object, HeapLayout::SIZE)?, |_| ())?;
            }
            ContainerKind::Suspended | ContainerKind::Frame => {}
            ContainerKind::Cell
            | ContainerKind::Text
            | ContainerKind::Number
            | ContainerKind::Other => {}
        }
        if !class.has_attributes() {
            return Ok(());
        }
        match self.attribute_store(class, object)? {
            Some(Store::Dict(dict)) => self.keep_dict(dict),
            Some(Store::Values(values)) => {
                let keys = self.keys(class.cached_keys())?;
                self.memory
                    .keep(values..values.saturating_add(8 * keys.count()));
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn keep_dict(&self, dict: u64) -> Result<(), Unreadable> {
        let [keys, values] = self.stores(dict)?;
        let keys = self.keys(keys)?;
        self.memory.keep(keys.range());
        if values != 0 {
            let most = keys.count() + 1;
            self.memory.keep(values..values.saturating_add(8 * most));
        }
        Ok(())
    }
}

/// Rejects a number of items above [`MAX_ITEMS`].
fn bounded(address: u64, count: u64) -> Result<u64, Unreadable> {
    let strange = Cause::TooLong.at(address);
    Some(count)
        .filter(|&count| count <= MAX_ITEMS)
        .ok_or(strange)
}

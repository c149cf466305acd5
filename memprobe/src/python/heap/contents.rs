//! Lists the objects that an object refers to, with the step that leads to each.

use std::sync::Arc;

use super::class::{Class, ContainerKind, Store, TorchKind};
use super::dict::DictEntry;
use super::image::Image;
use super::{Heap, word_at};
use crate::process::memory::{Cause, ReadMemory, ReadResult};
use crate::python::layout::{ClassLayout, HeapLayout};

const MAX_ITEMS: u64 = 1 << 24;

/// Items of one read.
const BLOCK: u64 = 256;

/// Items for which a smaller block serves: most containers have no more, and a block is cleared for each.
const FEW: u64 = 8;

/// Dicts whose entries a PyTorch module exposes as attributes (`Module.__getattr__` in
/// `torch/nn/modules/module.py`@v2.15.0).
pub(super) const PARAMETERS: &str = "_parameters";
pub(super) const BUFFERS: &str = "_buffers";
pub(crate) const MODULES: &str = "_modules";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// `.name`, with the address of the str.
    Attribute(u64),
    /// `.name` of a parameter, buffer or submodule of a PyTorch module, with the address of the str.
    Registered(u64),
    /// `.name` of a class member: the index of the class, and of the member in the class.
    Member(u32, u32),
    /// `[key]`, with the address of the key.
    Key(u64),
    Index(u64),
    /// `[row, column]` of an array.
    Indices(u32, u32),
    /// `.flat[index]` of an array.
    Flat(u64),
    Element,
    Cell,
    /// `.get()`: the value of a context variable.
    Value,
}

impl<M: ReadMemory> Heap<'_, M> {
    /// Calls `each` with every reference of an object.
    /// Fails with [`Unreadable`]. `each` has still been called with every reference that can be read.
    pub fn contents(
        &self,
        class: &Class,
        object: u64,
        mut each: impl FnMut(Step, u64),
    ) -> ReadResult<()> {
        let attributes = self.attributes(class, object, |DictEntry { key, value, .. }| {
            let is_gate = |name: Arc<str>| matches!(&*name, PARAMETERS | BUFFERS | MODULES);
            if class.role == TorchKind::Module && self.text(key).is_some_and(is_gate) {
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
                each(Step::Member(class.index, number), value);
            }
        }
        attributes.and(self.held(class, object, each))
    }

    fn held(&self, class: &Class, object: u64, mut each: impl FnMut(Step, u64)) -> ReadResult<()> {
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
            ContainerKind::List | ContainerKind::Tuple | ContainerKind::Deque => {
                let mut index = 0..;
                let each = |item| {
                    let index = index.next().unwrap_or_default();
                    if item != 0 {
                        each(Step::Index(index), item);
                    }
                };
                if class.holds == ContainerKind::Deque {
                    return self.deque_items(object, self.word(object, HeapLayout::SIZE)?, each);
                }
                let (first, count) = self.items(class, object)?;
                self.words(first, count, 8, each)
            }
            ContainerKind::Set => {
                let (table, count) = self.table(object)?;
                self.words(table, count, 16, |item| {
                    if item != 0 {
                        each(Step::Element, item);
                    }
                })
            }
            ContainerKind::Cache => self.cached(object, each),
            ContainerKind::ThreadLocal => self.of_threads(object, each),
            ContainerKind::Queue => self.queued(object, each),
            ContainerKind::Array => self.array_elements(object, each),
            // The context variables lead to the values.
            ContainerKind::Context => self.context_values(object, |_, _| ()),
            // The variables of frames are roots of their own.
            ContainerKind::Suspended | ContainerKind::Frame => Ok(()),
            ContainerKind::Text | ContainerKind::Number | ContainerKind::Other => Ok(()),
        }
    }

    pub(super) fn items(&self, class: &Class, object: u64) -> ReadResult<(u64, u64)> {
        let count = self.word(object, HeapLayout::SIZE)?;
        let first = match class.holds {
            ContainerKind::List => self.word(object, HeapLayout::LIST_ITEMS)?,
            _ => object.wrapping_add(self.layout.heap.tuple_items.into()),
        };
        bounded(object, count).map(|count| (first, count))
    }

    fn table(&self, object: u64) -> ReadResult<(u64, u64)> {
        let count = self.word(object, HeapLayout::SET_MASK)?.wrapping_add(1);
        let table = self.word(object, HeapLayout::SET_MASK + 8)?;
        bounded(object, count).map(|count| (table, count))
    }

    /// Calls `each` with the first word of each of `count` entries of `size` bytes: 8 or 16.
    pub(super) fn words(
        &self,
        at: u64,
        count: u64,
        size: u64,
        mut each: impl FnMut(u64),
    ) -> ReadResult<()> {
        self.spend(at, count)?;
        if count <= FEW {
            return self.read_words(at, count, size, &mut [0; FEW as usize * 16], &mut each);
        }
        let mut block = [0; BLOCK as usize * 16];
        let mut done = 0;
        while done < count {
            let now = BLOCK.min(count - done);
            let from = at.wrapping_add(done * size);
            self.read_words(from, now, size, &mut block, &mut each)?;
            done += now;
        }
        Ok(())
    }

    /// Like [`Self::words`], for so few entries that they have room in `block`.
    fn read_words(
        &self,
        at: u64,
        count: u64,
        size: u64,
        block: &mut [u8],
        each: &mut impl FnMut(u64),
    ) -> ReadResult<()> {
        let bytes = &mut block[..(count * size) as usize];
        self.memory.read(at, bytes)?;
        for entry in bytes.chunks_exact(size as usize) {
            each(word_at(entry, 0));
        }
        Ok(())
    }
}

impl<M: ReadMemory> Heap<'_, Image<M>> {
    /// Reads everything into the image that [`Self::contents`] of an object will read.
    pub fn keep_contents(&self, class: &Class, object: u64) -> ReadResult<()> {
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
            // Reading them loads all of them.
            ContainerKind::Cache
            | ContainerKind::ThreadLocal
            | ContainerKind::Queue
            | ContainerKind::Array
            | ContainerKind::Context => self.held(class, object, |_, _| ())?,
            ContainerKind::Suspended | ContainerKind::Frame => {}
            ContainerKind::Cell | ContainerKind::Text => {}
            ContainerKind::Number | ContainerKind::Other => {}
        }
        if !class.has_attributes() {
            return Ok(());
        }
        match self.attribute_store(class, object)? {
            Some(Store::Dict(dict)) => self.keep_dict(dict),
            Some(Store::Values(values)) => {
                let keys = self.keys(class.cached_keys)?;
                self.memory
                    .keep(values..values.saturating_add(8 * keys.count()));
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn keep_dict(&self, dict: u64) -> ReadResult<()> {
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

fn bounded(address: u64, count: u64) -> ReadResult<u64> {
    let count = Some(count).filter(|&count| count <= MAX_ITEMS);
    count.ok_or(Cause::TooLong.at(address))
}

//! Reads classes: the kind of their objects, and the location of attributes and members.

use std::sync::Arc;

use hashbrown::HashMap;

use super::built_in::HIDDEN;
use super::dict::DictEntry;
use super::ndarray;
use super::{Heap, word_at};
use crate::process::memory::{Cause, ReadMemory, Unreadable};
use crate::python::layout::{Attributes, ClassLayout, HeapLayout};

pub(super) const MAX_CLASSES: usize = 1 << 18;
const MAX_BASES: usize = 128;
const MAX_MEMBERS: usize = 256;
const LONGEST_NAME: usize = 512;

/// `sizeof(PyMemberDef)`: name, type, offset, flags, doc (`Include/structmember.h`@v3.9.18,
/// `Include/descrobject.h`@v3.12.1 to @v3.15.2).
const MEMBER: usize = 40;

/// Member types that are references to objects: `T_OBJECT` and `T_OBJECT_EX`, since 3.12 `_Py_T_OBJECT` and
/// `Py_T_OBJECT_EX` (the same sources).
const REFERENCES: [u32; 2] = [6, 16];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    pub address: u64,
    pub(super) index: u32,
    /// `tp_name`: includes the module unless a `class` statement made the class.
    pub name: Arc<str>,
    pub holds: ContainerKind,
    pub role: TorchKind,
    pub members: Vec<Member>,
    flags: u64,
    basic_size: u64,
    item_size: u64,
    dict_offset: i64,
    /// Address of the keys table with the attribute names of objects that have no dict.
    pub(super) cached_keys: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerKind {
    Entries,
    List,
    Tuple,
    Set,
    Deque,
    /// The value of a variable of an enclosing function.
    Cell,
    Globals,
    Class,
    Suspended,
    Frame,
    /// `functools.lru_cache`.
    Cache,
    /// `threading.local`.
    ThreadLocal,
    /// `queue.SimpleQueue`.
    Queue,
    /// `numpy.ndarray`, of any dtype.
    Array,
    /// Values of context variables: a leaf of the mapping of a `contextvars.Context`.
    Context,
    Text,
    Number,
    Other,
}

impl ContainerKind {
    /// True for a built-in container whose contents lie in a block of their own, which is replaced as they grow.
    pub(super) const fn has_movable_contents(self) -> bool {
        matches!(self, Self::Entries | Self::List | Self::Set | Self::Deque)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TorchKind {
    /// A tensor: derived from `torch._C.TensorBase` (`torch/csrc/autograd/python_variable.cpp`@v2.15.0; up to
    /// 2.1 `torch._C._TensorBase`).
    Tensor,
    Module,
    Optimizer,
    /// A cache of keys and values of transformers, or a layer of one (`transformers/cache_utils.py`@v4.36.0 to
    /// @v5.23.0).
    KvCache,
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub name: Arc<str>,
    pub offset: u64,
}

impl Class {
    pub fn short_name(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }

    pub(crate) fn has_attributes(&self) -> bool {
        self.dict_offset != 0 || self.has(ClassLayout::MANAGED_DICT)
    }

    /// Adds references by name and offset, as far as they lie within an object.
    fn add_references(&mut self, references: &[(&str, u16)]) {
        let within = references
            .iter()
            .filter(|(_, offset)| u64::from(*offset) < self.basic_size);
        let members = within.map(|&(name, offset)| Member {
            name: name.into(),
            offset: offset.into(),
        });
        self.members.extend(members);
    }

    fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }
}

#[derive(Debug, Default)]
pub struct Classes {
    known: Vec<Arc<Class>>,
    places: HashMap<u64, Option<u32>>,
    /// The latest lookup: consecutive objects often have the same class.
    last: Option<(u64, Option<u32>)>,
}

impl Classes {
    pub(super) fn index(&mut self, heap: &Heap<'_, impl ReadMemory>, address: u64) -> Option<u32> {
        if let Some((_, place)) = self.last.filter(|(last, _)| *last == address) {
            return place;
        }
        if let Some(&place) = self.places.get(&address) {
            self.last = Some((address, place));
            return place;
        }
        if self.places.len() == MAX_CLASSES {
            return None;
        }
        let place = heap.read_class(address).ok().map(|mut class| {
            class.index = self.known.len() as u32;
            self.known.push(class.into());
            self.known.len() as u32 - 1
        });
        self.places.insert(address, place);
        place
    }

    pub fn get(&self, index: u32) -> Option<&Arc<Class>> {
        self.known.get(index as usize)
    }
}

struct Head {
    bytes: [u8; HEAD],
    name: Arc<str>,
}

const HEAD: usize = ClassLayout::MRO as usize + 8;

impl Head {
    fn word(&self, at: u16) -> u64 {
        word_at(&self.bytes, at)
    }
}

impl<M: ReadMemory> Heap<'_, M> {
    fn read_class(&self, address: u64) -> Result<Class, Unreadable> {
        let head = self.class_head(address)?;
        let flags = head.word(ClassLayout::FLAGS);
        let mut class = Class {
            address,
            index: 0,
            name: head.name.clone(),
            holds: holds_by_flags(flags),
            role: TorchKind::Other,
            members: Vec::new(),
            flags,
            basic_size: head.word(ClassLayout::BASIC_SIZE),
            item_size: head.word(ClassLayout::ITEM_SIZE),
            dict_offset: head.word(ClassLayout::DICT_OFFSET).cast_signed(),
            cached_keys: 0,
        };
        if class.has(ClassLayout::HEAP_TYPE) {
            class.cached_keys = self.word(address, self.layout.heap.cached_keys)?;
        }
        self.learn_from(&mut class, &head);
        for base in self.bases(address, &head) {
            self.learn_from(&mut class, &base);
        }
        Ok(class)
    }

    /// The classes that a class derives from: those in its method resolution order. Its `tp_base` leads to the one
    /// whose layout its objects have, and not to `Module` behind a mixin.
    fn bases(&self, class: u64, head: &Head) -> Vec<Head> {
        match self.resolution_order(head.word(ClassLayout::MRO)) {
            Ok(order) if order.first() == Some(&class) => {
                let bases = order[1..].iter();
                bases
                    .filter_map(|&base| self.class_head(base).ok())
                    .collect()
            }
            _ => {
                let base_of = |head: &Head| match head.word(ClassLayout::BASE) {
                    0 => None,
                    base => self.class_head(base).ok(),
                };
                std::iter::successors(base_of(head), base_of)
                    .take(MAX_BASES)
                    .collect()
            }
        }
    }

    fn resolution_order(&self, tuple: u64) -> Result<Vec<u64>, Unreadable> {
        let count = self.word(tuple, HeapLayout::SIZE)?;
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(MAX_BASES);
        let first = tuple.wrapping_add(self.layout.heap.tuple_items.into());
        let mut bytes = vec![0; count * 8];
        self.memory.read(first, &mut bytes)?;
        let words = bytes.chunks_exact(8);
        Ok(words.map(|word| word_at(word, 0)).collect())
    }

    fn class_head(&self, address: u64) -> Result<Head, Unreadable> {
        let bytes: [u8; HEAD] = self.memory.read_array(address)?;
        if word_at(&bytes, ClassLayout::FLAGS) & ClassLayout::READY == 0 {
            return Err(Cause::NotAsExpected.at(address));
        }
        let name = self.c_string(word_at(&bytes, ClassLayout::NAME))?;
        Ok(Head { bytes, name })
    }

    /// Merges the properties that follow from one class of the inheritance chain.
    fn learn_from(&self, class: &mut Class, head: &Head) {
        let made_by_statement = head.word(ClassLayout::FLAGS) & ClassLayout::HEAP_TYPE != 0;
        let is_of = |module: &str| self.module_of(head).as_deref() == Some(module);
        match &*head.name {
            "torch._C.TensorBase" | "torch._C._TensorBase" => class.role = TorchKind::Tensor,
            "Module" if made_by_statement && is_of("torch.nn.modules.module") => {
                class.role = TorchKind::Module;
            }
            "Optimizer" if made_by_statement && is_of("torch.optim.optimizer") => {
                class.role = TorchKind::Optimizer;
            }
            "Cache" | "CacheLayerMixin"
                if made_by_statement && is_of("transformers.cache_utils") =>
            {
                class.role = TorchKind::KvCache;
            }
            "set" | "frozenset" if !made_by_statement => class.holds = ContainerKind::Set,
            // From 3.12 on `deque` looks as if a `class` statement had made it. Its name includes the module,
            // unlike the names of such classes.
            "collections.deque" => class.holds = ContainerKind::Deque,
            "cell" if !made_by_statement => class.holds = ContainerKind::Cell,
            "module" if !made_by_statement => class.holds = ContainerKind::Globals,
            "generator" | "coroutine" | "async_generator" if !made_by_statement => {
                class.holds = ContainerKind::Suspended;
            }
            "frame" if !made_by_statement => class.holds = ContainerKind::Frame,
            "function" if !made_by_statement => self.add_defaults(&mut class.members),
            "functools._lru_cache_wrapper" => class.holds = ContainerKind::Cache,
            "_thread._local" => class.holds = ContainerKind::ThreadLocal,
            "_queue.SimpleQueue" => class.holds = ContainerKind::Queue,
            ndarray::CLASS => {
                class.holds = ContainerKind::Array;
                class.add_references(&[ndarray::BASE]);
            }
            "hamt_bitmap_node" | "hamt_collision_node" if !made_by_statement => {
                class.holds = ContainerKind::Context;
            }
            name if !made_by_statement || name.contains('.') => {
                let row = HIDDEN
                    .iter()
                    .find(|(classes, _)| classes.split(' ').any(|class| class == name));
                class.add_references(row.map_or(&[][..], |(_, references)| references));
            }
            _ => {}
        }
        let members = head.word(ClassLayout::MEMBERS);
        if members != 0 {
            // An unreadable member table does not invalidate the rest.
            let _ = self.add_members(members, &mut class.members);
        }
    }

    fn module_of(&self, head: &Head) -> Option<Arc<str>> {
        let dict = head.word(ClassLayout::DICT);
        let [module] = self.values_of(dict, ["__module__"]).ok()?;
        self.text(module?)
    }

    /// Adds references of functions that are not in their member table.
    fn add_defaults(&self, members: &mut Vec<Member>) {
        let first = u64::from(self.layout.heap.function_defaults);
        for (name, offset) in [("__defaults__", first), ("__kwdefaults__", first + 8)] {
            let name = name.into();
            members.push(Member { name, offset });
        }
    }

    fn add_members(&self, table: u64, members: &mut Vec<Member>) -> Result<(), Unreadable> {
        for number in 0..MAX_MEMBERS as u64 {
            let at = table.wrapping_add(number * MEMBER as u64);
            let bytes: [u8; MEMBER] = self.memory.read_array(at)?;
            let (name, kind) = (word_at(&bytes, 0), word_at(&bytes, 8) as u32);
            if name == 0 || members.len() == MAX_MEMBERS {
                break;
            }
            if REFERENCES.contains(&kind) {
                members.push(Member {
                    name: self.c_string(name)?,
                    offset: word_at(&bytes, 16),
                });
            }
        }
        Ok(())
    }

    pub(super) fn c_string(&self, address: u64) -> Result<Arc<str>, Unreadable> {
        let bytes = self.memory.read_c_string(address, LONGEST_NAME)?;
        Ok(String::from_utf8_lossy(&bytes).into())
    }

    /// Calls `each` with the attributes in an object's own `__dict__`, even if the dict is not materialized.
    /// Fails with [`Unreadable`]. `each` has been called with the attributes before it.
    pub fn attributes(
        &self,
        class: &Class,
        object: u64,
        each: impl FnMut(DictEntry),
    ) -> Result<(), Unreadable> {
        match self.attribute_store(class, object)? {
            Some(Store::Dict(dict)) => self.entries(dict, each),
            Some(Store::Values(values)) => {
                self.table_entries(self.keys(class.cached_keys)?, Some(values), each)
            }
            None => Ok(()),
        }
    }

    /// Values of the attributes with these names in an object's own `__dict__`, as far as they can be read.
    pub(crate) fn attributes_of<const N: usize>(
        &self,
        class: &Class,
        object: u64,
        names: [&str; N],
    ) -> ([Option<u64>; N], Result<(), Unreadable>) {
        let mut found = [None; N];
        let read = self.attributes(class, object, |entry| self.note(entry, &names, &mut found));
        (found, read)
    }

    pub(super) fn attribute_store(
        &self,
        class: &Class,
        object: u64,
    ) -> Result<Option<Store>, Unreadable> {
        let word = |back: u64| self.memory.read_u64(object.wrapping_sub(back));
        let dict = |dict: u64| (dict != 0).then_some(Store::Dict(dict));
        let attributes = self.layout.heap.attributes;
        if attributes == Attributes::Dict || !class.has(ClassLayout::MANAGED_DICT) {
            return Ok(dict(self.dict_at_offset(class, object)?));
        }
        Ok(match attributes {
            Attributes::ValuesOrDict => match word(32)? {
                0 => dict(word(24)?),
                values => Some(Store::Values(values)),
            },
            Attributes::Tagged => match word(24)? {
                tagged if tagged & 1 != 0 => Some(Store::Values(tagged.wrapping_add(1))),
                untagged => dict(untagged),
            },
            Attributes::Inline | Attributes::Dict => match word(24)? {
                0 if class.has(ClassLayout::INLINE_VALUES) => {
                    let values = object.wrapping_add(class.basic_size);
                    // `valid`, the last of four bytes before the values.
                    let [_, _, _, valid] = self.memory.read_array(values)?;
                    let first = values.wrapping_add(self.layout.heap.dict_values.into());
                    (valid != 0).then_some(Store::Values(first))
                }
                address => dict(address),
            },
        })
    }

    fn dict_at_offset(&self, class: &Class, object: u64) -> Result<u64, Unreadable> {
        let offset = match class.dict_offset {
            0 => return Ok(0),
            offset if offset > 0 => offset.cast_unsigned(),
            // Negative: counted from the end of an object of variable size (`_PyObject_GetDictPtr` in
            // `Objects/object.c`@v3.10.13).
            offset => {
                let items = self.word(object, HeapLayout::SIZE)?.cast_signed();
                let bytes = items.unsigned_abs().wrapping_mul(class.item_size);
                let size = class.basic_size.wrapping_add(bytes);
                let size = size.wrapping_add(7) & !7;
                size.wrapping_add_signed(offset)
            }
        };
        self.memory.read_u64(object.wrapping_add(offset))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Store {
    Dict(u64),
    /// An array of values at this address, in the order of the class's attribute names.
    Values(u64),
}

fn holds_by_flags(flags: u64) -> ContainerKind {
    let rows = [
        (ClassLayout::DICT_CLASS, ContainerKind::Entries),
        (ClassLayout::LIST, ContainerKind::List),
        (ClassLayout::TUPLE, ContainerKind::Tuple),
        (ClassLayout::TYPE, ContainerKind::Class),
        (ClassLayout::STR, ContainerKind::Text),
        (ClassLayout::LONG, ContainerKind::Number),
    ];
    let row = rows.iter().find(|(flag, _)| flags & flag != 0);
    row.map_or(ContainerKind::Other, |&(_, holds)| holds)
}

//! Determines the class of a C++ object by the type information next to its virtual table. This needs no
//! symbols, works in every loaded library, and gives the base classes.

use std::cell::RefCell;
use std::sync::Arc;

use hashbrown::HashMap;

use super::deleter;
use super::tensor::some;
use crate::process::cpp_class::{ALIGNMENT, LOWEST, name_of, of_table};
use crate::process::memory::ReadMemory;

/// The bytes of an object. Offsets beyond them read as zero.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    pub(super) fn byte(self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or_default()
    }

    pub(super) fn half(self, at: usize) -> u16 {
        u16::from_le_bytes(self.array(at))
    }

    pub(super) fn word32(self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    pub(super) fn word(self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }

    fn array<const N: usize>(self, at: usize) -> [u8; N] {
        let bytes = at.checked_add(N).and_then(|end| self.0.get(at..end));
        bytes
            .and_then(|bytes| bytes.try_into().ok())
            .unwrap_or([0; N])
    }
}

/// Longest chain of base classes up to the one that determines the family.
const MAX_ANCESTORS: usize = 8;

/// Most virtual tables that are cached. About 2,000 of PyTorch's classes belong to a family.
const MAX_CLASSES: usize = 1 << 14;

/// Base classes that determine the family, with mangled names (Itanium C++ ABI, 5.1).
const FAMILIES: &[(&str, Family)] = &[
    ("N3c1010TensorImplE", Family::Tensor),
    ("N3c1011StorageImplE", Family::Storage),
    ("N5torch8autograd4NodeE", Family::Node),
    ("N5torch8autograd12AutogradMetaE", Family::Autograd),
    ("N5torch8autograd18SavedVariableHooksE", Family::Hooks),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Tensor,
    Storage,
    Node,
    Autograd,
    Hooks,
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CppClass {
    pub(super) name: Arc<str>,
    pub(super) family: Family,
    /// Bytes of an object; only for [`Family::Node`], and only if its destructor shows it.
    pub(super) size: Option<u64>,
}

/// Classes by the address of their virtual table, each read once.
pub(super) type CppClasses = RefCell<HashMap<u64, Option<CppClass>>>;

#[derive(Debug)]
pub(super) struct Objects<'a, M> {
    pub(super) memory: &'a M,
    pub(super) classes: &'a CppClasses,
}

impl<M: ReadMemory> Objects<'_, M> {
    /// The class with this virtual table. Returns `None` if no virtual table lies there.
    pub(super) fn class_of_table(&self, table: u64) -> Option<CppClass> {
        if let Some(known) = self.classes.borrow().get(&table) {
            return known.clone();
        }
        let class = read(self.memory, table);
        let mut known = self.classes.borrow_mut();
        if known.len() < MAX_CLASSES {
            known.insert(table, class.clone());
        }
        class
    }

    /// Family of the class with this virtual table, without a reference to the class: it is asked for each of millions of
    /// objects.
    pub(super) fn family_of_table(&self, table: u64) -> Option<Family> {
        let family_of = |class: &Option<CppClass>| Some(class.as_ref()?.family);
        let known = self.classes.borrow().get(&table).map(family_of);
        known.unwrap_or_else(|| family_of(&self.class_of_table(table)))
    }

    pub(super) fn class(&self, object: u64) -> Option<CppClass> {
        self.class_of_table(self.table_of(object)?)
    }

    pub(super) fn is(&self, object: u64, family: Family) -> bool {
        let table = self.table_of(object);
        table.and_then(|table| self.family_of_table(table)) == Some(family)
    }

    /// The virtual table of an object; `None` if no object can lie at this address.
    fn table_of(&self, object: u64) -> Option<u64> {
        if object < LOWEST || !object.is_multiple_of(ALIGNMENT) {
            return None;
        }
        self.memory.read_u64(object).ok()
    }

    /// The word at an offset of an object; `None` if it is null or cannot be read.
    pub(super) fn pointer(&self, object: u64, offset: u64) -> Option<u64> {
        some(self.memory.read_u64(object.checked_add(offset)?).ok()?)
    }
}

/// Reads a class. In type information the base class follows the name: directly (third word), or after a word
/// of flags and count (Itanium C++ ABI, 2.9.5).
fn read(memory: &impl ReadMemory, table: u64) -> Option<CppClass> {
    let (information, name) = of_table(memory, table)?;
    let mut family = family_of(&name);
    let mut ancestor = information;
    for _ in 0..MAX_ANCESTORS {
        let base = family.is_none().then(|| base_of(memory, ancestor));
        let Some((next, name)) = base.flatten() else {
            break;
        };
        ancestor = next;
        family = family_of(&name);
    }
    let family = family.unwrap_or(Family::Other);
    let size = match family {
        Family::Node => deleter::object_size(memory, table),
        _ => None,
    };
    Some(CppClass {
        name: name.into(),
        family,
        size,
    })
}

fn family_of(name: &str) -> Option<Family> {
    let found = FAMILIES.iter().find(|(class, _)| *class == name);
    found.map(|(_, family)| *family)
}

fn base_of(memory: &impl ReadMemory, information: u64) -> Option<(u64, String)> {
    [16, 24].into_iter().find_map(|at| {
        let base = memory.read_u64(information.checked_add(at)?).ok()?;
        let is_one = base >= LOWEST && base.is_multiple_of(ALIGNMENT);
        Some((base, is_one.then(|| name_of(memory, base)).flatten()?))
    })
}

#[cfg(test)]
mod tests {
    use super::super::fake::FakeObjects;
    use super::*;

    fn class(heap: &FakeObjects, table: u64) -> Option<CppClass> {
        let (memory, classes) = (&heap.memory, &CppClasses::default());
        Objects { memory, classes }.class_of_table(table)
    }

    #[test]
    fn recognizes_a_class_by_its_name_and_bases() {
        let mut heap = FakeObjects::default();
        let plain = heap.class("N3c1010TensorImplE", &[]);
        let derived = heap.class("4Mine", &["5Other", "N3c1010TensorImplE"]);
        let other = heap.class("5Other", &[]);
        let class = |table| class(&heap, table).unwrap();
        assert_eq!(class(plain).family, Family::Tensor);
        assert_eq!(class(derived).family, Family::Tensor);
        assert_eq!(&*class(derived).name, "4Mine");
        assert_eq!(class(other).family, Family::Other);
    }

    #[test]
    fn a_class_that_is_derived_from_itself_ends_the_search() {
        let mut heap = FakeObjects::default();
        let table = heap.class("1A", &["1B"]);
        let information = heap.memory.read_u64(table - 8).unwrap();
        let base = heap.memory.read_u64(information + 16).unwrap();
        heap.memory.write(base + 16, &information.to_le_bytes());
        assert_eq!(class(&heap, table).unwrap().family, Family::Other);
    }

    #[test]
    fn what_is_no_table_is_no_class() {
        let mut heap = FakeObjects::default();
        let table = heap.class("not a name", &[]);
        for table in [table, 0, 7, u64::MAX, u64::MAX - 7, 0x7777_0000] {
            assert_eq!(class(&heap, table), None, "{table:#x}");
        }
    }
}

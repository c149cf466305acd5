//! The Python heap of a process, from outside: which objects there are, of which classes, what each
//! holds, and by which names a program reaches them.
//!
//! Everything here is the target's word. Each length and pointer is bounded before it is followed,
//! nothing recurses on it, and what cannot be read is left out.

pub mod capture;
pub mod census;
pub mod class;
pub mod collector;
pub mod contents;
pub mod dict;
pub mod frames;
pub mod image;
pub mod key;
pub mod modules;
pub mod optimizers;
pub mod paths;

use std::cell::RefCell;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::symbolize::python::layout::PythonLayout;
use crate::symbolize::python::text;
use crate::target::memory::{ReadMemory, Unreadable};

/// The most strings that are remembered.
const MOST_STRINGS: usize = 1 << 20;

/// Python's objects in the memory of a process.
#[derive(Debug)]
pub struct Heap<'a, M> {
    /// The memory.
    pub memory: &'a M,
    /// Where Python keeps things in it.
    pub layout: &'a PythonLayout,
    /// Strings by their addresses: names are interned, so a few stand for many.
    strings: RefCell<HashMap<u64, Option<Arc<str>>>>,
}

impl<'a, M: ReadMemory> Heap<'a, M> {
    /// The objects in `memory`, which must not change while this lives.
    pub fn of(memory: &'a M, layout: &'a PythonLayout) -> Self {
        Self {
            memory,
            layout,
            strings: RefCell::new(HashMap::new()),
        }
    }

    /// `ob_type`: the address of an object's class.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub fn class_of(&self, object: u64) -> Result<u64, Unreadable> {
        self.word(object, self.layout.object.kind)
    }

    /// The text of a str; `None` where none can be read.
    pub fn text(&self, object: u64) -> Option<Arc<str>> {
        if let Some(known) = self.strings.borrow().get(&object) {
            return known.clone();
        }
        let text = text::read_str(self.memory, &self.layout.string, object);
        let text: Option<Arc<str>> = text.ok().map(Into::into);
        let mut strings = self.strings.borrow_mut();
        if strings.len() < MOST_STRINGS {
            strings.insert(object, text.clone());
        }
        text
    }

    /// A word of an object.
    fn word(&self, object: u64, offset: u16) -> Result<u64, Unreadable> {
        self.memory.read_u64(object.wrapping_add(offset.into()))
    }
}

/// The little-endian word that stands at `at`; 0 beyond the end.
fn word_at(bytes: &[u8], at: u16) -> u64 {
    let bytes = bytes.get(usize::from(at)..).unwrap_or_default();
    bytes
        .first_chunk()
        .map_or(0, |word| u64::from_le_bytes(*word))
}

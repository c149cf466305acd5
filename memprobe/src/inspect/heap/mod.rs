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
mod deque;
pub mod dict;
pub mod frames;
pub mod holders;
pub mod image;
pub mod key;
pub mod modules;
pub mod optimizers;
pub mod paths;

#[cfg(test)]
pub(in crate::inspect) mod fake;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use hashbrown::HashMap;

use crate::symbolize::python::layout::PythonLayout;
use crate::symbolize::python::text;
use crate::target::memory::{Cause, ReadMemory, Unreadable};

/// The most bytes of strings that are remembered, and the most of one that are.
const MOST_TEXT: usize = 64 << 20;
const LONGEST_TEXT: usize = 1024;

/// The most entries and items that are looked at, of all objects together: some hundred for each of a
/// million objects.
const MOST_ITEMS: u64 = 1 << 28;

/// Python's objects in the memory of a process.
#[derive(Debug)]
pub struct Heap<'a, M> {
    /// The memory.
    pub memory: &'a M,
    /// Where Python keeps things in it.
    pub layout: &'a PythonLayout,
    /// Strings by their addresses: names are interned, so a few stand for many.
    strings: RefCell<Strings>,
    /// The entries and items that may still be looked at.
    items: Cell<u64>,
}

#[derive(Debug, Default)]
struct Strings {
    known: HashMap<u64, Option<Arc<str>>>,
    bytes: usize,
}

impl<'a, M: ReadMemory> Heap<'a, M> {
    /// The objects in `memory`, which must not change while this lives.
    pub fn of(memory: &'a M, layout: &'a PythonLayout) -> Self {
        Self {
            memory,
            layout,
            strings: RefCell::default(),
            items: Cell::new(MOST_ITEMS),
        }
    }

    /// `ob_type`: the address of an object's class.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub fn class_of(&self, object: u64) -> Result<u64, Unreadable> {
        self.word(object, self.layout.object.kind)
    }

    /// The text of a str, of a long one its beginning; `None` where none can be read.
    pub fn text(&self, object: u64) -> Option<Arc<str>> {
        if let Some(known) = self.strings.borrow().known.get(&object) {
            return known.clone();
        }
        let text = text::read_str(self.memory, &self.layout.string, object);
        let text = text.ok().map(|text| shortened(&text, LONGEST_TEXT).into());
        let text: Option<Arc<str>> = text;
        let strings = &mut *self.strings.borrow_mut();
        let bytes = 64 + text.as_ref().map_or(0, |text| text.len());
        if strings.bytes + bytes <= MOST_TEXT {
            strings.bytes += bytes;
            strings.known.insert(object, text.clone());
        }
        text
    }

    /// Takes so many items from those that may be looked at.
    ///
    /// # Errors
    /// [`Cause::TooLong`] where there are not so many left.
    fn spend(&self, object: u64, items: u64) -> Result<(), Unreadable> {
        let left = self.items.get().checked_sub(items);
        self.items.set(left.ok_or(Unreadable {
            address: object,
            cause: Cause::TooLong,
        })?);
        Ok(())
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

/// A text of no more than so many bytes; one that is cut says so.
fn shortened(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let boundary = (0..=most).rev().find(|&at| text.is_char_boundary(at));
    format!("{}…", &text[..boundary.unwrap_or(0)])
}

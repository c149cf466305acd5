//! Reads the Python heap of a process from outside: the objects with their classes, their contents, and the
//! names by which a program reaches them.
//!
//! The target's memory is not trusted. Each length and pointer is bounded before it is followed, nothing
//! recurses on it, and unreadable objects are skipped.

pub mod capture;
pub mod class;
pub mod collector;
pub mod contents;
mod deque;
pub mod dict;
pub mod frames;
pub mod image;
pub mod key;
pub mod modules;
pub mod optimizers;
pub mod paths;
pub mod process_scan;
pub mod retainers;

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use hashbrown::HashMap;

use crate::process::memory::{Cause, ReadMemory, Unreadable};
use crate::python::layout::PythonLayout;
use crate::python::text;

/// Most bytes of cached strings, and most bytes of one string; a longer one is cut.
const MAX_TEXT: usize = 64 << 20;
const LONGEST_TEXT: usize = 1024;

/// Most entries and items read over all objects: some hundred for each of a million objects.
const MAX_ITEMS: u64 = 1 << 28;

/// Python's objects in the memory of a process.
#[derive(Debug)]
pub struct Heap<'a, M> {
    pub memory: &'a M,
    /// Offsets of the target's version of Python.
    pub layout: &'a PythonLayout,
    /// Cached strings by address: names are interned, so few strings serve many objects.
    strings: RefCell<Strings>,
    /// Entries and items that may still be read.
    items: Cell<u64>,
}

#[derive(Debug, Default)]
struct Strings {
    known: HashMap<u64, Option<Arc<str>>>,
    bytes: usize,
}

impl<'a, M: ReadMemory> Heap<'a, M> {
    /// The objects in `memory`, which must not change while this value lives.
    pub fn of(memory: &'a M, layout: &'a PythonLayout) -> Self {
        Self {
            memory,
            layout,
            strings: RefCell::default(),
            items: Cell::new(MAX_ITEMS),
        }
    }

    /// `ob_type`: the address of an object's class.
    pub fn class_of(&self, object: u64) -> Result<u64, Unreadable> {
        self.word(object, self.layout.object.kind)
    }

    /// Returns the text of a str, cut if it is long. Returns `None` if it cannot be read.
    pub fn text(&self, object: u64) -> Option<Arc<str>> {
        if let Some(known) = self.strings.borrow().known.get(&object) {
            return known.clone();
        }
        let text = text::read_str(self.memory, &self.layout.string, object);
        let text = text.ok().map(|text| shortened(&text, LONGEST_TEXT).into());
        let text: Option<Arc<str>> = text;
        let strings = &mut *self.strings.borrow_mut();
        let bytes = 64 + text.as_ref().map_or(0, |text| text.len());
        if strings.bytes + bytes <= MAX_TEXT {
            strings.bytes += bytes;
            strings.known.insert(object, text.clone());
        }
        text
    }

    /// Charges `items` to the budget of items.
    fn spend(&self, object: u64, items: u64) -> Result<(), Unreadable> {
        let left = self.items.get().checked_sub(items);
        self.items.set(left.ok_or(Cause::TooLong.at(object))?);
        Ok(())
    }

    fn word(&self, object: u64, offset: u16) -> Result<u64, Unreadable> {
        self.memory.read_u64(object.wrapping_add(offset.into()))
    }
}

/// The little-endian word at offset `at`; 0 beyond the end.
fn word_at(bytes: &[u8], at: u16) -> u64 {
    let bytes = bytes.get(usize::from(at)..).unwrap_or_default();
    bytes
        .first_chunk()
        .map_or(0, |word| u64::from_le_bytes(*word))
}

/// Cuts a text to `most` bytes and marks the cut with `…`.
fn shortened(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let boundary = (0..=most).rev().find(|&at| text.is_char_boundary(at));
    format!("{}…", &text[..boundary.unwrap_or(0)])
}

//! Reads the Python heap of a process: objects, classes, contents, and names by which a program reaches them.
//!
//! The target's memory is not trusted. Each length and pointer is bounded before it is followed, nothing
//! recurses on it, and unreadable objects are skipped.

pub(crate) mod address_index;
mod built_in;
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
mod ndarray;
pub mod notebook;
pub mod optimizers;
mod path_origins;
pub mod paths;
pub mod process_scan;
pub mod progress;
pub mod retainers;
mod untracked;

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use class::{Class, Classes, ContainerKind, TorchKind};
use hashbrown::HashMap;

use crate::process::memory::{Cause, ReadMemory, ReadResult};
use crate::python::layout::{HeapLayout, ObjectLayout, PythonLayout};
use crate::python::text;

/// Most bytes of cached strings, and most bytes of one string; a longer one is cut.
const MAX_TEXT: usize = 64 << 20;
const LONGEST_TEXT: usize = 1024;

/// Most entries and items read over all objects: some hundred for each of a million objects.
const MAX_ITEMS: u64 = 1 << 28;

#[derive(Debug)]
pub struct Heap<'a, M> {
    pub memory: &'a M,
    pub layout: &'a PythonLayout,
    /// Cached strings by address: names are interned, so few strings serve many objects.
    strings: RefCell<HashMap<u64, Option<Arc<str>>>>,
    text_bytes: Cell<usize>,
    items: Cell<u64>,
    classes: RefCell<Classes>,
}

impl<'a, M: ReadMemory> Heap<'a, M> {
    /// The objects in `memory`, which must not change while this value lives.
    pub fn of(memory: &'a M, layout: &'a PythonLayout) -> Self {
        Self::with_classes(memory, layout, Classes::default())
    }

    /// Like [`Self::of`], for at most `items` entries and items of all objects together.
    pub fn limited(memory: &'a M, layout: &'a PythonLayout, items: u64) -> Self {
        let heap = Self::of(memory, layout);
        heap.items.set(items);
        heap
    }

    /// Like [`Self::of`], with the classes that an earlier reader of the same memory found.
    pub fn with_classes(memory: &'a M, layout: &'a PythonLayout, classes: Classes) -> Self {
        Self {
            memory,
            layout,
            strings: RefCell::default(),
            text_bytes: Cell::new(0),
            items: Cell::new(MAX_ITEMS),
            classes: RefCell::new(classes),
        }
    }

    pub fn into_classes(self) -> Classes {
        self.classes.into_inner()
    }

    /// `ob_type`: the address of an object's class.
    pub fn type_of(&self, object: u64) -> ReadResult<u64> {
        self.word(object, ObjectLayout::KIND)
    }

    pub fn class_of(&self, object: u64) -> Option<Arc<Class>> {
        self.class_at(self.class_index(self.type_of(object).ok()?)?)
    }

    fn is_tensor(&self, object: u64) -> bool {
        let class = self.class_of(object);
        class.is_some_and(|class| class.role == TorchKind::Tensor)
    }

    pub fn class_at(&self, index: u32) -> Option<Arc<Class>> {
        self.classes.borrow().get(index).cloned()
    }

    /// Returns the kinds of a class, without a reference to it: a search asks for each of millions of objects.
    fn kinds_at(&self, index: u32) -> Option<(TorchKind, ContainerKind)> {
        let classes = self.classes.borrow();
        let class = classes.get(index)?;
        Some((class.role, class.holds))
    }

    /// Index of the class at `address`, reading it if necessary. Returns `None` if no class lies there.
    pub fn class_index(&self, address: u64) -> Option<u32> {
        self.classes.borrow_mut().index(self, address)
    }

    /// Returns the text of a str, cut if it is long. Returns `None` if it cannot be read.
    pub fn text(&self, object: u64) -> Option<Arc<str>> {
        if let Some(known) = self.strings.borrow().get(&object) {
            return known.clone();
        }
        let text = text::string(self.memory, &self.layout.string, object);
        let text = text.ok().map(|text| shortened(&text, LONGEST_TEXT).into());
        let text: Option<Arc<str>> = text;
        let bytes = self.text_bytes.get() + 64 + text.as_ref().map_or(0, |text| text.len());
        if bytes <= MAX_TEXT {
            self.text_bytes.set(bytes);
            self.strings.borrow_mut().insert(object, text.clone());
        }
        text
    }

    fn spend(&self, object: u64, items: u64) -> ReadResult<()> {
        let left = self.items.get().checked_sub(items);
        self.items.set(left.ok_or(Cause::TooLong.at(object))?);
        Ok(())
    }

    /// Dict of the globals of a module, by its name in `sys.modules`. `None` if it is not imported or cannot be read.
    pub(crate) fn globals_of(&self, interpreter: u64, module: &str) -> Option<u64> {
        let modules = self.word(interpreter, self.layout.interpreter_modules);
        let [module] = self.values_of(modules.ok()?, [module]).ok()?;
        self.word(module?, HeapLayout::MODULE_DICT).ok()
    }

    fn word(&self, object: u64, offset: u16) -> ReadResult<u64> {
        self.memory.read_u64(object.wrapping_add(offset.into()))
    }
}

/// The little-endian word at offset `at`; 0 beyond the end.
pub(crate) fn word_at(bytes: &[u8], at: u16) -> u64 {
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

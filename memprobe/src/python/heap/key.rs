//! Formats dict keys and path steps in Python's syntax.

use std::fmt::Write as _;
use std::sync::Arc;

use super::class::ContainerKind;
use super::contents::Step;
use super::{Heap, shortened};
use crate::process::memory::ReadMemory;
use crate::python::layout::HeapLayout;

const MAX_CHARS: usize = 64;
const LONGEST_NAME: usize = 256;

/// Length in bytes after which a path gets no further step.
const LONGEST_PATH: usize = 512;

const OTHER: &str = "…";

const UNREAD: &str = "?";

/// Bits in a digit of an int (`PyLong_SHIFT` in `Include/cpython/longintrepr.h`@v3.9.18 to @v3.15.2).
const DIGIT: u32 = 30;

impl<M: ReadMemory> Heap<'_, M> {
    pub fn write_step(&self, step: Step, path: &mut String) {
        if path.len() > LONGEST_PATH {
            return;
        }
        match step {
            Step::Attribute(name) | Step::Registered(name) => {
                let name = self.text(name);
                write_attribute(path, name.as_deref().unwrap_or(UNREAD));
            }
            Step::Member(class, number) => {
                let name = self.member(class, number);
                write_attribute(path, name.as_deref().unwrap_or(UNREAD));
            }
            Step::Key(key) => {
                let _ = write!(path, "[{}]", self.key(key));
            }
            Step::Index(index) => {
                let _ = write!(path, "[{index}]");
            }
            Step::Indices(row, column) => {
                let _ = write!(path, "[{row}, {column}]");
            }
            Step::Flat(index) => {
                let _ = write!(path, ".flat[{index}]");
            }
            Step::Element => path.push_str("{…}"),
            Step::Cell => path.push_str(".cell_contents"),
            Step::Value => path.push_str(".get()"),
        }
    }

    pub fn member(&self, class: u32, number: u32) -> Option<Arc<str>> {
        let class = self.class_at(class)?;
        Some(Arc::clone(&class.members.get(number as usize)?.name))
    }

    /// Formats a key as Python does: `'kv'`, `3`.
    pub fn key(&self, key: u64) -> String {
        let holds = self.class_of(key).map(|class| class.holds);
        let text = match holds {
            Some(ContainerKind::Text) => self.text(key).map(|text| quoted(&text)),
            Some(ContainerKind::Number) => self.number(key).map(|number| number.to_string()),
            Some(_) => Some(OTHER.to_owned()),
            None => None,
        };
        text.unwrap_or_else(|| UNREAD.to_owned())
    }

    /// Value of an int that is not negative; `None` for another object.
    pub(crate) fn natural(&self, object: u64) -> Option<u64> {
        let is_number = self.class_of(object)?.holds == ContainerKind::Number;
        u64::try_from(is_number.then(|| self.number(object))??).ok()
    }

    /// Text of a str; `None` for another object.
    pub(crate) fn string(&self, object: u64) -> Option<Arc<str>> {
        let is_text = self.class_of(object)?.holds == ContainerKind::Text;
        is_text.then(|| self.text(object))?
    }

    /// Value of an int. Returns `None` if it has more than 60 bits.
    pub(crate) fn number(&self, object: u64) -> Option<i64> {
        let size = self.word(object, HeapLayout::SIZE).ok()?;
        let (count, negative) = self.layout.heap.numbers.sign(size);
        if count > 2 {
            return None;
        }
        let first = object.wrapping_add(HeapLayout::DIGITS.into());
        let mut value = 0;
        for digit in (0..count).rev() {
            let digit = self.memory.read_u32(first.wrapping_add(4 * digit)).ok()?;
            value = value << DIGIT | i64::from(digit) & ((1 << DIGIT) - 1);
        }
        Some(if negative { -value } else { value })
    }
}

/// The first name of a path has no leading dot.
fn write_attribute(path: &mut String, name: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(&shortened(name, LONGEST_NAME));
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("'");
    for (number, char) in text.chars().enumerate() {
        if number == MAX_CHARS {
            quoted.push('…');
            break;
        }
        if matches!(char, '\'' | '\\') {
            quoted.push('\\');
        }
        quoted.push(char);
    }
    quoted.push('\'');
    quoted
}

//! Strings and lines of a group, defined before their first use.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::MAX_STRING;
use super::columns::{ColumnReader, ColumnWriter, FrameColumn};
use super::varint::{push, push_bytes};
use crate::event::Frame;

/// Most strings and most lines of a group that a reader keeps.
const MAX_DEFINITIONS: usize = 1 << 20;

/// Most bytes of all different strings of a recording. A small file could hold many more, since it is compressed.
const MAX_ALL_STRINGS: usize = 512 << 20;

/// Numbers of the strings and lines that the group has defined so far.
#[derive(Default)]
pub(super) struct DefinitionWriter {
    strings: HashMap<Arc<str>, u64>,
    lines: HashMap<Frame, u64>,
}

impl DefinitionWriter {
    /// Forgets all definitions: a group begins.
    pub(super) fn clear(&mut self) {
        self.strings.clear();
        self.lines.clear();
    }

    /// Returns true if the group should end, long before a reader refuses more.
    pub(super) fn are_many(&self) -> bool {
        self.strings.len().max(self.lines.len()) > MAX_DEFINITIONS / 4
    }

    /// Returns true if the group has to end before it has more than a reader keeps.
    pub(super) fn are_too_many(&self) -> bool {
        self.strings.len().max(self.lines.len()) > MAX_DEFINITIONS / 2
    }

    /// Writes how many definitions the group has. To be called before the first record of a frame.
    pub(super) fn begin_frame(&self, columns: &mut ColumnWriter) {
        push(columns.of(FrameColumn::Strings), self.strings.len() as u64);
        push(columns.of(FrameColumn::Lines), self.lines.len() as u64);
    }

    /// Returns the number of a string, and defines it if it is new.
    pub(super) fn string(&mut self, columns: &mut ColumnWriter, text: &str) -> u64 {
        let text = clipped(text);
        if let Some(number) = self.strings.get(text) {
            return *number;
        }
        push_bytes(columns.of(FrameColumn::Strings), text.as_bytes());
        let number = self.strings.len() as u64;
        self.strings.insert(text.into(), number);
        number
    }

    /// Returns 0 for no string, and otherwise its number plus 1.
    pub(super) fn optional_string(
        &mut self,
        columns: &mut ColumnWriter,
        text: Option<&str>,
    ) -> u64 {
        text.map_or(0, |text| self.string(columns, text) + 1)
    }

    /// Returns the number of a line, and defines it if it is new.
    pub(super) fn line(&mut self, columns: &mut ColumnWriter, frame: &Frame) -> u64 {
        if let Some(number) = self.lines.get(frame) {
            return *number;
        }
        let file = self.string(columns, &frame.file);
        let function = self.string(columns, &frame.function);
        let library = self.optional_string(columns, frame.library.as_deref());
        let column = columns.of(FrameColumn::Lines);
        for number in [file, frame.line.into(), function, library] {
            push(column, number);
        }
        let number = self.lines.len() as u64;
        self.lines.insert(frame.clone(), number);
        number
    }
}

/// Strings and lines that a reader has met.
#[derive(Default)]
pub(super) struct DefinitionReader {
    /// All strings of the recording, each once.
    interned: HashSet<Arc<str>>,
    /// Bytes of the strings that frames have defined.
    bytes: usize,
    /// By their number in the group.
    strings: HashMap<u64, Arc<str>>,
    lines: HashMap<u64, Frame>,
}

impl DefinitionReader {
    pub(super) fn clear(&mut self) {
        self.strings.clear();
        self.lines.clear();
    }

    pub(super) fn intern(&mut self, text: &str) -> Arc<str> {
        let shared = self.interned.get_or_insert_with(text, |text| text.into());
        Arc::clone(shared)
    }

    /// Reads the definitions of a frame.
    pub(super) fn read(&mut self, columns: &mut ColumnReader<'_>) -> Result<(), &'static str> {
        const TOO_MANY: &str = "a number of a definition beyond 64 bits";
        let column = columns.of(FrameColumn::Strings);
        if column.is_empty() {
            return Ok(());
        }
        let mut number = column.number()?;
        while !columns.of(FrameColumn::Strings).is_empty() {
            let bytes = columns.of(FrameColumn::Strings).bytes()?;
            if bytes.len() > MAX_STRING {
                return Err("a string of too many bytes");
            }
            let text = std::str::from_utf8(bytes).map_err(|_| "a string that is no UTF-8")?;
            if !self.interned.contains(text) {
                self.bytes += text.len();
            }
            if self.strings.len() >= MAX_DEFINITIONS || self.bytes > MAX_ALL_STRINGS {
                return Err("too many strings");
            }
            let text = self.intern(text);
            self.strings.insert(number, text);
            number = number.checked_add(1).ok_or(TOO_MANY)?;
        }
        let mut number = columns.of(FrameColumn::Lines).number()?;
        while !columns.of(FrameColumn::Lines).is_empty() {
            let column = columns.of(FrameColumn::Lines);
            let (file, line, function) = (column.number()?, column.u32()?, column.number()?);
            let library = column.number()?;
            let frame = Frame {
                file: self.string(file),
                line,
                function: self.string(function),
                library: self.optional_string(library),
            };
            if self.lines.len() >= MAX_DEFINITIONS {
                return Err("too many lines");
            }
            self.lines.insert(number, frame);
            number = number.checked_add(1).ok_or(TOO_MANY)?;
        }
        Ok(())
    }

    /// Returns a string of the group. One whose definition was damaged is [`Frame::UNREADABLE`].
    pub(super) fn string(&mut self, number: u64) -> Arc<str> {
        match self.strings.get(&number) {
            Some(text) => Arc::clone(text),
            None => self.intern(Frame::UNREADABLE),
        }
    }

    pub(super) fn optional_string(&mut self, number: u64) -> Option<Arc<str>> {
        Some(self.string(number.checked_sub(1)?))
    }

    /// Returns a line of the group. One whose definition was damaged is [`Frame::UNREADABLE`].
    pub(super) fn line(&mut self, number: u64) -> Frame {
        if let Some(frame) = self.lines.get(&number) {
            return frame.clone();
        }
        Frame {
            file: self.intern(Frame::UNREADABLE),
            line: 0,
            function: self.intern(""),
            library: None,
        }
    }
}

/// Cuts a text to [`MAX_STRING`] bytes at the boundary of a character.
fn clipped(text: &str) -> &str {
    let mut end = text.len().min(MAX_STRING);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

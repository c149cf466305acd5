//! Code objects: the file, the name and the lines of a frame.

use std::sync::Arc;

use super::layout::{BytesLayout, Instructions, LineFormat, ObjectLayout, PythonLayout};
use super::line_table;
use super::lnotab::{line_by_increments, line_by_ranges};
use super::text::{self, field};
use crate::process::memory::{Cause, ReadMemory, ReadResult};

/// The most bytes read of a line table; functions of 100,000 lines have less.
const MAX_LINE_TABLE_BYTES: usize = 1 << 20;

const UNIT: u64 = 2;

/// A reference count that no living object has: freed memory holds a pointer of the allocator in place of the
/// count. Immortal objects have less (`Include/object.h`@v3.12.1: `_Py_IMMORTAL_REFCNT` is `UINT_MAX`; frozen
/// ones of 3.11 have 999,999,999).
const TOO_MANY_REFERENCES: u64 = 1 << 40;

/// The identity of a code object. Python's allocator gives its address to another one at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    file: u64,
    name: u64,
    qualname: u64,
    line_table: u64,
    first_line: u32,
    /// The number of instructions, or their address.
    instructions: u64,
    version: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    pub file: Arc<str>,
    pub name: Arc<str>,
    pub first_line: u32,
    /// `co_linetable` or `co_lnotab`; empty if it is longer than `MAX_LINE_TABLE_BYTES`.
    pub line_table: Box<[u8]>,
    pub line_format: LineFormat,
    pub body: Body,
    pub fingerprint: Fingerprint,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    Addressed {
        start: u64,
        size: u64,
        /// Address of the first instruction after the set-up of the frame.
        first_traceable: u64,
    },
    /// By index: an int in the lower half of a word.
    Counted {
        /// Bytes that count as one.
        step: u8,
        /// Bytes of all instructions, if known.
        size: Option<u64>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodePosition {
    /// Before the first instruction: the frame has not started.
    NotStarted,
    At(u32),
    /// Outside of this code object: the frame ran other code.
    Elsewhere,
}

impl Code {
    pub fn place_of(&self, instr: u64) -> CodePosition {
        match self.body {
            // A new frame points to the unit before the first (`_PyFrame_Initialize`).
            Body::Addressed { start, .. } if instr == start.wrapping_sub(UNIT) => {
                CodePosition::NotStarted
            }
            Body::Addressed { start, size, .. } => match instr.checked_sub(start) {
                Some(offset) if offset < size && offset % UNIT == 0 => {
                    u32::try_from(offset).map_or(CodePosition::Elsewhere, CodePosition::At)
                }
                _ => CodePosition::Elsewhere,
            },
            Body::Counted { step, size } => {
                let count = instr as u32;
                // A new frame starts with -1.
                if count == u32::MAX {
                    return CodePosition::NotStarted;
                }
                match count.checked_mul(step.into()) {
                    Some(offset) if size.is_none_or(|size| u64::from(offset) < size) => {
                        CodePosition::At(offset)
                    }
                    _ => CodePosition::Elsewhere,
                }
            }
        }
    }

    /// True if a frame at this instruction has been set up, so that tracebacks show it (the inverse of
    /// `_PyFrame_IsIncomplete` in `Include/internal/pycore_frame.h`@v3.11.7 to @v3.13.0,
    /// `pycore_interpframe.h`@v3.14.10, v3.15.2).
    pub fn is_set_up_at(&self, instr: u64) -> bool {
        match self.body {
            Body::Addressed {
                first_traceable, ..
            } => instr >= first_traceable,
            Body::Counted { .. } => true,
        }
    }

    /// Returns the line of a position, as `PyCode_Addr2Line` does; 0 if it has none.
    pub fn line_of(&self, place: CodePosition) -> u32 {
        let CodePosition::At(offset) = place else {
            return match place {
                CodePosition::NotStarted => self.first_line,
                _ => 0,
            };
        };
        let (table, first) = (&self.line_table, self.first_line);
        match self.line_format {
            LineFormat::Increments => line_by_increments(table, first, offset),
            LineFormat::Ranges => line_by_ranges(table, first, offset).unwrap_or(0),
            LineFormat::Locations => line_table::locate(table, first, offset).unwrap_or(0),
        }
    }
}

struct Head {
    references: u64,
    fingerprint: Fingerprint,
    body: Body,
}

#[derive(Debug)]
pub struct CodeReader<'a, M> {
    pub memory: &'a M,
    pub layout: &'a PythonLayout,
    pub code_type: u64,
}

impl<M: ReadMemory> CodeReader<'_, M> {
    /// Returns the fingerprint of the code object at `address`.
    /// Fails with [`Unreadable`] also if no living code object lies there ([`Cause::NotAsExpected`]).
    pub fn fingerprint(&self, address: u64) -> ReadResult<Fingerprint> {
        Ok(self.living_head(address)?.fingerprint)
    }

    /// Reads the code object at `address`, and checks afterwards that it was not replaced.
    /// Fails with [`Unreadable`] also if no living code object lies there ([`Cause::NotAsExpected`]).
    pub fn read(&self, address: u64) -> ReadResult<Code> {
        let mut head = self.living_head(address)?;
        if let Body::Counted { size, .. } = &mut head.body {
            let bytes = head.fingerprint.instructions;
            *size = Some(self.size_of_bytes(bytes)?);
        }
        let code = self.with_head(&head)?;
        // The strings belong to the object: if it is still the same one, they were not freed meanwhile.
        if self.fingerprint(address)? == code.fingerprint {
            Ok(code)
        } else {
            Err(Cause::NotAsExpected.at(address))
        }
    }

    /// Reads a code object as it was at `address` just before it was freed, with no references left
    /// (`_Py_Dealloc` in `Objects/object.c`@v3.11.7, v3.12.1). A prefix of its line table is enough:
    /// instructions beyond it have no known line.
    pub fn read_freed(&self, address: u64) -> ReadResult<Code> {
        self.with_head(&self.head(address)?)
    }

    fn with_head(&self, head: &Head) -> ReadResult<Code> {
        let fingerprint = head.fingerprint;
        let string = |string| text::string(self.memory, &self.layout.string, string);
        Ok(Code {
            file: string(fingerprint.file)?.into(),
            name: string(fingerprint.name)?.into(),
            first_line: fingerprint.first_line,
            line_table: self.line_table(fingerprint.line_table)?,
            line_format: self.layout.code.line_format,
            body: head.body,
            fingerprint,
        })
    }

    /// Reads the head of a code object that has not been freed, as far as its reference count shows. A count of 0
    /// is valid: the kernel program sees the free later, and has sent a record of it.
    fn living_head(&self, address: u64) -> ReadResult<Head> {
        let head = self.head(address)?;
        let is_living = head.references < TOO_MANY_REFERENCES;
        is_living
            .then_some(head)
            .ok_or(Cause::NotAsExpected.at(address))
    }

    /// Reads the head of a code object with any reference count.
    fn head(&self, address: u64) -> ReadResult<Head> {
        let code = &self.layout.code;
        let mut head = vec![0; usize::from(code.size)];
        self.memory.read(address, &mut head)?;
        let word = |offset: u16| u64::from_le_bytes(field(&head, offset));
        let half = |offset: u16| u32::from_le_bytes(field(&head, offset));
        if word(ObjectLayout::KIND) != self.code_type {
            return Err(Cause::NotAsExpected.at(address));
        }
        let (instructions, body) = match code.instructions {
            Instructions::Apart { object, step } => {
                (word(object), Body::Counted { step, size: None })
            }
            Instructions::Inline {
                units,
                start,
                first_traceable,
            } => {
                let (units, set_up) = (word(units), u64::from(half(first_traceable)) * UNIT);
                let start = address.wrapping_add(start.into());
                let body = Body::Addressed {
                    start,
                    size: units.saturating_mul(UNIT),
                    first_traceable: start.wrapping_add(set_up),
                };
                (units, body)
            }
        };
        Ok(Head {
            references: word(ObjectLayout::REFERENCES),
            fingerprint: Fingerprint {
                file: word(code.file),
                name: word(code.name()),
                qualname: code.qualname.map_or(0, word),
                line_table: word(code.line_table),
                first_line: half(code.first_line),
                instructions,
                version: code.version.map_or(0, half),
            },
            body,
        })
    }

    fn size_of_bytes(&self, address: u64) -> ReadResult<u64> {
        let size = address.wrapping_add(BytesLayout::SIZE.into());
        self.memory.read_u64(size)
    }

    fn line_table(&self, address: u64) -> ReadResult<Box<[u8]>> {
        let size = self.size_of_bytes(address)?;
        if size > MAX_LINE_TABLE_BYTES as u64 {
            return Ok(Box::default());
        }
        let data = address.wrapping_add(BytesLayout::DATA.into());
        let bytes = self.memory.read_prefix(data, size, MAX_LINE_TABLE_BYTES)?;
        Ok(bytes.into())
    }
}

//! Code objects: the file, the name and the lines of a frame.

use std::sync::Arc;

use super::layout::{Instructions, LineFormat, PythonLayout};
use super::line_table;
use super::lnotab::{line_by_increments, line_by_ranges};
use super::text::{self, field};
use crate::process::memory::{Cause, ReadMemory, Unreadable};

/// The most bytes read of a line table; functions of 100,000 lines have less.
const MAX_LINE_TABLE_BYTES: usize = 1 << 20;

/// Bytes of one code unit (`_Py_CODEUNIT`).
const UNIT: u64 = 2;

/// A reference count that no living object has: freed memory holds a pointer of the allocator in place of the
/// count. Immortal objects have less (`Include/object.h`@v3.12.1: `_Py_IMMORTAL_REFCNT` is `UINT_MAX`; frozen
/// ones of 3.11 have 999,999,999).
const TOO_MANY_REFERENCES: u64 = 1 << 40;

/// The identity of a code object, as distinct from later ones at the same address. Python's allocator reuses
/// an address at once.
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

/// The instructions of a code object, and the way in which a frame identifies one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// By its address.
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

/// The position of an instruction relative to a code object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodePosition {
    /// Before the first instruction: the frame has not started.
    NotStarted,
    /// Offset in bytes from the first instruction.
    At(u32),
    /// Outside of this code object: the frame ran other code.
    Elsewhere,
}

impl Code {
    /// Returns the position of a frame's instruction.
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
            LineFormat::Locations => {
                line_table::locate(table, first, offset).map_or(0, |location| location.line)
            }
        }
    }
}

struct Head {
    references: u64,
    fingerprint: Fingerprint,
    body: Body,
}

/// Returns the fingerprint of the code object at `address`.
/// Fails with [`Unreadable`] also if no living code object lies there ([`Cause::NotAsExpected`]).
pub fn fingerprint(
    memory: &impl ReadMemory,
    layout: &PythonLayout,
    code_type: u64,
    address: u64,
) -> Result<Fingerprint, Unreadable> {
    Ok(living_head(memory, layout, code_type, address)?.fingerprint)
}

/// Reads the code object at `address`, and checks afterwards that it was not replaced.
/// Fails with [`Unreadable`] also if no living code object lies there ([`Cause::NotAsExpected`]).
pub fn read_code(
    memory: &impl ReadMemory,
    layout: &PythonLayout,
    code_type: u64,
    address: u64,
) -> Result<Code, Unreadable> {
    let mut head = living_head(memory, layout, code_type, address)?;
    if let Body::Counted { size, .. } = &mut head.body {
        let object = head.fingerprint.instructions;
        *size = Some(memory.read_u64(object.wrapping_add(layout.bytes.size.into()))?);
    }
    let code = with_head(memory, layout, &head)?;
    // The strings belong to the object: if it is still the same one, they were not freed meanwhile.
    if fingerprint(memory, layout, code_type, address)? == code.fingerprint {
        Ok(code)
    } else {
        Err(Cause::NotAsExpected.at(address))
    }
}

/// Reads a code object as it was at `address` just before it was freed, with no references left
/// (`_Py_Dealloc` in `Objects/object.c`@v3.11.7, v3.12.1). A prefix of its line table is enough: instructions
/// beyond it have no known line.
pub fn read_freed_code(
    copy: &impl ReadMemory,
    layout: &PythonLayout,
    code_type: u64,
    address: u64,
) -> Result<Code, Unreadable> {
    let head = head(copy, layout, code_type, address)?;
    with_head(copy, layout, &head)
}

/// Reads the strings and the line table of a code object.
fn with_head(
    memory: &impl ReadMemory,
    layout: &PythonLayout,
    head: &Head,
) -> Result<Code, Unreadable> {
    let fingerprint = head.fingerprint;
    let string = |string| text::read_str(memory, &layout.string, string);
    Ok(Code {
        file: string(fingerprint.file)?.into(),
        name: string(fingerprint.name)?.into(),
        first_line: fingerprint.first_line,
        line_table: read_line_table(memory, layout, fingerprint.line_table)?,
        line_format: layout.code.line_format,
        body: head.body,
        fingerprint,
    })
}

/// Reads the head of a code object that has not been freed, as far as its reference count shows. A count of 0
/// is valid: the last reference goes before the kernel program sees the free. If the object is gone by now,
/// that program has sent a record of it.
fn living_head(
    memory: &impl ReadMemory,
    layout: &PythonLayout,
    code_type: u64,
    address: u64,
) -> Result<Head, Unreadable> {
    head(memory, layout, code_type, address).and_then(|head| {
        (head.references < TOO_MANY_REFERENCES)
            .then_some(head)
            .ok_or(Cause::NotAsExpected.at(address))
    })
}

/// Reads the head of a code object with any reference count.
fn head(
    memory: &impl ReadMemory,
    layout: &PythonLayout,
    code_type: u64,
    address: u64,
) -> Result<Head, Unreadable> {
    let code = &layout.code;
    let mut head = vec![0; usize::from(code.size)];
    memory.read(address, &mut head)?;
    let word = |offset: u16| u64::from_le_bytes(field(&head, offset));
    let half = |offset: u16| u32::from_le_bytes(field(&head, offset));
    if word(layout.object.kind) != code_type {
        return Err(Cause::NotAsExpected.at(address));
    }
    let (instructions, body) = match code.instructions {
        Instructions::Apart { object, step } => (word(object), Body::Counted { step, size: None }),
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
        references: word(layout.object.references),
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

fn read_line_table(
    memory: &impl ReadMemory,
    layout: &PythonLayout,
    address: u64,
) -> Result<Box<[u8]>, Unreadable> {
    let size = memory.read_u64(address.wrapping_add(layout.bytes.size.into()))?;
    if size > MAX_LINE_TABLE_BYTES as u64 {
        return Ok(Box::default());
    }
    let data = address.wrapping_add(layout.bytes.data.into());
    memory
        .read_prefix(data, size, MAX_LINE_TABLE_BYTES)
        .map(Vec::into_boxed_slice)
}

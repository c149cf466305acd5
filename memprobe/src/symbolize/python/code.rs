//! Code objects of another process.

use std::sync::Arc;

use super::layout::PythonLayout;
use super::line_table::line_at;
use crate::target::memory::{ReadMemory, Unreadable};

/// The longest file or function name, in characters.
const LONGEST_NAME: u64 = 4096;

/// The longest location table, in bytes.
const LONGEST_TABLE: u64 = 1 << 20;

/// `PyObject.ob_type`.
const OB_TYPE: u64 = 8;

/// `PyASCIIObject.length` and `PyVarObject.ob_size`.
const LENGTH: u64 = 16;

/// `PyBytesObject.ob_sval`.
const BYTES_DATA: u64 = 32;

/// `PyASCIIObject.state`.
const STRING_STATE: u64 = 32;

/// What of a code object tells it from another at the same address.
pub(super) type Fingerprint = [u8; HEAD];

/// Bytes of a code object that hold every field that is read.
const HEAD: usize = 200;

/// A code object, copied.
#[derive(Clone, Debug)]
pub(super) struct Code {
    pub(super) file: Arc<str>,
    pub(super) name: Arc<str>,
    pub(super) first_line: i32,
    /// Address of the first instruction.
    pub(super) start: u64,
    /// Instructions before this one (in code units) set the frame up; a frame that has not got
    /// beyond them is not complete.
    pub(super) first_traceable: i32,
    table: Vec<u8>,
}

/// Why there is no code object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoCode {
    Memory(Unreadable),
    /// Something else lies there.
    OtherType,
    /// A name or table is longer than any real one.
    TooLong,
}

impl From<Unreadable> for NoCode {
    fn from(unreadable: Unreadable) -> Self {
        Self::Memory(unreadable)
    }
}

impl Code {
    /// Reads a code object.
    pub(super) fn read(
        memory: &impl ReadMemory,
        layout: &PythonLayout,
        code_type: u64,
        address: u64,
    ) -> Result<Self, NoCode> {
        let head: [u8; HEAD] = memory.read_array(address)?;
        if word(&head, OB_TYPE) != code_type {
            return Err(NoCode::OtherType);
        }
        let names = u64::from(layout.co_filename);
        let string = |at: u64| read_string(memory, layout, word(&head, names + at));
        let code = Self {
            file: string(0)?.into(),
            name: string(8)?.into(),
            first_line: int(&head, layout.co_firstlineno),
            start: address.wrapping_add(layout.co_code.into()),
            first_traceable: int(&head, layout.co_firsttraceable),
            table: read_bytes_object(memory, word(&head, names + 24))?,
        };
        Ok(code)
    }

    /// What tells whether the code object at an address is still the one that was read: its
    /// fields, less those that change while it lives (reference count, caches).
    pub(super) fn fingerprint(
        memory: &impl ReadMemory,
        layout: &PythonLayout,
        address: u64,
    ) -> Result<Fingerprint, Unreadable> {
        let head: Fingerprint = memory.read_array(address)?;
        let mut kept = [0; HEAD];
        let stable = [
            8..16,
            usize::from(layout.co_filename)..usize::from(layout.co_filename) + 32,
        ];
        for range in stable {
            kept[range.clone()].copy_from_slice(&head[range]);
        }
        for word in [Some(layout.co_firstlineno), layout.co_version]
            .into_iter()
            .flatten()
        {
            let word = usize::from(word);
            kept[word..word + 4].copy_from_slice(&head[word..word + 4]);
        }
        Ok(kept)
    }

    /// The line of the instruction at an address; `None` where it has none.
    pub(super) fn line(&self, instruction: u64) -> Option<u32> {
        let offset = instruction.wrapping_sub(self.start);
        if offset.cast_signed() < 0 {
            // The frame has not executed anything yet.
            return u32::try_from(self.first_line).ok();
        }
        line_at(&self.table, self.first_line, offset)
    }

    /// Whether a frame at this instruction is still being set up: CPython itself passes over such
    /// frames (`_PyFrame_IsIncomplete`, Include/internal/pycore_frame.h@v3.11.7).
    pub(super) fn is_incomplete_at(&self, instruction: u64) -> bool {
        let first = self
            .start
            .wrapping_add_signed(i64::from(self.first_traceable) * 2);
        instruction < first
    }
}

/// Reads a string, whatever its width; lone surrogates become replacement characters.
fn read_string(
    memory: &impl ReadMemory,
    layout: &PythonLayout,
    address: u64,
) -> Result<String, NoCode> {
    let length = memory.read_u64(address.wrapping_add(LENGTH))?;
    if length > LONGEST_NAME {
        return Err(NoCode::TooLong);
    }
    let length = usize::try_from(length).map_err(|_| NoCode::TooLong)?;
    let state = memory.read_u32(address.wrapping_add(STRING_STATE))?;
    let (kind, compact, ascii) = (state >> 2 & 7, state & 0x20 != 0, state & 0x40 != 0);
    let data = match (compact, ascii) {
        (true, true) => address.wrapping_add(layout.ascii_header.into()),
        (true, false) => address.wrapping_add(layout.compact_header.into()),
        (false, _) => memory.read_u64(address.wrapping_add(layout.compact_header.into()))?,
    };
    match kind {
        1 => {
            let bytes = memory.read_bytes(data, length)?;
            Ok(bytes.into_iter().map(char::from).collect())
        }
        2 => {
            let bytes = memory.read_bytes(data, length * 2)?;
            let units = bytes
                .chunks_exact(2)
                .map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
            Ok(units
                .map(|unit| char::from_u32(unit.into()).unwrap_or(char::REPLACEMENT_CHARACTER))
                .collect())
        }
        4 => {
            let bytes = memory.read_bytes(data, length * 4)?;
            let units = bytes
                .chunks_exact(4)
                .map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]));
            Ok(units
                .map(|unit| char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER))
                .collect())
        }
        _ => Err(NoCode::OtherType),
    }
}

/// Reads the contents of a bytes object.
fn read_bytes_object(memory: &impl ReadMemory, address: u64) -> Result<Vec<u8>, NoCode> {
    let length = memory.read_u64(address.wrapping_add(LENGTH))?;
    if length > LONGEST_TABLE {
        return Err(NoCode::TooLong);
    }
    let length = usize::try_from(length).map_err(|_| NoCode::TooLong)?;
    let data = address.wrapping_add(BYTES_DATA);
    Ok(memory.read_prefix(data, length)?)
}

fn word(head: &[u8; HEAD], at: u64) -> u64 {
    let at = usize::try_from(at).unwrap_or(usize::MAX - 8);
    head.get(at..at + 8).map_or(0, |bytes| {
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    })
}

fn int(head: &[u8; HEAD], at: u16) -> i32 {
    let at = usize::from(at);
    head.get(at..at + 4).map_or(0, |bytes| {
        i32::from_le_bytes(bytes.try_into().expect("four bytes"))
    })
}

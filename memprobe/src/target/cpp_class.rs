//! What class an object of C++ is of, by the type information that the compiler put beside its
//! virtual table: it needs no symbols and knows every library that is loaded.

use super::class_name;
use super::memory::ReadMemory;

/// Bytes of the longest class name that is read.
const LONGEST_NAME: usize = 512;

/// No table lies in the first pages, and each begins at a multiple of this.
pub const LOWEST: u64 = 0x1000;
/// As [`LOWEST`].
pub const ALIGNMENT: u64 = 8;

/// The type information beside a virtual table, and the name that it holds, as the compiler mangled it; `None`
/// where no table lies.
///
/// The word before the functions of a table points to the type information, whose second word points to the
/// name (Itanium C++ ABI, 2.5.2 and 2.9.5).
pub fn of_table(memory: &impl ReadMemory, table: u64) -> Option<(u64, String)> {
    if table < LOWEST || !table.is_multiple_of(ALIGNMENT) {
        return None;
    }
    let information = memory.read_u64(table - 8).ok()?;
    Some((information, name_of(memory, information)?))
}

/// The name that a type information holds.
pub fn name_of(memory: &impl ReadMemory, information: u64) -> Option<String> {
    let at = memory.read_u64(information.checked_add(8)?).ok()?;
    let name = text(memory, at, LONGEST_NAME)?;
    // A class that only one file knows is marked (`*`).
    let name = name.strip_prefix('*').unwrap_or(&name);
    class_name::is_mangled(name).then(|| name.to_owned())
}

/// The text at an address, which ends with a zero byte within `most` bytes.
pub fn text(memory: &impl ReadMemory, address: u64, most: usize) -> Option<String> {
    let mut bytes = Vec::new();
    while bytes.len() < most {
        // Up to the next multiple of the length: never beyond the page that the text ends in.
        let at = address.checked_add(bytes.len() as u64)?;
        let piece = memory.read_bytes(at, 32 - at % 32, 32).ok()?;
        let end = piece.iter().position(|byte| *byte == 0);
        bytes.extend_from_slice(&piece[..end.unwrap_or(piece.len())]);
        if end.is_some() {
            return String::from_utf8(bytes).ok();
        }
    }
    None
}

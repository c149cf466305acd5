//! The class of a C++ object, from the type information next to its virtual table. This needs no symbols and
//! covers every loaded library.

use super::class_name;
use super::memory::ReadMemory;

/// The longest class name that is read, in bytes.
const LONGEST_NAME: usize = 512;

/// The lowest plausible address of a virtual table: none lies in the first page.
pub const LOWEST: u64 = 0x1000;
pub const ALIGNMENT: u64 = 8;

/// Returns the address of the type information of a virtual table, and the mangled name in it; `None` if
/// there is no virtual table at `table`.
///
/// The word before the table's functions points to the type information, whose second word points to the name
/// (Itanium C++ ABI, 2.5.2 and 2.9.5).
pub fn of_table(memory: &impl ReadMemory, table: u64) -> Option<(u64, String)> {
    if table < LOWEST || !table.is_multiple_of(ALIGNMENT) {
        return None;
    }
    let information = memory.read_u64(table - 8).ok()?;
    Some((information, name_of(memory, information)?))
}

pub fn name_of(memory: &impl ReadMemory, information: u64) -> Option<String> {
    let at = memory.read_u64(information.checked_add(8)?).ok()?;
    let name = text(memory, at, LONGEST_NAME)?;
    // A leading `*` marks a class that is local to one translation unit.
    let name = name.strip_prefix('*').unwrap_or(&name);
    class_name::is_mangled(name).then(|| name.to_owned())
}

/// Returns the text at an address; `None` if no zero byte ends it within `most` bytes.
pub fn text(memory: &impl ReadMemory, address: u64, most: usize) -> Option<String> {
    let mut bytes = Vec::new();
    while bytes.len() < most {
        // Pieces end at multiples of 32 bytes, so that no read goes beyond the page in which the text ends.
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

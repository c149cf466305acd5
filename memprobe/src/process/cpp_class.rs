//! The class of a C++ object in any library, from the type information next to its virtual table.

use super::class_name;
use super::memory::ReadMemory;

const LONGEST_NAME: usize = 512;

/// The lowest plausible address of a virtual table: none lies in the first page.
pub const LOWEST: u64 = 0x1000;
pub const ALIGNMENT: u64 = 8;

/// Returns the address of a virtual table's type information, and the mangled name in it; `None` without.
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
    String::from_utf8(memory.read_c_string(address, most).ok()?).ok()
}

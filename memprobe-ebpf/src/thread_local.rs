//! Thread-local variables of libraries.

use memprobe_common::ThreadLocal;

use crate::python::thread_pointer;
use crate::read::user_word;

/// Where the current thread keeps a variable: the thread pointer's second word leads to a table with a
/// two-word entry for each library, the first being the address of its block ("ELF Handling For
/// Thread-Local Storage", x86-64; `dtv_t`, sysdeps/generic/dl-dtv.h in glibc). `None` where it has no block.
#[inline(always)]
pub fn find(place: &ThreadLocal) -> Option<u64> {
    const UNALLOCATED: u64 = u64::MAX;
    if place.module == 0 {
        return None;
    }
    let table = user_word(thread_pointer()? + 8)?;
    let block = user_word(table + 16 * (place.module & 0xffff))?;
    (block != 0 && block != UNALLOCATED).then_some(block + place.offset)
}

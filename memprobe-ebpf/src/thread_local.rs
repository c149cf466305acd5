//! Thread-local variables of libraries.

use aya_ebpf::helpers::bpf_get_current_task;
use memprobe_common::ThreadLocal;

use crate::maps::fsbase_offset;
use crate::read::{kernel_word, user_word};

/// The current thread's thread pointer.
#[inline(always)]
pub fn thread_pointer() -> Option<u64> {
    // SAFETY: takes no arguments.
    let task = unsafe { bpf_get_current_task() };
    kernel_word(task + fsbase_offset())
}

/// Address of a variable in the current thread; `None` if the thread has no block of that library.
///
/// The thread pointer's second word is the address of a table. It has an entry of two words for each library, the
/// first of which is the address of its block ("ELF Handling For Thread-Local Storage", x86-64; `dtv_t`,
/// sysdeps/generic/dl-dtv.h in glibc).
#[inline(always)]
pub fn find(variable: &ThreadLocal) -> Option<u64> {
    const UNALLOCATED: u64 = u64::MAX;
    if variable.module == 0 {
        return None;
    }
    let table = user_word(thread_pointer()? + 8)?;
    let block = user_word(table + 16 * (variable.module & 0xffff))?;
    (block != 0 && block != UNALLOCATED).then_some(block + variable.offset)
}

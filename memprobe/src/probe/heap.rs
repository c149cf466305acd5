//! Memory that attaching needed and nothing needs afterwards.

/// Gives freed memory of the heap back to the operating system.
///
/// The kernel's types take ten times the size of their file (5 MB) while they are read. glibc keeps
/// what was freed for itself, so that memprobe would show as that much larger for as long as it
/// runs.
pub fn give_back_freed() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number and touches only memory that was freed (malloc_trim(3)); it is safe in
    // a program with threads.
    unsafe {
        libc::malloc_trim(0);
    }
}

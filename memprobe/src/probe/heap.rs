//! Memory that attaching needed and nothing needs afterwards.

/// Gives freed memory of the heap back to the operating system.
///
/// Reading the kernel's types takes ten times the size of their file (5 MB). glibc keeps freed
/// memory, and memprobe would stay that much larger.
pub fn give_back_freed() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number and touches only memory that was freed (malloc_trim(3)); it is safe in
    // a program with threads.
    unsafe {
        libc::malloc_trim(0);
    }
}

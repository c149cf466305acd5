//! Words of the target's memory, and of the kernel's, one or a few at a time.
//!
//! Each is initialized before the helper writes it. The verifier assumes that a helper may not write a stack slot.
//! An uninitialized slot would then matter back to the program's start: the verifier would distinguish all paths that
//! leave different values there, and follow the walk once for each.

use aya_ebpf::helpers::generated::{bpf_probe_read_kernel, bpf_probe_read_user};

/// A word of user memory; `None` if it cannot be read.
#[inline(always)]
pub fn user_word(address: u64) -> Option<u64> {
    user_words(address).map(|[word]| word)
}

/// Words of user memory.
#[inline(always)]
pub fn user_words<const N: usize>(address: u64) -> Option<[u64; N]> {
    let mut words = [0; N];
    // SAFETY: so many bytes; the helper checks the address.
    let failed = unsafe {
        let into = (&raw mut words).cast();
        bpf_probe_read_user(into, size_of::<[u64; N]>() as u32, address as *const _)
    };
    (failed == 0).then_some(words)
}

/// The first `bytes` of a structure in user memory, up to 63, as words; zeroes if it cannot be read. The
/// mask alone shows the verifier that they fit; the compiler optimizes a comparison away.
#[inline(always)]
pub fn user_bytes(address: u64, bytes: u8) -> [u64; 8] {
    let mut words = [0; 8];
    // SAFETY: less than the bytes of `words`; the helper checks the address, and writes zeroes where it fails.
    unsafe {
        let into = (&raw mut words).cast();
        bpf_probe_read_user(into, u32::from(bytes) & 63, address as *const _);
    }
    words
}

/// A byte of user memory.
#[inline(always)]
pub fn user_byte(address: u64) -> Option<u8> {
    let mut word = 0u64;
    // SAFETY: a byte of it; the helper checks the address.
    let failed = unsafe { bpf_probe_read_user((&raw mut word).cast(), 1, address as *const _) };
    (failed == 0).then_some(word as u8)
}

/// A word of the kernel's memory.
#[inline(always)]
pub fn kernel_word(address: u64) -> Option<u64> {
    let mut word = 0u64;
    // SAFETY: its bytes; the helper checks the address.
    let failed = unsafe { bpf_probe_read_kernel((&raw mut word).cast(), 8, address as *const _) };
    (failed == 0).then_some(word)
}

//! Aids for the kernel's verifier.

use core::arch::asm;

use crate::state::Thread;

/// Returns the same number, with an unknown value for the verifier. The verifier then follows the rest of the
/// program once, instead of once for each value.
#[inline(always)]
pub fn hide(thread: &mut Thread, number: u64) -> u64 {
    // SAFETY: a field of a map value. Volatile, so that the number does go through the map.
    unsafe {
        (&raw mut thread.hidden).write_volatile(number);
        (&raw const thread.hidden).read_volatile()
    }
}

/// Makes the verifier compare its state here with earlier ones, and follow the program only once where they are
/// the same. The verifier records a state at a jump, if it has followed 20 others since the last time
/// (`is_state_visited`, kernel/bpf/verifier.c@v5.15 to @v6.18). These jumps lead nowhere: before the program runs they
/// are taken out (`opt_remove_nops`).
#[inline(always)]
pub fn checkpoint() {
    // SAFETY: does nothing.
    unsafe { asm!(".rept 20", "goto +0", ".endr", options(nomem, nostack)) };
}

//! Aids for the kernel's verifier.
//!
//! Programs with a walk are `#[inline(always)]`: the compiler otherwise leaves a program of more than some 3,000
//! instructions as a function that the program's entry calls. User space finds loops in the program alone
//! (`memprobe/src/probe/open_loops.rs`), and a program that other programs go on in has only half of the stack then.

use core::arch::asm;

use crate::state::Thread;

/// Leaves a loop if the kernel says so, which it does after millions of rounds. The verifier then follows the body until
/// a round adds nothing new, instead of all rounds (`may_goto`, Linux 6.9: `is_may_goto_insn_at`,
/// kernel/bpf/verifier.c@v6.9 to @v6.18). The jump is never taken as it stands here. User space replaces it by
/// `may_goto` on kernels that know it (`memprobe/src/probe/open_loops.rs`).
macro_rules! may_leave {
    () => {
        // SAFETY: a comparison of a number with another one, which leaves the loop or does nothing.
        unsafe {
            core::arch::asm!(
                "if {number} == {mark} goto {end}",
                number = in(reg) 0u64,
                mark = const memprobe_common::open_loop::MAY_LEAVE,
                end = label { break },
                options(nomem, nostack)
            )
        }
    };
}
pub(crate) use may_leave;

/// Returns the number of a round. In a loop with [`may_leave`] it must be unknown to the verifier, since rounds with
/// different numbers are never the same. In any other loop it must be known, or the loop has no end.
#[inline(always)]
pub fn round(thread: &mut Thread, number: usize) -> usize {
    if loops_are_open() {
        hide(thread, number as u64) as usize
    } else {
        number
    }
}

/// Returns whether user space has replaced the jumps of [`may_leave`].
#[inline(always)]
fn loops_are_open() -> bool {
    let mark: u64;
    // SAFETY: sets a register.
    unsafe {
        asm!(
            "{mark} = {closed}",
            mark = out(reg) mark,
            closed = const memprobe_common::open_loop::IS_CLOSED,
            options(pure, nomem, nostack)
        );
    }
    mark == 0
}

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

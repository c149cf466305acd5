//! Diagnostics for people, through aya-log: ignored events, unreadable stacks, dropped records.
//!
//! They are off unless user space sets `DIAGNOSTICS`. The verifier then finds this code unreachable and removes it.

use aya_log_ebpf::debug;
use memprobe_common::counter;

use crate::context::{Caller, now_ns};
use crate::maps::{DIAGNOSTIC_BUDGETS, diagnostics};
use crate::state::{Budget, diagnostic_kind as kind};

/// Lines of one kind in a second.
const MAX_PER_SECOND: u64 = 10;

/// Reports that an event was ignored, since the calling process is not watched.
#[inline(always)]
pub fn not_watched() {
    report(kind::NOT_WATCHED, 0);
}

/// Reports that a child of the calling process is not watched.
#[inline(always)]
pub fn child_not_watched() {
    report(kind::CHILD_NOT_WATCHED, 0);
}

/// Reports that the calling process has no Python that memprobe knows.
#[inline(always)]
pub fn unknown_python() {
    report(kind::UNKNOWN_PYTHON, 0);
}

/// Reports that the calling thread has no Python thread state.
#[inline(always)]
pub fn no_thread_state() {
    report(kind::NO_THREAD_STATE, 0);
}

/// Reports that memory of the interpreter could not be read, so that there is no stack.
#[inline(always)]
pub fn unreadable_stack() {
    report(kind::UNREADABLE_STACK, 0);
}

/// Reports that a stack ends early, at a frame that could not be read.
#[inline(always)]
pub fn unreadable_frame(frame: u64) {
    report(kind::UNREADABLE_FRAME, frame);
}

/// Reports an event that one of `memprobe_common::counter` counts.
#[inline(always)]
pub fn counted(index: u32) {
    report(index, 0);
}

#[inline(always)]
fn report(kind: u32, detail: u64) {
    if diagnostics() != 0 {
        log(kind, detail);
    }
}

/// Logs a line, if the kind has not had its share of this second.
#[inline(never)]
fn log(kind: u32, detail: u64) -> u64 {
    let Some(budget) = DIAGNOSTIC_BUDGETS.get_ptr_mut(kind) else {
        return 0;
    };
    let suppressed = match spend(budget) {
        Ok(suppressed) => suppressed,
        Err(Exhausted) => return 0,
    };
    let Caller { tgid, tid } = Caller::current();
    if suppressed != 0 {
        debug!(&(), "left out {} lines like the next", suppressed);
    }
    match kind {
        counter::EVENTS_LOST => {
            debug!(
                &(),
                "dropped a memory record of process {}: the ring buffer is full", tgid
            );
        }
        counter::STACKS_LOST => {
            debug!(
                &(),
                "dropped a stack or mark of process {}: the ring buffer is full", tgid
            );
        }
        counter::PROCESSES_LOST => {
            debug!(&(), "dropped the start or end of a process near {}", tgid);
        }
        counter::PROCESSES_REFUSED => {
            debug!(
                &(),
                "cannot watch another process, near {}: the map of processes is full", tgid
            );
        }
        counter::THREADS_REFUSED => {
            debug!(
                &(),
                "no memory for thread {} of process {}: the map of threads is full", tid, tgid
            );
        }
        counter::FAILURES_NOT_SENT => {
            debug!(
                &(),
                "left out a failed call of CUDA of process {}: it has too many", tgid
            );
        }
        kind::NOT_WATCHED => {
            debug!(
                &(),
                "ignored an event of process {}: it is not watched", tgid
            );
        }
        kind::CHILD_NOT_WATCHED => {
            debug!(
                &(),
                "does not watch a child of process {}: only the process was requested", tgid
            );
        }
        kind::NO_THREAD_STATE => {
            debug!(
                &(),
                "no Python stack of thread {}, process {}: it has no thread state", tid, tgid
            );
        }
        kind::UNREADABLE_STACK => {
            debug!(
                &(),
                "no Python stack of thread {}, process {}: the interpreter's memory cannot be read",
                tid,
                tgid
            );
        }
        kind::UNREADABLE_FRAME => {
            debug!(
                &(),
                "cut a Python stack of thread {}, process {}: cannot read the frame at {:x}",
                tid,
                tgid,
                detail
            );
        }
        kind::UNKNOWN_PYTHON => {
            debug!(
                &(),
                "no Python stack of thread {}, process {}: its Python is unknown", tid, tgid
            );
        }
        _ => {}
    }
    0
}

/// The kind has had its share of this second.
struct Exhausted;

/// Takes one line from a budget. Returns the number of lines that were refused in the last second with any.
#[inline(always)]
fn spend(budget: *mut Budget) -> Result<u64, Exhausted> {
    let second = now_ns() / 1_000_000_000;
    // SAFETY: a map value. Programs on other CPUs may change it in between: a few lines more or fewer.
    unsafe {
        if (*budget).second != second {
            let suppressed = (*budget).requested.saturating_sub(MAX_PER_SECOND);
            (*budget).second = second;
            (*budget).requested = 1;
            return Ok(suppressed);
        }
        (*budget).requested += 1;
        if (*budget).requested > MAX_PER_SECOND {
            return Err(Exhausted);
        }
    }
    Ok(0)
}

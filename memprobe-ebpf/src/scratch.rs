//! The scratch memory of the calling thread, with its state between events.

use memprobe_common::{ProcessConfig, counter};

use crate::context::Caller;
use crate::maps::{NEW_THREAD, THREADS};
use crate::ring::count;
use crate::state::Thread;

/// The calling thread's scratch memory, made on first use. Where no stack can be walked, none is made.
#[inline(always)]
pub fn for_walk(process: &ProcessConfig, caller: Caller) -> Option<&'static mut Thread> {
    match process.python.version {
        0 => existing(caller),
        _ => made(caller),
    }
}

/// The calling thread's scratch memory, if it has one. Only threads of watched processes do.
///
/// A program asks once: the reference is the only one.
#[inline(always)]
pub fn existing(caller: Caller) -> Option<&'static mut Thread> {
    // SAFETY: a map value. No other thread has this tid, and programs of one thread do not nest, so nobody else
    // uses it now.
    unsafe { THREADS.get_ptr_mut(&caller.tid)?.as_mut() }
}

/// The calling thread's scratch memory, made on first use.
#[inline(always)]
pub fn made(caller: Caller) -> Option<&'static mut Thread> {
    if let Some(thread) = existing(caller) {
        return Some(thread);
    }
    let new = NEW_THREAD.get_ptr(0)?;
    // SAFETY: a map value that nobody writes; the helper copies it.
    if THREADS.insert(&caller.tid, unsafe { &*new }, 0).is_err() {
        count(counter::THREADS_REFUSED);
    }
    existing(caller)
}

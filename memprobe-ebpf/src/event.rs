//! PyTorch's functions whose records carry a Python stack: one program for all of them. The cookie of the probe is the
//! kind of record to send.
//!
//! The verifier follows the walk of the stack anew in each program that has one. That is nearly all of its work, and
//! people wait for it at each start of memprobe.

use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memprobe_common::{ProcessConfig, process_flag, record};

use crate::context::{Caller, Entry as _, Registers as _};
use crate::process::watched;
use crate::python::{StackField, walk_in};
use crate::scratch;
use crate::state::Thread;
use crate::verifier::{checkpoint, hide};
use crate::{allocator, backward, cpu, mark, nodes};

/// A call of a probed function in a watched process.
pub struct Event<'a> {
    /// The registers at its entry.
    pub ctx: &'a ProbeContext,
    pub caller: Caller,
    pub process: &'a ProcessConfig,
    /// The thread's scratch memory. `None` where its stack cannot be walked.
    pub thread: Option<&'a mut Thread>,
    pub stack: StackField,
}

/// One of the functions is entered.
#[uprobe]
#[inline(always)]
pub fn event_with_stack(ctx: ProbeContext) -> u32 {
    let kind = ctx.cookie();
    if !is_relevant(kind, &ctx) {
        return 0;
    }
    let caller = Caller::current();
    let Some(process) = watched(caller) else {
        return 0;
    };
    if is(kind, record::CPU_BLOCK) && process.flags & process_flag::CPU == 0 {
        return 0;
    }
    let mut thread = scratch::for_walk(process, caller);
    // From here on the verifier follows the program once, instead of once for each kind.
    let kind = match thread.as_deref_mut() {
        Some(thread) => hide(thread, kind),
        None => kind,
    };
    checkpoint();
    let stack = walk_in(thread.as_deref_mut(), process, caller, ctx.stack_pointer());
    send(
        kind,
        Event {
            ctx: &ctx,
            caller,
            process,
            thread,
            stack,
        },
    );
    0
}

#[inline(always)]
fn is(cookie: u64, kind: u8) -> bool {
    cookie == u64::from(kind)
}

/// Returns whether a call can have a record, by its arguments.
#[inline(always)]
fn is_relevant(kind: u64, ctx: &ProbeContext) -> bool {
    if is(kind, record::OUT_OF_MEMORY) {
        allocator::is_cuda(ctx.argument(3))
    } else if is(kind, record::CPU_BLOCK) {
        cpu::has_bytes(ctx)
    } else if is(kind, record::MARK) {
        mark::is_reported(ctx)
    } else {
        true
    }
}

#[inline(always)]
fn send(kind: u64, event: Event<'_>) {
    if is(kind, record::BLOCK) {
        allocator::send_allocated(event);
    } else if is(kind, record::NODE_MADE) {
        nodes::send_made(event);
    } else if is(kind, record::CPU_BLOCK) {
        cpu::send_allocated(event);
    } else if is(kind, record::OUT_OF_MEMORY) {
        allocator::send_out_of_memory(event);
    } else if is(kind, record::BACKWARD) {
        backward::send_entered(event);
    } else if is(kind, record::MARK) {
        mark::send(event);
    }
}

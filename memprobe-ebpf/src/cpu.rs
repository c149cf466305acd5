//! PyTorch's CPU allocator, through the object by which it reports to the profiler.
//!
//! `DefaultCPUAllocator` calls it for every block, whether a profiler runs or not
//! (c10/core/CPUAllocator.cpp@v2.15.0).

use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memprobe_common::{DEVICE_TYPE_CPU, DEVICE_UNKNOWN, MemoryRecord, process_flag, record};

use crate::context::{Caller, Entry as _, Registers as _, now_ns};
use crate::evaluation::current_node;
use crate::event::Event;
use crate::process::watched;
use crate::ring::send_memory;
use crate::shape::send_with_shape;

/// Returns whether `void c10::ProfiledCPUMemoryReporter::New(void* ptr, size_t nbytes)` is called for a block with
/// bytes.
#[inline(always)]
pub fn has_bytes(ctx: &ProbeContext) -> bool {
    ctx.argument(2) as i64 > 0
}

/// Sends the record of a block that was handed out.
#[inline(always)]
pub fn send_allocated(event: Event<'_>) {
    let Event {
        ctx, stack, caller, ..
    } = event;
    let mut thread = event.thread;
    let node = current_node(
        event.process,
        caller,
        thread.as_deref_mut(),
        ctx.stack_pointer(),
    );
    let record = MemoryRecord {
        kind: record::CPU_BLOCK,
        device: DEVICE_UNKNOWN,
        stack_state: stack.state,
        tid: caller.tid,
        tgid: caller.tgid,
        node,
        time_ns: now_ns(),
        addr: ctx.argument(1),
        size: ctx.argument(2) as i64,
        stack: stack.word,
        ..MemoryRecord::default()
    };
    match thread {
        Some(thread) => send_with_shape(record, DEVICE_TYPE_CPU, thread),
        None => send_memory(record),
    }
}

/// `void c10::ProfiledCPUMemoryReporter::Delete(void* ptr)`: a block is taken back, and free after it.
#[uprobe]
pub fn cpu_delete(ctx: ProbeContext) -> u32 {
    let caller = Caller::current();
    let Some(process) = watched(caller) else {
        return 0;
    };
    if process.flags & process_flag::CPU == 0 {
        return 0;
    }
    send_memory(MemoryRecord {
        kind: record::CPU_FREE,
        device: DEVICE_UNKNOWN,
        tid: caller.tid,
        tgid: caller.tgid,
        time_ns: now_ns(),
        addr: ctx.argument(1),
        ..MemoryRecord::default()
    });
    0
}

//! PyTorch's caching allocator, through the functions by which it reports to the profiler.
//!
//! It calls them for every block that it hands out or takes back, under the lock of the device's
//! allocator, whether a profiler runs or not (c10/cuda/CUDACachingAllocator.cpp@v2.15.0):
//!
//! - `c10::reportMemoryUsageToProfiler(void* ptr, int64_t alloc_size, size_t total_allocated,
//!   size_t total_reserved, Device device)` for a block,
//! - `c10::reportOutOfMemoryToProfiler(int64_t alloc_size, size_t total_allocated, size_t total_reserved,
//!   Device device)` when it has none (c10/core/Allocator.cpp@v2.15.0).

use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memprobe_common::{DEVICE_TYPE_CUDA, MemoryRecord, counter, process_flag, record};

use crate::context::{Caller, Entry as _, Registers as _, now_ns};
use crate::evaluation::current_node;
use crate::event::Event;
use crate::maps::{EVENT_WITH_STACK, PROGRAMS};
use crate::process::watched;
use crate::ring::{count_loss, send_memory};
use crate::shape::{has_shape, send_with_shape};
use crate::stack::send_block;

/// Returns whether an argument of type `Device` is a CUDA device. It is two bytes, type and index; the bits
/// above may hold anything.
#[inline(always)]
pub fn is_cuda(device: u64) -> bool {
    device as u8 == DEVICE_TYPE_CUDA
}

/// `c10::reportMemoryUsageToProfiler` is entered. A block that was taken back needs no stack: its record is sent here,
/// without the larger program's look at the kind of its record.
#[uprobe]
pub fn report_memory_usage(ctx: ProbeContext) -> u32 {
    if !is_cuda(ctx.argument(4)) {
        return 0;
    }
    if ctx.argument(1) as i64 > 0 {
        // SAFETY: nothing is borrowed that would have to be dropped.
        unsafe { PROGRAMS.tail_call(&ctx, EVENT_WITH_STACK) };
        // It returns only where the array is empty.
        count_loss(counter::EVENTS_LOST);
        return 0;
    }
    let caller = Caller::current();
    if watched(caller).is_some() {
        send_memory(MemoryRecord {
            time_ns: now_ns(),
            ..block(&ctx, caller)
        });
    }
    0
}

/// Sends the record of a block that was handed out.
#[inline(always)]
pub fn send_allocated(event: Event<'_>) {
    let Event { ctx, stack, .. } = event;
    let (stack_pointer, frame_pointer) = (ctx.stack_pointer(), ctx.frame_pointer());
    let mut thread = event.thread;
    let node = current_node(
        event.process,
        event.caller,
        thread.as_deref_mut(),
        stack_pointer,
    );
    let record = MemoryRecord {
        stack_state: stack.state,
        stack: stack.word,
        node,
        time_ns: now_ns(),
        ..block(ctx, event.caller)
    };
    let wants_stack = event.process.flags & process_flag::BLOCK_STACKS != 0;
    match thread {
        Some(thread) if wants_stack && !has_shape(thread, DEVICE_TYPE_CUDA) => {
            if !send_block(record, stack_pointer, frame_pointer) {
                send_memory(record);
            }
        }
        Some(thread) => send_with_shape(record, DEVICE_TYPE_CUDA, thread),
        None => send_memory(record),
    }
}

/// The contents of a report about a block.
#[inline(always)]
fn block(ctx: &ProbeContext, caller: Caller) -> MemoryRecord {
    MemoryRecord {
        kind: record::BLOCK,
        device: (ctx.argument(4) >> 8) as u8,
        tid: caller.tid,
        tgid: caller.tgid,
        addr: ctx.argument(0),
        size: ctx.argument(1) as i64,
        allocated: ctx.argument(2),
        reserved: ctx.argument(3),
        ..MemoryRecord::default()
    }
}

/// Sends the record of a request for which there was no memory.
#[inline(always)]
pub fn send_out_of_memory(event: Event<'_>) {
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
        kind: record::OUT_OF_MEMORY,
        device: (ctx.argument(3) >> 8) as u8,
        stack_state: stack.state,
        tid: caller.tid,
        tgid: caller.tgid,
        node,
        time_ns: now_ns(),
        size: ctx.argument(0) as i64,
        allocated: ctx.argument(1),
        reserved: ctx.argument(2),
        stack: stack.word,
        ..MemoryRecord::default()
    };
    match thread {
        Some(thread) => send_with_shape(record, DEVICE_TYPE_CUDA, thread),
        None => send_memory(record),
    }
}

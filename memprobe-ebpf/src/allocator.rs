//! PyTorch's caching allocator, through the functions by which it reports to the profiler.
//!
//! It calls them for every block that it hands out or takes back, under the lock of the device's
//! allocator, whether a profiler runs or not (c10/cuda/CUDACachingAllocator.cpp@v2.15.0).

use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memprobe_common::{DEVICE_TYPE_CUDA, MemoryRecord, process_flag, record};

use crate::context::{Caller, Entry as _, Registers as _, now_ns};
use crate::evaluation::current_node;
use crate::process::watched;
use crate::python::walk_in;
use crate::ring::send_memory;
use crate::scratch;
use crate::shape::{has_shape, send_with_shape};
use crate::stack::send_block;

/// `c10::reportMemoryUsageToProfiler(void* ptr, int64_t alloc_size, size_t total_allocated,
/// size_t total_reserved, Device device)` (c10/core/Allocator.cpp@v2.15.0).
#[uprobe]
pub fn report_memory_usage(ctx: ProbeContext) -> u32 {
    // A Device is two bytes, type and index; the bits above may hold anything.
    let device = ctx.argument(4);
    if device as u8 != DEVICE_TYPE_CUDA {
        return 0;
    }
    let caller = Caller::current();
    let Some(process) = watched(caller) else {
        return 0;
    };
    let size = ctx.argument(1) as i64;
    let mut record = MemoryRecord {
        kind: record::BLOCK,
        device: (device >> 8) as u8,
        tid: caller.tid,
        tgid: caller.tgid,
        addr: ctx.argument(0),
        size,
        allocated: ctx.argument(2),
        reserved: ctx.argument(3),
        ..MemoryRecord::default()
    };
    if size <= 0 {
        record.time_ns = now_ns();
        send_memory(record);
        return 0;
    }
    let (stack_pointer, frame_pointer) = (ctx.stack_pointer(), ctx.frame_pointer());
    let mut thread = scratch::for_walk(process, caller);
    let stack = walk_in(thread.as_deref_mut(), process, caller, stack_pointer);
    (record.stack_state, record.stack) = (stack.state, stack.word);
    record.node = current_node(process, caller, thread.as_deref_mut(), stack_pointer);
    record.time_ns = now_ns();
    let wants_stack = process.flags & process_flag::BLOCK_STACKS != 0;
    match thread {
        Some(thread) if wants_stack && !has_shape(thread, DEVICE_TYPE_CUDA) => {
            if !send_block(record, stack_pointer, frame_pointer) {
                send_memory(record);
            }
        }
        Some(thread) => send_with_shape(record, DEVICE_TYPE_CUDA, thread),
        None => send_memory(record),
    }
    0
}

/// `c10::reportOutOfMemoryToProfiler(int64_t alloc_size, size_t total_allocated,
/// size_t total_reserved, Device device)` (c10/core/Allocator.cpp@v2.15.0).
#[uprobe]
pub fn report_out_of_memory(ctx: ProbeContext) -> u32 {
    let device = ctx.argument(3);
    if device as u8 != DEVICE_TYPE_CUDA {
        return 0;
    }
    let caller = Caller::current();
    let Some(process) = watched(caller) else {
        return 0;
    };
    let stack_pointer = ctx.stack_pointer();
    let mut thread = scratch::for_walk(process, caller);
    let stack = walk_in(thread.as_deref_mut(), process, caller, stack_pointer);
    let node = current_node(process, caller, thread.as_deref_mut(), stack_pointer);
    let record = MemoryRecord {
        kind: record::OUT_OF_MEMORY,
        device: (device >> 8) as u8,
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
    0
}

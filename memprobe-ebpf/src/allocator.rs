//! PyTorch's caching allocator, through the functions by which it reports to the profiler.
//!
//! It calls them for every block that it hands out or takes back, under the lock of the device's
//! allocator, whether a profiler runs or not (c10/cuda/CUDACachingAllocator.cpp@v2.15.0).

use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memprobe_common::{DEVICE_TYPE_CUDA, MemoryRecord, process_flag, record};

use crate::lifecycle::watched;
use crate::nodes::current_node;
use crate::python::{room, walk_in};
use crate::ring::send;
use crate::shape::{has_shape, send_with_shape};
use crate::stack::send_block;
use crate::thread::Caller;

/// `c10::reportMemoryUsageToProfiler(void* ptr, int64_t alloc_size, size_t total_allocated,
/// size_t total_reserved, Device device)` (c10/core/Allocator.cpp@v2.15.0).
#[uprobe]
pub fn report_memory_usage(ctx: ProbeContext) -> u32 {
    // A Device is two bytes, type and index; the bits above may hold anything.
    let device = ctx.arg::<u64>(4).unwrap_or(0);
    if device as u8 != DEVICE_TYPE_CUDA {
        return 0;
    }
    let caller = Caller::current();
    let Some(process) = watched(caller) else {
        return 0;
    };
    let size = ctx.arg::<u64>(1).unwrap_or(0) as i64;
    let mut record = MemoryRecord {
        kind: record::BLOCK,
        device: (device >> 8) as u8,
        tid: caller.tid,
        tgid: caller.tgid,
        addr: ctx.arg::<u64>(0).unwrap_or(0),
        size,
        allocated: ctx.arg::<u64>(2).unwrap_or(0),
        reserved: ctx.arg::<u64>(3).unwrap_or(0),
        ..MemoryRecord::default()
    };
    if size <= 0 {
        // SAFETY: takes no arguments.
        record.time_ns = unsafe { bpf_ktime_get_ns() };
        send(record);
        return 0;
    }
    // SAFETY: the context of a uprobe holds the registers.
    let (stack_pointer, frame_pointer) = unsafe { ((*ctx.regs).rsp, (*ctx.regs).rbp) };
    let room = room(process, caller);
    let stack = walk_in(room, process, caller, stack_pointer);
    (record.stack_state, record.stack) = (stack.state, stack.hash);
    record.node = current_node(process, caller, room, stack_pointer);
    // SAFETY: takes no arguments.
    record.time_ns = unsafe { bpf_ktime_get_ns() };
    let wants_stack = process.flags & process_flag::BLOCK_STACKS != 0;
    match room {
        Some(room) if wants_stack && !has_shape(room, DEVICE_TYPE_CUDA) => {
            if !send_block(record, stack_pointer, frame_pointer) {
                send(record);
            }
        }
        Some(room) => send_with_shape(record, DEVICE_TYPE_CUDA, room),
        None => send(record),
    }
    0
}

/// `c10::reportOutOfMemoryToProfiler(int64_t alloc_size, size_t total_allocated,
/// size_t total_reserved, Device device)` (c10/core/Allocator.cpp@v2.15.0).
#[uprobe]
pub fn report_out_of_memory(ctx: ProbeContext) -> u32 {
    let device = ctx.arg::<u64>(3).unwrap_or(0);
    if device as u8 != DEVICE_TYPE_CUDA {
        return 0;
    }
    let caller = Caller::current();
    let Some(process) = watched(caller) else {
        return 0;
    };
    let room = room(process, caller);
    // SAFETY: the context of a uprobe holds the registers.
    let stack_pointer = unsafe { (*ctx.regs).rsp };
    let stack = walk_in(room, process, caller, stack_pointer);
    let node = current_node(process, caller, room, stack_pointer);
    let record = MemoryRecord {
        kind: record::OUT_OF_MEMORY,
        device: (device >> 8) as u8,
        stack_state: stack.state,
        tid: caller.tid,
        tgid: caller.tgid,
        node,
        // SAFETY: takes no arguments.
        time_ns: unsafe { bpf_ktime_get_ns() },
        size: ctx.arg::<u64>(0).unwrap_or(0) as i64,
        allocated: ctx.arg::<u64>(1).unwrap_or(0),
        reserved: ctx.arg::<u64>(2).unwrap_or(0),
        stack: stack.hash,
        ..MemoryRecord::default()
    };
    match room {
        Some(room) => send_with_shape(record, DEVICE_TYPE_CUDA, room),
        None => send(record),
    }
    0
}

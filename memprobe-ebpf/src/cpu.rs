//! PyTorch's CPU allocator, through the object by which it reports to the profiler.
//!
//! `DefaultCPUAllocator` calls it for every block, whether a profiler runs or not
//! (c10/core/CPUAllocator.cpp@v2.15.0).

use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memprobe_common::{DEVICE_TYPE_CPU, DEVICE_UNKNOWN, MemoryRecord, process_flag, record};

use crate::lifecycle::watched;
use crate::nodes::current_node;
use crate::python::{room, walk_in};
use crate::ring::send;
use crate::shape::send_with_shape;
use crate::thread::Caller;

/// `void c10::ProfiledCPUMemoryReporter::New(void* ptr, size_t nbytes)`: a block was handed out.
#[uprobe]
pub fn cpu_new(ctx: ProbeContext) -> u32 {
    let size = ctx.arg::<u64>(2).unwrap_or(0) as i64;
    if size <= 0 {
        return 0;
    }
    let caller = Caller::current();
    let Some(process) = watched(caller) else {
        return 0;
    };
    if process.flags & process_flag::CPU == 0 {
        return 0;
    }
    let room = room(process, caller);
    // SAFETY: the context of a uprobe holds the registers.
    let stack_pointer = unsafe { (*ctx.regs).rsp };
    let stack = walk_in(room, process, caller, stack_pointer);
    let node = current_node(process, caller, room, stack_pointer);
    let record = MemoryRecord {
        kind: record::CPU_BLOCK,
        device: DEVICE_UNKNOWN,
        stack_state: stack.state,
        tid: caller.tid,
        tgid: caller.tgid,
        node,
        // SAFETY: takes no arguments.
        time_ns: unsafe { bpf_ktime_get_ns() },
        addr: ctx.arg::<u64>(1).unwrap_or(0),
        size,
        stack: stack.hash,
        ..MemoryRecord::default()
    };
    match room {
        Some(room) => send_with_shape(record, DEVICE_TYPE_CPU, room),
        None => send(record),
    }
    0
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
    send(MemoryRecord {
        kind: record::CPU_FREE,
        device: DEVICE_UNKNOWN,
        tid: caller.tid,
        tgid: caller.tgid,
        // SAFETY: takes no arguments.
        time_ns: unsafe { bpf_ktime_get_ns() },
        addr: ctx.arg::<u64>(1).unwrap_or(0),
        ..MemoryRecord::default()
    });
    0
}

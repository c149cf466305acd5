//! libcudart's `cudaMalloc` and `cudaFree`: the segments below the caching allocator. Rare next
//! to blocks, so an entry and a return probe each; only calls that succeed are told.

use aya_ebpf::helpers::{bpf_ktime_get_ns, bpf_probe_read_user};
use aya_ebpf::macros::{uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use memprobe_common::{DEVICE_UNKNOWN, MemoryRecord, counter, record};

use crate::lifecycle::watched;
use crate::python::{Walked, walk};
use crate::ring::{count, send};
use crate::thread::Caller;

/// `cudaError_t cudaMalloc(void **devPtr, size_t size)`.
#[uprobe]
pub fn cuda_malloc(ctx: ProbeContext) -> u32 {
    enter(
        ctx.arg::<u64>(0).unwrap_or(0),
        ctx.arg::<u64>(1).unwrap_or(0),
    )
}

/// `cudaError_t cudaFree(void *devPtr)`.
#[uprobe]
pub fn cuda_free(ctx: ProbeContext) -> u32 {
    enter(ctx.arg::<u64>(0).unwrap_or(0), 0)
}

/// Keeps the arguments for the return probe.
#[inline(always)]
fn enter(pointer: u64, size: u64) -> u32 {
    let caller = Caller::current();
    if watched(caller).is_none() {
        return 0;
    }
    let Some(thread) = caller.thread() else {
        count(counter::EVENTS_LOST);
        return 0;
    };
    // SAFETY: a map value; no other thread has this tid, so nobody else uses it now.
    let call = unsafe { &mut (*thread).call };
    call.pointer = pointer;
    call.size = size;
    0
}

/// `cudaMalloc` returns.
#[uretprobe]
pub fn cuda_malloc_return(ctx: RetProbeContext) -> u32 {
    let Some((pointer, size)) = succeeded(&ctx) else {
        return 0;
    };
    // SAFETY: the helper checks the address.
    let addr = match unsafe { bpf_probe_read_user(pointer as *const u64) } {
        // Nothing was asked for.
        Ok(0) => return 0,
        Ok(addr) => addr,
        Err(_) => {
            count(counter::EVENTS_LOST);
            return 0;
        }
    };
    let caller = Caller::current();
    let Some(process) = watched(caller) else {
        return 0;
    };
    // SAFETY: the context of a uprobe holds the registers.
    let stack = walk(process, caller, unsafe { (*ctx.regs).rsp });
    tell(record::SEGMENT_ALLOC, caller, addr, size, stack)
}

/// `cudaFree` returns.
#[uretprobe]
pub fn cuda_free_return(ctx: RetProbeContext) -> u32 {
    let Some((pointer, _)) = succeeded(&ctx) else {
        return 0;
    };
    if pointer == 0 {
        return 0;
    }
    tell(
        record::SEGMENT_FREE,
        Caller::current(),
        pointer,
        0,
        Walked::NONE,
    )
}

/// What [`enter`] kept, if the call succeeded (`cudaSuccess` is 0).
#[inline(always)]
fn succeeded(ctx: &RetProbeContext) -> Option<(u64, u64)> {
    let thread = Caller::current().thread()?;
    // SAFETY: a map value; no other thread has this tid, so nobody else uses it now.
    let call = unsafe { &mut (*thread).call };
    let kept = (call.pointer, call.size);
    call.pointer = 0;
    call.size = 0;
    (ctx.ret::<u64>() as u32 == 0 && kept.0 != 0).then_some(kept)
}

/// Sends a segment record. libcudart's calls do not say their device; user space learns it from
/// the blocks that lie in the segment.
#[inline(always)]
fn tell(kind: u8, caller: Caller, addr: u64, size: u64, stack: Walked) -> u32 {
    send(MemoryRecord {
        kind,
        device: DEVICE_UNKNOWN,
        stack_state: stack.state,
        tid: caller.tid,
        tgid: caller.tgid,
        // SAFETY: takes no arguments.
        time_ns: unsafe { bpf_ktime_get_ns() },
        addr,
        size: size as i64,
        stack: stack.hash,
        ..MemoryRecord::default()
    });
    0
}

//! Autograd's engine: which thread waits in `backward()` while the engine's own threads, which
//! run no Python, allocate for it. A `GraphTask` links the two.

use aya_ebpf::helpers::{bpf_ktime_get_ns, bpf_probe_read_user};
use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memprobe_common::{DEVICE_UNKNOWN, MemoryRecord, ProcessConfig, record};

use crate::lifecycle::watched;
use crate::python::{thread_pointer, walk};
use crate::ring::send;
use crate::thread::{Caller, Thread};

/// `intrusive_ptr<Future> torch::autograd::Engine::execute_with_graph_task(const
/// shared_ptr<GraphTask>& graph_task, …)`: the calling thread stays inside until the backward pass
/// is done (torch/csrc/autograd/engine.cpp@v2.15.0). The result's address is the hidden first
/// argument, the engine the second.
#[uprobe]
pub fn engine_execute(ctx: ProbeContext) -> u32 {
    let caller = Caller::current();
    let Some(process) = watched(caller) else {
        return 0;
    };
    let graph_task = ctx.arg::<u64>(2).unwrap_or(0) as *const u64;
    // SAFETY: the context of a uprobe holds the registers.
    let stack = walk(process, caller, unsafe { (*ctx.regs).rsp });
    send(MemoryRecord {
        kind: record::BACKWARD,
        device: DEVICE_UNKNOWN,
        stack_state: stack.state,
        tid: caller.tid,
        tgid: caller.tgid,
        // SAFETY: takes no arguments.
        time_ns: unsafe { bpf_ktime_get_ns() },
        // SAFETY: the helper checks the address. A shared_ptr begins with its pointer.
        addr: unsafe { bpf_probe_read_user(graph_task) }.unwrap_or(0),
        stack: stack.hash,
        ..MemoryRecord::default()
    });
    0
}

/// The `GraphTask` that the current thread works for, from the engine's thread-local
/// `current_graph_task`; 0 where that is not known.
#[inline(always)]
pub fn current_graph_task(process: &ProcessConfig, thread: &mut Thread) -> u64 {
    if thread.graph_task == 0 {
        thread.graph_task = find_graph_task(process).unwrap_or(0);
    }
    if thread.graph_task == 0 {
        return 0;
    }
    // SAFETY: the helper checks the address. A shared_ptr begins with its pointer.
    unsafe { bpf_probe_read_user(thread.graph_task as *const u64) }.unwrap_or(0)
}

/// Where the current thread keeps `current_graph_task`: the thread pointer's second word leads to
/// a table with a two-word entry for each library, the first being the address of its block
/// ("ELF Handling For Thread-Local Storage", x86-64; `dtv_t`, sysdeps/generic/dl-dtv.h in glibc).
#[inline(always)]
fn find_graph_task(process: &ProcessConfig) -> Option<u64> {
    const UNALLOCATED: u64 = u64::MAX;
    let place = &process.graph_task;
    if place.module == 0 {
        return None;
    }
    // SAFETY: the helper checks the addresses.
    unsafe {
        let table = bpf_probe_read_user((thread_pointer()? + 8) as *const u64).ok()?;
        let entry = table + 16 * (place.module & 0xffff);
        let block = bpf_probe_read_user(entry as *const u64).ok()?;
        (block != 0 && block != UNALLOCATED).then_some(block + place.offset)
    }
}

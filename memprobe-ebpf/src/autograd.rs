//! Autograd's engine: which thread waits in `backward()` while the engine's own threads, which
//! run no Python, allocate for it. A `GraphTask` links the two.

use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memprobe_common::{DEVICE_UNKNOWN, MemoryRecord, ProcessConfig, grad_bit, grad_mode, record};

use crate::lifecycle::watched;
use crate::python::walk;
use crate::read::{user_byte, user_word};
use crate::ring::send;
use crate::thread::{Caller, Thread};
use crate::thread_local;

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
    let graph_task = ctx.arg::<u64>(2).unwrap_or(0);
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
        // A shared_ptr begins with its pointer.
        addr: user_word(graph_task).unwrap_or(0),
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
        thread.graph_task = thread_local::find(&process.graph_task).unwrap_or(0);
    }
    if thread.graph_task == 0 {
        return 0;
    }
    // A shared_ptr begins with its pointer.
    user_word(thread.graph_task).unwrap_or(0)
}

/// One of `grad_mode`: what `torch.is_grad_enabled()` and `torch.is_inference_mode_enabled()` say on the
/// current thread.
#[inline(always)]
pub fn grad(process: &ProcessConfig, thread: &mut Thread) -> u8 {
    if thread.autograd_state == 0 {
        thread.autograd_state = thread_local::find(&process.autograd_state).unwrap_or(0);
    }
    if thread.autograd_state == 0 {
        return grad_mode::UNKNOWN;
    }
    match user_byte(thread.autograd_state) {
        None => grad_mode::UNKNOWN,
        Some(modes) if modes & grad_bit::INFERENCE != 0 => grad_mode::INFERENCE,
        Some(modes) if modes == 0 || modes & grad_bit::GRAD != 0 => grad_mode::ENABLED,
        Some(_) => grad_mode::DISABLED,
    }
}

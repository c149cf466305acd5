//! Autograd's engine: which thread waits in `backward()` while the engine's own threads, which
//! run no Python, allocate for it.

use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memprobe_common::{DEVICE_UNKNOWN, MemoryRecord, record};

use crate::maps::PROCESSES;
use crate::python::walk;
use crate::ring::send;
use crate::thread::Caller;

/// `torch::autograd::Engine::execute(...)`: the calling thread stays inside until the backward
/// pass is done (torch/csrc/autograd/engine.cpp@v2.15.0).
#[uprobe]
pub fn engine_execute(ctx: ProbeContext) -> u32 {
    let caller = Caller::current();
    // SAFETY: user space changes an entry only before its process is probed.
    let Some(process) = (unsafe { PROCESSES.get(&caller.tgid) }) else {
        return 0;
    };
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
        stack: stack.hash,
        ..MemoryRecord::default()
    });
    0
}

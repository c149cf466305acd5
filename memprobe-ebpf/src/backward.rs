//! Entries into autograd's engine: the thread that waits in `backward()` while the engine's own threads, which
//! run no Python, allocate for it. A `GraphTask` links the two.

use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memprobe_common::{DEVICE_UNKNOWN, MemoryRecord, record};

use crate::context::{Caller, Entry as _, Registers as _, now_ns};
use crate::process::watched;
use crate::python::walk;
use crate::read::user_word;
use crate::ring::send_memory;

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
    let graph_task = ctx.argument(2);
    let stack = walk(process, caller, ctx.stack_pointer());
    send_memory(MemoryRecord {
        kind: record::BACKWARD,
        device: DEVICE_UNKNOWN,
        stack_state: stack.state,
        tid: caller.tid,
        tgid: caller.tgid,
        time_ns: now_ns(),
        // A shared_ptr begins with its pointer.
        addr: user_word(graph_task).unwrap_or(0),
        stack: stack.word,
        ..MemoryRecord::default()
    });
    0
}

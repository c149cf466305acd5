//! Entries into autograd's engine: the thread that waits in `backward()` while the engine's own threads, which
//! run no Python, allocate for it. A `GraphTask` links the two.

use memprobe_common::{DEVICE_UNKNOWN, MemoryRecord, record};

use crate::context::{Entry as _, now_ns};
use crate::event::Event;
use crate::read::user_word;
use crate::ring::send_memory;

/// Sends the record of `intrusive_ptr<Future> torch::autograd::Engine::execute_with_graph_task(const
/// shared_ptr<GraphTask>& graph_task, …)`: the calling thread stays inside until the backward pass
/// is done (torch/csrc/autograd/engine.cpp@v2.15.0). The result's address is the hidden first
/// argument, the engine the second.
#[inline(always)]
pub fn send_entered(event: Event<'_>) {
    // A shared_ptr begins with its pointer.
    let graph_task = user_word(event.ctx.argument(2)).unwrap_or(0);
    send_memory(MemoryRecord {
        kind: record::BACKWARD,
        device: DEVICE_UNKNOWN,
        stack_state: event.stack.state,
        tid: event.caller.tid,
        tgid: event.caller.tgid,
        time_ns: now_ns(),
        addr: graph_task,
        stack: event.stack.word,
        ..MemoryRecord::default()
    });
}

//! Autograd's graph: the nodes that the forward pass makes, and those that the engine evaluates.

use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memprobe_common::{NodeMadeRecord, counter, record};

use crate::context::{Caller, Entry as _, Registers as _};
use crate::evaluation::{begin, count_made, identify};
use crate::event::Event;
use crate::process::watched;
use crate::read::user_word;
use crate::ring::{count_loss, send};
use crate::scratch;
use crate::state::MadeNode;

/// `void torch::autograd::Engine::evaluate_function(shared_ptr<GraphTask>& graph_task, Node* func, …)`
/// (torch/csrc/autograd/engine.cpp@v2.15.0).
#[uprobe]
pub fn evaluate_function(ctx: ProbeContext) -> u32 {
    let caller = Caller::current();
    let thread = match scratch::existing(caller) {
        Some(thread) => thread,
        None => {
            let Some(thread) =
                watched(caller).and_then(|process| scratch::for_walk(process, caller))
            else {
                return 0;
            };
            thread
        }
    };
    // A shared_ptr begins with its pointer.
    let graph_task = user_word(ctx.argument(1)).unwrap_or(0);
    let evaluation = begin(&mut thread.evaluations, ctx.stack_pointer());
    evaluation.node = ctx.argument(2);
    evaluation.graph_task = graph_task;
    0
}

/// Sends the record of `void torch::autograd::impl::set_gradient_edge(const Variable& self, Edge edge)`
/// (torch/csrc/autograd/variable.cpp@v2.15.0): an operation names the node of its result. In-place operations
/// call it too (`rebase_history`). An `Edge` is passed by address and begins with the pointer to its
/// node.
#[inline(always)]
pub fn send_made(event: Event<'_>) {
    let Event { stack, caller, .. } = event;
    let node = user_word(event.ctx.argument(1)).unwrap_or(0);
    let Some(thread) = event.thread.filter(|_| node != 0) else {
        return;
    };
    let [_, identity] = identify(node);
    let made = MadeNode {
        node,
        identity,
        stack: stack.word,
    };
    // An operation with several results calls it for each.
    if thread.evaluations.made == made {
        return;
    }
    count_made(node);
    let record = NodeMadeRecord {
        kind: record::NODE_MADE,
        stack_state: stack.state,
        pad: 0,
        tid: caller.tid,
        tgid: caller.tgid,
        pad2: 0,
        node,
        identity,
        stack: stack.word,
    };
    if !send(record) {
        count_loss(counter::STACKS_LOST);
        return;
    }
    thread.evaluations.made = made;
}

//! The node of autograd's graph that a thread evaluates when it asks for memory.
//!
//! The engine keeps it in a thread-local variable (`current_evaluating_node`, torch/csrc/autograd/function.cpp@v2.15.0
//! and @v2.0.1), which an event reads. `NodeGuard` sets the variable around all of `Engine::evaluate_function`, in
//! the engine's loop that calls it (`Engine::thread_main`, torch/csrc/autograd/engine.cpp). After it, it restores the
//! outer node.
//!
//! Evaluations without `NodeGuard` are probed, and so is every evaluation of a library in which the variable was not
//! found. Their end is not probed. A probed evaluation goes on if two things hold: it
//! began further out on the thread's stack, and the thread works for the same `GraphTask` as then.
//! The engine sets that in a thread-local variable only during an evaluation (`GraphTaskGuard` in
//! `Engine::thread_main`, and in `DistEngine`, torch/csrc/distributed/autograd/engine/dist_engine.cpp@v2.15.0). Of
//! several evaluations the last one counts: a node may run another backward pass (`torch.utils.checkpoint`).

use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use memprobe_common::{NodeEnteredRecord, PYTHON_OBJECTS, ProcessConfig, counter, record};

use crate::autograd::{current_graph_task, evaluating_node};
use crate::context::Caller;
use crate::maps::{NODES_MADE, RECORDS, node_slot};
use crate::python::mix;
use crate::read::{user_word, user_words};
use crate::ring::{add_one, count_loss};
use crate::state::{Evaluation, Evaluations, MAX_EVALUATIONS, SentNode, Thread};
use crate::verifier;

/// Begins a probed evaluation. The caller sets its node and its `GraphTask`.
#[inline(always)]
pub fn begin(evaluations: &mut Evaluations, stack_pointer: u64) -> &mut Evaluation {
    let mut depth = 0;
    for at in 0..MAX_EVALUATIONS - 1 {
        if at as u64 >= evaluations.depth || evaluations.nested[at].stack_pointer <= stack_pointer {
            break;
        }
        depth = at + 1;
    }
    evaluations.depth = depth as u64 + 1;
    let evaluation = &mut evaluations.nested[depth & (MAX_EVALUATIONS - 1)];
    evaluation.stack_pointer = stack_pointer;
    evaluation
}

/// The number of the node that the current thread evaluates, sent before its first use; 0 if it evaluates
/// none, or that is unknown.
#[inline(always)]
pub fn current_node(
    process: &ProcessConfig,
    caller: Caller,
    thread: Option<&mut Thread>,
    stack_pointer: u64,
) -> u32 {
    let Some(thread) = thread else {
        return 0;
    };
    let mut node = probed_node(process, thread, stack_pointer);
    if node == 0 {
        node = evaluating_node(process, thread);
    }
    let node = verifier::hide(thread, node);
    let number = number_of(caller, node, &mut thread.evaluations.sent);
    verifier::hide(thread, number.into()) as u32
}

/// The node of the innermost probed evaluation that goes on; 0 if there is none.
#[inline(always)]
fn probed_node(process: &ProcessConfig, thread: &mut Thread, stack_pointer: u64) -> u64 {
    if thread.evaluations.depth == 0 {
        return 0;
    }
    let graph_task = current_graph_task(process, thread);
    if graph_task == 0 {
        return 0;
    }
    let evaluations = &thread.evaluations;
    let mut node = 0;
    for at in 0..MAX_EVALUATIONS {
        let evaluation = &evaluations.nested[at];
        if at as u64 >= evaluations.depth {
            break;
        }
        if evaluation.graph_task == graph_task && evaluation.stack_pointer > stack_pointer {
            node = evaluation.node;
        }
    }
    node
}

/// The number of a node among those that its thread has sent; 0 for no node.
///
/// Addresses are reused. A node is the one that was sent if it has the same identity, and no node was made at its
/// address since.
#[inline(always)]
fn number_of(caller: Caller, node: u64, sent: &mut SentNode) -> u32 {
    if node == 0 {
        return 0;
    }
    let [table, identity] = identify(node);
    let made = match NODES_MADE.get_ptr(node_slot(node)) {
        // SAFETY: a map value; volatile, as other CPUs count it up.
        Some(made) => unsafe { made.read_volatile() },
        None => 0,
    };
    if sent.number != 0 && sent.node == node && sent.identity == identity && sent.made == made {
        return sent.number;
    }
    let number = match sent.number.wrapping_add(1) {
        0 => 1,
        number => number,
    };
    if !send(caller, number, node, [table, identity]) {
        count_loss(counter::STACKS_LOST);
        return 0;
    }
    *sent = SentNode {
        node,
        identity,
        made,
        number,
        pad: 0,
    };
    number
}

/// Counts a node that the forward pass has made.
#[inline(always)]
pub fn count_made(node: u64) {
    if let Some(made) = NODES_MADE.get_ptr_mut(node_slot(node)) {
        add_one(made);
    }
}

/// Sends the node that a thread evaluates.
#[inline(always)]
fn send(caller: Caller, number: u32, node: u64, [table, identity]: [u64; 2]) -> bool {
    let Some(mut entry) = RECORDS.reserve::<NodeEnteredRecord>(0) else {
        return false;
    };
    entry.write(NodeEnteredRecord {
        kind: record::NODE_ENTERED,
        pad: [0; 3],
        tid: caller.tid,
        tgid: caller.tgid,
        number,
        node,
        identity,
        table,
        python_types: PYTHON_OBJECTS.map(|offset| python_type(node, offset)),
    });
    entry.submit(u64::from(BPF_RB_NO_WAKEUP));
    true
}

/// The virtual table of a node, and an identity that no later node at its address has. The node's number
/// (`sequence_nr_`) is the third word from PyTorch 2.13 on, the fourth before. The other of the two does not
/// change either once the operation is done. Zeroes if it cannot be read.
#[inline(always)]
pub fn identify(node: u64) -> [u64; 2] {
    match user_words(node) {
        Some([table, _, third, fourth]) => [table, mix(mix(table, third), fourth)],
        None => [0; 2],
    }
}

/// The type of the Python object that a node points to at `offset`; 0 if there is none.
#[inline(always)]
fn python_type(node: u64, offset: u64) -> u64 {
    /// `PyObject.ob_type` (Include/object.h).
    const TYPE: u64 = 8;
    let object = user_word(node.wrapping_add(offset)).unwrap_or(0);
    if object < 4096 || object % 8 != 0 {
        return 0;
    }
    user_word(object.wrapping_add(TYPE)).unwrap_or(0)
}

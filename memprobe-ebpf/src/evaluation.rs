//! The node of autograd's graph that a thread of the engine evaluates when it asks for memory.
//!
//! The end of an evaluation is not probed. An evaluation goes on if two things hold: it
//! began further out on the thread's stack, and the thread works for the same `GraphTask` as then.
//! The engine sets that in a thread-local variable only during an evaluation
//! (torch/csrc/autograd/engine.cpp@v2.15.0, `GraphTaskGuard` in `Engine::thread_main`). Of several evaluations the
//! last one counts: a node may run another backward pass (`torch.utils.checkpoint`).

use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use memprobe_common::{NodeEnteredRecord, PYTHON_OBJECTS, ProcessConfig, counter, record};

use crate::autograd::current_graph_task;
use crate::context::Caller;
use crate::maps::RECORDS;
use crate::python::mix;
use crate::read::{user_word, user_words};
use crate::ring::count_loss;
use crate::state::{Evaluation, Evaluations, MAX_EVALUATIONS, Thread};
use crate::verifier;

/// Begins an evaluation. The caller sets its node and its `GraphTask`.
#[inline(always)]
pub fn begin(evaluations: &mut Evaluations, stack_pointer: u64) -> &mut Evaluation {
    let mut depth = 0;
    for at in 0..MAX_EVALUATIONS - 1 {
        if at as u64 >= evaluations.depth || evaluations.nested[at].stack_pointer <= stack_pointer {
            break;
        }
        depth = at + 1;
    }
    evaluations.begun = match evaluations.begun.wrapping_add(1) {
        0 => 1,
        begun => begun,
    };
    evaluations.depth = depth as u64 + 1;
    let evaluation = &mut evaluations.nested[depth & (MAX_EVALUATIONS - 1)];
    evaluation.stack_pointer = stack_pointer;
    evaluation.number = evaluations.begun;
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
    let number = current_number(process, caller, thread, stack_pointer);
    verifier::hide(thread, number.into()) as u32
}

#[inline(always)]
fn current_number(
    process: &ProcessConfig,
    caller: Caller,
    thread: &mut Thread,
    stack_pointer: u64,
) -> u32 {
    if thread.evaluations.depth == 0 {
        return 0;
    }
    let graph_task = current_graph_task(process, thread);
    if graph_task == 0 {
        return 0;
    }
    let evaluations = &mut thread.evaluations;
    let (mut node, mut number) = (0, 0);
    for at in 0..MAX_EVALUATIONS {
        let evaluation = &evaluations.nested[at];
        if at as u64 >= evaluations.depth {
            break;
        }
        if evaluation.graph_task == graph_task && evaluation.stack_pointer > stack_pointer {
            node = evaluation.node;
            number = evaluation.number;
        }
    }
    if number != 0 && number != evaluations.sent {
        if !send(caller, node, number) {
            count_loss(counter::STACKS_LOST);
            return 0;
        }
        evaluations.sent = number;
    }
    number
}

/// Sends the node that a thread evaluates.
#[inline(always)]
fn send(caller: Caller, node: u64, number: u32) -> bool {
    let Some(mut entry) = RECORDS.reserve::<NodeEnteredRecord>(0) else {
        return false;
    };
    let [table, identity] = identify(node);
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

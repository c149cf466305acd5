//! Autograd's graph: which operation of the forward pass made a node, and which node a thread of the
//! engine evaluates when it asks for memory.
//!
//! The end of an evaluation is not probed. A node is being evaluated where two things hold: its
//! evaluation began further out on the thread's stack, and the thread works for the `GraphTask` that it
//! began for, which the engine says in a thread-local variable only while it evaluates
//! (torch/csrc/autograd/engine.cpp@v2.15.0, `GraphTaskGuard` in `Engine::thread_main`). Of several the last
//! one is meant: a node may run another backward pass (`torch.utils.checkpoint`).

use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use aya_ebpf::macros::uprobe;
use aya_ebpf::programs::ProbeContext;
use memprobe_common::{
    NodeEnteredRecord, NodeMadeRecord, PYTHON_OBJECTS, ProcessConfig, counter, record,
};

use crate::autograd::current_graph_task;
use crate::lifecycle::watched;
use crate::maps::RECORDS;
use crate::python::{mix, room, through_map, walk_in};
use crate::read::{user_word, user_words};
use crate::ring::lose;
use crate::thread::{Caller, Thread};

/// How many evaluations within one another are told apart; of those further in, the innermost.
const DEEPEST: usize = 8;

/// What a thread evaluates.
#[repr(C)]
pub struct Nodes {
    /// Outermost first; what is behind `depth` is over.
    inside: [Entered; DEEPEST],
    depth: u64,
    /// How many evaluations this thread has begun.
    begun: u32,
    /// The number of the one that was told last.
    told: u32,
    /// What the last [`NodeMadeRecord`] of this thread said.
    made: [u64; 3],
}

/// An evaluation that was seen beginning.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entered {
    node: u64,
    /// Where the thread's stack pointer stood.
    stack_pointer: u64,
    /// Whose node it is.
    graph_task: u64,
    /// Which of this thread's it is, counted from 1; never 0.
    number: u32,
    pad: u32,
}

/// `void torch::autograd::Engine::evaluate_function(shared_ptr<GraphTask>& graph_task, Node* func, …)`
/// (torch/csrc/autograd/engine.cpp@v2.15.0).
#[uprobe]
pub fn evaluate_function(ctx: ProbeContext) -> u32 {
    let caller = Caller::current();
    let room = match caller.known_thread() {
        // Only threads of watched processes have rooms.
        Some(room) => room,
        None => {
            let Some(room) = watched(caller).and_then(|process| room(process, caller)) else {
                return 0;
            };
            room
        }
    };
    // SAFETY: a map value; no other thread has this tid, so nobody else uses it now.
    let nodes = unsafe { &mut (*room).nodes };
    let graph_task = ctx.arg::<u64>(1).unwrap_or(0);
    // A shared_ptr begins with its pointer.
    let graph_task = user_word(graph_task).unwrap_or(0);
    // SAFETY: the context of a uprobe holds the registers.
    let stack_pointer = unsafe { (*ctx.regs).rsp };
    let mut depth = 0;
    for at in 0..DEEPEST - 1 {
        if at as u64 >= nodes.depth || nodes.inside[at].stack_pointer <= stack_pointer {
            break;
        }
        depth = at + 1;
    }
    nodes.begun = match nodes.begun.wrapping_add(1) {
        0 => 1,
        begun => begun,
    };
    nodes.depth = depth as u64 + 1;
    nodes.inside[depth & (DEEPEST - 1)] = Entered {
        node: ctx.arg::<u64>(2).unwrap_or(0),
        stack_pointer,
        graph_task,
        number: nodes.begun,
        pad: 0,
    };
    0
}

/// The number of the node that the current thread evaluates, told before its first use; 0 where it evaluates
/// none, or that is not known.
#[inline(always)]
pub fn current_node(
    process: &ProcessConfig,
    caller: Caller,
    room: Option<*mut Thread>,
    stack_pointer: u64,
) -> u32 {
    let Some(room) = room else {
        return 0;
    };
    // SAFETY: a map value; no other thread has this tid, so nobody else uses it now.
    let thread = unsafe { &mut *room };
    let number = current_number(process, caller, thread, stack_pointer);
    through_map(thread, number.into()) as u32
}

#[inline(always)]
fn current_number(
    process: &ProcessConfig,
    caller: Caller,
    thread: &mut Thread,
    stack_pointer: u64,
) -> u32 {
    if thread.nodes.depth == 0 {
        return 0;
    }
    let graph_task = current_graph_task(process, thread);
    if graph_task == 0 {
        return 0;
    }
    let nodes = &mut thread.nodes;
    let (mut node, mut number) = (0, 0);
    for at in 0..DEEPEST {
        let entered = &nodes.inside[at];
        if at as u64 >= nodes.depth {
            break;
        }
        if entered.graph_task == graph_task && entered.stack_pointer > stack_pointer {
            node = entered.node;
            number = entered.number;
        }
    }
    if number != 0 && number != nodes.told {
        if !tell(caller, node, number) {
            lose(counter::STACKS_LOST);
            return 0;
        }
        nodes.told = number;
    }
    number
}

/// Says which node a thread evaluates.
#[inline(always)]
fn tell(caller: Caller, node: u64, number: u32) -> bool {
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

/// The virtual table of a node, and what tells it from every other one that may lie at its address: its number
/// (`sequence_nr_`) is the third word from PyTorch 2.13 on, the fourth before, and the other of the two does not
/// change either once the operation is done. Zeroes where it cannot be read.
#[inline(always)]
fn identify(node: u64) -> [u64; 2] {
    match user_words(node) {
        Some([table, _, third, fourth]) => [table, mix(mix(table, third), fourth)],
        None => [0; 2],
    }
}

/// The type of the Python object to which `offset` of a node leads; 0 where it leads to nothing.
#[inline(always)]
fn python_type(node: u64, offset: u64) -> u64 {
    /// Where an object has its type (Include/object.h).
    const TYPE: u64 = 8;
    let object = user_word(node.wrapping_add(offset)).unwrap_or(0);
    if object < 4096 || object % 8 != 0 {
        return 0;
    }
    user_word(object.wrapping_add(TYPE)).unwrap_or(0)
}

/// `void torch::autograd::impl::set_gradient_edge(const Variable& self, Edge edge)`
/// (torch/csrc/autograd/variable.cpp@v2.15.0): an operation says which node its result comes from. Those in
/// place come here too (`rebase_history`). An `Edge` comes by address and begins with the pointer to its
/// node.
#[uprobe]
pub fn set_gradient_edge(ctx: ProbeContext) -> u32 {
    let caller = Caller::current();
    let Some(process) = watched(caller) else {
        return 0;
    };
    let edge = ctx.arg::<u64>(1).unwrap_or(0);
    let node = user_word(edge).unwrap_or(0);
    let Some(room) = room(process, caller).filter(|_| node != 0) else {
        return 0;
    };
    let [_, identity] = identify(node);
    // SAFETY: the context of a uprobe holds the registers.
    let stack = walk_in(Some(room), process, caller, unsafe { (*ctx.regs).rsp });
    // SAFETY: a map value; no other thread has this tid, so nobody else uses it now.
    let nodes = unsafe { &mut (*room).nodes };
    let made = [node, identity, stack.hash];
    // An operation with several results comes here for each.
    if nodes.made == made {
        return 0;
    }
    let Some(mut entry) = RECORDS.reserve::<NodeMadeRecord>(0) else {
        lose(counter::STACKS_LOST);
        return 0;
    };
    entry.write(NodeMadeRecord {
        kind: record::NODE_MADE,
        stack_state: stack.state,
        pad: 0,
        tid: caller.tid,
        tgid: caller.tgid,
        pad2: 0,
        node,
        identity,
        stack: stack.hash,
    });
    entry.submit(u64::from(BPF_RB_NO_WAKEUP));
    nodes.made = made;
    0
}

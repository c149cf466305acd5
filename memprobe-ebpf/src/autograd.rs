//! Autograd's state of the current thread: its modes, the `GraphTask` that it works for, the node that it evaluates.

use aya_ebpf::helpers::generated::bpf_probe_read_user as read_user_raw;
use memprobe_common::{ProcessConfig, grad_bit, grad_mode};

use crate::read::{user_byte, user_word};
use crate::state::Thread;
use crate::thread_local;
use crate::verifier::hide;

/// The distances in bytes between the engine's variables at which one read gives both, as a mask. They are 40 bytes apart
/// in 2.15.0.
const NEAR: u64 = 0x1f8;

/// The `GraphTask` that the current thread works for, from the engine's thread-local
/// `current_graph_task`; 0 if it is unknown.
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

/// Returns what [`current_graph_task`] does, and keeps the node that the thread evaluates for [`evaluating_node`].
/// Both variables lie in the thread-local storage of one library: mostly a single read gives both.
#[inline(always)]
pub fn read_engine_state(process: &ProcessConfig, thread: &mut Thread) -> u64 {
    let (task, node) = (thread.graph_task, thread.evaluating_node);
    let first = task.min(node);
    let distance = task.max(node) - first;
    if first == 0 || distance & !NEAR != 0 {
        return current_graph_task(process, thread);
    }
    let distance = hide(thread, distance) & NEAR;
    let words = thread.windows.as_mut_ptr();
    // SAFETY: the mask keeps both words within the windows, which are free where no frame is read.
    let [low, high] = unsafe {
        if read_user_raw(words.cast(), distance as u32 + 8, first as *const _) != 0 {
            return 0;
        }
        let words = words.cast::<u64>();
        [words.read(), words.byte_add(distance as usize).read()]
    };
    // A pointer to either begins with the address.
    let (task, node) = if first == task {
        (low, high)
    } else {
        (high, low)
    };
    thread.node = node | Thread::NODE_READ;
    task
}

/// The node that the current thread evaluates, from the thread-local `current_evaluating_node`; 0 if it evaluates none,
/// or that is unknown.
#[inline(always)]
pub fn evaluating_node(process: &ProcessConfig, thread: &mut Thread) -> u64 {
    if thread.node & Thread::NODE_READ != 0 {
        return thread.node & !Thread::NODE_READ;
    }
    if thread.evaluating_node == 0 {
        thread.evaluating_node = thread_local::find(&process.evaluating_node).unwrap_or(0);
    }
    if thread.evaluating_node == 0 {
        return 0;
    }
    // A shared_ptr begins with its pointer; an intrusive_ptr, from 2.13 on, is no more than it.
    user_word(thread.evaluating_node).unwrap_or(0)
}

/// One of `grad_mode`: the answers of `torch.is_grad_enabled()` and `torch.is_inference_mode_enabled()` on the
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

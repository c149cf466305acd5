//! The threads of an interpreter and the frames on their stacks, read while they run.

use super::layout::PythonLayout;
use super::text::field;
use crate::target::memory::{Cause, ReadMemory, Unreadable};

/// The most threads that are followed.
const MAX_THREADS: usize = 16_384;

/// The most frames that are followed on one stack. Python's own limit is 1,000 unless a program
/// raises it (`sys.setrecursionlimit`).
const MAX_FRAMES: usize = 100_000;

/// One `PyThreadState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadState {
    /// Its address.
    pub address: u64,
    /// `pthread_self()` of the thread; 0 where no thread has taken the state yet.
    pub thread_id: u64,
    /// `gettid()` of the thread as the target's own PID namespace numbers it; renewed in the child
    /// of a fork (`PyOS_AfterFork_Child` in `Modules/posixmodule.c`@v3.11.7, v3.12.1).
    pub native_thread_id: u64,
}

/// One `_PyInterpreterFrame`, as the kernel side records it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawFrame {
    /// Address of the frame.
    pub address: u64,
    /// Address of its code object.
    pub code: u64,
    /// Address of its instruction.
    pub instr: u64,
    /// Who owns it (`enum _frameowner`).
    pub owner: u8,
}

/// The frames of one thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameChain {
    /// Innermost first.
    pub frames: Vec<RawFrame>,
    /// There are more than memprobe follows.
    pub truncated: bool,
}

/// The thread states of the interpreter at `interpreter`, newest first.
///
/// # Errors
/// [`Unreadable`], also where the list has no end or a state belongs to another interpreter, as a
/// list that changes while it is read may look: try again.
pub fn thread_states(
    memory: &impl ReadMemory,
    layout: &PythonLayout,
    interpreter: u64,
) -> Result<Vec<ThreadState>, Unreadable> {
    let thread = &layout.thread;
    let size = usize::from(
        thread
            .native_thread_id
            .max(thread.thread_id)
            .max(thread.next)
            .max(thread.interpreter),
    ) + 8;
    let mut head = vec![0; size];
    let mut states = Vec::new();
    let mut address =
        memory.read_u64(interpreter.wrapping_add(layout.interpreter.threads.into()))?;
    while address != 0 {
        let strange = Unreadable {
            address,
            cause: Cause::NotAsExpected,
        };
        if states.len() == MAX_THREADS {
            return Err(strange);
        }
        memory.read(address, &mut head)?;
        if u64::from_le_bytes(field(&head, thread.interpreter)) != interpreter {
            return Err(strange);
        }
        states.push(ThreadState {
            address,
            thread_id: u64::from_le_bytes(field(&head, thread.thread_id)),
            native_thread_id: u64::from_le_bytes(field(&head, thread.native_thread_id)),
        });
        address = u64::from_le_bytes(field(&head, thread.next));
    }
    Ok(states)
}

/// The frames on the stack of a thread, without regard to what they run.
///
/// # Errors
/// [`Unreadable`], as the stack of a running thread may be at any moment: try again.
pub fn frames(
    memory: &impl ReadMemory,
    layout: &PythonLayout,
    thread_state: u64,
) -> Result<FrameChain, Unreadable> {
    let mut chain = FrameChain::default();
    let Some(mut address) = top_frame(memory, layout, thread_state)? else {
        return Ok(chain);
    };
    let frame = &layout.frame;
    let size = usize::from(
        frame
            .code
            .max(frame.previous)
            .max(frame.instr)
            .max(frame.owner),
    ) + 8;
    let mut head = vec![0; size];
    while address != 0 {
        if chain.frames.len() == MAX_FRAMES {
            chain.truncated = true;
            break;
        }
        memory.read(address, &mut head)?;
        chain.frames.push(RawFrame {
            address,
            code: u64::from_le_bytes(field(&head, frame.code)),
            instr: u64::from_le_bytes(field(&head, frame.instr)),
            owner: head[usize::from(frame.owner)],
        });
        address = u64::from_le_bytes(field(&head, frame.previous));
    }
    Ok(chain)
}

/// The innermost frame of a thread; `None` where it runs no Python.
fn top_frame(
    memory: &impl ReadMemory,
    layout: &PythonLayout,
    thread_state: u64,
) -> Result<Option<u64>, Unreadable> {
    let holder = memory.read_u64(thread_state.wrapping_add(layout.thread.frame.into()))?;
    let top = match layout.thread.cframe_current {
        Some(current) if holder != 0 => memory.read_u64(holder.wrapping_add(current.into()))?,
        Some(_) | None => holder,
    };
    Ok((top != 0).then_some(top))
}

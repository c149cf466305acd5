//! The threads of an interpreter and the frames on their stacks, read while they run.

use super::layout::PythonLayout;
use super::text::field;
use crate::process::memory::{Cause, ReadMemory, ReadResult};

const MAX_THREADS: usize = 16_384;

/// The most frames followed on one stack. Python's own limit is 1,000 (`sys.setrecursionlimit`).
const MAX_FRAMES: usize = 100_000;

/// The bits of a frame's code pointer that are tags (`Py_TAG_BITS` in
/// `Include/internal/pycore_stackref.h`@v3.14.10). An address has none of them in any version.
const MARKS: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadState {
    pub address: u64,
    /// `pthread_self()` of the thread; 0 before a thread has taken the state.
    pub thread_id: u64,
    /// `gettid()` of the thread in the target's own PID namespace; updated in the child of a fork
    /// (`PyOS_AfterFork_Child` in `Modules/posixmodule.c`@v3.11.7, v3.12.1). 0 if unknown.
    pub native_thread_id: u64,
}

/// One frame, with the fields that the kernel programs record too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawFrame {
    pub address: u64,
    pub code: u64,
    /// The frame's instruction, in the form of [`super::layout::Instructions`].
    pub instr: u64,
    /// The owner (`enum _frameowner`); 0 if frames have none.
    pub owner: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameChain {
    /// Innermost first.
    pub frames: Vec<RawFrame>,
    pub truncated: bool,
}

/// Returns the thread states of the interpreter at `interpreter`, newest first.
/// Fails with [`Unreadable`] also if the list has no end or holds a state of another interpreter, as a list that
/// changes meanwhile may: try again.
pub fn thread_states(
    memory: &impl ReadMemory,
    layout: &PythonLayout,
    interpreter: u64,
) -> ReadResult<Vec<ThreadState>> {
    let thread = &layout.thread;
    let ids = thread.thread_id.max(thread.native_thread_id.unwrap_or(0));
    let last = ids.max(thread.next).max(thread.interpreter);
    let mut head = vec![0; usize::from(last) + 8];
    let mut states = Vec::new();
    let mut address =
        memory.read_u64(interpreter.wrapping_add(layout.interpreter_threads.into()))?;
    while address != 0 {
        let strange = Cause::NotAsExpected.at(address);
        if states.len() == MAX_THREADS {
            return Err(strange);
        }
        memory.read(address, &mut head)?;
        if u64::from_le_bytes(field(&head, thread.interpreter)) != interpreter {
            return Err(strange);
        }
        let thread_id = u64::from_le_bytes(field(&head, thread.thread_id));
        let native_thread_id = match thread.native_thread_id {
            Some(offset) => u64::from_le_bytes(field(&head, offset)),
            None => tid_from_glibc(memory, thread_id),
        };
        states.push(ThreadState {
            address,
            thread_id,
            native_thread_id,
        });
        address = u64::from_le_bytes(field(&head, thread.next));
    }
    Ok(states)
}

/// Returns `gettid()` of a thread from glibc's own copy (`struct pthread.tid` in `nptl/descr.h`; x86-64, the
/// same from 2.27 to 2.43), which is updated in the child of a fork; 0 if the thread is gone.
fn tid_from_glibc(memory: &impl ReadMemory, thread_id: u64) -> u64 {
    const TID: u64 = 0x2d0;
    let tid = memory.read_u32(thread_id.wrapping_add(TID));
    tid.unwrap_or(0).into()
}

impl PythonLayout {
    /// Returns the frames on the stack of a thread, including those that run no Python.
    /// Fails with [`Unreadable`], which the stack of a running thread may cause at any moment: try again.
    pub fn frames(&self, memory: &impl ReadMemory, thread: u64) -> ReadResult<FrameChain> {
        let mut chain = FrameChain::default();
        let mut address = self.top_frame(memory, thread)?.unwrap_or(0);
        while address != 0 {
            if chain.frames.len() == MAX_FRAMES {
                chain.truncated = true;
                break;
            }
            let (frame, previous) = self.frame_at(memory, address)?;
            chain.frames.push(frame);
            address = previous;
        }
        Ok(chain)
    }

    /// Returns one frame, and the address of its caller's frame; 0 without a caller.
    pub fn frame_at(&self, memory: &impl ReadMemory, at: u64) -> ReadResult<(RawFrame, u64)> {
        let layout = &self.frame;
        let mut head = vec![0; usize::from(layout.size())];
        memory.read(at, &mut head)?;
        let word = |offset| u64::from_le_bytes(field(&head, offset));
        let frame = RawFrame {
            address: at,
            code: word(layout.code) & !MARKS,
            instr: word(layout.instr),
            owner: layout.owner.map_or(0, |owner| head[usize::from(owner)]),
        };
        Ok((frame, word(layout.previous)))
    }

    /// Returns the innermost frame of a thread; `None` if it runs no Python.
    fn top_frame(&self, memory: &impl ReadMemory, thread: u64) -> ReadResult<Option<u64>> {
        let layout = &self.thread;
        let holder = memory.read_u64(thread.wrapping_add(layout.frame.into()))?;
        let top = match layout.cframe_current {
            Some(current) if holder != 0 => memory.read_u64(holder.wrapping_add(current.into()))?,
            Some(_) | None => holder,
        };
        if let Some(base) = layout.base_frame
            && memory.read_u64(thread.wrapping_add(base.into()))? == top
        {
            return Ok(None);
        }
        Ok((top != 0).then_some(top))
    }
}

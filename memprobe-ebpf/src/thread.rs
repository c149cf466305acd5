//! What is known of a thread between its events.

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use memprobe_common::{FRAME_HEADER, ShapeRecord, StackRecord, counter};

use crate::maps::{NEW_THREAD, THREADS};
use crate::nodes::Nodes;
use crate::ring::count;

/// Bytes of one window into the target's memory. Up to this size a read costs the same whatever
/// its size, so one read of a window serves all the frames that lie in it.
pub const WINDOW: usize = 2048;

/// How many of a thread's sent stacks are remembered with it: of a large model each line has as many as the
/// model has layers.
pub const SENT: usize = 1024;

/// What is known of a thread, and its room to work in.
#[repr(C)]
pub struct Thread {
    /// Its `PyThreadState`, or 0.
    pub state: u64,
    /// The `thread_id` that this thread state had when it was found.
    pub thread_id: u64,
    /// The word at `PythonConfig::ts_identity` that it had.
    pub identity: u64,
    /// Stacks of this thread that were sent, each at the place that its hash's low bits say, by its high
    /// bits: saves a look-up in the map of all.
    pub sent: [u32; SENT],
    /// The tensor that it has begun to make and that has no memory yet.
    pub shape: ShapeRecord,
    /// Where it keeps the `GraphTask` that it works for, or 0.
    pub graph_task: u64,
    /// The nodes of autograd's graph that it evaluates.
    pub nodes: Nodes,
    /// Where it keeps autograd's modes, or 0.
    pub autograd_state: u64,
    /// The address that the first window was read from, or `NO_WINDOW`.
    pub data_window: u64,
    /// The address that the second window was read from, or `NO_WINDOW`. Both are kept here rather
    /// than in registers because the verifier takes what lies in a map for unknown, and then need
    /// not follow each combination of known and unknown through the loop.
    pub c_window: u64,
    /// The address that the window was read from in which frames are looked for first, or `NO_WINDOW`.
    pub window: u64,
    /// The address whose place `windows` begins with, where the frame's window is meant.
    pub origin: u64,
    /// A number on its way to be one of which the verifier knows nothing, for the same reason.
    pub passing: u64,
    /// Two windows (frames on the data stack, frames on the C stack), and room behind them for
    /// the widest field of a frame at the very end.
    pub windows: [u8; 2 * WINDOW + 2 * FRAME_HEADER],
    /// The stack being built.
    pub stack: StackRecord,
}

/// The calling process and thread.
#[derive(Clone, Copy)]
pub struct Caller {
    /// The process.
    pub tgid: u32,
    /// The thread.
    pub tid: u32,
}

impl Caller {
    /// Who is running now.
    #[inline(always)]
    pub fn current() -> Self {
        let id = bpf_get_current_pid_tgid();
        Self {
            tgid: (id >> 32) as u32,
            tid: id as u32,
        }
    }

    /// This thread's room, if it has one.
    #[inline(always)]
    pub fn known_thread(self) -> Option<*mut Thread> {
        THREADS.get_ptr_mut(&self.tid)
    }

    /// This thread's room, made on first use.
    #[inline(always)]
    pub fn thread(self) -> Option<*mut Thread> {
        if let Some(thread) = self.known_thread() {
            return Some(thread);
        }
        let new = NEW_THREAD.get_ptr(0)?;
        // SAFETY: a map value that nobody writes; the helper copies it.
        if THREADS.insert(&self.tid, unsafe { &*new }, 0).is_err() {
            count(counter::THREADS_REFUSED);
        }
        self.known_thread()
    }
}

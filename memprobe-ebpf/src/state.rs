//! The structures behind the maps.

use memprobe_common::{CudaRecord, FRAME_HEADER, ShapeRecord, StackRecord, counter};

/// Most bytes of the window into the interpreter's data stack. It ends with the header of the frame that it was read
/// for: callers lie at lower addresses. One read serves all the frames in it.
pub const DATA_WINDOW: usize = 4096;

/// Bytes of the window into the C stack. Few frames lie there, and a longer window may reach beyond the stack's end.
pub const C_WINDOW: usize = 2048;

/// Sent stacks that are remembered with a thread: of a large model each line has as many as the
/// model has layers.
pub const SENT: usize = 1024;

/// Most nested evaluations that a thread keeps apart; of deeper ones it keeps only the innermost.
pub const MAX_EVALUATIONS: usize = 8;

/// State of a thread between its events, and its scratch memory.
#[repr(C)]
pub struct Thread {
    /// Its `PyThreadState`, or 0.
    pub state: u64,
    /// The `thread_id` that this thread state had when it was found.
    pub thread_id: u64,
    /// The word at `PythonConfig::ts_identity` that it had.
    pub identity: u64,
    /// Stacks of this thread that were sent: each in the slot of its hash's low bits, by its high
    /// bits. Saves a look-up in the map of all.
    pub sent: [u32; SENT],
    /// The tensor that it has begun to make and that has no memory yet.
    pub shape: ShapeRecord,
    /// Address of its variable with the `GraphTask` that it works for, or 0.
    pub graph_task: u64,
    /// Address of its variable with the node that it evaluates, or 0.
    pub evaluating_node: u64,
    /// The node that it evaluates, with [`Self::NODE_READ`], if the walk of its stack in this event has read it; else 0.
    pub node: u64,
    /// Its evaluations of nodes of autograd's graph.
    pub evaluations: Evaluations,
    /// Address of its variable with autograd's modes, or 0.
    pub autograd_state: u64,
    /// The address that the first window was read from, or `NO_WINDOW`.
    pub data_window: u64,
    /// The last offset in the first window at which a frame's header may begin.
    pub last_in_data: u64,
    /// The address that the second window was read from, or `NO_WINDOW`. Both are kept here rather
    /// than in registers because the verifier takes what lies in a map for unknown, and then need
    /// not follow each combination of known and unknown through the loop.
    pub c_window: u64,
    /// The address of the window in which frames are looked for first, or `NO_WINDOW`.
    pub window: u64,
    /// The last offset in that window at which a frame's header may begin.
    pub last: u64,
    /// The address that corresponds to the start of `windows`, for the frame's window.
    pub origin: u64,
    /// The lowest page of a chunk of the interpreter's data stack that this thread's frames were read from, or 0.
    pub lowest_page: u64,
    /// The last frame that the walk could not read, or 0. Only for diagnostics.
    pub unreadable_frame: u64,
    /// Slot for `verifier::hide`.
    pub hidden: u64,
    /// Two windows (frames on the data stack, frames on the C stack), and space behind them for
    /// the widest field of a frame at the very end.
    pub windows: [u8; DATA_WINDOW + C_WINDOW + 2 * FRAME_HEADER],
    /// The stack being built.
    pub stack: StackRecord,
}

impl Thread {
    /// A bit that no address of a node has.
    pub const NODE_READ: u64 = 1;
}

/// Evaluations of nodes of autograd's graph by a thread.
#[repr(C)]
pub struct Evaluations {
    /// Evaluations whose start was probed, outermost first; entries from `depth` on are over.
    pub nested: [Evaluation; MAX_EVALUATIONS],
    /// Probed evaluations that go on.
    pub depth: u64,
    /// The last node that this thread sent.
    pub sent: SentNode,
    /// The contents of this thread's last `NodeMadeRecord`.
    pub made: MadeNode,
}

/// An evaluation whose start was seen.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Evaluation {
    /// The node.
    pub node: u64,
    /// The thread's stack pointer at the start.
    pub stack_pointer: u64,
    /// The node's `GraphTask`.
    pub graph_task: u64,
}

/// A node that was sent with its first event on a thread.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SentNode {
    /// The node.
    pub node: u64,
    /// `NodeEnteredRecord::identity`.
    pub identity: u64,
    /// The count of `maps::NODES_MADE` for its address by then.
    pub made: u64,
    /// `NodeEnteredRecord::number`; 0 before the first.
    pub number: u32,
    /// Zero.
    pub pad: u32,
}

/// A node that the forward pass made.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MadeNode {
    /// The node.
    pub node: u64,
    /// `NodeMadeRecord::identity`.
    pub identity: u64,
    /// Hash of the stack that made it.
    pub stack: u64,
}

/// Kinds of diagnostics. The first ones are those of `memprobe_common::counter`.
pub mod diagnostic_kind {
    use super::counter;

    pub const NOT_WATCHED: u32 = counter::COUNT;
    pub const CHILD_NOT_WATCHED: u32 = counter::COUNT + 1;
    pub const UNKNOWN_PYTHON: u32 = counter::COUNT + 2;
    pub const NO_THREAD_STATE: u32 = counter::COUNT + 3;
    pub const UNREADABLE_STACK: u32 = counter::COUNT + 4;
    pub const UNREADABLE_FRAME: u32 = counter::COUNT + 5;
    /// Number of kinds.
    pub const COUNT: u32 = counter::COUNT + 6;
}

/// Messages in a second: lines of one kind of diagnostic, or failed calls of a process.
#[repr(C)]
pub struct Budget {
    /// The second of `CLOCK_MONOTONIC`.
    pub second: u64,
    /// Messages that were requested in it.
    pub requested: u64,
}

/// A call into CUDA that has not returned yet: the outermost of its thread.
#[repr(C)]
pub struct PendingCall {
    /// The stack pointer at its entry, where its return address lies.
    pub stack_pointer: u64,
    /// The record as far as it is known.
    pub record: CudaRecord,
}

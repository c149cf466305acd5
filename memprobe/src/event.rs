//! The seam of memprobe: plain data that flows from the probes (or a recording) to the model.
//!
//! Live and replay differ only in where the stream of [`Event`]s comes from. Nothing here does
//! I/O, reads a clock or knows an interpreter.

use std::fmt;
use std::sync::Arc;

/// A process as the kernel's initial PID namespace numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Tgid(pub u32);

/// A thread as the kernel's initial PID namespace numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Tid(pub u32);

/// Nanoseconds of the kernel's monotonic clock (`bpf_ktime_get_ns`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct TimeNs(pub u64);

/// An address in device memory, as the allocator hands it out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Address(pub u64);

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Bytes(pub u64);

/// A CUDA device ordinal as the target sees it (after `CUDA_VISIBLE_DEVICES`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DeviceIndex(pub u8);

/// Names an interned [`Stack`]. Defined by an [`Event::Stack`] before its first use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StackId(pub u32);

impl Tid {
    /// The thread of what memprobe found: nobody knows who allocated it.
    pub const UNKNOWN: Self = Self(0);
}

impl StackId {
    /// The stack of events that carry none (frees, blocks from before attach).
    pub const NONE: Self = Self(0);
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// One step of the stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Defines a stack. Comes before the first event that names it.
    Stack(StackId, Arc<Stack>),
    /// Names a thread (its `comm`). Comes before the thread's first memory event.
    Thread(Tid, Arc<str>),
    /// What an allocator held when memprobe attached. Comes before all memory events of its device.
    AtAttach(AtAttach),
    /// Something happened to memory.
    Memory(MemoryEvent),
    /// The running totals of what was lost, after a loss was noticed.
    Loss(Losses),
}

/// What happened to memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// The caching allocator handed out a block.
    Alloc,
    /// The caching allocator took a block back.
    Free,
    /// libcudart gave out memory (`cudaMalloc`): a segment where the caching allocator asked.
    SegmentAlloc,
    /// libcudart took memory back (`cudaFree`).
    SegmentFree,
    /// The caching allocator gave up: an out-of-memory error follows in the target.
    OutOfMemory,
    /// Nothing happened: the block was live when memprobe attached, by the allocator's own tables.
    Held,
}

impl Action {
    /// The word used in recordings and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::Free => "free",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::OutOfMemory => "oom",
            Self::Held => "held",
        }
    }

    /// The action that [`Self::as_str`] wrote.
    pub fn parse(word: &str) -> Option<Self> {
        [
            Self::Alloc,
            Self::Free,
            Self::SegmentAlloc,
            Self::SegmentFree,
            Self::OutOfMemory,
            Self::Held,
        ]
        .into_iter()
        .find(|action| action.as_str() == word)
    }
}

/// One event of the allocator or of libcudart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEvent {
    /// When it happened.
    pub time: TimeNs,
    /// The process.
    pub tgid: Tgid,
    /// The thread that called; [`Tid::UNKNOWN`] for [`Action::Held`].
    pub tid: Tid,
    /// What happened.
    pub action: Action,
    /// The block or segment; 0 for an out-of-memory event.
    pub addr: Address,
    /// Bytes of the block (rounded by the allocator), of the segment (0 where a freed segment was
    /// not seen before), or of the request that failed.
    pub size: Bytes,
    /// The device; `None` where it cannot be known (a segment that no block lies in).
    pub device: Option<DeviceIndex>,
    /// The allocator's own totals on that device after this event; `None` for segments, which the
    /// allocator does not report.
    pub totals: Option<Totals>,
    /// Where it was asked for; [`StackId::NONE`] for frees.
    pub stack: StackId,
}

/// What the caching allocator held on one device when memprobe attached. The blocks that are known
/// follow as [`Action::Held`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtAttach {
    /// When memprobe attached, or the time of the first event, whichever was first.
    pub time: TimeNs,
    /// The process.
    pub tgid: Tgid,
    /// The device; `None` where nothing is known but why.
    pub device: Option<DeviceIndex>,
    /// The allocator's own totals before the first event.
    pub totals: Totals,
    /// The highest totals before, by the allocator's own statistics where they could be read
    /// (`torch.cuda.max_memory_allocated()`); else as `totals`.
    pub peak: Totals,
    /// Why the single blocks are not known; `None` where they are.
    pub unread: Option<Arc<str>>,
}

/// The caching allocator's own totals on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Totals {
    /// `torch.cuda.memory_allocated()`.
    pub allocated: Bytes,
    /// `torch.cuda.memory_reserved()`.
    pub reserved: Bytes,
}

impl Totals {
    /// The higher of each total.
    pub fn higher(self, other: Self) -> Self {
        Self {
            allocated: self.allocated.max(other.allocated),
            reserved: self.reserved.max(other.reserved),
        }
    }
}

/// One line of Python on a stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// `co_filename`.
    pub file: Arc<str>,
    /// The line being executed; 0 where the code object has none for this instruction.
    pub line: u32,
    /// `co_name`.
    pub function: Arc<str>,
}

/// A stack and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stack {
    /// Whose stack it is.
    pub kind: StackKind,
    /// Innermost first. Empty for [`StackKind::Unknown`].
    pub frames: Vec<Frame>,
    /// There were more outer frames than could be kept.
    pub truncated: bool,
}

/// Whose stack it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StackKind {
    /// The Python stack of the thread that called.
    Python,
    /// The thread that called runs no Python (autograd); the frames are those of the thread that
    /// waits for it in `backward()`.
    Waiting {
        /// The name of the thread that called.
        thread: Arc<str>,
    },
    /// There is no stack, and this is why.
    Unknown {
        /// The name of the thread that called.
        thread: Arc<str>,
        /// Why.
        reason: NoStack,
    },
}

/// Why an event has no stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoStack {
    /// The thread has never run Python.
    NoPythonThread,
    /// The thread belongs to Python but runs no Python now, and nobody is known to wait for it.
    NoPythonFrames,
    /// Several threads wait in `backward()` and it is not known for which one this thread works.
    SeveralWaiting,
    /// The stack could not be read in the kernel.
    Unreadable,
    /// The stack was read but its record was lost (the ring buffer was full).
    Lost,
    /// memprobe does not know this Python's layout.
    UnknownPython,
}

impl NoStack {
    /// A few words for people and recordings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoPythonThread => "thread without Python",
            Self::NoPythonFrames => "no Python frame",
            Self::SeveralWaiting => "several threads wait in backward()",
            Self::Unreadable => "stack unreadable",
            Self::Lost => "stack lost",
            Self::UnknownPython => "unknown Python version",
        }
    }

    /// The reason that [`Self::as_str`] wrote.
    pub fn parse(words: &str) -> Option<Self> {
        [
            Self::NoPythonThread,
            Self::NoPythonFrames,
            Self::SeveralWaiting,
            Self::Unreadable,
            Self::Lost,
            Self::UnknownPython,
        ]
        .into_iter()
        .find(|reason| reason.as_str() == words)
    }
}

/// What was lost since memprobe attached. Every view and recording shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Losses {
    /// Memory events for which the ring buffer had no room.
    pub events: u64,
    /// Stacks for which the ring buffer had no room (their events were kept).
    pub stacks: u64,
    /// Records that user space could not make sense of.
    pub malformed: u64,
}

impl Losses {
    /// Whether anything was lost at all.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}

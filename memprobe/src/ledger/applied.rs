//! Effect of an event on the ledger.

use crate::event::{Address, Bytes, StackId};

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Applied {
    /// A definition, a name or a report of losses; no memory changed.
    Noted,
    /// A block was allocated.
    Alloc {
        /// Overlapping blocks, whose frees were missed; empty unless events were lost.
        replaced: Vec<Ended>,
        /// True if the ledger tracks the block. Otherwise its free is reported as
        /// [`Freed::Unknown`].
        is_tracked: bool,
    },
    /// A block was live when memprobe attached.
    Held {
        /// True if the ledger tracks the block. Its bytes count as from before attach in either
        /// case.
        is_tracked: bool,
    },
    /// A block was freed.
    Free(Freed),
    /// The caching allocator obtained or released a segment, which the ledger does not track.
    Segment,
    /// CUDA allocated or freed memory outside the caching allocator.
    Cuda,
    /// The allocator ran out of memory.
    OutOfMemory,
    /// The event has no device, or its numbers are beyond any address. It changed nothing and
    /// counts as malformed.
    Malformed,
}

/// Kind of block that a free ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Freed {
    /// Allocated while memprobe was attached.
    Known {
        /// Bytes at its allocation.
        size: Bytes,
        /// Stack of its allocation; [`StackId::NONE`] if unknown.
        stack: StackId,
    },
    BeforeAttach,
    /// Its allocation was missed.
    Unknown,
}

/// Block removed because its free was missed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    pub addr: Address,
    pub size: Bytes,
    /// Stack of its allocation; [`StackId::NONE`] if unknown.
    pub stack: StackId,
}

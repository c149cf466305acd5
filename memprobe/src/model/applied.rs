//! What the ledger made of an event.

use crate::event::{Address, Bytes, StackId};

/// What the ledger made of an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Applied {
    /// The event changed no memory: a definition, a name or a report of losses.
    Noted,
    /// A block is live.
    Alloc {
        /// Blocks in its place whose end was missed; empty unless events were lost.
        replaced: Vec<Ended>,
        /// Whether the ledger has room to follow the block; its free will be
        /// [`Freed::Unknown`] if not.
        kept: bool,
    },
    /// A block was live when memprobe attached.
    Held {
        /// Whether the ledger has room to follow the block; its bytes are from before attach in
        /// either case.
        kept: bool,
    },
    /// A block is live no more.
    Free(Freed),
    /// The caching allocator got or gave back a segment. The ledger does not follow them.
    Segment,
    /// CUDA gave memory to somebody else, or took it back.
    Cuda,
    /// The allocator gave up.
    OutOfMemory,
    /// Not an event of an allocator: no device, or numbers beyond any address. It changed nothing
    /// and counts as malformed.
    Malformed,
}

/// Which block a free ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Freed {
    /// One that was seen being allocated.
    Known {
        /// Its bytes, as they were when it was allocated.
        size: Bytes,
        /// The stack that allocated it; [`StackId::NONE`] where it is not known.
        stack: StackId,
    },
    /// One from before attach.
    BeforeAttach,
    /// One whose allocation was missed.
    Unknown,
}

/// A block that was found to be gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Where it was.
    pub addr: Address,
    /// Its bytes.
    pub size: Bytes,
    /// The stack that allocated it; [`StackId::NONE`] where it is not known.
    pub stack: StackId,
}

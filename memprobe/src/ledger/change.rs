//! Change that an event makes to the ledger.

use super::block_store::BlockId;
use super::definitions::StackRef;

/// Change of the ledger by one event. Blocks that it ended stay readable until the next event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// No block changed and no stack was defined.
    Noted,
    /// A stack was defined; [`StackRef::UNKNOWN`] if the ledger had no room for it.
    Stack(StackRef),
    Allocated {
        block: BlockId,
        /// False if the store of blocks is full: the block is readable until the next event only, and its free is
        /// reported as [`Freed::Unknown`].
        is_tracked: bool,
        /// Overlapping blocks, whose frees were missed; empty unless events were lost.
        replaced: Vec<BlockId>,
    },
    /// A block was live when memprobe attached. Its bytes count as from before attach, tracked (`Some`) or not.
    Held(Option<BlockId>),
    Freed(Freed),
    /// The caching allocator obtained or released a segment, which the ledger does not track.
    Segment,
    Cuda,
    OutOfMemory,
    /// The event has no device, or its numbers are beyond any address. It changed nothing and
    /// counts as malformed.
    Malformed,
}

impl Change {
    /// Blocks ended by a free, or by an allocation that shows a missed free. A free of the baseline is left out.
    pub fn ended(&self) -> &[BlockId] {
        match self {
            Self::Allocated { replaced, .. } => replaced,
            Self::Freed(Freed::Known(block)) => std::slice::from_ref(block),
            _ => &[],
        }
    }

    /// Allocated block; true if the ledger tracks it.
    pub fn allocated(&self) -> Option<(BlockId, bool)> {
        match self {
            Self::Allocated {
                block, is_tracked, ..
            } => Some((*block, *is_tracked)),
            _ => None,
        }
    }
}

/// Kind of block that a free ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Freed {
    Known(BlockId),
    /// Live at attach; `Some` if the ledger tracked it.
    BeforeAttach(Option<BlockId>),
    Unknown,
}

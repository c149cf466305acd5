//! How much a stream of events tells.

/// What the kernel was asked to tell of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Of each block.
    pub detail: Detail,
    /// Of backward passes.
    pub graph: Graph,
}

impl Default for Told {
    /// What costs the process least.
    fn default() -> Self {
        Self {
            detail: Detail::Lines,
            graph: Graph::Ignored,
        }
    }
}

/// How much is told of each block. Every probe costs the target a trap wherever it passes, so what is not
/// asked for is not attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// The line that allocated it.
    Lines,
    /// The tensor too that it was allocated for: shape, element type and bytes asked for.
    Tensors,
    /// What a block without a tensor is for, too.
    Full,
}

impl Detail {
    /// The word for it on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lines => "lines",
            Self::Tensors => "tensors",
            Self::Full => "full",
        }
    }
}

/// Whether backward passes are led back to the forward pass. It costs the target a trap for each operation that makes a
/// node of autograd's graph, and one when the node is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Graph {
    /// They are not.
    Ignored,
    /// They are.
    Followed,
}

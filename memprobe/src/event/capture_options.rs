//! Options for the amount of detail that a stream of events carries.

/// The detail that the kernel programs record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureOptions {
    pub detail: Detail,
    pub graph: GraphTracking,
}

impl Default for CaptureOptions {
    /// The cheapest setting for the process.
    fn default() -> Self {
        Self {
            detail: Detail::Lines,
            graph: GraphTracking::Off,
        }
    }
}

/// The detail recorded for each block. Every probe costs the target a trap, so memprobe attaches only those
/// that the detail needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum Detail {
    /// The line that allocated it.
    Lines,
    /// In addition the tensor: shape, element type and requested bytes.
    Tensors,
    /// In addition the purpose of a block without a tensor.
    Full,
}

/// Option to attribute backward passes to the forward pass. It costs the target a trap for each operation
/// that creates an autograd node, and one when the node is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GraphTracking {
    Off,
    On,
}

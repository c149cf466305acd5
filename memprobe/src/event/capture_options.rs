//! Options for the amount of detail that a stream of events carries.

/// The detail that the kernel programs record; by default the cheapest for the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureOptions {
    pub detail: Detail,
    pub graph: GraphTracking,
}

/// The detail recorded for each block. Every probe costs the target a trap, so memprobe attaches only those
/// that the detail needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum Detail {
    /// The line that allocated it.
    #[default]
    Lines,
    /// In addition the tensor: shape, element type and requested bytes.
    Tensors,
    /// In addition the purpose of a block without a tensor.
    Full,
}

/// Option to attribute backward passes to the forward pass. It costs the target a trap for each operation
/// that creates an autograd node, and one when the node is evaluated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum GraphTracking {
    #[default]
    Off,
    On,
}

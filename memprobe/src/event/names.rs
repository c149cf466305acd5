//! What the objects of a process say of the allocator's blocks.

use std::sync::Arc;

use super::{Address, Bytes, DeviceIndex, Tgid, TimeNs};
use crate::tensors::{Kept, Name, TensorKind};

/// Every live block of the caching allocator at one moment, with what the process's own objects hold in it. In the
/// stream it stands at that moment, where the process stood still.
#[derive(Clone, Debug, PartialEq)]
pub struct Names {
    /// The moment.
    pub time: TimeNs,
    /// The process.
    pub tgid: Tgid,
    /// The blocks, in no particular order.
    pub blocks: Vec<NamedBlock>,
}

/// A live block and the tensor that answers for it.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedBlock {
    /// Where it is.
    pub addr: Address,
    /// Its bytes, as the allocator rounded them.
    pub size: Bytes,
    /// On which device.
    pub device: DeviceIndex,
    /// What the tensor is for; `None` where no tensor reaches the block.
    pub kind: Option<TensorKind>,
    /// The tensor's best name.
    pub name: Option<Name>,
    /// The path of the module that it belongs to.
    pub module: Option<Arc<str>>,
    /// The same from the class of the module at the top of its tree, such as `GPT.layers.3.mlp`; of parameters and buffers.
    pub called: Option<Arc<str>>,
    /// The operation that keeps it for the backward pass.
    pub saved_by: Option<Arc<str>>,
    /// Who keeps it alive; `None` where no name leads to it.
    pub kept: Option<Arc<Kept>>,
}

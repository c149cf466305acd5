//! Labels that a process's Python objects give to the allocator's blocks.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Address, Bytes, DeviceIndex, Tgid, TimeNs};
use crate::event::tensors::{Name, Retainer, TensorKind};

/// Every live block of the caching allocator at one moment, with labels from the process's objects. Its place
/// in the event stream is the moment at which the process was paused.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockLabels {
    pub time: TimeNs,
    pub tgid: Tgid,
    /// The blocks, in no particular order.
    pub blocks: Vec<LabeledBlock>,
    /// The settings of the optimizers' parameter groups, without duplicates.
    pub optimizers: Vec<StepSettings>,
}

/// Settings of a parameter group of an optimizer that decide how a step handles its parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepSettings {
    /// The optimizer's class.
    pub class: String,
    pub foreach: Option<bool>,
    pub fused: Option<bool>,
    pub differentiable: bool,
    /// True if `lr` is a tensor and `capturable` is not set.
    pub has_tensor_rate: bool,
}

/// A live block and the tensor that represents it.
#[derive(Clone, Debug, PartialEq)]
pub struct LabeledBlock {
    pub addr: Address,
    /// The block's bytes, as the allocator rounded them.
    pub size: Bytes,
    pub device: DeviceIndex,
    /// The kind of the tensor; `None` if no tensor reaches the block.
    pub kind: Option<TensorKind>,
    pub name: Option<Name>,
    pub module: Option<Arc<str>>,
    /// The module path that starts at the class of the root module, such as `GPT.layers.3.mlp`; parameters
    /// and buffers only.
    pub called: Option<Arc<str>>,
    pub saved_by: Option<Arc<str>>,
    /// The retainer; `None` if no named object leads to the block.
    pub retainer: Option<Arc<Retainer>>,
}

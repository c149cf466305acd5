//! The context of an allocation beyond its source lines: module, grad mode and autograd node.

use std::sync::Arc;

use strum::{Display, EnumString, IntoStaticStr};

use super::{Stack, StackId, Tgid, Tid, TimeNs};

/// The state of a thread when its stack was captured, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Context {
    pub module: Module,
    pub grad: Grad,
    /// The autograd node that was being evaluated; `None` outside a backward pass.
    pub node: Option<Arc<Node>>,
}

/// The innermost `torch.nn.Module` call on a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Module {
    #[default]
    Outside,
    /// The module's path: the class of the outermost module being called, then attribute names, as in
    /// `GPT.layers.3.mlp`. Later outermost modules of the same class are numbered: `GPT#2.layers.3.mlp`. A
    /// module called on its own (as checkpointing does in the backward pass) keeps the path of the tree that
    /// it was seen in. If a tree has several paths to it, the first counts, as in `named_modules()`.
    Called(Arc<str>),
    /// A module was being called, but its path is unknown.
    Unknown,
}

impl Module {
    pub fn path(&self) -> Option<&Arc<str>> {
        match self {
            Self::Called(path) => Some(path),
            Self::Outside | Self::Unknown => None,
        }
    }
}

/// The grad mode of a thread (`torch.is_grad_enabled()`, `torch.is_inference_mode_enabled()`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, IntoStaticStr, EnumString)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum Grad {
    #[default]
    Unknown,
    /// Autograd records operations.
    Enabled,
    /// Autograd records nothing (`torch.no_grad()`).
    Disabled,
    /// Autograd records nothing, and results can never take part in autograd (`torch.inference_mode()`).
    Inference,
}

/// A node of autograd's graph (`torch.autograd.graph.Node`), which the backward pass evaluates.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// PyTorch's name: `AddmmBackward0`.
    pub name: Arc<str>,
    /// The forward-pass stack of the operation that created the node. `None` if it was created before attach
    /// or without a record (`AccumulateGrad`, which belongs to a parameter and to no operation).
    pub forward: Option<Arc<Stack>>,
}

/// A phase marker that PyTorch itself emits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseMark {
    /// The start of the phase.
    pub time: TimeNs,
    pub tgid: Tgid,
    pub tid: Tid,
    pub phase: MarkedPhase,
    /// The class that runs the phase: `Adam`, `_SingleProcessDataLoaderIter`.
    pub class: Arc<str>,
    pub stack: StackId,
}

/// The phase that a [`PhaseMark`] starts. PyTorch wraps each in a `record_function` of its own, even without a
/// profiler (torch/optim/optimizer.py, torch/utils/data/dataloader.py@v2.15.0).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, IntoStaticStr, EnumString, Display,
)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum MarkedPhase {
    /// `Optimizer.step()`.
    Step,
    /// `Optimizer.zero_grad()`.
    ZeroGrad,
    /// The next batch of a `DataLoader`.
    NextBatch,
}

//! What a thread was doing when it asked for memory, beyond the lines that it was on.

use std::fmt;
use std::sync::Arc;

use super::{Stack, StackId, Tgid, Tid, TimeNs};

/// What a thread was doing, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Context {
    /// The module that was being called.
    pub module: Module,
    /// Whether PyTorch took note of operations for a backward pass.
    pub grad: Grad,
    /// In a backward pass: what was being computed.
    pub node: Option<Arc<Node>>,
}

/// The innermost `torch.nn.Module` that was being called on a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Module {
    /// None was.
    #[default]
    Outside,
    /// One was, by its path from the outermost one that was being called: that one's class, then the names
    /// of its attributes, as in `GPT.layers.3.mlp`. Where several modules of one class are outermost, the later ones
    /// are numbered: `GPT#2.layers.3.mlp`. One that is called alone (as a checkpoint does in the backward pass) has the
    /// path of the tree that it was met in. Of several paths in a tree, the first, as in `named_modules()`.
    Called(Arc<str>),
    /// One was, but not which.
    Unknown,
}

impl Module {
    /// The path, where it is known.
    pub fn path(&self) -> Option<&Arc<str>> {
        match self {
            Self::Called(path) => Some(path),
            Self::Outside | Self::Unknown => None,
        }
    }
}

/// Whether PyTorch took note of a thread's operations, to go back through them later
/// (`torch.is_grad_enabled()`, `torch.is_inference_mode_enabled()`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Grad {
    /// Nobody knows.
    #[default]
    Unknown,
    /// It did.
    Enabled,
    /// It did not (`torch.no_grad()`).
    Disabled,
    /// It did not, and never can (`torch.inference_mode()`).
    Inference,
}

impl Grad {
    const ALL: [Self; 4] = [
        Self::Unknown,
        Self::Enabled,
        Self::Disabled,
        Self::Inference,
    ];

    /// The word used in recordings and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Enabled => "enabled",
            Self::Disabled => "disabled",
            Self::Inference => "inference",
        }
    }

    /// What [`Self::as_str`] wrote.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|grad| grad.as_str() == word)
    }
}

/// A step of a backward pass: a node of autograd's graph (`torch.autograd.graph.Node`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// As PyTorch names it: `AddmmBackward0`.
    pub name: Arc<str>,
    /// The stack of the operation that made it, in the forward pass; `None` where that was before attach, or
    /// nobody was told (`AccumulateGrad`, which belongs to a parameter and to no operation).
    pub forward: Option<Arc<Stack>>,
}

/// Something that PyTorch itself says about what a program is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// When it began.
    pub time: TimeNs,
    /// The process.
    pub tgid: Tgid,
    /// The thread.
    pub tid: Tid,
    /// What began.
    pub begins: Beginning,
    /// The class that does it: `Adam`, `_SingleProcessDataLoaderIter`.
    pub class: Arc<str>,
    /// From where.
    pub stack: StackId,
}

/// What a [`Mark`] says the beginning of. PyTorch wraps these in a `record_function` of its own, whether a profiler runs
/// or not (torch/optim/optimizer.py, torch/utils/data/dataloader.py@v2.15.0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Beginning {
    /// `Optimizer.step()`.
    Step,
    /// `Optimizer.zero_grad()`.
    ZeroGrad,
    /// The next batch of a `DataLoader`.
    NextBatch,
}

impl Beginning {
    const ALL: [Self; 3] = [Self::Step, Self::ZeroGrad, Self::NextBatch];

    /// The word used in recordings and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::ZeroGrad => "zero_grad",
            Self::NextBatch => "next_batch",
        }
    }

    /// What [`Self::as_str`] wrote.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|begins| begins.as_str() == word)
    }
}

impl fmt::Display for Beginning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

//! Words for memory from before attach, by what the process's objects say of it.

use super::clean;
use crate::ledger::snapshot::{BaselineKind, BaselineOwner};

/// Name of a kind of memory.
pub const fn baseline_kind(kind: BaselineKind) -> &'static str {
    match kind {
        BaselineKind::Parameter => "parameters",
        BaselineKind::Buffer => "buffers",
        BaselineKind::Gradient => "gradients",
        BaselineKind::OptimizerState => "optimizer state",
        BaselineKind::KvCache => "KV cache",
        BaselineKind::Saved => "saved for backward",
        BaselineKind::Retained => "tensors by retainer",
        BaselineKind::Unretained => "tensors without a known retainer",
        BaselineKind::NoTensor => "blocks without a tensor",
        BaselineKind::Unread => "(not read)",
    }
}

/// Name of an owner of memory of one kind: a module, an operation, or a retainer with its class.
pub fn baseline_owner(owner: &BaselineOwner) -> String {
    match (&owner.name, &owner.class) {
        (Some(name), Some(class)) => format!("{} ({})", clean(name), clean(class)),
        (Some(name), None) => clean(name),
        (None, _) => "(no name)".to_owned(),
    }
}

/// Sentence on a kind of memory.
pub const fn baseline_meaning(kind: BaselineKind) -> &'static str {
    match kind {
        BaselineKind::Parameter => "entries of modules' _parameters",
        BaselineKind::Buffer => "entries of modules' _buffers",
        BaselineKind::Gradient => "the .grad of parameters",
        BaselineKind::OptimizerState => "entries of optimizers' state",
        BaselineKind::KvCache => "keys and values in caches of transformers",
        BaselineKind::Saved => "saved for the backward pass by a node of the graph",
        BaselineKind::Retained => {
            "other tensors, by the variable or container that keeps them alive"
        }
        BaselineKind::Unretained => "no named object leads to these tensors",
        BaselineKind::NoTensor => "workspaces, and memory that only C++ refers to",
        BaselineKind::Unread => "the readings did not agree on these blocks, or found none of them",
    }
}

//! Allocation groups: blocks of equal line, module, pass and tensor.

use std::sync::Arc;

use super::groups::{BlockGroup, GroupOrigin, Groups};
use super::phase::{Phase, phase_of};
use crate::event::{Context, Module, Stack};
use crate::ledger::snapshot::{Grouping, Site};
use crate::ledger::{Ledger, StackRef};

/// Blocks that reports do not tell apart: equal origin and equal tensor type.
pub type AllocationGroup = BlockGroup<AllocationSite>;

pub(super) type AllocationGroups<V> = Groups<AllocationSite, V>;

/// Allocation site as far as reports tell it apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AllocationSite {
    pub site: Site,
    pub place: ModuleScope,
    pub pass: Pass,
    /// Autograd node of a backward pass, such as `AddmmBackward0`, if known.
    pub node: Option<Arc<str>>,
}

/// Module that memory is counted under.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum ModuleScope {
    /// Module path; in a backward pass, the module whose forward operation is differentiated.
    Module(Arc<str>),
    /// No module was being called.
    Outside,
    Unknown,
    /// Backward pass through an operation whose module is unknown.
    BackwardUnknown,
    TooMany,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(const_into_str, serialize_all = "lowercase")]
pub enum Pass {
    /// Forward, or outside modules.
    Forward,
    /// Recomputation within a backward pass (activation checkpointing).
    Recompute,
    Backward,
}

impl ModuleScope {
    /// Path of the module; `None` outside modules, and if it is unknown.
    pub fn module(&self) -> Option<&str> {
        match self {
            Self::Module(path) => Some(path),
            _ => None,
        }
    }

    /// Keyword in CSV and JSON.
    pub const fn as_str(&self) -> &'static str {
        self.into_str()
    }
}

impl Pass {
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

impl GroupOrigin for AllocationSite {
    fn of(stack: StackRef, ledger: &Ledger, grouping: Grouping) -> Self {
        let site = ledger.site(stack, grouping).clone();
        if stack == StackRef::UNKNOWN {
            return Self::nowhere(site, ModuleScope::Unknown);
        }
        let stack = ledger.stack(stack);
        let (place, pass) = place_of(stack);
        let node = stack.context.node.as_ref();
        Self {
            site,
            place,
            pass,
            node: node.map(|node| Arc::clone(&node.name)),
        }
    }

    fn too_many() -> Self {
        let site = Site::NoLine {
            thread: "".into(),
            reason: "too many to tell apart",
        };
        Self::nowhere(site, ModuleScope::TooMany)
    }
}

impl AllocationSite {
    fn nowhere(site: Site, place: ModuleScope) -> Self {
        Self {
            site,
            place,
            pass: Pass::Forward,
            node: None,
        }
    }
}

/// Module scope and pass that allocations of a stack count under.
pub(super) fn place_of(stack: &Stack) -> (ModuleScope, Pass) {
    let node = stack.context.node.as_ref();
    let forward = node.and_then(|node| node.forward.as_ref());
    let pass = match phase_of(stack).phase {
        Phase::Backward => Pass::Backward,
        Phase::Recompute => Pass::Recompute,
        _ => Pass::Forward,
    };
    let place = match (pass, forward) {
        (Pass::Backward, None) => ModuleScope::BackwardUnknown,
        (Pass::Backward, Some(forward)) => match called(&forward.context) {
            ModuleScope::Unknown => ModuleScope::BackwardUnknown,
            place => place,
        },
        // A recomputation outside modules belongs to the operation being differentiated.
        (Pass::Recompute, Some(forward)) if stack.context.module == Module::Outside => {
            called(&forward.context)
        }
        (Pass::Forward | Pass::Recompute, _) => called(&stack.context),
    };
    (place, pass)
}

fn called(context: &Context) -> ModuleScope {
    match &context.module {
        Module::Called(path) => ModuleScope::Module(Arc::clone(path)),
        Module::Outside => ModuleScope::Outside,
        Module::Unknown => ModuleScope::Unknown,
    }
}

#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;

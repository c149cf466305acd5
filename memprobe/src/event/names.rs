//! Labels that a process's Python objects give to the allocator's blocks.

use std::collections::HashMap;
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
    /// Allocations that the program itself has tagged, at most [`MAX_TAGS`].
    pub tags: Vec<TaggedAllocation>,
}

/// Most tagged allocations of one reading.
pub const MAX_TAGS: usize = 1 << 15;

/// Memory of a pool with an allocator in Python that tags its allocations or pools, as vLLM's sleep mode and
/// torch_memory_saver do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TaggedAllocation {
    pub addr: Address,
    pub size: Bytes,
    /// Tag of the program, such as `weights`.
    pub tag: Arc<str>,
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

/// A module by the path that its calls have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CalledModule {
    /// The path from the outermost module called, such as `GPT.layers.3.mlp`.
    pub path: Arc<str>,
    pub origin: CallPathOrigin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallPathOrigin {
    /// A call of the module itself.
    Call,
    /// The class of its root module: another module may have this path in calls.
    Class,
    /// The class of its root module, until the calls of the object are looked up.
    Unresolved(ModuleAddress),
}

/// A module of a live process: the addresses of the object and of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModuleAddress {
    pub object: u64,
    pub class: u64,
}

/// Modules seen in calls, by address.
#[derive(Debug, Default)]
pub struct CallPaths {
    /// The state of the source that was read last.
    pub version: u64,
    /// The first path known of each.
    pub paths: HashMap<ModuleAddress, Arc<str>>,
}

impl CallPaths {
    /// Returns the path in calls of a module with this path from the class of its heap root. Both end alike, unless
    /// another module has the address by now.
    fn of(&self, module: ModuleAddress, held: &str) -> Option<&Arc<str>> {
        let below = |path: &str| {
            path.split_once('.')
                .map_or(String::new(), |(_, names)| format!(".{names}"))
        };
        let path = self.paths.get(&module)?;
        let (called, held) = (below(path), below(held));
        (called.ends_with(&held) || held.ends_with(&called)).then_some(path)
    }
}

impl BlockLabels {
    /// Gives modules the path that their calls have.
    pub fn resolve_calls(&mut self, calls: &CallPaths) {
        let modules = self
            .blocks
            .iter_mut()
            .filter_map(|block| block.called.as_mut());
        for called in modules {
            let CallPathOrigin::Unresolved(module) = called.origin else {
                continue;
            };
            called.origin = CallPathOrigin::Class;
            if let Some(path) = calls.of(module, &called.path) {
                called.path = Arc::clone(path);
                called.origin = CallPathOrigin::Call;
            }
        }
    }
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
    pub called: Option<CalledModule>,
    pub saved_by: Option<Arc<str>>,
    /// The retainer; `None` if no named object leads to the block.
    pub retainer: Option<Arc<Retainer>>,
    /// True if the block is data for a forward pass: a variable refers to its tensor, a node of the graph saves it,
    /// and no tensor in the block requires grad.
    pub is_saved_variable: bool,
}

impl LabeledBlock {
    /// A block of which nothing but its place is known.
    pub fn unlabeled(addr: Address, size: Bytes, device: DeviceIndex) -> Self {
        Self {
            addr,
            size,
            device,
            kind: None,
            name: None,
            module: None,
            called: None,
            saved_by: None,
            retainer: None,
            is_saved_variable: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_has_the_path_of_its_calls_if_both_paths_end_alike() {
        let module = ModuleAddress {
            object: 16,
            class: 8,
        };
        let resolved = |held: &str, called: &str| {
            let mut calls = CallPaths::default();
            calls.paths.insert(module, called.into());
            calls.of(module, held).is_some()
        };
        for [held, called] in [
            ["Net", "Net#2"],
            ["Net.layers.0", "Net#2.layers.0"],
            ["Trainer.model.layers.0", "Net.layers.0"],
            ["Trainer.model", "Net"],
            ["Net.layers.0", "Wrapper.module.layers.0"],
        ] {
            assert!(resolved(held, called), "{held} {called}");
        }
        assert!(!resolved("Net.layers.0", "Net.layers.1"));
        assert!(!resolved("Net.layers.0", "Net.outer_layers.0"));
        let other = ModuleAddress { class: 9, ..module };
        assert_eq!(CallPaths::default().of(other, "Net"), None);
    }
}

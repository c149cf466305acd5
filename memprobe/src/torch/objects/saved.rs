//! `torch::autograd::SavedVariable`: a tensor that a node saves for the backward pass. It lies in the node
//! itself, in a vector of the node, or in the Python object of a `torch.autograd.Function`.

use super::class::{Family, Fields};
use super::layout_versions::SavedLayout;
use super::layouts::ObjectReader;
use super::tensor::some;
use crate::process::memory::ReadMemory;

/// Most saved variables in one vector. An indexing operation saves a few, an LSTM its weights.
const MAX_IN_LIST: u64 = 1 << 14;

/// Bytes searched of a `SavedVariableHooks` for the object that the hook returned
/// (torch/csrc/autograd/python_saved_variable_hooks.h).
const HOOKS_BYTES: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Saved {
    Original,
    /// Another tensor with the same storage, as an operation saves its own output.
    Alias,
    /// The tensor that a hook (`torch.autograd.graph.saved_tensors_hooks`) returned.
    Packed,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SavedVariables {
    pub(super) tensors: Vec<(u64, Saved)>,
    /// Number of variables that a hook packed into something other than a tensor.
    pub(super) packed: u64,
}

enum Variable {
    Tensor(u64, Saved),
    /// Packed by a hook: the address of the hooks object.
    Hooks(u64),
    /// Empty: it was released, or there was nothing to save.
    Empty,
}

impl<M: ReadMemory> ObjectReader<'_, M> {
    pub(super) fn search(&self, layout: SavedLayout, object: &[u8], found: &mut SavedVariables) {
        let mut at = 0;
        while at + 24 <= object.len() {
            let variable = object.get(at..at + layout.size());
            let variable = variable.and_then(|bytes| self.variable(layout, Fields(bytes)));
            at += match variable {
                Some(Variable::Empty) | None => {
                    let is_list = self.read_list(layout, Fields(&object[at..]), found);
                    if is_list { 24 } else { 8 }
                }
                Some(variable) => {
                    self.add(variable, found);
                    layout.size()
                }
            };
        }
    }

    /// Parses a saved variable. Returns `None` if the fields do not fit one.
    fn variable(&self, layout: SavedLayout, fields: Fields<'_>) -> Option<Variable> {
        let flags = [0, 1, 2, 3, 4].map(|at| fields.byte(layout.flags + at));
        let [is_empty, _, is_original, _, _] = flags.map(|flag| flag == 1);
        let tensor = fields.word(0);
        let hooks = fields.word(layout.flags + SavedLayout::HOOKS);
        let is_pair = (fields.word(8) == 0) == (fields.word(16) == 0);
        let fits = flags.iter().all(|flag| *flag <= 1)
            && fields.byte(layout.requires_grad) <= 1
            && tensor.is_multiple_of(8)
            && is_pair;
        if !fits {
            return None;
        }
        if hooks != 0 {
            let is_one = !is_empty && self.objects.is(hooks, Family::Hooks);
            return is_one.then_some(Variable::Hooks(hooks));
        }
        if self.objects.is_tensor(tensor) {
            let saved = if is_original {
                Saved::Original
            } else {
                Saved::Alias
            };
            return (!is_empty).then_some(Variable::Tensor(tensor, saved));
        }
        // An `UndefinedTensorImpl` also belongs to the family of tensors.
        let is_none = tensor == 0 || self.objects.is(tensor, Family::Tensor);
        is_none.then_some(Variable::Empty)
    }

    /// Reads a `std::vector<SavedVariable>`. Returns `true` if it is one with a saved tensor in it.
    fn read_list(&self, layout: SavedLayout, list: Fields<'_>, found: &mut SavedVariables) -> bool {
        let size = layout.size();
        let bytes = self.objects.vector(list, 0, size, MAX_IN_LIST);
        let bytes = bytes.unwrap_or_default();
        let variables = bytes.chunks_exact(size);
        let variables = variables.map(|bytes| self.variable(layout, Fields(bytes)));
        let Some(mut variables) = variables.collect::<Option<Vec<_>>>() else {
            return false;
        };
        variables.retain(|variable| !matches!(variable, Variable::Empty));
        let is_one = !variables.is_empty();
        for variable in variables {
            self.add(variable, found);
        }
        is_one
    }

    /// Records the tensor of a variable, or the object that a hook returned, if it is a tensor.
    fn add(&self, variable: Variable, found: &mut SavedVariables) {
        let hooks = match variable {
            Variable::Tensor(tensor, saved) => return found.tensors.push((tensor, saved)),
            Variable::Hooks(hooks) => hooks,
            Variable::Empty => return,
        };
        let mut bytes = [0; HOOKS_BYTES];
        let known = self.objects.memory.read(hooks, &mut bytes).is_ok();
        let mut words = bytes[8..].chunks_exact(8).map(|word| Fields(word).word(0));
        let tensor = words.find_map(|word| self.tensor_of(some(word)?));
        match tensor.filter(|_| known) {
            Some(tensor) => found.tensors.push((tensor, Saved::Packed)),
            None => found.packed += 1,
        }
    }
}

//! `torch::autograd::SavedVariable`: a tensor that a node saves for the backward pass. It lies in the node
//! itself, in a vector of the node, or in the Python object of a `torch.autograd.Function`.

use super::autograd::vector;
use super::bytes::Fields;
use super::class::Family;
use super::layout_versions::SavedLayout;
use super::layouts::Layouts;
use super::tensor::{is_tensor, some};
use crate::process::memory::ReadMemory;

/// Most saved variables in one vector. A concatenation saves none, an indexing operation a few, an LSTM its
/// weights.
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
pub(super) struct Found {
    /// Saved tensors and their forms.
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

/// Searches the bytes of an object for saved variables and vectors of them.
pub(super) fn search(
    memory: &impl ReadMemory,
    layouts: &Layouts,
    layout: SavedLayout,
    object: &[u8],
    found: &mut Found,
) {
    let mut at = 0;
    while at + 24 <= object.len() {
        let here = Fields(&object[at..]);
        let variable = object.get(at..at + layout.size());
        let variable = variable.and_then(|bytes| read(memory, layouts, layout, Fields(bytes)));
        at += match variable {
            Some(Variable::Tensor(tensor, saved)) => {
                found.tensors.push((tensor, saved));
                layout.size()
            }
            Some(Variable::Hooks(hooks)) => {
                look_at_hooks(memory, layouts, hooks, found);
                layout.size()
            }
            _ if read_list(memory, layouts, layout, here, found) => 24,
            _ => 8,
        };
    }
}

/// Parses a saved variable. Returns `None` if the fields do not fit one.
fn read(
    memory: &impl ReadMemory,
    layouts: &Layouts,
    layout: SavedLayout,
    fields: Fields<'_>,
) -> Option<Variable> {
    let flag = |at: usize| match fields.byte(layout.flags + at) {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    };
    let [empty, _, original, _, _] = [flag(0)?, flag(1)?, flag(2)?, flag(3)?, flag(4)?];
    let tensor = fields.word(0);
    let hooks = fields.word(layout.hooks());
    let is_pair = |at: usize| (fields.word(at) == 0) == (fields.word(at + 8) == 0);
    if fields.byte(layout.requires_grad) > 1 || !tensor.is_multiple_of(8) || !is_pair(8) {
        return None;
    }
    if hooks != 0 {
        let is_one = !empty && layouts.classes.is(memory, hooks, Family::Hooks);
        return is_one.then_some(Variable::Hooks(hooks));
    }
    if is_tensor(memory, layouts, tensor) {
        let saved = match original {
            true => Saved::Original,
            false => Saved::Alias,
        };
        return (!empty).then_some(Variable::Tensor(tensor, saved));
    }
    // An `UndefinedTensorImpl` also belongs to the family of tensors.
    let is_none = tensor == 0 || layouts.classes.is(memory, tensor, Family::Tensor);
    is_none.then_some(Variable::Empty)
}

/// Reads a `std::vector<SavedVariable>`. Returns `true` if it is one with a saved tensor in it.
fn read_list(
    memory: &impl ReadMemory,
    layouts: &Layouts,
    layout: SavedLayout,
    fields: Fields<'_>,
    found: &mut Found,
) -> bool {
    let [begin, end, room] = [0, 8, 16].map(|at| fields.word(at));
    let size = layout.size();
    let bytes = vector(begin, end, room, size, MAX_IN_LIST).filter(|bytes| *bytes > 0);
    let most = MAX_IN_LIST as usize * size;
    let Some(bytes) = bytes.and_then(|bytes| memory.read_bytes(begin, bytes, most).ok()) else {
        return false;
    };
    let variables = bytes
        .chunks_exact(size)
        .map(|bytes| read(memory, layouts, layout, Fields(bytes)));
    let Some(variables) = variables.collect::<Option<Vec<_>>>() else {
        return false;
    };
    let mut is_one = false;
    for variable in variables {
        match variable {
            Variable::Tensor(tensor, saved) => found.tensors.push((tensor, saved)),
            Variable::Hooks(hooks) => look_at_hooks(memory, layouts, hooks, found),
            Variable::Empty => continue,
        }
        is_one = true;
    }
    is_one
}

/// Records the object that a hook returned, if it is a tensor.
fn look_at_hooks(memory: &impl ReadMemory, layouts: &Layouts, hooks: u64, found: &mut Found) {
    let mut bytes = [0; HOOKS_BYTES];
    let known = memory.read(hooks, &mut bytes).is_ok();
    let mut words = bytes[8..].chunks_exact(8).map(|word| Fields(word).word(0));
    let tensor = words.find_map(|word| layouts.tensor_of(memory, some(word)?));
    match tensor.filter(|_| known) {
        Some(tensor) => found.tensors.push((tensor, Saved::Packed)),
        None => found.packed += 1,
    }
}

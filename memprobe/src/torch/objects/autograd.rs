//! Reads the autograd metadata of tensors, and the names and edges of graph nodes.

use std::sync::Arc;

use super::bytes::Fields;
use super::class::{Classes, Family};
use super::layout_versions::{AutogradLayout, NodeLayout};
use super::layouts::Layouts;
use super::tensor::{is_tensor, some};
use crate::process::memory::ReadMemory;
use crate::torch::node_name;

/// The metadata class of a view.
const VIEW: &str = "N5torch8autograd22DifferentiableViewMetaE";

/// Most edges of one node. A concatenation has one for each of its tensors.
const MAX_EDGES: u64 = 1 << 16;

/// Offset of `ob_type` in a Python object, in every version (Include/object.h).
const TYPE: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Autograd {
    pub(super) requires_grad: bool,
    pub(super) grad: Option<u64>,
    pub(super) grad_fn: Option<u64>,
    pub(super) base: Option<u64>,
    pub(super) outdated: bool,
}

/// Reads autograd's state of the tensor with these fields. Returns `None` if the metadata cannot be read.
pub(super) fn read(
    memory: &impl ReadMemory,
    layouts: &Layouts,
    tensor: Fields<'_>,
) -> Option<Autograd> {
    let Some(meta) = some(tensor.word(layouts.tensor.autograd)) else {
        return Some(Autograd::default());
    };
    let layout = layouts.autograd.as_ref()?;
    let own = Meta::read(memory, &layouts.classes, layout, meta)?;
    let mut autograd = Autograd {
        requires_grad: own.requires_grad,
        grad: some(own.grad).filter(|grad| is_tensor(memory, layouts, *grad)),
        grad_fn: own.grad_fn,
        base: None,
        outdated: false,
    };
    if own.is_view {
        look_at_base(memory, layouts, layout, tensor, meta, &mut autograd)?;
    }
    Some(autograd)
}

/// Adds the state that a view takes from its base.
fn look_at_base(
    memory: &impl ReadMemory,
    layouts: &Layouts,
    layout: &AutogradLayout,
    tensor: Fields<'_>,
    meta: u64,
    autograd: &mut Autograd,
) -> Option<()> {
    let view = View::read(memory, &layouts.classes, layout, meta)?;
    let Some(base) = view.base else {
        return Some(());
    };
    autograd.base = Some(base);
    if !autograd.requires_grad {
        let at = base.wrapping_add(layouts.tensor.autograd as u64);
        let meta = memory.read_u64(at).ok()?;
        // The base is never a view itself.
        autograd.requires_grad = match some(meta) {
            Some(meta) => Meta::read(memory, &layouts.classes, layout, meta)?.requires_grad,
            None => false,
        };
    }
    // A `c10::VariableVersion::VersionCounter` begins like every `intrusive_ptr_target`. Its header ends at
    // the offset of a tensor's first own field, the storage.
    if let Some(counter) = some(tensor.word(layouts.tensor.version)) {
        let at = counter.wrapping_add(layouts.tensor.storage as u64);
        let version = memory.read_u32(at).ok()?;
        autograd.outdated = version != view.version;
    }
    Some(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    /// True if the flag is set or there is a `grad_fn`.
    pub(super) requires_grad: bool,
    /// The flag itself, which leaves have.
    pub(super) says_so: bool,
    /// The pointer, which may lead to an `UndefinedTensorImpl`.
    pub(super) grad: u64,
    pub(super) grad_fn: Option<u64>,
    pub(super) is_view: bool,
}

impl Meta {
    /// Reads the metadata at an address. Returns `None` if none lies there or if the layout does not fit.
    pub(super) fn read(
        memory: &impl ReadMemory,
        classes: &Classes,
        layout: &AutogradLayout,
        address: u64,
    ) -> Option<Self> {
        let mut bytes = [0; 256];
        let bytes = &mut bytes[..layout.size().min(256)];
        memory.read(address, bytes).ok()?;
        let fields = Fields(bytes);
        let class = classes.of_table(memory, fields.word(0))?;
        let is_view = &*class.name == VIEW;
        let grad_fn = some(fields.word(layout.grad_fn));
        let grad = fields.word(layout.grad);
        let requires_grad = fields.byte(layout.requires_grad);
        let fits = class.family == Family::Autograd
            && requires_grad <= 1
            && fields.byte(layout.is_view()) == u8::from(is_view)
            && grad_fn.is_none_or(|node| classes.is(memory, node, Family::Node))
            && (grad == 0 || classes.is(memory, grad, Family::Tensor));
        fits.then_some(Self {
            requires_grad: requires_grad == 1 || grad_fn.is_some(),
            says_so: requires_grad == 1,
            grad,
            grad_fn,
            is_view,
        })
    }
}

/// Additional fields of a `DifferentiableViewMeta`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct View {
    pub(super) base: Option<u64>,
    /// Version of the tensor for which its `grad_fn` was made.
    version: u32,
}

impl View {
    /// Reads the additional fields at an address. Returns `None` if the layout does not fit.
    pub(super) fn read(
        memory: &impl ReadMemory,
        classes: &Classes,
        layout: &AutogradLayout,
        address: u64,
    ) -> Option<Self> {
        let mut bytes = [0; 512];
        let bytes = &mut bytes[..layout.view_size().min(512)];
        memory.read(address, bytes).ok()?;
        let fields = Fields(bytes);
        let base = match fields.byte(layout.has_base) {
            0 => None,
            1 => Some(fields.word(layout.base)),
            _ => return None,
        };
        let fits = base.is_none_or(|base| classes.is(memory, base, Family::Tensor));
        fits.then_some(Self {
            base,
            version: fields.word32(layout.version),
        })
    }
}

/// Returns the name of a node, as `grad_fn.name()` gives it. Returns `None` if no node lies there or if the
/// name of its class cannot be parsed.
pub(super) fn name(
    memory: &impl ReadMemory,
    classes: &Classes,
    layout: &NodeLayout,
    node: u64,
) -> Option<Arc<str>> {
    let class = classes.of(memory, node)?;
    if class.family != Family::Node {
        return None;
    }
    let name = if &*class.name == node_name::PYTHON {
        let at = node.checked_add(layout.python as u64)?;
        let kind = memory.read_u64(memory.read_u64(at).ok()?.checked_add(TYPE)?);
        node_name::of_python_type(memory, kind.ok()?)
    } else {
        node_name::of_class(&class.name)
    };
    name.map(Into::into)
}

/// Returns the nodes at the ends of a node's edges, or `None` if the layout does not fit.
pub(super) fn next(
    memory: &impl ReadMemory,
    classes: &Classes,
    layout: &NodeLayout,
    node: Fields<'_>,
) -> Option<Vec<u64>> {
    let [begin, end, room] = [0, 8, 16].map(|at| node.word(layout.edges + at));
    let bytes = vector(begin, end, room, layout.edge, MAX_EDGES)?;
    let edges = memory
        .read_bytes(begin, bytes, MAX_EDGES as usize * layout.edge)
        .ok()?;
    let nodes = edges
        .chunks_exact(layout.edge)
        .filter_map(|edge| some(Fields(edge).word(0)));
    let nodes: Vec<u64> = nodes.collect();
    nodes
        .iter()
        .all(|node| classes.is(memory, *node, Family::Node))
        .then_some(nodes)
}

/// Bytes in use of a `std::vector` with elements of `size` bytes. Returns `None` if the three pointers are
/// not those of a vector, or if it has more than `most` elements.
pub(super) fn vector(begin: u64, end: u64, room: u64, size: usize, most: u64) -> Option<u64> {
    let used = end.checked_sub(begin)?;
    let held = room.checked_sub(begin)?;
    let size = size as u64;
    let fits = used <= held
        && used.is_multiple_of(size)
        && held.is_multiple_of(size)
        && used / size <= most
        && begin.is_multiple_of(8)
        && (begin != 0 || held == 0);
    fits.then_some(used)
}

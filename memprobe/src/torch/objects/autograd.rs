//! Reads the autograd metadata of tensors, and the edges of graph nodes.

use super::class::{Family, Fields, Objects};
use super::layout_versions::{AutogradLayout, NodeLayout};
use super::layouts::ObjectReader;
use super::tensor::some;
use crate::process::memory::ReadMemory;

const VIEW: &str = "N5torch8autograd22DifferentiableViewMetaE";

/// Most edges of one node. A concatenation has one for each of its tensors.
const MAX_EDGES: u64 = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Autograd {
    pub(super) requires_grad: bool,
    pub(super) grad: Option<u64>,
    pub(super) grad_fn: Option<u64>,
    pub(super) base: Option<u64>,
    pub(super) outdated: bool,
}

impl<M: ReadMemory> ObjectReader<'_, M> {
    /// Reads autograd's state of the tensor with these fields. Returns `None` if the metadata cannot be read.
    pub(super) fn autograd(&self, tensor: Fields<'_>) -> Option<Autograd> {
        let Some(meta) = some(tensor.word(self.layouts.tensor.autograd)) else {
            return Some(Autograd::default());
        };
        let layout = self.layouts.autograd.as_ref()?;
        let own = self.objects.meta(layout, meta)?;
        let mut autograd = Autograd {
            requires_grad: own.requires_grad,
            grad: some(own.grad).filter(|grad| self.objects.is_tensor(*grad)),
            grad_fn: own.grad_fn,
            base: None,
            outdated: false,
        };
        if own.is_view {
            self.look_at_base(layout, tensor, meta, &mut autograd)?;
        }
        Some(autograd)
    }

    fn look_at_base(
        &self,
        layout: &AutogradLayout,
        tensor: Fields<'_>,
        meta: u64,
        autograd: &mut Autograd,
    ) -> Option<()> {
        let view = self.objects.view(layout, meta)?;
        let Some(base) = view.base else {
            return Some(());
        };
        autograd.base = Some(base);
        let own = &self.layouts.tensor;
        if !autograd.requires_grad {
            let at = base.wrapping_add(own.autograd as u64);
            let meta = self.objects.memory.read_u64(at).ok()?;
            // The base is never a view itself.
            autograd.requires_grad = match some(meta) {
                Some(meta) => self.objects.meta(layout, meta)?.requires_grad,
                None => false,
            };
        }
        // A `c10::VariableVersion::VersionCounter` begins like every `intrusive_ptr_target`. Its header ends at
        // the offset of a tensor's first own field, the storage.
        if let Some(counter) = some(tensor.word(own.version)) {
            let at = counter.wrapping_add(own.storage as u64);
            let version = self.objects.memory.read_u32(at).ok()?;
            autograd.outdated = version != view.version;
        }
        Some(())
    }
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct View {
    pub(super) base: Option<u64>,
    /// Version of the tensor for which its `grad_fn` was made.
    version: u32,
}

impl<M: ReadMemory> Objects<'_, M> {
    /// Reads the metadata at an address. Returns `None` if none lies there or if the layout does not fit.
    pub(super) fn meta(&self, layout: &AutogradLayout, address: u64) -> Option<Meta> {
        let mut bytes = [0; 256];
        let bytes = &mut bytes[..layout.size().min(256)];
        self.memory.read(address, bytes).ok()?;
        let fields = Fields(bytes);
        let class = self.class_of_table(fields.word(0))?;
        let is_view = &*class.name == VIEW;
        let grad_fn = some(fields.word(layout.grad_fn));
        let grad = fields.word(layout.grad);
        let requires_grad = fields.byte(layout.requires_grad);
        let fits = class.family == Family::Autograd
            && requires_grad <= 1
            && fields.byte(layout.requires_grad + AutogradLayout::IS_VIEW) == u8::from(is_view)
            && grad_fn.is_none_or(|node| self.is(node, Family::Node))
            && (grad == 0 || self.is(grad, Family::Tensor));
        fits.then_some(Meta {
            requires_grad: requires_grad == 1 || grad_fn.is_some(),
            says_so: requires_grad == 1,
            grad,
            grad_fn,
            is_view,
        })
    }

    /// Reads the additional fields at an address. Returns `None` if the layout does not fit.
    pub(super) fn view(&self, layout: &AutogradLayout, address: u64) -> Option<View> {
        let mut bytes = [0; 512];
        let bytes = &mut bytes[..(layout.version + 4).min(512)];
        self.memory.read(address, bytes).ok()?;
        let fields = Fields(bytes);
        let base = match fields.byte(layout.has_base) {
            0 => None,
            1 => Some(fields.word(layout.base)),
            _ => return None,
        };
        let fits = base.is_none_or(|base| self.is(base, Family::Tensor));
        let version = fields.word32(layout.version);
        fits.then_some(View { base, version })
    }

    /// Returns the nodes at the ends of a node's edges, or `None` if the layout does not fit.
    pub(super) fn next(&self, layout: &NodeLayout, node: Fields<'_>) -> Option<Vec<u64>> {
        let edges = self.vector(node, layout.edges, layout.edge, MAX_EDGES)?;
        let edges = edges.chunks_exact(layout.edge);
        let nodes: Vec<u64> = edges
            .filter_map(|edge| some(Fields(edge).word(0)))
            .collect();
        let is_node = |node: &u64| self.is(*node, Family::Node);
        nodes.iter().all(is_node).then_some(nodes)
    }

    /// Bytes of the elements of a `std::vector` at an offset of an object; an element has `size` bytes. Returns
    /// `None` if the three pointers there are not those of a vector, or if it has more than `most` elements.
    pub(super) fn vector(
        &self,
        object: Fields<'_>,
        at: usize,
        size: usize,
        most: u64,
    ) -> Option<Vec<u8>> {
        let [begin, end, room] = [0, 8, 16].map(|word| object.word(at + word));
        let (used, held) = (end.checked_sub(begin)?, room.checked_sub(begin)?);
        let element = size as u64;
        let fits = used <= held
            && used.is_multiple_of(element)
            && held.is_multiple_of(element)
            && used / element <= most
            && begin.is_multiple_of(8)
            && (begin != 0 || held == 0);
        let limit = most as usize * size;
        fits.then(|| self.memory.read_bytes(begin, used, limit).ok())?
    }
}

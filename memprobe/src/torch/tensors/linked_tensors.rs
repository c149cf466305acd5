//! Tensors that refer to other objects of PyTorch than their storage. In a large heap they are few.

use crate::event::tensors::Tensor;
use crate::torch::objects::{RawTensor, TensorReferences};

#[derive(Debug, Default)]
pub(super) struct LinkedTensors {
    /// By index of the tensor in the snapshot.
    all: Vec<(usize, RawTensor)>,
}

impl LinkedTensors {
    /// Picks them out of all tensors of a snapshot.
    pub(super) fn of(tensors: Vec<RawTensor>) -> Self {
        let tensors = tensors.into_iter().enumerate();
        Self {
            all: tensors
                .filter(|(_, raw)| raw.references.is_some())
                .collect(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &RawTensor)> {
        self.all.iter().map(|(at, raw)| (*at, raw))
    }

    /// References of the tensor at this index; `None` if it has none.
    pub(super) fn references(&self, tensor: usize) -> Option<&TensorReferences> {
        let place = self.all.binary_search_by_key(&tensor, |(at, _)| *at);
        self.all[place.ok()?].1.references.as_deref()
    }
}

/// Index of a `TensorImpl` among the tensors of a snapshot, which are in the order of their addresses.
pub(super) fn index_of(tensors: &[Tensor], object: u64) -> Option<usize> {
    tensors
        .binary_search_by_key(&object, |tensor| tensor.object)
        .ok()
}

//! Consistent subsets of a snapshot.

use crate::event::tensors::{TensorDevice, TensorSnapshot};

pub fn without(mut snapshot: TensorSnapshot, device: TensorDevice) -> TensorSnapshot {
    let mut places = Vec::with_capacity(snapshot.storages.len());
    let mut next = 0;
    snapshot.storages.retain(|storage| {
        let is_retained = storage.device != device;
        places.push(is_retained.then_some(next));
        next += usize::from(is_retained);
        is_retained
    });
    let mut moved = Vec::with_capacity(snapshot.tensors.len());
    let mut next = 0;
    snapshot.tensors.retain_mut(|tensor| {
        let is_retained = tensor.device != device;
        // A tensor on another device may have its storage there; it then loses the storage.
        tensor.storage = tensor.storage.and_then(|at| *places.get(at)?);
        moved.push(is_retained.then_some(next));
        next += usize::from(is_retained);
        is_retained
    });
    for tensor in &mut snapshot.tensors {
        let of = std::mem::take(&mut tensor.gradient_of);
        let of = of.into_iter().filter_map(|at| *moved.get(at)?);
        tensor.gradient_of = of.collect();
    }
    snapshot
}

//! Consistent subsets of a snapshot.

use crate::event::tensors::{TensorDevice, TensorSnapshot};

pub fn without(mut snapshot: TensorSnapshot, device: TensorDevice) -> TensorSnapshot {
    let mut places = Vec::with_capacity(snapshot.storages.len());
    let mut kept = 0;
    snapshot.storages.retain(|storage| {
        let is_kept = storage.device != device;
        places.push(is_kept.then_some(kept));
        kept += usize::from(is_kept);
        is_kept
    });
    let mut moved = Vec::with_capacity(snapshot.tensors.len());
    let mut kept = 0;
    snapshot.tensors.retain_mut(|tensor| {
        let is_kept = tensor.device != device;
        // A tensor on another device may have its storage there; it then loses the storage.
        tensor.storage = tensor.storage.and_then(|at| *places.get(at)?);
        moved.push(is_kept.then_some(kept));
        kept += usize::from(is_kept);
        is_kept
    });
    for tensor in &mut snapshot.tensors {
        let of = std::mem::take(&mut tensor.gradient_of);
        let of = of.into_iter().filter_map(|at| *moved.get(at)?);
        tensor.gradient_of = of.collect();
    }
    snapshot
}

//! Consistent subsets of a snapshot.

use crate::event::tensors::{TensorDevice, TensorSnapshot};

pub fn without(snapshot: TensorSnapshot, device: TensorDevice) -> TensorSnapshot {
    let mut places = vec![None; snapshot.storages.len()];
    let mut storages = Vec::new();
    for (at, storage) in snapshot.storages.into_iter().enumerate() {
        if storage.device != device {
            places[at] = Some(storages.len());
            storages.push(storage);
        }
    }
    let mut moved = vec![None; snapshot.tensors.len()];
    let mut tensors = Vec::new();
    for (at, mut tensor) in snapshot.tensors.into_iter().enumerate() {
        if tensor.device != device {
            // A tensor on another device may have its storage there; it then loses the storage.
            tensor.storage = tensor.storage.and_then(|at| *places.get(at)?);
            moved[at] = Some(tensors.len());
            tensors.push(tensor);
        }
    }
    for tensor in &mut tensors {
        let of = std::mem::take(&mut tensor.gradient_of);
        let of = of.into_iter().filter_map(|at| *moved.get(at)?);
        tensor.gradient_of = of.collect();
    }
    TensorSnapshot {
        storages,
        tensors,
        ..snapshot
    }
}

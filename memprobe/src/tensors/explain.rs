//! Rows of a snapshot: tensors, storages and blocks, with the bytes that they account for.

use super::account_entries::{AccountEntry, DeviceEntries, EntrySubject};
use super::division::account_entries;
use super::kv_cache::kv_tables;
use super::{DeviceTable, Row, TensorTable};
use crate::event::tensors::{Tensor, TensorDevice, TensorSnapshot};

pub fn explain(snapshot: &TensorSnapshot) -> TensorTable {
    let devices = account_entries(snapshot);
    TensorTable {
        kv: kv_tables(snapshot, &devices),
        kv_gap: snapshot.kv.gap.clone(),
        private_free: snapshot.kv.private_free.clone(),
        target: snapshot.target.clone(),
        taken_ms: snapshot.taken_ms,
        consistency: snapshot.consistency,
        objects: snapshot.objects,
        unread: snapshot.unread.clone(),
        limit: snapshot.limit,
        devices: devices
            .into_iter()
            .map(|device| device_table(snapshot, device))
            .collect(),
    }
}

fn device_table(snapshot: &TensorSnapshot, divided: DeviceEntries) -> DeviceTable {
    let device = divided.device;
    let rows = divided.entries.iter();
    DeviceTable {
        device,
        rows: rows.map(|entry| row_of(snapshot, device, entry)).collect(),
        account: divided.account,
    }
}

fn row_of(snapshot: &TensorSnapshot, device: TensorDevice, entry: &AccountEntry) -> Row {
    let row = match entry.subject {
        EntrySubject::Tensor(at) => tensor_row(&snapshot.tensors[at], at),
        EntrySubject::Storage(_) | EntrySubject::Block(_) => Row {
            purpose: entry.purpose(snapshot).cloned(),
            ..Row::default()
        },
    };
    let storage = entry.storage(snapshot);
    let block = entry.block(snapshot);
    Row {
        kind: entry.kind(snapshot),
        device,
        size: entry.size(snapshot),
        holds: entry.holds(),
        outside: entry.outside(),
        owner: entry.owner,
        storage: entry.address(snapshot),
        storage_bytes: entry.storage_bytes(snapshot),
        retainer: storage.and_then(|storage| storage.retainer.clone()),
        site: block.and_then(|block| block.site.clone()),
        block: block.map(|block| (block.addr, block.size)),
        ..row
    }
}

fn tensor_row(tensor: &Tensor, at: usize) -> Row {
    Row {
        tensor: Some(at),
        names: tensor.names.clone(),
        class: tensor.class.clone(),
        shape: tensor.shape.clone(),
        dtype: Some(tensor.dtype),
        requires_grad: tensor.requires_grad,
        grad_fn: tensor.grad_fn.clone(),
        saved_by: tensor.saved_by.clone(),
        module: tensor.module.clone(),
        offset: tensor.offset,
        object: tensor.object,
        ..Row::default()
    }
}

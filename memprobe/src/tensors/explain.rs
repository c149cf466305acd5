//! Table of a snapshot: tensors, storages and blocks, with the bytes that they account for.

use std::sync::Arc;

use super::division::account_entries;
use super::kv_cache::kv_tables;
use super::{DeviceTable, TensorTable};
use crate::event::tensors::TensorSnapshot;

pub fn explain(snapshot: impl Into<Arc<TensorSnapshot>>) -> TensorTable {
    let snapshot = snapshot.into();
    let devices = account_entries(&snapshot);
    TensorTable {
        kv: kv_tables(&snapshot, &devices),
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
            .map(|divided| DeviceTable::new(Arc::clone(&snapshot), divided))
            .collect(),
    }
}

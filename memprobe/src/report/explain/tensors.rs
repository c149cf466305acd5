//! Explanation of a process's tensors at one moment, with what has grown before.

use std::collections::BTreeMap;

use super::parts::{PartId, completed};
use super::{
    DeviceExplanation, Explanation, ExplanationSource, GpuMemory, MemoryOwner, OwnedBy, measures,
};
use crate::attribution::growth::Growth;
use crate::event::tensors::{TensorDevice, TensorKind};
use crate::event::{Bytes, DeviceIndex};
use crate::tensors::{DeviceTable, GroupBy, Order, RowKind, TensorTable, groups};
use crate::view::kv_gap;

/// Facts about a process at one moment.
pub struct ProcessEvidence<'a> {
    pub table: &'a TensorTable,
    pub source: ExplanationSource,
    /// Memory of the GPUs behind its devices, as far as it is known.
    pub gpus: BTreeMap<DeviceIndex, GpuMemory>,
    /// Growth of each device; empty if the process was not watched.
    pub growth: BTreeMap<DeviceIndex, Growth>,
    /// Bytes of each device that `empty_cache()` would return, where the allocator's segments are known.
    pub returnable: BTreeMap<DeviceIndex, Bytes>,
    pub notes: Vec<String>,
}

pub fn explain_process(evidence: ProcessEvidence<'_>) -> Explanation {
    let ProcessEvidence {
        table,
        source,
        gpus,
        mut growth,
        returnable,
        mut notes,
    } = evidence;
    let mut devices: Vec<DeviceExplanation> = Vec::new();
    for device in &table.devices {
        let TensorDevice::Cuda(index) = device.device else {
            continue;
        };
        let explained = explained(device, index, gpus.get(&index).copied());
        devices.extend(explained.map(|mut device| {
            device.growth = growth.remove(&index);
            device.returnable = returnable.get(&index).copied();
            let own = Some(TensorDevice::Cuda(index));
            device.kv = table.kv.iter().find(|kv| kv.device == own).cloned();
            device.measures = measures::measures(&device);
            device
        }));
    }
    devices.sort_by_key(|device| std::cmp::Reverse(device.totals.reserved));
    notes.extend(devices.iter().filter_map(DeviceExplanation::unbacked_note));
    notes.extend(
        table
            .unread
            .iter()
            .map(|unread| format!("not read: {unread}")),
    );
    let gap = table.kv_gap.iter();
    notes.extend(gap.map(|gap| format!("the KV cache is not divided: {}", kv_gap(gap))));
    Explanation {
        target: table.target.clone(),
        source,
        devices,
        notes,
    }
}

/// Returns `None` for a device without an allocator's totals.
fn explained(
    table: &DeviceTable,
    index: DeviceIndex,
    gpu: Option<GpuMemory>,
) -> Option<DeviceExplanation> {
    let totals = table.account.totals?;
    let allocated = table.rows().iter().map(|row| (part(row.kind), row.holds.0));
    Some(DeviceExplanation {
        index,
        gpu,
        totals,
        parts: completed(allocated, totals, gpu),
        owners: owners(table),
        owned: OwnedBy::Retainer,
        ooms: 0,
        failed: None,
        growth: None,
        returnable: None,
        measures: Vec::new(),
        kv: None,
    })
}

const fn part(kind: RowKind) -> PartId {
    match kind {
        RowKind::Tensor(TensorKind::Parameter) => PartId::Parameters,
        RowKind::Tensor(TensorKind::Buffer) => PartId::Buffers,
        RowKind::Tensor(TensorKind::Gradient) => PartId::Gradients,
        RowKind::Tensor(TensorKind::OptimizerState) => PartId::OptimizerState,
        RowKind::Tensor(TensorKind::KvCache) => PartId::KvCache,
        RowKind::Tensor(TensorKind::Saved) => PartId::Activations,
        RowKind::Tensor(TensorKind::Tensor) => PartId::OtherTensors,
        RowKind::Storage | RowKind::Block => PartId::NoTensor,
        RowKind::BlockUnread => PartId::TensorsNotRead,
    }
}

fn owners(table: &DeviceTable) -> Vec<MemoryOwner> {
    let groups = groups(table.rows(), GroupBy::Retainer, Order::Holds);
    let groups = groups.into_iter().filter(|group| group.holds > Bytes(0));
    let owner = |group: crate::tensors::Group| {
        let retainer = table.rows().at(group.rows[0]).retainer();
        let rows = group.rows.iter().map(|at| table.rows().at(*at));
        let is_exclusive = |row: &crate::tensors::Row<'_>| {
            let retainer = row.retainer();
            retainer.is_some_and(|retainer| retainer.exclusive)
        };
        let exclusive = rows.clone().filter(is_exclusive);
        let exclusive = exclusive.map(|row| row.holds.0).sum();
        let caches = rows.filter(|row| row.kind == RowKind::Tensor(TensorKind::KvCache));
        MemoryOwner {
            name: retainer.map(|retainer| retainer.by.to_string()),
            class: retainer.and_then(|retainer| retainer.class.as_deref().map(str::to_owned)),
            bytes: group.holds,
            exclusive: retainer.map(|_| Bytes(exclusive)),
            kv_cache: Bytes(caches.map(|row| row.holds.0).sum()),
        }
    };
    groups.map(owner).collect()
}

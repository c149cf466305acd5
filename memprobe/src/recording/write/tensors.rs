//! Tensor snapshot as one JSON document, for `memprobe diff` and for other programs.
//!
//! Each tensor, storage and block is one line, so that the file can be searched by line and written as a
//! stream. [`crate::recording::read_tensors`] reads it, and its module describes the fields.

use std::io::{self, Write};

use serde::{Serialize, Serializer};

use super::json_list::JsonList;
use crate::event::tensors::{Consistency, DType, Name, Tensor, TensorDevice, TensorSnapshot};
use crate::event::{Bytes, Target};
use crate::recording::{
    BlockRecord, KvCachesRecord, RetainerRecord, SiteRecord, StorageRecord, TENSOR_FORMAT,
};
use crate::tensors::{Account, DeviceTable, Row, TensorTable, explain};

/// Writes the document. `version` is memprobe's.
pub fn write_tensors(
    snapshot: &TensorSnapshot,
    version: &str,
    out: &mut impl Write,
) -> io::Result<()> {
    let table = explain(snapshot);
    // The first field identifies the file; all fields but the lists come first.
    let head = serde_json::to_string(&Head::of(snapshot, &table, version))?;
    out.write_all(head.strip_suffix('}').unwrap_or(&head).as_bytes())?;
    let totals = JsonList::begin(out, "totals")?;
    let totals = totals.add(&table.devices, |table| Some(DeviceRecord::from(table)))?;
    totals.end()?;
    let (tensors, others) = rows(&table, snapshot.tensors.len());
    let tensors: Vec<_> = tensors.into_iter().zip(&snapshot.tensors).collect();
    let list = JsonList::begin(out, "tensors")?;
    let list = list.add(&tensors, |&(place, tensor)| {
        let (table, row) = place?;
        Some(Item::of_tensor(row, table, tensor))
    })?;
    let list = list.add(&others, |&(table, row)| Some(Item::of(row, table)))?;
    list.end()?;
    let list = JsonList::begin(out, "storages")?;
    let list = list.add(&snapshot.storages, |storage| {
        Some(StorageRecord::from(storage))
    })?;
    list.end()?;
    let list = JsonList::begin(out, "blocks")?;
    let list = list.add(&snapshot.blocks, |block| Some(BlockRecord::from(block)))?;
    list.end()?;
    out.write_all(b"\n}\n")
}

#[derive(Serialize)]
struct Head<'a> {
    memprobe_snapshot: u32,
    memprobe: &'a str,
    #[serde(flatten)]
    target: &'a Target,
    taken_ms: u64,
    #[serde(skip_serializing_if = "is_zero")]
    moment_ns: u64,
    /// Duration of the pause; `null` if the process was not paused.
    pause_ms: Option<f64>,
    retries: u32,
    objects: u64,
    unread: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor_limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    missing_objects: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_cache: Option<KvCachesRecord<'a>>,
    /// Rows of `kv_cache` with their bytes, for other programs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kv_rows: Vec<KvRowRecord<'a>>,
}

/// Units and bytes of a request, or of another use of a KV cache.
#[derive(Serialize)]
struct KvRowRecord<'a> {
    #[serde(serialize_with = "as_optional_text")]
    device: Option<TensorDevice>,
    usage: &'static str,
    request: Option<&'a str>,
    units: u64,
    shared_units: u64,
    bytes: Option<u64>,
}

fn kv_rows(table: &TensorTable) -> Vec<KvRowRecord<'_>> {
    let tables = table.kv.iter();
    let rows = tables.flat_map(|table| table.rows.iter().map(move |row| (table.device, row)));
    let rows = rows.map(|(device, row)| KvRowRecord {
        device,
        usage: row.usage.key(),
        request: row.request.as_deref(),
        units: row.units,
        shared_units: row.shared,
        bytes: row.bytes.map(|bytes| bytes.0),
    });
    rows.collect()
}

impl<'a> Head<'a> {
    fn of(snapshot: &'a TensorSnapshot, table: &'a TensorTable, version: &'a str) -> Self {
        let (pause_ms, retries) = match snapshot.consistency {
            Consistency::Paused { pause, retries } => (Some(pause.as_secs_f64() * 1e3), retries),
            Consistency::Running => (None, 0),
        };
        Self {
            memprobe_snapshot: TENSOR_FORMAT,
            memprobe: version,
            target: &snapshot.target,
            taken_ms: snapshot.taken_ms,
            moment_ns: snapshot.moment.0,
            pause_ms,
            retries,
            objects: snapshot.objects,
            unread: snapshot.unread.iter().map(|words| &**words).collect(),
            tensor_limit: snapshot.limit,
            missing_objects: snapshot.missing_objects.as_deref(),
            kv_cache: KvCachesRecord::of(&snapshot.kv),
            kv_rows: kv_rows(table),
        }
    }
}

/// Accounting of a device: `allocated` is the sum of the fields from `tensors` up to `remainder`.
#[derive(Serialize)]
struct DeviceRecord {
    #[serde(serialize_with = "as_text")]
    device: TensorDevice,
    allocated: Option<u64>,
    reserved: Option<u64>,
    tensors: u64,
    storages_without_tensor: u64,
    rounding: u64,
    uncovered: u64,
    blocks_without_tensor: u64,
    /// Blocks without a known tensor, if not every tensor was read: `tensor_limit`, `missing_objects`.
    #[serde(skip_serializing_if = "is_zero")]
    blocks_not_read: u64,
    remainder: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    outside_the_allocator: u64,
    tensor_count: u64,
    block_count: Option<u64>,
}

impl From<&DeviceTable> for DeviceRecord {
    fn from(table: &DeviceTable) -> Self {
        let account: &Account = &table.account;
        Self {
            device: table.device,
            allocated: account.totals.map(|totals| totals.allocated.0),
            reserved: account.totals.map(|totals| totals.reserved.0),
            tensors: account.tensors.0,
            storages_without_tensor: account.bare.0,
            rounding: account.rounding.0,
            uncovered: account.uncovered.0,
            blocks_without_tensor: account.blocks.0,
            blocks_not_read: account.unread.0,
            remainder: account.remainder,
            reason: account.reason.map(|reason| reason.as_str()),
            outside_the_allocator: account.outside.0,
            tensor_count: account.tensor_count,
            block_count: account.block_count,
        }
    }
}

/// Tensor, or memory without one (`kind` `block`).
#[derive(Serialize)]
struct Item<'a> {
    name: Option<&'a str>,
    names: Vec<&'a str>,
    /// For each name, the rule that inferred it, or `null`; omitted if none was inferred.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    inferred: Vec<Option<&'static str>>,
    kind: &'static str,
    shape: Option<&'a [u64]>,
    #[serde(serialize_with = "as_optional_text")]
    dtype: Option<DType>,
    #[serde(serialize_with = "as_text")]
    device: TensorDevice,
    /// `numel() * element_size()`, or the size of the storage or block.
    bytes: Option<u64>,
    /// The allocator's bytes that this row accounts for, rounding included. The sum over all rows is
    /// `allocated - remainder`. A shared storage counts at one of its tensors.
    allocated: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    outside: Option<u64>,
    /// Index here of the tensor that accounts for the shared storage.
    #[serde(skip_serializing_if = "Option::is_none")]
    shares_with: Option<usize>,
    #[serde(serialize_with = "as_hex")]
    storage: Option<u64>,
    storage_bytes: Option<u64>,
    requires_grad: bool,
    grad_fn: Option<&'a str>,
    module: Option<&'a str>,
    site: Option<SiteRecord<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    purpose: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    saved_by: Option<&'a str>,
    /// Root that keeps its storage alive.
    #[serde(skip_serializing_if = "Option::is_none")]
    retained_by: Option<RetainerRecord<'a>>,
    #[serde(skip_serializing_if = "is_empty")]
    gradient_of: &'a [usize],
    #[serde(skip_serializing_if = "is_empty")]
    strides: &'a [u64],
    #[serde(skip_serializing_if = "is_zero")]
    offset: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    storage_index: Option<usize>,
    #[serde(serialize_with = "as_hex", skip_serializing_if = "Option::is_none")]
    object: Option<u64>,
}

type Place<'a> = (&'a DeviceTable, &'a Row);

/// Returns the row of each tensor, and the rows of memory without one.
fn rows(table: &TensorTable, tensors: usize) -> (Vec<Option<Place<'_>>>, Vec<Place<'_>>) {
    let mut of_tensors = vec![None; tensors];
    let mut others = Vec::new();
    for device in &table.devices {
        for row in &device.rows {
            match row.tensor.and_then(|at| of_tensors.get_mut(at)) {
                Some(place) => *place = Some((device, row)),
                None => others.push((device, row)),
            }
        }
    }
    (of_tensors, others)
}

impl<'a> Item<'a> {
    fn of(row: &'a Row, table: &DeviceTable) -> Self {
        let bytes = |bytes: Bytes| bytes.0;
        Self {
            name: row.name().map(|name| &*name.text),
            names: row.names.iter().map(|name| &*name.text).collect(),
            inferred: inferred(&row.names),
            kind: row.kind.as_str(),
            shape: row.shape.as_deref(),
            dtype: row.dtype,
            device: row.device,
            bytes: row.size.map(bytes),
            allocated: row.holds.0,
            outside: row.outside.map(bytes),
            shares_with: row.owner.and_then(|owner| table.rows.get(owner)?.tensor),
            storage: row.storage.map(|address| address.0),
            storage_bytes: row.storage_bytes.map(bytes),
            requires_grad: row.requires_grad,
            grad_fn: row.grad_fn.as_deref(),
            module: row.module.as_deref(),
            site: row.site.as_deref().map(SiteRecord::from),
            purpose: row.purpose.as_deref(),
            class: row.class.as_deref(),
            saved_by: row.saved_by.as_deref(),
            retained_by: row.retainer.as_deref().map(RetainerRecord::from),
            gradient_of: &[],
            strides: &[],
            offset: row.offset,
            storage_index: None,
            object: None,
        }
    }

    fn of_tensor(row: &'a Row, table: &DeviceTable, tensor: &'a Tensor) -> Self {
        Self {
            // The tensor's own device, which can differ from that of its storage.
            device: tensor.device,
            gradient_of: &tensor.gradient_of,
            strides: &tensor.strides,
            storage_index: tensor.storage,
            object: Some(tensor.object),
            ..Self::of(row, table)
        }
    }
}

fn inferred(names: &[Name]) -> Vec<Option<&'static str>> {
    if names.iter().all(|name| name.inferred.is_none()) {
        return Vec::new();
    }
    names.iter().map(|name| name.inferred).collect()
}

// serde's `serialize_with` passes references.
fn as_text<S: Serializer>(shown: &impl std::fmt::Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(shown)
}

fn as_optional_text<S: Serializer>(
    shown: &Option<impl std::fmt::Display>,
    to: S,
) -> Result<S::Ok, S::Error> {
    match shown {
        Some(shown) => to.collect_str(shown),
        None => to.serialize_none(),
    }
}

fn as_hex<S: Serializer>(number: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
    match number {
        Some(number) => to.collect_str(&format_args!("{number:#x}")),
        None => to.serialize_none(),
    }
}

fn is_empty<T>(list: &&[T]) -> bool {
    list.is_empty()
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

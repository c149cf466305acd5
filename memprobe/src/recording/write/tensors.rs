//! Tensor snapshot as one JSON document, for `memprobe diff` and for other programs.
//!
//! Each tensor, storage and block is one line, so that the file can be searched by line and written as a
//! stream. [`crate::recording::read_tensors`] reads it, and its module describes the fields.

use std::io::{self, Write};

use serde::{Serialize, Serializer};

use super::json_list::JsonList;
use crate::event::tensors::{Consistency, DType, Name, TensorDevice, TensorSnapshot};
use crate::event::{Bytes, Target};
use crate::recording::{
    BlockRecord, KvCachesRecord, RetainerRecord, SiteRecord, StorageRecord, TENSOR_FORMAT,
};
use crate::tensors::{Account, AccountEntry, DeviceEntries, KvTable, account_entries, kv_tables};

/// Writes the document. `version` is memprobe's.
pub fn write_tensors(
    snapshot: &TensorSnapshot,
    version: &str,
    out: &mut impl Write,
) -> io::Result<()> {
    let devices = account_entries(snapshot);
    let kv = kv_tables(snapshot, &devices);
    // The first field identifies the file; all fields but the lists come first.
    let head = serde_json::to_string(&Head::of(snapshot, &kv, version))?;
    out.write_all(head.strip_suffix('}').unwrap_or(&head).as_bytes())?;
    let totals = JsonList::begin(out, "totals")?;
    let totals = totals.add(devices.len(), |at| Some(DeviceRecord::from(&devices[at])))?;
    totals.end()?;
    let (of_tensors, others) = entries(&devices, snapshot.tensors.len());
    let list = JsonList::begin(out, "tensors")?;
    let list = list.add(of_tensors.len(), |at| {
        let (device, entry) = of_tensors[at]?;
        Some(Item::of_tensor(entry, device, snapshot, at))
    })?;
    let list = list.add(others.len(), |at| {
        let (device, entry) = others[at];
        Some(Item::of(entry, device, snapshot))
    })?;
    list.end()?;
    let list = JsonList::begin(out, "storages")?;
    let storages = &snapshot.storages;
    let list = list.add(storages.len(), |at| {
        Some(StorageRecord::from(&storages[at]))
    })?;
    list.end()?;
    let list = JsonList::begin(out, "blocks")?;
    let blocks = &snapshot.blocks;
    let list = list.add(blocks.len(), |at| Some(BlockRecord::from(&blocks[at])))?;
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

fn kv_rows(tables: &[KvTable]) -> Vec<KvRowRecord<'_>> {
    let tables = tables.iter();
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
    fn of(snapshot: &'a TensorSnapshot, kv: &'a [KvTable], version: &'a str) -> Self {
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
            kv_rows: kv_rows(kv),
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

impl From<&DeviceEntries> for DeviceRecord {
    fn from(entries: &DeviceEntries) -> Self {
        let account: &Account = &entries.account;
        Self {
            device: entries.device,
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

type Place<'a> = (&'a DeviceEntries, &'a AccountEntry);

/// Returns the entry of each tensor, and the entries of memory without one.
fn entries(devices: &[DeviceEntries], tensors: usize) -> (Vec<Option<Place<'_>>>, Vec<Place<'_>>) {
    let mut of_tensors = vec![None; tensors];
    let mut others = Vec::new();
    for device in devices {
        for entry in &device.entries {
            match entry.tensor().and_then(|at| of_tensors.get_mut(at)) {
                Some(place) => *place = Some((device, entry)),
                None => others.push((device, entry)),
            }
        }
    }
    (of_tensors, others)
}

impl<'a> Item<'a> {
    /// Item without the facts of a tensor.
    fn of(entry: &AccountEntry, device: &DeviceEntries, snapshot: &'a TensorSnapshot) -> Self {
        let bytes = |bytes: Bytes| bytes.0;
        let storage = entry.storage(snapshot);
        let block = entry.block(snapshot);
        let owner = entry.owner.and_then(|owner| device.entries.get(owner));
        Self {
            name: None,
            names: Vec::new(),
            inferred: Vec::new(),
            kind: entry.kind(snapshot).as_str(),
            shape: None,
            dtype: None,
            device: device.device,
            bytes: entry.size(snapshot).map(bytes),
            allocated: entry.holds().0,
            outside: entry.outside().map(bytes),
            shares_with: owner.and_then(AccountEntry::tensor),
            storage: entry.address(snapshot).map(|address| address.0),
            storage_bytes: entry.storage_bytes(snapshot).map(bytes),
            requires_grad: false,
            grad_fn: None,
            module: None,
            site: block
                .and_then(|block| block.site.as_deref())
                .map(SiteRecord::from),
            purpose: entry.purpose(snapshot).map(|words| &**words),
            class: None,
            saved_by: None,
            retained_by: storage
                .and_then(|storage| storage.retainer.as_deref())
                .map(RetainerRecord::from),
            gradient_of: &[],
            strides: &[],
            offset: 0,
            storage_index: None,
            object: None,
        }
    }

    fn of_tensor(
        entry: &AccountEntry,
        device: &DeviceEntries,
        snapshot: &'a TensorSnapshot,
        at: usize,
    ) -> Self {
        let tensor = &snapshot.tensors[at];
        Self {
            name: tensor.names.first().map(|name| &*name.text),
            names: tensor.names.iter().map(|name| &*name.text).collect(),
            inferred: inferred(&tensor.names),
            shape: tensor.shape.as_deref(),
            dtype: Some(tensor.dtype),
            // The tensor's own device, which can differ from that of its storage.
            device: tensor.device,
            requires_grad: tensor.requires_grad,
            grad_fn: tensor.grad_fn.as_deref(),
            module: tensor.module.as_deref(),
            class: tensor.class.as_deref(),
            saved_by: tensor.saved_by.as_deref(),
            gradient_of: &tensor.gradient_of,
            strides: &tensor.strides,
            offset: tensor.offset,
            storage_index: tensor.storage,
            object: Some(tensor.object),
            ..Self::of(entry, device, snapshot)
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

//! Tables of a server's KV cache: bytes by request, counted once each.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;

use strum::IntoStaticStr;

use super::account_entries::DeviceEntries;
use super::{DeviceTable, RowKind, TensorTable};
use crate::event::tensors::{TensorDevice, TensorKind, TensorSnapshot};
use crate::event::{Bytes, DeviceIndex, KvPool, KvUnit, Tgid};

/// KV cache of one device. The bytes of its rows add up to those of its tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct KvTable {
    /// Device of the tensors; `None` if the process has none, or they are not assigned to this pool.
    pub device: Option<TensorDevice>,
    /// Class of the scheduler's object that was read.
    pub class: Arc<str>,
    /// Process with that object; `None` if it is the process of the snapshot.
    pub scheduler: Option<Tgid>,
    pub unit: KvUnit,
    pub tokens_per_unit: Option<u64>,
    pub total: u64,
    /// Bytes of the cache; `None` if unknown.
    pub bytes: Option<Bytes>,
    pub source: KvBytesSource,
    /// Bytes of a unit in all layers.
    pub unit_bytes: Option<Bytes>,
    /// Requests, most bytes first, then the other uses.
    pub rows: Vec<KvRow>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvBytesSource {
    /// Blocks of the allocator that hold the cache's tensors.
    Tensors,
    /// The scheduler's configuration.
    Configuration,
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvRow {
    pub usage: KvUsage,
    /// The scheduler's id; `None` for other uses than requests.
    pub request: Option<Arc<str>>,
    pub units: u64,
    /// Units of other rows that the request shares.
    pub shared: u64,
    pub bytes: Option<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum KvUsage {
    Request,
    Shared,
    Cached,
    Free,
    Reserved,
    Unclaimed,
    Undivided,
    /// Bytes beyond all units: padding, and the allocator's rounding.
    Rest,
}

impl KvUsage {
    /// Key in CSV and JSON.
    pub const fn key(self) -> &'static str {
        self.into_str()
    }
}

impl KvTable {
    /// Returns the units of a use.
    pub fn units(&self, usage: KvUsage) -> u64 {
        let rows = self.rows.iter().filter(|row| row.usage == usage);
        rows.map(|row| row.units).sum()
    }

    pub fn bytes_of(&self, units: u64) -> Option<Bytes> {
        let unit = self.unit_bytes?;
        Some(Bytes(unit.0.saturating_mul(units)))
    }

    /// Number of requests with units.
    pub fn requests(&self) -> usize {
        let rows = self.rows.iter();
        rows.filter(|row| row.usage == KvUsage::Request).count()
    }
}

/// Returns a table for each pool and device.
pub fn kv_tables(snapshot: &TensorSnapshot, devices: &[DeviceEntries]) -> Vec<KvTable> {
    let caches = devices
        .iter()
        .filter_map(|divided| cache_of(snapshot, divided));
    let caches: Vec<_> = caches.collect();
    let [pool] = &snapshot.kv.pools[..] else {
        // The objects do not say which tensors belong to which pool.
        let pools = snapshot.kv.pools.iter();
        return pools.map(|pool| table_of(pool, None)).collect();
    };
    if caches.is_empty() {
        return vec![table_of(pool, None)];
    }
    let caches = caches.into_iter();
    caches.map(|cache| table_of(pool, Some(cache))).collect()
}

/// Memory of a cache's tensors on a device.
struct CacheMemory {
    device: TensorDevice,
    /// Blocks of the allocator, rounding included.
    held: u64,
    storages: u64,
}

fn cache_of(snapshot: &TensorSnapshot, divided: &DeviceEntries) -> Option<CacheMemory> {
    if !matches!(divided.device, TensorDevice::Cuda(_)) {
        return None;
    }
    let (mut held, mut storages) = (0_u64, 0_u64);
    let mut counted = HashSet::new();
    for entry in &divided.entries {
        let tensor = entry.tensor().map(|at| &snapshot.tensors[at]);
        let Some(tensor) = tensor.filter(|tensor| tensor.kind == TensorKind::KvCache) else {
            continue;
        };
        held = held
            .saturating_add(entry.holds().0)
            .saturating_add(entry.outside().map_or(0, |it| it.0));
        let storage = tensor.storage.filter(|storage| counted.insert(*storage));
        if let Some(storage) = storage.and_then(|at| snapshot.storages.get(at)) {
            storages = storages.saturating_add(storage.bytes.0);
        }
    }
    (held > 0).then_some(CacheMemory {
        device: divided.device,
        held,
        storages: storages.min(held),
    })
}

fn table_of(pool: &KvPool, cache: Option<CacheMemory>) -> KvTable {
    let (bytes, content, source) = match (&cache, pool.configured) {
        (Some(cache), _) => (
            Some(cache.held),
            Some(cache.storages),
            KvBytesSource::Tensors,
        ),
        (None, Some(bytes)) => (Some(bytes.0), Some(bytes.0), KvBytesSource::Configuration),
        (None, None) => (None, None, KvBytesSource::Unknown),
    };
    let unit_bytes = content.and_then(|content| content.checked_div(pool.total));
    let mut table = KvTable {
        device: cache.map(|cache| cache.device),
        class: pool.class.clone(),
        scheduler: pool.scheduler,
        unit: pool.unit,
        tokens_per_unit: pool.tokens_per_unit,
        total: pool.total,
        bytes: bytes.map(Bytes),
        source,
        unit_bytes: unit_bytes.map(Bytes),
        rows: Vec::new(),
    };
    table.rows = rows_of(pool, &table);
    table
}

/// Returns the requests of a pool, most units first, and the other uses.
fn rows_of(pool: &KvPool, table: &KvTable) -> Vec<KvRow> {
    let row = |usage, units| KvRow {
        usage,
        request: None,
        units,
        shared: 0,
        bytes: table.bytes_of(units),
    };
    let requests = pool.requests.iter().map(|request| KvRow {
        request: Some(request.id.clone()),
        shared: request.shared,
        ..row(KvUsage::Request, request.own)
    });
    let mut rows: Vec<KvRow> = requests.collect();
    rows.sort_by(|one, other| {
        let key = |row: &KvRow| Reverse((row.units, row.shared));
        let by_units = key(one).cmp(&key(other));
        by_units.then_with(|| one.request.cmp(&other.request))
    });
    let uses = [
        (KvUsage::Shared, pool.shared),
        (KvUsage::Cached, pool.cached),
        (KvUsage::Free, pool.free),
        (KvUsage::Reserved, pool.reserved),
        (KvUsage::Unclaimed, pool.unclaimed),
        (KvUsage::Undivided, pool.undivided),
    ];
    let uses = uses.into_iter().filter(|(_, units)| *units > 0);
    rows.extend(uses.map(|(usage, units)| row(usage, units)));
    let rest = table.bytes.zip(table.bytes_of(pool.total));
    let rest = rest.map(|(bytes, whole)| bytes.0.saturating_sub(whole.0));
    rows.extend(rest.filter(|rest| *rest > 0).map(|rest| KvRow {
        bytes: Some(Bytes(rest)),
        ..row(KvUsage::Rest, 0)
    }));
    rows
}

/// Use of memory that the allocator reserved on a device of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerMemory {
    Weights,
    KvCache,
    /// Gradients and optimizer state.
    Training,
    Activations,
    OtherTensors,
    NoTensor,
    /// Free in the private pools of CUDA graphs and of `MemPool`.
    PrivatePools,
    Cached,
    /// Allocated bytes that no row explains, and blocks whose tensors could not be read.
    Remainder,
}

/// Returns the uses of what the allocator has reserved on a device, which add up to it. Empty without its totals.
pub fn server_memory(table: &TensorTable, device: &DeviceTable) -> Vec<(ServerMemory, Bytes)> {
    let (TensorDevice::Cuda(index), Some(totals)) = (device.device, device.account.totals) else {
        return Vec::new();
    };
    let mut uses: Vec<(ServerMemory, Bytes)> = Vec::new();
    let mut push = |usage, bytes: u64| match uses.iter_mut().find(|(known, _)| *known == usage) {
        Some((_, sum)) => sum.0 = sum.0.saturating_add(bytes),
        None if bytes > 0 => uses.push((usage, Bytes(bytes))),
        None => {}
    };
    let order = [ServerMemory::Weights, ServerMemory::KvCache];
    for usage in order {
        let rows = device
            .rows()
            .iter()
            .filter(|row| usage_of(row.kind) == usage);
        push(
            usage,
            rows.fold(0, |sum, row| sum.saturating_add(row.holds.0)),
        );
    }
    for row in device.rows().iter() {
        let usage = usage_of(row.kind);
        if !order.contains(&usage) {
            push(usage, row.holds.0);
        }
    }
    let remainder = device.account.remainder.unwrap_or(0);
    push(
        ServerMemory::Remainder,
        u64::try_from(remainder).unwrap_or(0),
    );
    let cached = totals.cached().0;
    let private = table
        .private_free(index)
        .map_or(0, |bytes| bytes.0.min(cached));
    push(ServerMemory::PrivatePools, private);
    push(ServerMemory::Cached, cached - private);
    uses
}

const fn usage_of(kind: RowKind) -> ServerMemory {
    match kind {
        RowKind::Tensor(TensorKind::Parameter | TensorKind::Buffer) => ServerMemory::Weights,
        RowKind::Tensor(TensorKind::KvCache) => ServerMemory::KvCache,
        RowKind::Tensor(TensorKind::Gradient | TensorKind::OptimizerState) => {
            ServerMemory::Training
        }
        RowKind::Tensor(TensorKind::Saved) => ServerMemory::Activations,
        RowKind::Tensor(TensorKind::Tensor) => ServerMemory::OtherTensors,
        RowKind::Storage | RowKind::Block => ServerMemory::NoTensor,
        RowKind::BlockUnread => ServerMemory::Remainder,
    }
}

impl TensorTable {
    fn private_free(&self, device: DeviceIndex) -> Option<Bytes> {
        let free = self
            .private_free
            .iter()
            .find(|free| free.device == device)?;
        Some(free.bytes)
    }
}

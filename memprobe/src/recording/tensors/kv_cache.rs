//! Serialized form of a server's KV cache. The input is untrusted.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::MAX_ITEMS;
use super::bounded::Bounded;
use crate::event::{Bytes, DeviceIndex, KvCaches, KvGap, KvPool, KvRequest, PrivateFree, Tgid};
use crate::view::kv_gap;

/// Most pools of one process.
const MAX_POOLS: usize = 1 << 10;

#[derive(Serialize, Deserialize)]
pub(crate) struct KvCachesRecord<'a> {
    #[serde(borrow)]
    pools: Bounded<PoolRecord<'a>, MAX_POOLS>,
    /// Reason that a cache is not divided, in words.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    gap: Option<Cow<'a, str>>,
    #[serde(default)]
    private_free: Bounded<FreeRecord, 256>,
}

#[derive(Serialize, Deserialize)]
struct FreeRecord {
    device: DeviceIndex,
    bytes: u64,
}

#[derive(Serialize, Deserialize)]
struct PoolRecord<'a> {
    /// Process with the scheduler's objects, if it is not the process of the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scheduler_pid: Option<u32>,
    class: Cow<'a, str>,
    unit: Cow<'a, str>,
    total: u64,
    tokens_per_unit: Option<u64>,
    shared: u64,
    cached: u64,
    free: u64,
    reserved: u64,
    unclaimed: u64,
    #[serde(default)]
    undivided: u64,
    configured_bytes: Option<u64>,
    #[serde(borrow)]
    requests: Bounded<RequestRecord<'a>, MAX_ITEMS>,
}

#[derive(Serialize, Deserialize)]
struct RequestRecord<'a> {
    id: Cow<'a, str>,
    own: u64,
    shared: u64,
}

impl<'a> KvCachesRecord<'a> {
    /// `None` for a process without a KV cache of requests.
    pub(crate) fn of(caches: &'a KvCaches) -> Option<Self> {
        let pools = caches.pools.iter().map(PoolRecord::from);
        let free = caches.private_free.iter().map(|free| FreeRecord {
            device: free.device,
            bytes: free.bytes.0,
        });
        (*caches != KvCaches::default()).then(|| Self {
            pools: Bounded(pools.collect()),
            gap: caches.gap.as_ref().map(|gap| kv_gap(gap).into()),
            private_free: Bounded(free.collect()),
        })
    }

    pub(super) fn read(self) -> Result<KvCaches, String> {
        let pools = self.pools.0.into_iter().map(PoolRecord::read);
        let free = self.private_free.0.into_iter().map(|free| PrivateFree {
            device: free.device,
            bytes: Bytes(free.bytes),
        });
        Ok(KvCaches {
            pools: pools.collect::<Result<_, _>>()?,
            gap: self.gap.map(|gap| KvGap::Other(gap.into())),
            private_free: free.collect(),
        })
    }
}

impl<'a> From<&'a KvPool> for PoolRecord<'a> {
    fn from(pool: &'a KvPool) -> Self {
        let requests = pool.requests.iter().map(|request| RequestRecord {
            id: (&*request.id).into(),
            own: request.own,
            shared: request.shared,
        });
        Self {
            scheduler_pid: pool.scheduler.map(|tgid| tgid.0),
            class: (&*pool.class).into(),
            unit: pool.unit.as_str().into(),
            total: pool.total,
            tokens_per_unit: pool.tokens_per_unit,
            shared: pool.shared,
            cached: pool.cached,
            free: pool.free,
            reserved: pool.reserved,
            unclaimed: pool.unclaimed,
            undivided: pool.undivided,
            configured_bytes: pool.configured.map(|bytes| bytes.0),
            requests: Bounded(requests.collect()),
        }
    }
}

impl PoolRecord<'_> {
    fn read(self) -> Result<KvPool, String> {
        let requests = self.requests.0.into_iter().map(|request| KvRequest {
            id: request.id.into(),
            own: request.own,
            shared: request.shared,
        });
        let pool = KvPool {
            scheduler: self.scheduler_pid.map(Tgid),
            class: self.class.into(),
            unit: (self.unit.parse()).map_err(|_| "an unknown unit of a KV cache".to_owned())?,
            total: self.total,
            tokens_per_unit: self.tokens_per_unit,
            requests: requests.collect(),
            shared: self.shared,
            cached: self.cached,
            free: self.free,
            reserved: self.reserved,
            unclaimed: self.unclaimed,
            undivided: self.undivided,
            configured: self.configured_bytes.map(Bytes),
        };
        // A sum at the limit may have been cut there.
        if pool.total == u64::MAX || pool.counted() != pool.total {
            return Err("a KV cache whose parts do not add up".to_owned());
        }
        Ok(pool)
    }
}

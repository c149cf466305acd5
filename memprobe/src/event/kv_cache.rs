//! Use of a server's KV cache, as the Python objects of its scheduler describe it.

use std::sync::Arc;

use strum::{EnumString, IntoStaticStr};

use super::{Bytes, DeviceIndex, Tgid};

/// KV caches that a process serves requests from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvCaches {
    pub pools: Vec<KvPool>,
    /// Reason that a KV cache is not divided; `None` if there is none, or all are divided.
    pub gap: Option<KvGap>,
    /// Free bytes in the allocator's private pools, by device; empty if unknown.
    pub private_free: Vec<PrivateFree>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvGap {
    /// The process has the cache's tensors, and no objects of a scheduler.
    NoScheduler,
    /// Any other reason, as text for people.
    Other(Arc<str>),
}

/// Free bytes of a device that only a CUDA graph or a `torch.cuda.MemPool` can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateFree {
    pub device: DeviceIndex,
    pub bytes: Bytes,
}

/// Pool of equal units of a KV cache. Each unit is counted once, so that the counts add up to `total`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvPool {
    /// Process with the objects of the scheduler; `None` if it is the process of the snapshot.
    pub scheduler: Option<Tgid>,
    /// Class of the object that has the units, such as `BlockPool`.
    pub class: Arc<str>,
    pub unit: KvUnit,
    pub total: u64,
    /// Tokens in a unit; `None` if groups of layers have blocks of different sizes.
    pub tokens_per_unit: Option<u64>,
    pub requests: Vec<KvRequest>,
    /// Units that several requests use; of SGLang those of prefixes that requests use.
    pub shared: u64,
    /// Units that no request uses, and whose contents are kept for requests with the same prefix.
    pub cached: u64,
    pub free: u64,
    /// Units that never hold a request's tokens, such as the null block.
    pub reserved: u64,
    /// Units in use by none of the requests that were found.
    pub unclaimed: u64,
    /// Units of a prefix cache that does not tell shared ones from cached ones, and of pages that are not full.
    pub undivided: u64,
    /// Bytes of the whole cache according to the scheduler's configuration; `None` if it does not say.
    pub configured: Option<Bytes>,
}

/// Part of a cache that is allocated at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, EnumString)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum KvUnit {
    /// Block of tokens of vLLM.
    Block,
    /// Slot of one token of SGLang.
    Token,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvRequest {
    /// The scheduler's id of the request.
    pub id: Arc<str>,
    /// Units that no other request uses.
    pub own: u64,
    /// Units that other requests use too.
    pub shared: u64,
}

impl KvPool {
    /// Sum of all counts, which is `total` unless the objects contradict each other.
    pub fn counted(&self) -> u64 {
        let own = self.requests.iter().map(|request| request.own);
        let rest = [
            self.shared,
            self.cached,
            self.free,
            self.reserved,
            self.unclaimed,
            self.undivided,
        ];
        own.chain(rest).fold(0, u64::saturating_add)
    }
}

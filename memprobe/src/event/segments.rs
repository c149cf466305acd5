//! The caching allocator's segments and pools at one moment, from its own tables.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr};

use super::{Address, Bytes, DeviceIndex, Tgid, TimeNs, Totals};

/// Segments of all devices of a process, as its allocator listed them at `time`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReading {
    pub time: TimeNs,
    pub tgid: Tgid,
    pub devices: Vec<DeviceSegments>,
    /// The reason why no segments are known; `None` if they are.
    pub unread: Option<Arc<str>>,
}

/// Segments of one device. Their sizes add up to `totals.reserved`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSegments {
    pub device: DeviceIndex,
    /// The allocator's own totals at the reading.
    pub totals: Totals,
    /// `active_bytes.all.current` of `torch.cuda.memory_stats()`: live blocks, and freed ones that await an event.
    pub active: Bytes,
    /// `requested_bytes.all.current`: bytes that the program asked for in active blocks.
    pub requested: Bytes,
    /// By address.
    pub segments: Vec<MemorySegment>,
    /// Freed blocks that another stream may still use, by address: address and size.
    pub awaiting: Vec<(Address, Bytes)>,
}

/// One segment, or one contiguous mapped range of an expandable segment, as `torch.cuda.memory_snapshot()` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySegment {
    pub addr: Address,
    pub size: Bytes,
    /// The `cudaStream_t` whose requests it serves.
    pub stream: u64,
    pub pool: Pool,
    /// Start of the expandable segment that it is a range of; `None` for a segment of `cudaMalloc`.
    pub expandable: Option<Address>,
}

/// The pool of a segment's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pool {
    pub owner: PoolOwner,
    pub size: PoolSize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PoolOwner {
    Default,
    /// The pool of a CUDA graph (`torch.cuda.graph_pool_handle()`) or of a `torch.cuda.MemPool`.
    Private {
        id: PoolId,
        state: PrivatePoolState,
    },
}

/// `MempoolId_t`: the first number is not 0 for pools that a CUDA graph made, the second for those of the program
/// (c10/core/CachingDeviceAllocator.h@v2.15.0).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default,
)]
pub struct PoolId(pub u64, pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, IntoStaticStr, EnumString)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum PrivatePoolState {
    InUse,
    /// No graph or `MemPool` uses it any more: `empty_cache()` returns its segments.
    Freeable,
}

/// The list of free blocks that serves a request (`kSmallSize`, c10/core/AllocatorConfig.h@v2.9.0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, IntoStaticStr, EnumString)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum PoolSize {
    /// Requests of up to 1 MiB.
    Small,
    Large,
}

impl MemorySegment {
    /// Address after the last byte.
    pub const fn end(&self) -> u64 {
        self.addr.0.saturating_add(self.size.0)
    }
}

impl PoolId {
    /// A private pool made for CUDA graphs, rather than by the program (`torch.cuda.MemPool`, `graph_pool_handle()`).
    pub const fn is_of_graph(self) -> bool {
        self.0 != 0
    }
}

impl SegmentReading {
    pub fn device(&self, device: DeviceIndex) -> Option<&DeviceSegments> {
        self.devices.iter().find(|found| found.device == device)
    }

    /// True if `other` lists the same segments and the same blocks that await an event. Amounts may differ.
    pub fn has_same_segments(&self, other: &Self) -> bool {
        self.devices
            .iter()
            .map(DeviceSegments::listed)
            .eq(other.devices.iter().map(DeviceSegments::listed))
    }

    /// True if the bytes that are active and requested on each device are those of `other`.
    pub fn has_same_amounts(&self, other: &Self) -> bool {
        self.devices
            .iter()
            .map(DeviceSegments::amounts)
            .eq(other.devices.iter().map(DeviceSegments::amounts))
    }
}

impl DeviceSegments {
    fn listed(&self) -> (DeviceIndex, &[MemorySegment], &[(Address, Bytes)]) {
        (self.device, &self.segments, &self.awaiting)
    }

    const fn amounts(&self) -> (DeviceIndex, Bytes, Bytes) {
        (self.device, self.active, self.requested)
    }
}

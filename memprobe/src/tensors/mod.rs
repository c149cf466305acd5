//! Tables of a process's tensors, which account for each byte of the allocator.
//!
//! Every live block of the allocator is counted on exactly one row. That is the best tensor of the
//! storage in it or, without a storage, a row of its own. For each device `sum of the rows' holds +
//! remainder == memory_allocated()`; a remainder has a reason.

mod account_entries;
mod agreement;
mod diff;
mod division;
mod explain;
mod group;
mod kv_cache;
mod named;
mod rows;
mod select;
mod sites;
mod sweep;

#[cfg(test)]
mod properties;
#[cfg(test)]
pub(crate) mod samples;

use std::sync::Arc;

pub use account_entries::{AccountEntry, DeviceEntries};
pub use agreement::LabelDigest;
pub use diff::{DeviceDiff, Moved, TensorDiff, diff};
pub use division::account_entries;
pub use explain::explain;
pub use group::{Group, GroupBy, Order, groups, groups_of};
pub use kv_cache::{
    KvBytesSource, KvRow, KvTable, KvUsage, ServerMemory, kv_tables, server_memory,
};
pub use named::named;
pub use rows::{DeviceTable, Row, SnapshotRows};
pub use select::without;
pub use sites::Sites;

use crate::event::Target;
use crate::event::tensors::{Consistency, TensorDevice, TensorKind};
use crate::event::{Bytes, KvGap, PrivateFree, Totals};

#[derive(Clone, Debug, PartialEq, Default)]
pub struct TensorTable {
    pub target: Target,
    /// Time of the snapshot in milliseconds since 1970 (UTC).
    pub taken_ms: u64,
    /// Consistency of the read data: paused or running process.
    pub consistency: Consistency,
    pub objects: u64,
    /// Data that could not be read, with reasons.
    pub unread: Vec<Arc<str>>,
    /// Most tensors that were read, if the process has more.
    pub limit: Option<u64>,
    /// By device: CUDA devices first.
    pub devices: Vec<DeviceTable>,
    /// A server's KV cache, by device.
    pub kv: Vec<KvTable>,
    /// Reason that a KV cache is not divided.
    pub kv_gap: Option<KvGap>,
    /// Free bytes of each device in the allocator's private pools.
    pub private_free: Vec<PrivateFree>,
}

/// Sums of a device's rows, compared with its allocator.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Account {
    /// Allocator totals; `None` if not read or not available (`cpu`).
    pub totals: Option<Totals>,
    /// Bytes of storages with tensors.
    pub tensors: Bytes,
    /// Bytes of storages without tensors.
    pub bare: Bytes,
    pub rounding: Bytes,
    /// Requested bytes in blocks with storages that no storage covers.
    pub uncovered: Bytes,
    /// Bytes of blocks without storages.
    pub blocks: Bytes,
    /// The same, if not every tensor was read: blocks of the others are among these.
    pub unread: Bytes,
    /// Allocator total minus all of these; `None` without a total.
    pub remainder: Option<i64>,
    pub reason: Option<Reason>,
    /// Bytes of storages outside all blocks: not the allocator's, and in none of the sums above.
    pub outside: Bytes,
    pub tensor_count: u64,
    pub block_count: Option<u64>,
}

impl Account {
    /// Bytes of the allocator that the parts explain: all but the remainder.
    pub fn held(&self) -> Bytes {
        let parts = [
            self.tensors,
            self.bare,
            self.rounding,
            self.uncovered,
            self.blocks,
            self.unread,
        ];
        Bytes(parts.iter().fold(0, |sum, part| sum.saturating_add(part.0)))
    }
}

/// Reason for a difference between the rows and the allocator's total.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(const_into_str)]
pub enum Reason {
    #[strum(
        serialize = "the allocator's blocks are not known: rounding and blocks without a tensor"
    )]
    BlocksUnknown,
    #[strum(serialize = "the process ran on while it was read")]
    Running,
    /// The sum of the blocks read is not the allocator's total.
    #[strum(serialize = "blocks that could not be read")]
    BlocksMissing,
}

impl Reason {
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowKind {
    Tensor(TensorKind),
    Storage,
    #[default]
    Block,
    /// Block without a known tensor, where not every tensor was read.
    BlockUnread,
}

impl RowKind {
    /// Keyword in files: [`TensorKind::as_str`], or `block` for memory without a tensor.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tensor(kind) => kind.as_str(),
            Self::Storage | Self::Block | Self::BlockUnread => "block",
        }
    }
}

impl TensorTable {
    pub fn device(&self, device: TensorDevice) -> Option<&DeviceTable> {
        self.devices.iter().find(|table| table.device == device)
    }
}

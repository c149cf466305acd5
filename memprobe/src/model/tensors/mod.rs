//! From the tensors of a process to tables: what holds each byte that the allocator has handed out.
//!
//! Every live block of the allocator is on exactly one row: with the best tensor of the storage that
//! lies in it, or, where no storage does, as a row of its own. For each device `sum of the rows'
//! holds + remainder == memory_allocated()`, always; a remainder says its reason.

mod diff;
mod explain;
mod group;
mod named;
mod select;
mod sites;
mod sweep;
mod uses;

#[cfg(test)]
mod properties;
#[cfg(test)]
pub(crate) mod samples;

use std::sync::Arc;

pub use diff::{DeviceDiff, Moved, TensorDiff, diff};
pub use explain::explain;
pub use group::{Group, GroupBy, Order, groups, groups_of};
pub use named::named;
pub use select::without;
pub use sites::{Ledgers, Sites};
pub use uses::BlockUses;

use super::snapshot::Target;
use crate::event::{Address, Bytes, Frame, Totals};
use crate::tensors::{Consistency, DType, Device, Kept, Name, TensorKind};

/// The tensors of a process at one moment, explained device by device.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct TensorTable {
    /// The process.
    pub target: Target,
    /// When, in milliseconds since 1970 (UTC).
    pub taken_ms: u64,
    /// How far what was read belongs to one moment.
    pub consistency: Consistency,
    /// Python objects that were looked at.
    pub objects: u64,
    /// What could not be read, and why.
    pub unread: Vec<Arc<str>>,
    /// By device: those of CUDA, then the others.
    pub devices: Vec<DeviceTable>,
}

/// What lies on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceTable {
    /// Which.
    pub device: Device,
    /// What the rows come to.
    pub account: Account,
    /// One row for each tensor, and for each block or storage without one; in no particular order.
    pub rows: Vec<Row>,
}

/// What the rows of a device come to, beside what its allocator says.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Account {
    /// The allocator's own totals; `None` where it was not asked or there is none (`cpu`).
    pub totals: Option<Totals>,
    /// Bytes of storages that tensors look at.
    pub tensors: Bytes,
    /// Bytes of storages that no tensor looks at.
    pub bare: Bytes,
    /// Bytes that the allocator added to what it was asked for.
    pub rounding: Bytes,
    /// Bytes that the allocator was asked for, in blocks with storages, that no storage covers.
    pub uncovered: Bytes,
    /// Bytes of blocks that no storage reaches.
    pub blocks: Bytes,
    /// The allocator's total less all of these; `None` where there is no total.
    pub remainder: Option<i64>,
    /// Why there is a remainder.
    pub reason: Option<Reason>,
    /// Bytes of storages that lie in no block: not the allocator's, and not in any sum above.
    pub outside: Bytes,
    /// How many tensors.
    pub tensor_count: u64,
    /// How many blocks there are; `None` where they are not known.
    pub block_count: Option<u64>,
}

impl Account {
    /// Bytes of the allocator that rows or reasons stand for: all but the remainder.
    pub fn held(&self) -> Bytes {
        let parts = [
            self.tensors,
            self.bare,
            self.rounding,
            self.uncovered,
            self.blocks,
        ];
        Bytes(parts.iter().fold(0, |sum, part| sum.saturating_add(part.0)))
    }
}

/// Why the rows of a device do not come to what its allocator says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The blocks are not known, so that rounding and blocks without tensors are in the remainder.
    BlocksUnknown,
    /// The process ran on while it was read.
    Running,
    /// The blocks that were read do not come to the allocator's total.
    BlocksMissing,
}

impl Reason {
    /// Words for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BlocksUnknown => {
                "the allocator's blocks are not known: rounding and blocks without a tensor"
            }
            Self::Running => "the process ran on while it was read",
            Self::BlocksMissing => "blocks that could not be read",
        }
    }
}

/// What a row stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowKind {
    /// A tensor.
    Tensor(TensorKind),
    /// A storage that no tensor looks at.
    Storage,
    /// A block of the allocator that no storage reaches.
    Block,
}

impl RowKind {
    /// The word used in files: [`TensorKind::as_str`], or `block` for memory without a tensor.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tensor(kind) => kind.as_str(),
            Self::Storage | Self::Block => "block",
        }
    }
}

/// A tensor, or memory without one.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What it is.
    pub kind: RowKind,
    /// Which of [`crate::tensors::TensorSnapshot::tensors`] it is; `None` for memory without a tensor.
    pub tensor: Option<usize>,
    /// The bytes of the allocator that it answers for; of tensors that share a storage, one has
    /// them all.
    pub holds: Bytes,
    /// The bytes of its own elements: `numel() * element_size()`, or the size of the storage or
    /// block; `None` where this cannot be told.
    pub size: Option<Bytes>,
    /// Which row of the table answers for the storage that this one looks at too.
    pub owner: Option<usize>,
    /// It lies in no block of the allocator, where its blocks are known; `holds` is 0, and this is
    /// what it holds of somebody else's memory.
    pub outside: Option<Bytes>,
    /// Its names, the best first.
    pub names: Vec<Name>,
    /// The name of its Python type.
    pub class: Option<Arc<str>>,
    /// `shape`; `None` for memory without a tensor.
    pub shape: Option<Vec<u64>>,
    /// Its element type.
    pub dtype: Option<DType>,
    /// Where it lies.
    pub device: Device,
    /// `requires_grad`.
    pub requires_grad: bool,
    /// `grad_fn.name()`.
    pub grad_fn: Option<Arc<str>>,
    /// The operation that keeps it for the backward pass.
    pub saved_by: Option<Arc<str>>,
    /// Who keeps its storage alive; `None` where no name leads to it.
    pub kept: Option<Arc<Kept>>,
    /// The path of its module.
    pub module: Option<Arc<str>>,
    /// The line that allocated it.
    pub site: Option<Frame>,
    /// What the block was asked for, in words; of memory without a tensor alone.
    pub purpose: Option<Arc<str>>,
    /// The data of its storage, or the block.
    pub storage: Option<Address>,
    /// `untyped_storage().nbytes()`, or the block's.
    pub storage_bytes: Option<Bytes>,
    /// `storage_offset()`, in elements.
    pub offset: u64,
    /// The block that it lies in, and its bytes.
    pub block: Option<(Address, Bytes)>,
    /// Where the tensor object lies in the target's own memory; 0 for memory without a tensor.
    pub object: u64,
}

impl Row {
    /// The best name.
    pub fn name(&self) -> Option<&Name> {
        self.names.first()
    }

    /// Whether it looks at a part of its storage alone.
    pub fn is_part(&self) -> bool {
        let whole = |(size, storage): (Bytes, Bytes)| size < storage;
        self.size.zip(self.storage_bytes).is_some_and(whole)
    }
}

impl TensorTable {
    /// The table of a device.
    pub fn device(&self, device: Device) -> Option<&DeviceTable> {
        self.devices.iter().find(|table| table.device == device)
    }
}

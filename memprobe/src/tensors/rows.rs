//! Rows of a table of tensors. They are made of the snapshot when they are asked for: there may be a million.

use std::sync::Arc;

use super::account_entries::{AccountEntry, DeviceEntries};
use super::{Account, RowKind};
use crate::event::tensors::{
    Block, DType, Name, Retainer, Storage, Tensor, TensorDevice, TensorSnapshot,
};
use crate::event::{Address, Bytes, Frame};

#[derive(Clone, Debug, PartialEq)]
pub struct DeviceTable {
    pub device: TensorDevice,
    pub account: Account,
    snapshot: Arc<TensorSnapshot>,
    entries: Vec<AccountEntry>,
}

impl DeviceTable {
    /// Table of what a division of this snapshot has for a device.
    pub(super) fn new(snapshot: Arc<TensorSnapshot>, divided: DeviceEntries) -> Self {
        Self {
            device: divided.device,
            account: divided.account,
            snapshot,
            entries: divided.entries,
        }
    }

    /// One row for each tensor, and for each block or storage without one, in no particular order.
    pub fn rows(&self) -> SnapshotRows<'_> {
        SnapshotRows { table: Some(self) }
    }
}

/// Rows of a device, by index; none by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct SnapshotRows<'a> {
    table: Option<&'a DeviceTable>,
}

impl<'a> SnapshotRows<'a> {
    fn entries(self) -> &'a [AccountEntry] {
        self.table.map_or(&[], |table| &table.entries)
    }

    pub fn len(self) -> usize {
        self.entries().len()
    }

    pub fn is_empty(self) -> bool {
        self.entries().is_empty()
    }

    pub fn get(self, at: usize) -> Option<Row<'a>> {
        let table = self.table?;
        Some(Row::of(table, table.entries.get(at)?))
    }

    /// # Panics
    /// If there is no such row.
    pub fn at(self, at: usize) -> Row<'a> {
        self.get(at).expect("a row of this table")
    }

    pub fn iter(self) -> impl Iterator<Item = Row<'a>> + Clone {
        (0..self.len()).filter_map(move |at| self.get(at))
    }

    /// Index of the row that has the bytes of the storage that this row shares.
    pub(super) fn owner(self, at: usize) -> Option<usize> {
        self.entries().get(at)?.owner
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    pub kind: RowKind,
    /// Allocator bytes that this row accounts for; of tensors that share a storage, one has them
    /// all.
    pub holds: Bytes,
    /// Bytes of its own elements: `numel() * element_size()`, or the size of the storage or block;
    /// `None` if unknown.
    pub size: Option<Bytes>,
    /// Index of the row that accounts for the storage this one shares.
    pub owner: Option<usize>,
    /// Bytes outside the allocator: the storage lies in no block, although blocks are known.
    /// `holds` is then 0.
    pub outside: Option<Bytes>,
    pub device: TensorDevice,
    /// Address of its storage's data, or of the block.
    pub storage: Option<Address>,
    /// `untyped_storage().nbytes()`, or the block's size.
    pub storage_bytes: Option<Bytes>,
    /// Purpose of the block in words; only for memory without a tensor.
    pub purpose: Option<&'a Arc<str>>,
    tensor: Option<&'a Tensor>,
    of_storage: Option<&'a Storage>,
    of_block: Option<&'a Block>,
}

impl<'a> Row<'a> {
    fn of(table: &'a DeviceTable, entry: &AccountEntry) -> Self {
        let snapshot = &*table.snapshot;
        Self {
            kind: entry.kind(snapshot),
            holds: entry.holds(),
            size: entry.size(snapshot),
            owner: entry.owner,
            outside: entry.outside(),
            device: table.device,
            storage: entry.address(snapshot),
            storage_bytes: entry.storage_bytes(snapshot),
            purpose: entry.purpose(snapshot),
            tensor: entry.tensor().map(|at| &snapshot.tensors[at]),
            of_storage: entry.storage(snapshot),
            of_block: entry.block(snapshot),
        }
    }

    pub fn name(&self) -> Option<&'a Name> {
        self.names().first()
    }

    /// Best name first.
    pub fn names(&self) -> &'a [Name] {
        self.tensor.map_or(&[], |tensor| &tensor.names)
    }

    pub fn class(&self) -> Option<&'a Arc<str>> {
        self.tensor?.class.as_ref()
    }

    /// `shape`; `None` for memory without a tensor.
    pub fn shape(&self) -> Option<&'a [u64]> {
        self.tensor?.shape.as_deref()
    }

    pub fn dtype(&self) -> Option<DType> {
        Some(self.tensor?.dtype)
    }

    pub fn requires_grad(&self) -> bool {
        self.tensor.is_some_and(|tensor| tensor.requires_grad)
    }

    pub fn grad_fn(&self) -> Option<&'a Arc<str>> {
        self.tensor?.grad_fn.as_ref()
    }

    pub fn saved_by(&self) -> Option<&'a Arc<str>> {
        self.tensor?.saved_by.as_ref()
    }

    pub fn module(&self) -> Option<&'a Arc<str>> {
        self.tensor?.module.as_ref()
    }

    /// `storage_offset()`, in elements.
    pub fn offset(&self) -> u64 {
        self.tensor.map_or(0, |tensor| tensor.offset)
    }

    /// Address of the tensor object in the target's memory; 0 for memory without a tensor.
    pub fn object(&self) -> u64 {
        self.tensor.map_or(0, |tensor| tensor.object)
    }

    /// Retainers of its storage; `None` if no name leads to it.
    pub fn retainer(&self) -> Option<&'a Arc<Retainer>> {
        self.of_storage?.retainer.as_ref()
    }

    pub fn site(&self) -> Option<&'a Frame> {
        self.of_block?.site.as_deref()
    }

    /// Address and size of its block.
    pub fn block(&self) -> Option<(Address, Bytes)> {
        self.of_block.map(|block| (block.addr, block.size))
    }
}

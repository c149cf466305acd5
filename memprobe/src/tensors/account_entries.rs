//! Bytes that each tensor, storage and block of a snapshot accounts for.

use std::sync::Arc;

use super::{Account, RowKind};
use crate::event::tensors::{Block, Storage, TensorDevice, TensorSnapshot};
use crate::event::{Address, Bytes};

/// Entries of a device: one for each tensor, and for each block or storage without one, in no particular
/// order.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceEntries {
    pub device: TensorDevice,
    pub account: Account,
    pub entries: Vec<AccountEntry>,
}

/// Bytes that one tensor, storage or block accounts for. It refers to its snapshot by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountEntry {
    pub(super) subject: EntrySubject,
    /// Block around its storage.
    pub(super) block: Option<usize>,
    pub(super) bytes: Bytes,
    /// True if the storage lies in no block, although blocks are known: `bytes` are not the allocator's.
    pub(super) is_outside: bool,
    /// Index of the entry that accounts for the storage this one shares.
    pub owner: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntrySubject {
    Tensor(usize),
    /// A storage without a tensor.
    Storage(usize),
    /// A block without a storage.
    Block(usize),
}

impl AccountEntry {
    pub(super) const fn of(subject: EntrySubject) -> Self {
        Self {
            subject,
            block: None,
            bytes: Bytes(0),
            is_outside: false,
            owner: None,
        }
    }

    /// Index into [`TensorSnapshot::tensors`].
    pub const fn tensor(&self) -> Option<usize> {
        match self.subject {
            EntrySubject::Tensor(at) => Some(at),
            EntrySubject::Storage(_) | EntrySubject::Block(_) => None,
        }
    }

    pub fn kind(&self, snapshot: &TensorSnapshot) -> RowKind {
        match self.subject {
            EntrySubject::Tensor(at) => RowKind::Tensor(snapshot.tensors[at].kind),
            EntrySubject::Storage(_) => RowKind::Storage,
            EntrySubject::Block(_) if snapshot.has_all_tensors() => RowKind::Block,
            EntrySubject::Block(_) => RowKind::BlockUnread,
        }
    }

    pub fn storage<'a>(&self, snapshot: &'a TensorSnapshot) -> Option<&'a Storage> {
        let at = match self.subject {
            EntrySubject::Tensor(at) => snapshot.tensors[at].storage,
            EntrySubject::Storage(at) => Some(at),
            EntrySubject::Block(_) => None,
        };
        snapshot.storages.get(at?)
    }

    /// The block around its storage, or the one without a storage.
    pub fn block<'a>(&self, snapshot: &'a TensorSnapshot) -> Option<&'a Block> {
        let at = match self.subject {
            EntrySubject::Block(at) => Some(at),
            EntrySubject::Tensor(_) | EntrySubject::Storage(_) => self.block,
        };
        snapshot.blocks.get(at?)
    }

    /// Bytes of its own elements, of the storage, or as requested for the block; `None` if unknown.
    pub fn size(&self, snapshot: &TensorSnapshot) -> Option<Bytes> {
        match self.subject {
            EntrySubject::Tensor(at) => snapshot.tensors[at].bytes(),
            EntrySubject::Storage(at) => Some(snapshot.storages[at].bytes),
            EntrySubject::Block(at) => {
                let block = &snapshot.blocks[at];
                Some(block.requested.unwrap_or(block.size))
            }
        }
    }

    /// Address of the storage's data, or of the block.
    pub fn address(&self, snapshot: &TensorSnapshot) -> Option<Address> {
        match self.subject {
            EntrySubject::Block(at) => Some(snapshot.blocks[at].addr),
            EntrySubject::Tensor(_) | EntrySubject::Storage(_) => {
                self.storage(snapshot).map(|storage| storage.data)
            }
        }
    }

    /// `untyped_storage().nbytes()`, or the block's size.
    pub fn storage_bytes(&self, snapshot: &TensorSnapshot) -> Option<Bytes> {
        match self.subject {
            EntrySubject::Block(at) => Some(snapshot.blocks[at].size),
            EntrySubject::Tensor(_) | EntrySubject::Storage(_) => {
                self.storage(snapshot).map(|storage| storage.bytes)
            }
        }
    }

    /// Purpose of the block in words; only for memory without a tensor.
    pub fn purpose<'a>(&self, snapshot: &'a TensorSnapshot) -> Option<&'a Arc<str>> {
        match self.subject {
            EntrySubject::Tensor(_) => None,
            EntrySubject::Storage(_) | EntrySubject::Block(_) => {
                self.block(snapshot)?.purpose.as_ref()
            }
        }
    }

    /// Bytes of the allocator; 0 outside it.
    pub const fn holds(&self) -> Bytes {
        if self.is_outside {
            Bytes(0)
        } else {
            self.bytes
        }
    }

    /// Bytes outside the allocator; `None` within it.
    pub const fn outside(&self) -> Option<Bytes> {
        if self.is_outside {
            Some(self.bytes)
        } else {
            None
        }
    }
}

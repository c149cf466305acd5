//! `c10::StorageImpl`: the memory behind tensors.

use super::NotOne;
use super::bytes::Fields;
use super::class::{Classes, Family};
use super::layout_versions::StorageLayout;
use super::tensor::device;
use crate::event::tensors::Device;
use crate::event::{Address, Bytes};
use crate::process::memory::ReadMemory;

/// Upper bound on the size of a storage: 1 EiB. A symbolic size has its uppermost bits set
/// (c10/core/SymInt.h).
const MAX_BYTES: u64 = 1 << 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawStorage {
    pub object: u64,
    /// `untyped_storage().data_ptr()`; 0 if there is no data.
    pub data: Address,
    /// `untyped_storage().nbytes()`.
    pub bytes: Bytes,
    pub device: Device,
}

/// Reads the storage at an address.
/// Fails with [`NotOne`] also if its size is symbolic.
pub(super) fn read(
    memory: &impl ReadMemory,
    classes: &Classes,
    layout: StorageLayout,
    object: u64,
) -> Result<RawStorage, NotOne> {
    let mut bytes = [0; 128];
    let bytes = &mut bytes[..layout.size().min(128)];
    memory.read(object, bytes)?;
    let fields = Fields(bytes);
    let class = classes.of_table(memory, fields.word(0));
    if class.is_none_or(|class| class.family != Family::Storage) {
        return Err(NotOne::Class);
    }
    let size = fields.word(layout.bytes());
    if size > MAX_BYTES {
        return Err(NotOne::Fields);
    }
    let place = layout.device();
    Ok(RawStorage {
        object,
        data: Address(fields.word(layout.data)),
        bytes: Bytes(size),
        device: device(fields.byte(place), fields.byte(place + 1)).ok_or(NotOne::Fields)?,
    })
}

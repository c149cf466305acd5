//! Tensor snapshots: format of the file that `memprobe snapshot -o` writes, and its reader.
//!
//! The file is one JSON document, written by [`crate::recording::write::tensors`]. Its `tensors` suit other programs:
//! each has all its facts, and blocks without a tensor follow with `kind` `block`. `storages` and `blocks`
//! relate the tensors to each other; the reader skips sums.
//!
//! A tensor's `storage` is an address as in recordings, and `storage_index` is its index in `storages`.
//! `gradient_of` holds indices in `tensors`. Sizes are in bytes, shapes and strides in elements.

mod bounded;
mod kv_cache;
mod record;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use crate::event::tensors::TensorSnapshot;
pub(crate) use kv_cache::KvCachesRecord;
use record::SnapshotRecord;
pub(crate) use record::{BlockRecord, SiteRecord, StorageRecord};

pub const TENSOR_FORMAT: u32 = 2;

/// Largest file read, in bytes; enough for some millions of tensors.
pub const MAX_BYTES: u64 = 2 << 30;

/// Most tensors, blocks or storages in one file.
pub const MAX_ITEMS: usize = 1 << 23;

/// Longest list of one tensor: dimensions, names, or tensors that it is the gradient of.
pub const MAX_OF_ONE: usize = 1 << 16;

/// Reason why a snapshot cannot be read. The message ends with a remedy.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotFileError {
    #[error("cannot be read: {0}; {GIVE}")]
    Io(io::Error),
    #[error("the file is empty; {GIVE}")]
    Empty,
    #[error("larger than {} GiB, which no snapshot of memprobe is; {GIVE}", MAX_BYTES >> 30)]
    TooLarge,
    #[error("not a snapshot of memprobe; {GIVE}")]
    Foreign,
    /// The file was written by a later memprobe, in this format version.
    #[error(
        "written by a later memprobe (format {format}, this one reads up to {TENSOR_FORMAT}): update memprobe"
    )]
    Newer { format: u32 },
    #[error(
        "the snapshot is damaged or its end is missing: {reason}; take another with `memprobe snapshot --pid N -o FILE`"
    )]
    Damaged { reason: String },
}

const GIVE: &str = "give a file that `memprobe snapshot --pid N -o FILE` wrote";

pub fn open_tensors(path: &Path) -> Result<TensorSnapshot, SnapshotFileError> {
    let file = File::open(path).map_err(SnapshotFileError::Io)?;
    read_tensors(BufReader::with_capacity(1 << 18, file))
}

/// Reads a snapshot from any source, up to [`MAX_BYTES`].
pub fn read_tensors(from: impl Read) -> Result<TensorSnapshot, SnapshotFileError> {
    let mut from = from.take(MAX_BYTES + 1);
    let mut text = Vec::new();
    from.read_to_end(&mut text).map_err(SnapshotFileError::Io)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(SnapshotFileError::TooLarge);
    }
    if text.iter().all(u8::is_ascii_whitespace) {
        return Err(SnapshotFileError::Empty);
    }
    let text = std::str::from_utf8(&text).map_err(|_| SnapshotFileError::Foreign)?;
    match record::format(text) {
        None => return Err(SnapshotFileError::Foreign),
        Some(format) if format > TENSOR_FORMAT => return Err(SnapshotFileError::Newer { format }),
        Some(_) => {}
    }
    let damaged = |reason: String| SnapshotFileError::Damaged { reason };
    let record: SnapshotRecord =
        serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
    record.into_snapshot().map_err(damaged)
}

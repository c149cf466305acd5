//! Tensor snapshots: format of the file that `memprobe snapshot -o` writes, and its reader.
//!
//! The file is one JSON document, written by [`crate::recording::write::tensors`]. Its `tensors` suit other programs:
//! each has all its facts, and blocks without a tensor follow with `kind` `block`. `storages` and `blocks`
//! relate the tensors to each other; the reader skips sums.
//!
//! A tensor's `storage` is an address as in recordings, and `storage_index` is its index in `storages`.
//! `gradient_of` holds indices in `tensors`. Sizes are in bytes, shapes and strides in elements.

mod bounded;
mod record;

#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use crate::event::tensors::TensorSnapshot;
use record::SnapshotRecord;

/// Format version.
pub const TENSOR_FORMAT: u32 = 2;

/// Largest file read, in bytes; enough for some millions of tensors.
pub const MAX_BYTES: u64 = 2 << 30;

/// Most tensors, blocks or storages in one file.
pub const MAX_ITEMS: usize = 1 << 23;

/// Longest list of one tensor: dimensions, names, or tensors that it is the gradient of.
pub const MAX_OF_ONE: usize = 1 << 16;

/// Reason why a snapshot cannot be read. The message ends with a remedy.
#[derive(Debug)]
pub enum SnapshotError {
    /// The file cannot be opened or read.
    Io(io::Error),
    /// The file is empty.
    Empty,
    /// The file is larger than memprobe reads.
    TooLarge,
    /// The file is not a snapshot of memprobe.
    Foreign,
    /// The file was written by a later memprobe.
    Newer {
        /// Format version of the file.
        format: u32,
    },
    /// The file is invalid or truncated.
    Damaged {
        /// Fault and its place.
        reason: String,
    },
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const GIVE: &str = "give a file that `memprobe snapshot --pid N -o FILE` wrote";
        match self {
            Self::Io(error) => write!(f, "cannot be read: {error}; {GIVE}"),
            Self::Empty => write!(f, "the file is empty; {GIVE}"),
            Self::TooLarge => write!(
                f,
                "larger than {} GiB, which no snapshot of memprobe is; {GIVE}",
                MAX_BYTES >> 30
            ),
            Self::Foreign => write!(f, "not a snapshot of memprobe; {GIVE}"),
            Self::Newer { format } => write!(
                f,
                "written by a later memprobe (format {format}, this one reads up to \
                 {TENSOR_FORMAT}): update memprobe"
            ),
            Self::Damaged { reason } => write!(
                f,
                "the snapshot is damaged or its end is missing: {reason}; take another with \
                 `memprobe snapshot --pid N -o FILE`"
            ),
        }
    }
}

impl std::error::Error for SnapshotError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // This error's message already contains that of the I/O error.
            Self::Io(error) => error.source(),
            _ => None,
        }
    }
}

/// Reads a file that `memprobe snapshot -o` wrote.
///
/// # Errors
/// If it cannot be read, or is not a valid snapshot.
pub fn open_tensors(path: &Path) -> Result<TensorSnapshot, SnapshotError> {
    let file = File::open(path).map_err(SnapshotError::Io)?;
    read_tensors(BufReader::with_capacity(1 << 18, file))
}

/// Reads a snapshot from any source, up to [`MAX_BYTES`].
///
/// # Errors
/// If it cannot be read, or is not a valid snapshot.
pub fn read_tensors(from: impl Read) -> Result<TensorSnapshot, SnapshotError> {
    let mut from = from.take(MAX_BYTES + 1);
    let mut text = Vec::new();
    from.read_to_end(&mut text).map_err(SnapshotError::Io)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(SnapshotError::TooLarge);
    }
    if text.iter().all(u8::is_ascii_whitespace) {
        return Err(SnapshotError::Empty);
    }
    let text = std::str::from_utf8(&text).map_err(|_| SnapshotError::Foreign)?;
    match record::format(text) {
        None => return Err(SnapshotError::Foreign),
        Some(format) if format > TENSOR_FORMAT => return Err(SnapshotError::Newer { format }),
        Some(_) => {}
    }
    let damaged = |reason: String| SnapshotError::Damaged { reason };
    let record: SnapshotRecord =
        serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
    record.into_snapshot().map_err(damaged)
}

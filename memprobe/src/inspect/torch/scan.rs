//! Finding tensors where nothing leads to them: every `c10::TensorImpl` in stretches of memory, by
//! its virtual table.

use std::ops::Range;

use super::layouts::Layouts;
use crate::target::memory::ReadMemory;

/// Bytes that are read at once, and where that fails.
const CHUNK: u64 = 256 << 10;
const PAGE: u64 = 4096;

/// Tensors that are found at most.
const MOST_TENSORS: usize = 1 << 19;

/// Bytes that are read at most in all (64 GiB): at some GB/s, half a minute.
const MOST_BYTES: u64 = 64 << 30;

/// References that an object in use has at most.
const MOST_REFERENCES: u32 = 1 << 24;

/// Where a counted object keeps the number of its references, in the lower 32 bits in every version
/// (c10/util/intrusive_ptr.h).
const REFERENCES: u64 = 8;

/// What a scan found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// `c10::TensorImpl`s, by address.
    pub tensors: Vec<u64>,
    /// Bytes of the ranges that could not be read, or were not for want of room.
    pub unread: u64,
}

/// Finds the tensors in some ranges: private memory that the process may write. Of each class of
/// tensors that was met before; the plain one always was. What has been freed and not been overwritten
/// looks like a tensor too: only those are taken that something refers to and whose storage is one.
pub fn tensor_impls(memory: &impl ReadMemory, layouts: &Layouts, ranges: &[Range<u64>]) -> Scan {
    let mut scan = Scan::default();
    let tables = layouts.classes.tables_of_tensors();
    let mut buffer = vec![0; CHUNK as usize];
    let mut budget = MOST_BYTES;
    for range in ranges {
        let mut at = range.start.next_multiple_of(8).max(range.start);
        while at < range.end {
            let size = (range.end - at).min(CHUNK - at % CHUNK);
            if size > budget || scan.tensors.len() >= MOST_TENSORS {
                scan.unread += range.end - at;
                break;
            }
            budget -= size;
            look_through(
                memory,
                layouts,
                at,
                &mut buffer[..size as usize],
                &tables,
                &mut scan,
            );
            at += size;
        }
    }
    scan.tensors.sort_unstable();
    scan.tensors.dedup();
    scan
}

/// Looks through one chunk, page by page where it cannot be read as a whole.
fn look_through(
    memory: &impl ReadMemory,
    layouts: &Layouts,
    start: u64,
    buffer: &mut [u8],
    tables: &[u64],
    scan: &mut Scan,
) {
    if memory.read(start, buffer).is_ok() {
        return pick(memory, layouts, start, buffer, tables, scan);
    }
    let mut at = start;
    let mut rest = buffer;
    while !rest.is_empty() {
        let size = (PAGE - at % PAGE).min(rest.len() as u64);
        let (page, others) = rest.split_at_mut(size as usize);
        match memory.read(at, page) {
            Ok(()) => pick(memory, layouts, at, page, tables, scan),
            Err(_) => scan.unread += size,
        }
        at += size;
        rest = others;
    }
}

/// Takes the tensors that begin in some bytes.
fn pick(
    memory: &impl ReadMemory,
    layouts: &Layouts,
    start: u64,
    bytes: &[u8],
    tables: &[u64],
    scan: &mut Scan,
) {
    let (words, _) = bytes.as_chunks();
    for (at, word) in words.iter().enumerate() {
        // Of a million words hardly one is a table's address.
        if !tables.contains(&u64::from_le_bytes(*word)) {
            continue;
        }
        let object = start + at as u64 * 8;
        if scan.tensors.len() < MOST_TENSORS && is_live(memory, layouts, object) {
            scan.tensors.push(object);
        }
    }
}

/// Whether the tensor at an address is one that is in use.
fn is_live(memory: &impl ReadMemory, layouts: &Layouts, object: u64) -> bool {
    let Ok(tensor) = layouts.tensor(memory, object) else {
        return false;
    };
    let references = memory.read_u32(object.wrapping_add(REFERENCES));
    let is_referred_to = references.is_ok_and(|count| (1..MOST_REFERENCES).contains(&count));
    is_referred_to
        && match tensor.storage {
            Some(storage) => layouts.storage(memory, storage).is_ok(),
            None => true,
        }
}

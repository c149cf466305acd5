//! UUIDs and memory of a process's devices, from PyTorch's copies of `cudaDeviceProp`.
//!
//! PyTorch keeps them in `device_properties`, a static `std::vector` with one entry for each ordinal
//! (aten/src/ATen/cuda/CUDAContext.cpp@v2.0.0). `torch.cuda` fills it when it starts.
//! The variable has no exported symbol. It is found by its content among the variables of libtorch_cuda.so: three
//! pointers to entries that begin with a device's name and UUID.

use std::ops::Range;

use crate::event::Bytes;
use crate::process::maps::{Maps, Permissions};
use crate::process::memory::ReadMemory;

const LIBRARY: &str = "libtorch_cuda.so";

/// Bytes of `cudaDeviceProp` (driver_types.h of CUDA 11.0, 11.7, 12 and 13).
const SIZES: [u64; 4] = [712, 728, 1032, 1008];

/// Most devices of a process (`C10_COMPILE_TIME_MAX_GPUS`, c10/cuda/CUDAMacros.h@v2.15.0).
const MAX_DEVICES: u64 = 120;

/// Bytes of all entries, at most.
const MAX_BYTES: u64 = MAX_DEVICES * 1032;

/// Bytes of `name`, which comes first, and of `uuid` after it.
const NAME: usize = 256;
const UUID: usize = 16;

/// Bytes after `uuid`: `luid`, its node mask and padding; then `totalGlobalMem`.
const MEMORY: usize = NAME + UUID + 16;

/// Memory that a device may have.
const PLAUSIBLE_MEMORY: Range<u64> = 64 << 20..1 << 47;

/// Bytes that are read at once, and in all: the variables of all releases take less.
const PIECE: u64 = 256 << 10;
const MOST: u64 = 128 << 20;

/// Bytes of a `std::vector`: begin, end, end of its room.
const VECTOR: u64 = 24;

pub type Uuid = [u8; UUID];

/// Facts that CUDA told PyTorch about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceProperties {
    pub uuid: Uuid,
    /// `totalGlobalMem`; of a MIG device its own.
    pub memory: Bytes,
}

/// Returns the properties of each ordinal; `None` for one that PyTorch has not asked for. Empty if PyTorch has asked for
/// none.
pub fn properties(maps: &Maps, memory: &impl ReadMemory) -> Vec<Option<DeviceProperties>> {
    let mut left = MOST;
    for range in variables(maps) {
        let mut at = range.start;
        while range.end - at >= VECTOR && left > 0 {
            let length = PIECE.min(range.end - at);
            left = left.saturating_sub(length);
            let bytes = memory.read_bytes(at, length, PIECE as usize).ok();
            if let Some(found) = bytes.and_then(|bytes| find(&bytes, memory)) {
                return found;
            }
            // The next piece repeats the last two pointers: a vector may lie across the border.
            at += length - VECTOR + 8;
        }
    }
    Vec::new()
}

/// Returns the writable memory of the library, with the anonymous memory behind it (`.bss`).
fn variables(maps: &Maps) -> Vec<Range<u64>> {
    let is_variable = |perms: Permissions| perms.read && perms.write && !perms.shared;
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for library in maps.libraries(LIBRARY) {
        let own = |inode, dev| (inode, dev) == (library.inode, library.dev);
        let mut end = None;
        for mapping in maps.mappings() {
            let follows = end == Some(mapping.start) && mapping.path.as_os_str().is_empty();
            let is_own = own(mapping.inode, mapping.dev);
            if (is_own || follows) && is_variable(mapping.perms) {
                ranges.push(mapping.start..mapping.end);
            }
            end = (is_own || follows).then_some(mapping.end);
        }
    }
    ranges
}

/// Finds the vector in a piece of memory.
fn find(bytes: &[u8], memory: &impl ReadMemory) -> Option<Vec<Option<DeviceProperties>>> {
    let mut words = bytes.chunks_exact(8).map(|word| {
        let word = word.first_chunk();
        u64::from_le_bytes(word.copied().unwrap_or_default())
    });
    let (mut begin, mut end) = (words.next()?, words.next()?);
    for room in words {
        // Nearly all words fail this first test.
        if end.wrapping_sub(begin).wrapping_sub(1) < MAX_BYTES && begin >= PIECE {
            let found = vector([begin, end, room], memory);
            if found.is_some() {
                return found;
            }
        }
        (begin, end) = (end, room);
    }
    None
}

/// Reads a vector of entries of any known size.
fn vector(
    [begin, end, room]: [u64; 3],
    memory: &impl ReadMemory,
) -> Option<Vec<Option<DeviceProperties>>> {
    let bytes = end.checked_sub(begin)?;
    if begin % 8 != 0 || room < end || room - begin > 2 * bytes {
        return None;
    }
    let fitting = |size: &&u64| bytes % **size == 0 && bytes / **size <= MAX_DEVICES;
    SIZES
        .iter()
        .filter(fitting)
        .find_map(|&size| entries(begin, bytes / size, size, memory))
}

/// Reads the entries; `None` if one of them is no `cudaDeviceProp`, or if all are empty.
fn entries(
    begin: u64,
    number: u64,
    size: u64,
    memory: &impl ReadMemory,
) -> Option<Vec<Option<DeviceProperties>>> {
    let entries = (0..number).map(|at| {
        let address = begin.checked_add(at * size)?;
        let head = memory.read_array::<{ MEMORY + 8 }>(address).ok()?;
        entry(&head)
    });
    let entries: Vec<Option<DeviceProperties>> = entries.collect::<Option<_>>()?;
    entries.iter().any(Option::is_some).then_some(entries)
}

/// Returns the properties of one entry, `Some(None)` if PyTorch has not filled it, `None` if it is no entry.
fn entry(head: &[u8; MEMORY + 8]) -> Option<Option<DeviceProperties>> {
    if head.iter().all(|&byte| byte == 0) {
        return Some(None);
    }
    let (name, rest) = head.split_at(NAME);
    let length = name.iter().position(|&byte| byte == 0)?;
    let (text, padding) = name.split_at(length);
    let is_name = !text.is_empty() && text.iter().all(|byte| (b' '..=b'~').contains(byte));
    let is_padded = padding.iter().all(|&byte| byte == 0);
    let uuid = *rest.first_chunk::<UUID>()?;
    let total = u64::from_le_bytes(*head.last_chunk()?);
    let is_entry = is_name && is_padded && PLAUSIBLE_MEMORY.contains(&total);
    // Of a driver without UUIDs nothing is known.
    let uuid = Some(uuid).filter(|uuid| uuid.iter().any(|&byte| byte != 0));
    is_entry.then_some(uuid.map(|uuid| DeviceProperties {
        uuid,
        memory: Bytes(total),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::memory::fake::FakeMemory;

    /// Addresses of the entries and of the variables.
    const ENTRIES: u64 = 0x7000_0000;
    const VARIABLES: u64 = 0x5000_0000;

    fn uuid(last: u8) -> Uuid {
        let mut uuid = [0x5a; UUID];
        uuid[UUID - 1] = last;
        uuid
    }

    fn entry_of(size: u64, uuid: Option<Uuid>) -> Vec<u8> {
        let mut bytes = vec![0; size as usize];
        if let Some(uuid) = uuid {
            bytes[..13].copy_from_slice(b"Simulated GPU");
            bytes[NAME..NAME + UUID].copy_from_slice(&uuid);
            bytes[MEMORY..MEMORY + 8].copy_from_slice(&(16_u64 << 30).to_le_bytes());
        }
        bytes
    }

    /// A process with a vector of these entries, and words that look like other vectors.
    fn process(size: u64, uuids: &[Option<Uuid>]) -> (Maps, FakeMemory) {
        let mut memory = FakeMemory::default();
        let entries: Vec<u8> = uuids
            .iter()
            .flat_map(|uuid| entry_of(size, *uuid))
            .collect();
        let end = ENTRIES + entries.len() as u64;
        memory.map(ENTRIES, entries);
        memory.map(0x6000_0000, vec![0xff; 4096]);
        let mut words = vec![
            0_u64,
            7,
            u64::MAX - 7,
            24,
            24,
            u64::MAX,
            0x6000_0000,
            0x6000_0000 + size,
            0x6000_0000 + size,
        ];
        words.extend([0, ENTRIES, end, end, 0]);
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        bytes.resize(0x2000, 0);
        memory.map(VARIABLES, bytes[..0x1000].to_vec());
        memory.map(VARIABLES + 0x1000, bytes[0x1000..].to_vec());
        let maps = "4f000000-50000000 r-xp 00000000 08:01 7 /x/libtorch_cuda.so\n\
            50000000-50001000 rw-p 00000000 08:01 7 /x/libtorch_cuda.so\n\
            50001000-50002000 rw-p 00000000 00:00 0 \n\
            50003000-50004000 rw-p 00000000 00:00 0 \n";
        (Maps::parse(maps.as_bytes()), memory)
    }

    #[test]
    fn each_ordinal_has_the_uuid_that_cuda_gave_it() {
        for size in SIZES {
            let expected = [Some(uuid(3)), None, Some(uuid(1))];
            let (maps, memory) = process(size, &expected);
            let found = properties(&maps, &memory);
            let uuids: Vec<_> = found.iter().map(|it| it.map(|it| it.uuid)).collect();
            assert_eq!(uuids, expected, "{size}");
            let memory = found.iter().flatten().map(|it| it.memory);
            assert!(memory.eq([Bytes(16 << 30); 2]), "{found:?}");
        }
    }

    #[test]
    fn what_is_no_list_of_properties_gives_nothing() {
        let (maps, memory) = process(1032, &[None, None]);
        assert!(properties(&maps, &memory).is_empty());
        let (maps, mut memory) = process(1032, &[Some(uuid(0))]);
        memory.write(ENTRIES + 2, b"\x07");
        assert!(properties(&maps, &memory).is_empty());
        let (maps, mut memory) = process(1032, &[Some(uuid(0))]);
        memory.end();
        assert!(properties(&maps, &memory).is_empty());
        assert!(properties(&Maps::default(), &memory).is_empty());
    }

    #[test]
    fn the_variables_are_the_librarys_and_what_follows_it() {
        let (maps, _) = process(1032, &[]);
        assert_eq!(
            variables(&maps),
            [0x5000_0000..0x5000_1000, 0x5000_1000..0x5000_2000]
        );
    }
}

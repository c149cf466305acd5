//! A fake process for tests whose allocator holds given blocks.

use super::active::AllocatorVariable;
use super::block::{ROUNDING, TO_ALLOCATED, TO_PTR, TO_REQUESTED};
use super::layout::{BlockLayout, Layout, STAT_ARRAY};
use crate::process::memory::fake::FakeMemory;
use crate::process::memory::{ReadMemory, ReadResult};

/// Addresses in the fake process.
const VARIABLE: u64 = 0x1000;
const OBJECT: u64 = 0x10_0000;
const CLASS: u64 = 0x3000;
const VECTOR: u64 = 0x5000;
pub(super) const ALLOCATORS: u64 = 0x20_0000;
const SLOTS: u64 = 0x1000_0000;
const BLOCKS: u64 = 0x5500_0000_0000;

/// Bytes from one `Block` or `DeviceCachingAllocator` to the next.
const BLOCK_STEP: u64 = 0xa0;
const ALLOCATOR_STEP: u64 = 0x1000;

/// Memory that counts its reads and bytes.
pub(super) struct Counting<'a> {
    memory: &'a FakeMemory,
    pub(super) reads: std::cell::Cell<u64>,
    pub(super) bytes: std::cell::Cell<u64>,
}

impl<'a> Counting<'a> {
    pub(super) fn of(memory: &'a FakeMemory) -> Self {
        Self {
            memory,
            reads: 0.into(),
            bytes: 0.into(),
        }
    }
}

impl ReadMemory for Counting<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> ReadResult<()> {
        self.reads.set(self.reads.get() + 1);
        self.bytes.set(self.bytes.get() + into.len() as u64);
        self.memory.read(address, into)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FakeBlock {
    pub(super) addr: u64,
    pub(super) requested: u64,
    pub(super) device: u8,
    pub(super) stream: u64,
}

impl FakeBlock {
    pub(super) fn size(&self) -> u64 {
        self.requested.next_multiple_of(ROUNDING)
    }
}

/// Builds a process with `devices` devices and these blocks, in the given layout.
pub(super) fn process(
    layout: &Layout,
    devices: u8,
    live: &[FakeBlock],
) -> (FakeMemory, AllocatorVariable) {
    let mut memory = FakeMemory::default();
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    memory.map(VARIABLE, words(&[OBJECT]));
    map_class(&mut memory);
    let end = layout.tables.offset + layout.tables.shards * 32;
    let object = end.max(layout.counters.devices + 24) as usize;
    memory.map(OBJECT, vec![0; object.next_multiple_of(4096)]);
    memory.write(OBJECT, &(CLASS + 8).to_le_bytes());
    let mut slots_at = SLOTS;
    for shard in 0..layout.tables.shards {
        let here: Vec<(u64, u64)> = live
            .iter()
            .zip(0..)
            .filter(|(block, _)| block.addr / ROUNDING % layout.tables.shards == shard)
            .map(|(block, at)| (block.addr, BLOCKS + at * BLOCK_STEP))
            .collect();
        let (header, slots) = hash_table(slots_at, &here);
        memory.write(OBJECT + layout.tables.offset + shard * 32, &header);
        let length = slots.len() as u64;
        memory.map(slots_at, slots);
        slots_at = (slots_at + length).next_multiple_of(4096) + 4096;
    }
    let mut heap = vec![0xcc; live.len() * BLOCK_STEP as usize];
    for (block, at) in live.iter().zip((0..).step_by(BLOCK_STEP as usize)) {
        let bytes = self::block(
            layout.block,
            block.device,
            block.stream,
            block.addr,
            block.requested,
        );
        heap[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    memory.map(BLOCKS, heap);
    let allocators: Vec<u64> = (0..u64::from(devices))
        .map(|at| ALLOCATORS + at * ALLOCATOR_STEP)
        .collect();
    let end = VECTOR + allocators.len() as u64 * 8;
    memory.write(
        OBJECT + layout.counters.devices,
        &words(&[VECTOR, end, end]),
    );
    memory.map(VECTOR, words(&allocators));
    for (device, allocator) in (0..devices).zip(allocators) {
        memory.map(allocator, vec![0; ALLOCATOR_STEP as usize]);
        let here = || live.iter().filter(|block| block.device == device);
        let bytes: u64 = here().map(FakeBlock::size).sum();
        let reserved = bytes.next_multiple_of(2 << 20);
        for (at, current) in [
            (
                layout.counters.allocated - 4 * STAT_ARRAY,
                here().count() as u64,
            ),
            (layout.counters.allocated, bytes),
            (layout.counters.reserved, reserved),
        ] {
            memory.write(
                allocator + at,
                &words(&[current, current + 2048, current, 0]),
            );
        }
    }
    (memory, AllocatorVariable(VARIABLE))
}

/// Maps the type information of the native allocator.
fn map_class(memory: &mut FakeMemory) {
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    memory.map(CLASS, words(&[CLASS + 0x100, 0]));
    memory.map(CLASS + 0x100, words(&[0, CLASS + 0x200]));
    let name = b"N3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocatorE";
    let mut bytes = name.to_vec();
    bytes.resize(128, 0);
    memory.map(CLASS + 0x200, bytes);
}

/// The header and the slots of a hash table with these elements, in PyTorch's format: Robin Hood hashing with
/// Fibonacci hashes (c10/util/flat_hash_map.h@v2.15.0).
pub(super) fn hash_table(slots_at: u64, elements: &[(u64, u64)]) -> (Vec<u8>, Vec<u8>) {
    let mut slots = match elements.len() as u64 {
        0 => 1,
        count => (count * 2).next_power_of_two().max(4),
    };
    let (shift, lookups, entries) = loop {
        let bits = slots.trailing_zeros();
        let (shift, lookups) = match elements {
            [] => (63, 3),
            _ => (64 - bits, u64::from(bits.max(4))),
        };
        match place(slots, shift, lookups, elements) {
            Some(entries) => break (shift, lookups, entries),
            None => slots *= 2,
        }
    };
    let mut header = Vec::new();
    header.extend(slots_at.to_le_bytes());
    header.extend((slots - 1).to_le_bytes());
    header.extend([shift as u8, lookups as u8, 0xaa, 0xbb]);
    header.extend(0.5_f32.to_le_bytes());
    header.extend((elements.len() as u64).to_le_bytes());
    // The last entry marks the end and looks like an element.
    let end = Some((0, 0xdead_beef, 0xdead_beef));
    let entries = entries.into_iter().chain([end]);
    let bytes = entries.flat_map(|entry| {
        let (distance, key, value) = entry.unwrap_or((-1, 0xcccc, 0xcccc));
        let mut bytes = vec![
            distance.cast_unsigned(),
            0xcc,
            0xcc,
            0xcc,
            0xcc,
            0xcc,
            0xcc,
            0xcc,
        ];
        bytes.extend(key.to_le_bytes());
        bytes.extend(value.to_le_bytes());
        bytes
    });
    (header, bytes.collect())
}

type Slot = Option<(i8, u64, u64)>;

/// Puts elements into their slots. Returns `None` if one would lie too far from its home slot.
fn place(slots: u64, shift: u32, lookups: u64, elements: &[(u64, u64)]) -> Option<Vec<Slot>> {
    let mut entries: Vec<Slot> = vec![None; (slots - 1 + lookups) as usize];
    for &(key, value) in elements {
        let mut new = (0, key, value);
        let mut at = (key.wrapping_mul(11_400_714_819_323_198_485) >> shift) as usize;
        while let Some(there) = entries.get_mut(at)?.as_mut() {
            if there.0 < new.0 {
                std::mem::swap(there, &mut new);
            }
            new.0 += 1;
            at += 1;
            if new.0 as u64 >= lookups {
                return None;
            }
        }
        entries[at] = Some(new);
    }
    Some(entries)
}

/// The bytes of a live `Block`.
pub(super) fn block(
    layout: BlockLayout,
    device: u8,
    stream: u64,
    addr: u64,
    requested: u64,
) -> Vec<u8> {
    let mut bytes = vec![0xcc; layout.bytes()];
    let mut put = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    put(8, stream);
    put(layout.size, requested.next_multiple_of(ROUNDING));
    put(layout.size + TO_REQUESTED, requested);
    put(layout.size + TO_PTR, addr);
    bytes[0] = device;
    bytes[layout.size + TO_ALLOCATED] = 1;
    bytes
}

/// Addresses of words that lead further: pointers, masks, counts, lengths, fields of blocks.
pub(super) fn words_of_interest(layout: &Layout, blocks: usize) -> impl Iterator<Item = u64> {
    let headers = layout.tables.shards * 4;
    let headers = (0..headers).map(move |word| OBJECT + layout.tables.offset + word * 8);
    let vector = (0..3).map(move |word| OBJECT + layout.counters.devices + word * 8);
    let fields = (0..blocks as u64 * BLOCK_STEP / 8).map(|word| BLOCKS + word * 8);
    let pointers = [VARIABLE, OBJECT, CLASS, CLASS + 0x108, VECTOR, VECTOR + 8];
    let again = pointers.into_iter().cycle().take(50);
    headers.chain(vector).chain(fields).chain(again)
}

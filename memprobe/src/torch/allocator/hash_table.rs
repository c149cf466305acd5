//! The allocator's hash tables: `ska::flat_hash_map<void*, Block*>` (c10/util/flat_hash_map.h@v2.0.0 to @v2.15.0).

use super::tables::{Fitting, Misfit};
use crate::event::PoolId;
use crate::process::memory::{ReadMemory, ReadResult};
use crate::python::heap::word_at;

pub(super) const HEADER: usize = 32;

/// Size of an entry in bytes: the distance from its home slot, the key, the value.
const ENTRY: usize = 24;

/// Entries per read: slightly less than 1 MB.
const AT_ONCE: u64 = 40_000;

/// Entries per read of those that have changed: three pages.
const OF_CHANGED: u64 = 512;

/// The multiplier of `fibonacci_hash_policy`.
const GOLDEN: u64 = 11_400_714_819_323_198_485;

/// Slots of the largest table that is read. From 2.3 on the allocator has 67 tables.
const MAX_SLOTS: u64 = 1 << 26;

const ATTEMPTS: usize = 4;
const USER_END: u64 = 1 << 47;

/// The header of a table (`sherwood_v3_table`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TableHeader {
    entries: u64,
    /// Number of home slots minus one: a power of two minus one.
    mask: u64,
    /// Right shift that turns a hash into its home slot.
    shift: u8,
    /// Largest distance of an entry from its home slot, plus one.
    lookups: u8,
    pub(super) count: u64,
}

impl TableHeader {
    /// Parses a header. Returns `None` unless all fields are plausible together.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let header = Self {
            entries: word_at(bytes, 0),
            mask: word_at(bytes, 8),
            shift: *bytes.get(16)?,
            lookups: *bytes.get(17)?,
            count: word_at(bytes.get(..HEADER)?, 24),
        };
        let load = bytes.get(20..24)? == 0.5_f32.to_le_bytes();
        let slots = header.mask.checked_add(1)?;
        let bits = slots.trailing_zeros();
        let plausible = load
            && slots.is_power_of_two()
            && slots <= MAX_SLOTS
            // A table of one slot has the shift of a table of two.
            && u32::from(header.shift) == 64 - bits.max(1)
            && (1..=64).contains(&header.lookups)
            && header.count <= slots
            && header.entries.is_multiple_of(8)
            && (1..USER_END).contains(&header.entries);
        plausible.then_some(header)
    }

    /// Slots that can hold an element. The table ends with one more slot, an end marker.
    pub fn slots(&self) -> u64 {
        self.mask + u64::from(self.lookups)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) key: u64,
    pub(super) value: u64,
}

/// Part of a table that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    All,
    /// Entries that may differ from those of an earlier reading ([`ReadMemory::may_have_changed`]).
    Changed,
}

/// Reads the table at `address` and appends its elements, except those that are being moved. Reads it again, up
/// to [`ATTEMPTS`] times, if it changes meanwhile. The check against the allocator's totals catches the rest.
pub fn read(
    memory: &impl ReadMemory,
    address: u64,
    extent: Extent,
    elements: &mut Vec<Element>,
) -> Fitting<()> {
    let parse = |header: &TableHeader, entry: &[u8], slot| {
        let [key, value] = [8, 16].map(|at| word_at(entry, at));
        is_at_home(header, entry, slot, key).then_some(Element { key, value })
    };
    read_slots(memory, address, extent, ENTRY, parse, elements)
}

/// Reads a `ska::flat_hash_set` of pointers, like [`read`].
pub fn read_set(memory: &impl ReadMemory, address: u64, pointers: &mut Vec<u64>) -> Fitting<()> {
    let parse = |header: &TableHeader, entry: &[u8], slot| {
        let pointer = word_at(entry, 8);
        is_at_home(header, entry, slot, pointer).then_some(pointer)
    };
    read_slots(memory, address, Extent::All, ENTRY - 8, parse, pointers)
}

/// Reads a table of `MempoolId_t` to a pointer, like [`read`]. Its hash is the first number, or the second if that is 0
/// (`MempoolIdHash`, c10/core/CachingDeviceAllocator.h@v2.15.0).
pub fn read_pools(
    memory: &impl ReadMemory,
    address: u64,
    pools: &mut Vec<(PoolId, u64)>,
) -> Fitting<()> {
    let parse = |header: &TableHeader, entry: &[u8], slot| {
        let [first, second, pointer] = [8, 16, 24].map(|at| word_at(entry, at));
        let hash = if first == 0 { second } else { first };
        is_at_home(header, entry, slot, hash).then_some((PoolId(first, second), pointer))
    };
    read_slots(memory, address, Extent::All, ENTRY + 8, parse, pools)
}

fn read_slots<T>(
    memory: &impl ReadMemory,
    address: u64,
    extent: Extent,
    entry: usize,
    parse: impl Fn(&TableHeader, &[u8], u64) -> Option<T>,
    elements: &mut Vec<T>,
) -> Fitting<()> {
    let before = elements.len();
    for attempt in 1..=ATTEMPTS {
        elements.truncate(before);
        let header = read_header(memory, address)?;
        if header.count == 0 {
            return Ok(());
        }
        let last = attempt == ATTEMPTS;
        match read_elements(memory, &header, extent, entry, &parse, elements) {
            // The number of elements is not known then.
            Ok(()) if extent == Extent::Changed => return Ok(()),
            Ok(()) => {}
            // A table that grows frees its old slots.
            Err(_) if !last => continue,
            Err(error) => return Err(error.into()),
        }
        let after = read_header(memory, address)?;
        let found = (elements.len() - before) as u64;
        let steady = (after.entries, after.mask) == (header.entries, header.mask)
            && (found == header.count || found == after.count);
        if steady {
            return Ok(());
        }
    }
    Ok(())
}

fn read_header(memory: &impl ReadMemory, address: u64) -> Fitting<TableHeader> {
    let bytes: [u8; HEADER] = memory.read_array(address)?;
    TableHeader::parse(&bytes).ok_or(Misfit::Layout)
}

fn read_elements<T>(
    memory: &impl ReadMemory,
    header: &TableHeader,
    extent: Extent,
    entry: usize,
    parse: &impl Fn(&TableHeader, &[u8], u64) -> Option<T>,
    elements: &mut Vec<T>,
) -> ReadResult<()> {
    let at_once = match extent {
        Extent::All => AT_ONCE,
        Extent::Changed => OF_CHANGED,
    };
    let mut from = 0;
    while from < header.slots() {
        let slots = at_once.min(header.slots() - from);
        let address = header.entries.wrapping_add(from * entry as u64);
        let bytes = slots * entry as u64;
        if extent == Extent::Changed && !memory.may_have_changed(address, bytes) {
            from += slots;
            continue;
        }
        let bytes = memory.read_bytes(address, bytes, AT_ONCE as usize * entry)?;
        let here = bytes.chunks_exact(entry).zip(from..);
        elements.extend(here.filter_map(|(entry, slot)| parse(header, entry, slot)));
        from += slots;
    }
    Ok(())
}

/// True if a slot holds an element: it is not empty, and its key belongs there.
fn is_at_home(header: &TableHeader, entry: &[u8], slot: u64, key: u64) -> bool {
    let Some(distance) = entry.first().map(|byte| i8::from_le_bytes([*byte])) else {
        return false;
    };
    let Ok(distance) = u64::try_from(distance) else {
        return false;
    };
    let home = key.wrapping_mul(GOLDEN) >> header.shift;
    distance < u64::from(header.lookups) && home.checked_add(distance) == Some(slot)
}

#[cfg(test)]
mod tests {
    use super::super::fake;
    use super::*;
    use crate::process::memory::fake::FakeMemory;

    const AT: u64 = 0x1000;
    const SLOTS_AT: u64 = 0x10_0000;

    fn table(keys: &[u64]) -> FakeMemory {
        let elements: Vec<_> = keys.iter().map(|key| (*key, key + 1)).collect();
        let (header, slots) = fake::hash_table(SLOTS_AT, &elements);
        let mut memory = FakeMemory::default();
        memory.map(AT, header);
        memory.map(SLOTS_AT, slots);
        memory
    }

    fn keys(memory: &FakeMemory) -> Fitting<Vec<u64>> {
        let mut elements = Vec::new();
        read(memory, AT, Extent::All, &mut elements)?;
        assert!(
            elements
                .iter()
                .all(|element| element.value == element.key + 1)
        );
        let mut keys: Vec<_> = elements.into_iter().map(|element| element.key).collect();
        keys.sort_unstable();
        Ok(keys)
    }

    #[test]
    fn every_element_is_found() {
        for count in [0, 1, 2, 3, 7, 8, 9, 100, 5000] {
            let expected: Vec<_> = (0..count).map(|n| 0x7f00_0000_0000 + n * 512).collect();
            assert_eq!(keys(&table(&expected)), Ok(expected));
        }
    }

    #[test]
    fn an_element_that_lies_in_a_wrong_slot_is_left_out() {
        let mut memory = table(&[0x7f00_0000_0000, 0x7f00_0000_0200]);
        let slots = memory.read_bytes(SLOTS_AT, 4 * 24, 4 * 24).unwrap();
        let used = slots.chunks(24).position(|entry| entry[0] < 0x80).unwrap();
        memory.write(SLOTS_AT + used as u64 * 24 + 9, &[0xee]);
        assert_eq!(keys(&memory).unwrap().len(), 1);
    }

    #[test]
    fn a_header_whose_fields_do_not_fit_is_none() {
        let (header, _) = fake::hash_table(SLOTS_AT, &[(512, 1), (1024, 1), (2048, 1)]);
        assert!(TableHeader::parse(&header).is_some());
        for (at, byte) in [
            (0, 1),
            (5, 0xff),
            (8, 2),
            (12, 1),
            (16, 9),
            (17, 0),
            (17, 200),
            (22, 1),
            (30, 1),
        ] {
            let mut wrong = header.clone();
            wrong[at] = byte;
            assert_eq!(TableHeader::parse(&wrong), None, "byte {at} is {byte}");
        }
        assert_eq!(TableHeader::parse(&header[..31]), None);
    }

    #[test]
    fn a_table_whose_slots_are_gone_is_an_error() {
        let mut memory = table(&[512]);
        memory.write(AT, &0x90_0000_u64.to_le_bytes());
        assert!(matches!(keys(&memory), Err(Misfit::Layout)));
    }
}

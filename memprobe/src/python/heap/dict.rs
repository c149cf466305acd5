//! Reads the entries of dicts, in every variant of Python's tables.

use super::{Heap, word_at};
use crate::process::memory::{Cause, ReadMemory, ReadResult};
use crate::python::layout::{DictKeys, DictLayout};

const MAX_ENTRIES: u64 = 1 << 24;

/// Bytes per read: a multiple of the size of every kind of entry.
const BLOCK: usize = 24 * 64;

const KEYS_HEAD: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DictEntry {
    pub key: u64,
    pub value: u64,
    pub at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    start: u64,
    count: u64,
    size: u64,
    /// Offset of the key in an entry. In a combined table the value follows it.
    key: usize,
}

impl Keys {
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn range(&self) -> std::ops::Range<u64> {
        let bytes = self.count * self.size;
        self.start..self.start.saturating_add(bytes)
    }
}

impl<M: ReadMemory> Heap<'_, M> {
    /// Calls `each` with the entries of a dict, in the order of the dict.
    /// Fails with [`Unreadable`]. `each` has been called with the entries before it.
    pub fn entries(&self, dict: u64, each: impl FnMut(DictEntry)) -> ReadResult<()> {
        let head: [u8; 48] = self.memory.read_array(dict)?;
        let keys = self.keys(word_at(&head, DictLayout::KEYS))?;
        self.spend(dict, keys.count)?;
        let values = Some(word_at(&head, DictLayout::VALUES)).filter(|values| *values != 0);
        let first = values.map(|values| values.wrapping_add(self.layout.heap.dict_values.into()));
        self.table_entries(keys, first, each)
    }

    /// Addresses of a dict's keys table and of its values table, which is 0 in a combined dict.
    pub(super) fn stores(&self, dict: u64) -> ReadResult<[u64; 2]> {
        let head: [u8; 48] = self.memory.read_array(dict)?;
        Ok([DictLayout::KEYS, DictLayout::VALUES].map(|at| word_at(&head, at)))
    }

    pub(super) fn keys(&self, address: u64) -> ReadResult<Keys> {
        let head: [u8; KEYS_HEAD] = self.memory.read_array(address)?;
        let (room, indices, count, first, has_hash) = match self.layout.heap.dict_keys {
            DictKeys::Sized => {
                let size = word_at(&head, 8);
                let width = match size {
                    0..=0xff => 1,
                    0x100..=0xffff => 2,
                    0x1_0000..=0xffff_ffff => 4,
                    _ => 8,
                };
                let indices = size.checked_mul(width);
                (Some(size), indices, word_at(&head, 32), 40, true)
            }
            DictKeys::Logarithmic => {
                let [size, indices, kind] = [head[8], head[9], head[10]];
                let power = |log: u8| 1_u64.checked_shl(log.into());
                let (room, indices) = (power(size), power(indices));
                (room, indices, word_at(&head, 24), 32, kind == 0)
            }
        };
        let no_dict = || Cause::NotAsExpected.at(address);
        let indices = indices.ok_or_else(no_dict)?;
        if room.is_none_or(|room| count > room) {
            return Err(no_dict());
        }
        if count > MAX_ENTRIES {
            return Err(Cause::TooLong.at(address));
        }
        Ok(Keys {
            start: address.wrapping_add(first).wrapping_add(indices),
            count,
            size: if has_hash { 24 } else { 16 },
            key: if has_hash { 8 } else { 0 },
        })
    }

    /// Reads the entries of a table. `values` is the address of the values of a split one; else each follows its key.
    pub(super) fn table_entries(
        &self,
        keys: Keys,
        values: Option<u64>,
        mut each: impl FnMut(DictEntry),
    ) -> ReadResult<()> {
        let (mut block, mut own) = ([0; BLOCK], [0; BLOCK / 2]);
        let size = keys.size as usize;
        for done in (0..keys.count).step_by(BLOCK / 24) {
            let count = (BLOCK as u64 / 24).min(keys.count - done);
            let start = keys.start.wrapping_add(done * keys.size);
            let bytes = &mut block[..count as usize * size];
            self.memory.read(start, bytes)?;
            let own = &mut own[..count as usize * 8];
            let (first, distance) = match values {
                Some(values) => (values.wrapping_add(done * 8), 8),
                None => (start.wrapping_add(keys.key as u64 + 8), keys.size),
            };
            if values.is_some() {
                self.memory.read(first, own)?;
            }
            for (number, entry) in bytes.chunks_exact(size).enumerate() {
                let value = match values {
                    Some(_) => word_at(own, 8 * number as u16),
                    None => word_at(entry, keys.key as u16 + 8),
                };
                let key = word_at(entry, keys.key as u16);
                let at = first.wrapping_add(number as u64 * distance);
                if key != 0 && value != 0 {
                    each(DictEntry { key, value, at });
                }
            }
        }
        Ok(())
    }

    pub fn values_of<const N: usize>(
        &self,
        dict: u64,
        names: [&str; N],
    ) -> ReadResult<[Option<u64>; N]> {
        let mut found = [None; N];
        self.entries(dict, |entry| self.note(entry, &names, &mut found))?;
        Ok(found)
    }

    pub(super) fn note(&self, entry: DictEntry, names: &[&str], found: &mut [Option<u64>]) {
        if found.iter().all(Option::is_some) {
            return;
        }
        let Some(key) = self.text(entry.key) else {
            return;
        };
        if let Some(place) = names.iter().position(|name| **name == *key) {
            found[place] = Some(entry.value);
        }
    }
}

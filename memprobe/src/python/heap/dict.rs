//! Reads the entries of dicts, in every variant of Python's tables.

use super::{Heap, word_at};
use crate::process::memory::{Cause, ReadMemory, Unreadable};
use crate::python::layout::{DictKeys, DictLayout};

const MAX_ENTRIES: u64 = 1 << 24;

/// Bytes per read: a multiple of the size of every kind of entry.
const BLOCK: usize = 24 * 64;

/// Header bytes of a keys table that describe its format.
const KEYS_HEAD: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: u64,
    pub value: u64,
    /// Address of the word that refers to the value.
    pub at: u64,
}

/// A keys table (`PyDictKeysObject`).
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
    pub fn entries(&self, dict: u64, each: impl FnMut(Entry)) -> Result<(), Unreadable> {
        let head: [u8; 48] = self.memory.read_array(dict)?;
        let keys = self.keys(word_at(&head, DictLayout::KEYS))?;
        self.spend(dict, keys.count)?;
        match word_at(&head, DictLayout::VALUES) {
            0 => self.combined(keys, each),
            values => {
                let first = values.wrapping_add(self.layout.heap.dict.values.into());
                self.split(keys, first, each)
            }
        }
    }

    /// Addresses of a dict's keys table and of its values table, which is 0 in a combined dict.
    pub(super) fn stores(&self, dict: u64) -> Result<[u64; 2], Unreadable> {
        let head: [u8; 48] = self.memory.read_array(dict)?;
        Ok([DictLayout::KEYS, DictLayout::VALUES].map(|at| word_at(&head, at)))
    }

    pub(super) fn keys(&self, address: u64) -> Result<Keys, Unreadable> {
        let head: [u8; KEYS_HEAD] = self.memory.read_array(address)?;
        let (room, indices, count, first, has_hash) = match self.layout.heap.dict.keys {
            DictKeys::Sized => {
                let size = word_at(&head, 8);
                let width = match size {
                    0..=0xff => 1,
                    0x100..=0xffff => 2,
                    0x1_0000..=0xffff_ffff => 4,
                    _ => 8,
                };
                (
                    Some(size),
                    size.checked_mul(width),
                    word_at(&head, 32),
                    40,
                    true,
                )
            }
            DictKeys::Logarithmic => {
                let [size, indices, kind] = [head[8], head[9], head[10]];
                let power = |log: u8| 1_u64.checked_shl(log.into());
                (
                    power(size),
                    power(indices),
                    word_at(&head, 24),
                    32,
                    kind == 0,
                )
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

    /// Reads the entries of a combined table, which has keys and values.
    fn combined(&self, keys: Keys, mut each: impl FnMut(Entry)) -> Result<(), Unreadable> {
        let mut block = [0; BLOCK];
        let per_block = BLOCK as u64 / keys.size;
        let mut done = 0;
        while done < keys.count {
            let count = per_block.min(keys.count - done);
            let bytes = &mut block[..(count * keys.size) as usize];
            self.memory
                .read(keys.start.wrapping_add(done * keys.size), bytes)?;
            let first = keys
                .start
                .wrapping_add(done * keys.size + keys.key as u64 + 8);
            let places = (0..).map(|place| first.wrapping_add(place * keys.size));
            for (entry, at) in bytes.chunks_exact(keys.size as usize).zip(places) {
                let [key, value] = [0, 8].map(|at| word_at(entry, keys.key as u16 + at));
                if key != 0 && value != 0 {
                    each(Entry { key, value, at });
                }
            }
            done += count;
        }
        Ok(())
    }

    /// Reads the entries of a split table, whose values lie at `values`.
    pub(super) fn split(
        &self,
        keys: Keys,
        values: u64,
        mut each: impl FnMut(Entry),
    ) -> Result<(), Unreadable> {
        let (mut block, mut own) = ([0; BLOCK], [0; BLOCK / 2]);
        let per_block = BLOCK as u64 / 24;
        let mut done = 0;
        while done < keys.count {
            let count = per_block.min(keys.count - done);
            let bytes = &mut block[..(count * keys.size) as usize];
            self.memory
                .read(keys.start.wrapping_add(done * keys.size), bytes)?;
            let own = &mut own[..(count * 8) as usize];
            let first = values.wrapping_add(done * 8);
            self.memory.read(first, own)?;
            let places = (0..).map(|place| first.wrapping_add(place * 8));
            let entries = bytes.chunks_exact(keys.size as usize);
            for ((entry, value), at) in entries.zip(own.chunks_exact(8)).zip(places) {
                let (key, value) = (word_at(entry, keys.key as u16), word_at(value, 0));
                if key != 0 && value != 0 {
                    each(Entry { key, value, at });
                }
            }
            done += count;
        }
        Ok(())
    }

    pub fn values_of<const N: usize>(
        &self,
        dict: u64,
        names: [&str; N],
    ) -> Result<[Option<u64>; N], Unreadable> {
        let mut found = [None; N];
        self.entries(dict, |entry| self.note(entry, &names, &mut found))?;
        Ok(found)
    }

    /// Stores the value of an entry in `found` if its key is one of `names`.
    pub(crate) fn note(&self, entry: Entry, names: &[&str], found: &mut [Option<u64>]) {
        let Some(key) = self.text(entry.key) else {
            return;
        };
        if let Some(place) = names.iter().position(|name| **name == *key) {
            found[place] = Some(entry.value);
        }
    }
}

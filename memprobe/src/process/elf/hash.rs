//! Exported symbols by the hash table of the dynamic linker (`DT_GNU_HASH`; `do_lookup_x` in elf/dl-lookup.c of glibc).
//! The names of a PyTorch library have 80 MB: a lookup reads a few hundred bytes instead.

use object::LittleEndian;
use object::elf;
use object::read::elf::Sym as _;

use super::{ElfError, ElfImage, RawSymbol, Result, Section};

/// Words of a chain that are read at once. Most chains are shorter.
const WORDS: u64 = 16;

/// Most symbols of a chain. The linker makes as many buckets as keep chains at a few.
const MAX_CHAIN: u64 = 1 << 16;

/// Most symbols with one hash: versions of one name, and collisions of 31 bits.
const MAX_EQUAL: usize = 256;

/// A hash table, and the symbols that it lists.
#[derive(Clone, Copy)]
pub(super) struct HashTable<'a> {
    image: &'a ElfImage,
    symbols: &'a Section,
    strings: &'a Section,
    table: &'a Section,
    /// Number of buckets; not 0.
    buckets: u64,
    /// Number of the first listed symbol.
    first: u64,
    /// Byte offsets in the table.
    buckets_at: u64,
    chains_at: u64,
}

impl<'a> HashTable<'a> {
    /// Finds the hash table of a table of symbols; `None` if there is none, or an empty one.
    pub(super) fn of(image: &'a ElfImage, symbols: &'a Section) -> Result<Option<Self>> {
        let lists_them = |table: &&Section| {
            let linked = usize::try_from(table.link).ok();
            let linked = linked.and_then(|link| image.sections.get(link));
            table.kind == elf::SHT_GNU_HASH && linked.is_some_and(|of| std::ptr::eq(of, symbols))
        };
        let Some(table) = image.sections.iter().find(lists_them) else {
            return Ok(None);
        };
        let strings = image.string_section_of(symbols)?;
        let head = words(image, table, 0, 3)?;
        let [buckets, first, bloom] = [0, 1, 2].map(|at| u64::from(head[at]));
        let buckets_at = 16 + bloom * 8;
        Ok((buckets > 0).then_some(Self {
            image,
            symbols,
            strings,
            table,
            buckets,
            first,
            buckets_at,
            chains_at: buckets_at + buckets * 4,
        }))
    }

    /// Returns number and symbol of each exported symbol with a mangled name, in order.
    pub(super) fn symbols(&self, name: &str) -> Result<Vec<(u32, RawSymbol)>> {
        let hash = hash_of(name);
        let bucket = self.buckets_at + u64::from(hash) % self.buckets * 4;
        let start = u64::from(words(self.image, self.table, bucket, 1)?[0]);
        let mut found = Vec::new();
        // An empty bucket has a 0.
        let Some(mut at) = start.checked_sub(self.first) else {
            return Ok(found);
        };
        let mut equal = 0;
        let end = at.saturating_add(MAX_CHAIN);
        while at < end {
            let offset = self.chains_at + at * 4;
            let left = self.table.size.saturating_sub(offset) / 4;
            // The last word of a chain has its lowest bit set.
            let chain = words(self.image, self.table, offset, left.clamp(1, WORDS))?;
            for word in chain {
                if word | 1 == hash | 1 {
                    equal += 1;
                    if equal > MAX_EQUAL {
                        return Err(ElfError::Malformed("too many symbols of one hash"));
                    }
                    found.extend(self.named(self.first + at, name)?);
                }
                if word & 1 != 0 {
                    return Ok(found);
                }
                at += 1;
            }
        }
        Err(ElfError::Malformed("a chain of symbols without end"))
    }

    /// Returns a symbol if it has a name.
    fn named(&self, number: u64, name: &str) -> Result<Option<(u32, RawSymbol)>> {
        let number = u32::try_from(number).ok();
        let number = number.ok_or(ElfError::Malformed("a symbol beyond any table"))?;
        let symbol = self.image.raw_symbol(self.symbols, number)?;
        let own = symbol.st_name(LittleEndian);
        let is_named = self.image.is_text_at(self.strings, own, name);
        Ok(is_named.then_some((number, symbol)))
    }
}

/// Reads words of a table, at a byte offset within it.
fn words(image: &ElfImage, table: &Section, at: u64, count: u64) -> Result<Vec<u32>> {
    let end = at.checked_add(count * 4).filter(|end| *end <= table.size);
    let offset = table.offset.checked_add(at).filter(|_| end.is_some());
    let offset = offset.ok_or(ElfError::Malformed("a broken hash table"))?;
    let bytes = image.range(offset, count * 4)?;
    let words = bytes.as_chunks().0.iter();
    Ok(words.map(|word| u32::from_le_bytes(*word)).collect())
}

/// `dl_new_hash` (elf/dl-lookup.c of glibc).
fn hash_of(name: &str) -> u32 {
    name.bytes().fold(5381_u32, |hash, byte| {
        hash.wrapping_mul(33).wrapping_add(byte.into())
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{bytes_of_libc, image_of};
    use super::super::{Symbol, text_at};
    use super::*;

    #[test]
    fn a_lookup_by_hash_finds_what_a_scan_of_all_symbols_finds() {
        let image = image_of(&bytes_of_libc()).unwrap();
        let table = image.section(".dynsym").unwrap();
        assert!(HashTable::of(&image, table).unwrap().is_some());
        let strings = image.strings_of(table).unwrap();
        let symbols = image.addressed_symbols(table).unwrap();
        let names = symbols
            .iter()
            .map(|(name, _)| text_at(&strings, u64::from(*name)).unwrap());
        let mut names: Vec<&str> = names.map(|name| str::from_utf8(name).unwrap()).collect();
        assert!(names.len() > 1000, "{}", names.len());
        names.extend(["", "no_such_function", "mallo", "errno"]);
        let mut scanned = vec![None; names.len()];
        image.scan(table, &names, &mut scanned).unwrap();
        let mut hashed = vec![None; names.len()];
        image.search(table, &names, &mut hashed).unwrap();
        for ((name, scanned), hashed) in names.iter().zip(scanned).zip(hashed) {
            assert_eq!(hashed, scanned, "{name}");
        }
    }

    /// Looks `malloc` up in a C library whose hash table has other words from a byte offset on.
    fn damaged(at: u64, words: &[u32], times: usize) -> Result<Option<Symbol>> {
        let mut bytes = bytes_of_libc();
        let image = image_of(&bytes)?;
        let table = image.section(".gnu.hash").unwrap();
        let start = (table.offset + at) as usize;
        let end = (table.offset + table.size) as usize;
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let words = words.repeat(times);
        let length = words.len().min(end - start);
        bytes[start..start + length].copy_from_slice(&words[..length]);
        image_of(&bytes)?.symbol("malloc")
    }

    #[test]
    fn a_broken_hash_table_is_an_error_or_lists_nothing() {
        let image = image_of(&bytes_of_libc()).unwrap();
        let hashes = HashTable::of(&image, image.section(".dynsym").unwrap());
        let chains_at = hashes.unwrap().unwrap().chains_at;
        for (at, word, times) in [
            // More buckets or filters than it has; buckets and chains without end; equal hashes alone.
            (0, u32::MAX, 1),
            (8, u32::MAX, 1),
            (16, u32::MAX, 1 << 20),
            (chains_at, 2, 1 << 20),
            (chains_at, hash_of("malloc") & !1, 1 << 20),
        ] {
            let found = damaged(at, &[word], times);
            assert!(matches!(found, Err(ElfError::Malformed(_))), "{at} {word}");
        }
        // Chains of other symbols, and none.
        for words in [[0], [u32::MAX]] {
            assert_eq!(damaged(4, &words, 1).unwrap(), None);
        }
        let without_buckets = damaged(0, &[0], 1).unwrap();
        assert_eq!(
            without_buckets,
            damaged(0, &[], 0).unwrap(),
            "it is scanned"
        );
    }
}

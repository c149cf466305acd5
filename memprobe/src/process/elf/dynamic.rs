//! Images without section headers (`sstrip`, some packers): dynamic symbols by the dynamic segment.

use object::LittleEndian;
use object::elf;
use object::read::elf::Dyn as _;

use super::{ElfError, ElfImage, RawDynamic, RawSymbol, Result, Section, Segment, entries};

const MAX_SYMBOLS: u64 = 1 << 24;

impl ElfImage {
    /// Returns the sections that a dynamic segment implies: its strings, its symbols and itself.
    pub(super) fn sections_of(&self, dynamic: Segment) -> Result<Vec<Section>> {
        let bytes = self.range(dynamic.offset, dynamic.file_size)?;
        let entries = entries::<RawDynamic>(&bytes)?;
        let value = |tag| {
            let mut entries = entries.iter();
            let entry = entries.find(|entry| entry.d_tag(LittleEndian) == tag)?;
            Some(entry.d_val(LittleEndian))
        };
        let tables = [elf::DT_STRTAB, elf::DT_STRSZ, elf::DT_SYMTAB].map(value);
        let [Some(strings), Some(strings_size), Some(symbols)] = tables else {
            return Ok(Vec::new());
        };
        let count = match (value(elf::DT_HASH), value(elf::DT_GNU_HASH)) {
            // Its second word is the number of symbols.
            (Some(table), _) => self.words(table, 2)?[1].into(),
            (None, Some(table)) => self.count_by_gnu_hash(table)?,
            (None, None) => return Ok(Vec::new()),
        };
        if count > MAX_SYMBOLS {
            return Err(ElfError::Malformed("too many dynamic symbols"));
        }
        let section = |kind, vaddr, size| {
            let outside = ElfError::Malformed("a dynamic table outside of its segments");
            let offset = self.file_offset_of(vaddr).ok_or(outside)?;
            Ok::<_, ElfError>(Section {
                name: String::new(),
                vaddr,
                offset,
                size,
                name_offset: 0,
                kind,
                link: 0,
            })
        };
        let symbols_size = count * size_of::<RawSymbol>() as u64;
        Ok(vec![
            section(elf::SHT_STRTAB, strings, strings_size)?,
            section(elf::SHT_DYNSYM, symbols, symbols_size)?,
            section(elf::SHT_DYNAMIC, dynamic.vaddr, dynamic.file_size)?,
        ])
    }

    /// Returns the number of symbols of a `DT_GNU_HASH` table. It lists the defined symbols in chains, and
    /// the last chain ends with the last symbol.
    fn count_by_gnu_hash(&self, table: u64) -> Result<u64> {
        let head = self.words(table, 4)?;
        let [buckets, first, bloom] = [0, 1, 2].map(|at| u64::from(head[at]));
        let buckets_at = table.wrapping_add(16).wrapping_add(bloom * 8);
        let chains_at = buckets_at.wrapping_add(buckets * 4);
        let starts = self.words(buckets_at, buckets)?;
        let Some(last) = starts.into_iter().max().map(u64::from) else {
            return Ok(first);
        };
        // An image that defines no symbols has only empty buckets.
        let Some(mut at) = last.checked_sub(first) else {
            return Ok(first);
        };
        while at < MAX_SYMBOLS {
            let word = self.words(chains_at.wrapping_add(at * 4), 1)?[0];
            if word & 1 != 0 {
                return Ok(first + at + 1);
            }
            at += 1;
        }
        Err(ElfError::Malformed("a chain of symbols without end"))
    }

    /// Reads `count` 32-bit words from `vaddr` on; all of them must be in the file.
    fn words(&self, vaddr: u64, count: u64) -> Result<Vec<u32>> {
        let broken = ElfError::Malformed("a broken table of symbols");
        if count > MAX_SYMBOLS {
            return Err(broken);
        }
        let bytes = self.bytes_at(vaddr, (count * 4) as usize)?;
        let words = bytes.as_chunks().0;
        if (words.len() as u64) < count {
            return Err(broken);
        }
        Ok(words.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }
}

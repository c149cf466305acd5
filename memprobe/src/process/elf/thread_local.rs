//! Thread-local variables: their offsets in an image's TLS block.

use std::ops::Range;

use object::LittleEndian;
use object::elf;
use object::read::elf::{Dyn as _, Sym as _};

use super::hash::HashTable;
use super::{ElfImage, RawDynamic, RawRelocation, RawSymbol, Result, Section, entries};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLocalName {
    pub symbol: &'static str,
    /// The source file that must define it, if other files have a variable of the same name.
    pub source: Option<&'static str>,
    /// The size that it must have in bytes, if versions differ in size.
    pub size: Option<u64>,
    /// Offset of the wanted field in the variable.
    pub within: u64,
}

impl ThreadLocalName {
    /// Returns the name of a variable that no other file has, in the same form in every version.
    pub const fn of(symbol: &'static str) -> Self {
        Self {
            symbol,
            source: None,
            size: None,
            within: 0,
        }
    }

    fn has_size_of(&self, symbol: &RawSymbol) -> bool {
        let size = symbol.st_size(LittleEndian);
        self.size.is_none_or(|wanted| wanted == size)
    }
}

impl ElfImage {
    /// Returns the offset in the image's TLS block of the first variable that matches one of `names`. A name with a
    /// source file matches only symbols that follow that file's own symbol (`STT_FILE`; System V ABI, "Symbol Table").
    pub fn thread_local(&self, names: &[ThreadLocalName]) -> Result<Option<u64>> {
        for table in [elf::SHT_DYNSYM, elf::SHT_SYMTAB] {
            for section in self.sections.iter().filter(|section| section.kind == table) {
                if let Some(place) = self.thread_local_of(section, names)? {
                    return Ok(Some(place));
                }
            }
        }
        Ok(None)
    }

    fn thread_local_of(&self, table: &Section, names: &[ThreadLocalName]) -> Result<Option<u64>> {
        if let Some(hashes) = HashTable::of(self, table)? {
            return exported(hashes, names);
        }
        let strings = self.string_section_of(table)?;
        let mut source = None;
        for chunk in self.chunks(table)? {
            for symbol in entries::<RawSymbol>(&chunk?)? {
                match symbol.st_type() {
                    elf::STT_FILE => source = Some(symbol.st_name(LittleEndian)),
                    _ if is_variable(symbol) => {
                        if let Some(name) = self.meant(symbol, source, strings, names) {
                            return Ok(symbol.st_value(LittleEndian).checked_add(name.within));
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(None)
    }

    /// Returns the first of `names` that a thread-local symbol matches. `source` is the name of its file's symbol.
    fn meant<'n>(
        &self,
        symbol: &RawSymbol,
        source: Option<u32>,
        strings: &Section,
        names: &'n [ThreadLocalName],
    ) -> Option<&'n ThreadLocalName> {
        let own = symbol.st_name(LittleEndian);
        names.iter().find(|name| {
            let is_source = |of: &str| source.is_some_and(|at| self.is_text_at(strings, at, of));
            name.has_size_of(symbol)
                && self.is_text_at(strings, own, name.symbol)
                && name.source.is_none_or(is_source)
        })
    }

    /// True if a string table has this text at an offset. The table of a PyTorch library has 80 MB: it stays in the
    /// file.
    pub(super) fn is_text_at(&self, strings: &Section, start: u32, text: &str) -> bool {
        let start = u64::from(start);
        let wanted = text.len() as u64 + 1;
        let is_inside = (strings.size.checked_sub(start)).is_some_and(|rest| rest >= wanted);
        let offset = strings.offset.checked_add(start).filter(|_| is_inside);
        let found = offset.and_then(|offset| self.range(offset, wanted).ok());
        found.is_some_and(|found| found.strip_suffix(b"\0") == Some(text.as_bytes()))
    }

    /// Returns the address of the word that receives the image's TLS module ID from the dynamic linker. An
    /// `R_X86_64_DTPMOD64` relocation without a symbol marks it (ELF Handling For Thread-Local Storage, 4.1.6).
    pub fn thread_local_number(&self) -> Result<Option<u64>> {
        let is_dynamic = |section: &&Section| {
            let symbols = usize::try_from(section.link).map(|link| self.sections.get(link));
            section.kind == elf::SHT_RELA
                && symbols.is_ok_and(|symbols| symbols.is_some_and(|of| of.kind == elf::SHT_DYNSYM))
        };
        let sections = self.sections.iter().filter(is_dynamic);
        // Linkers put those that only add the load address first, hundreds of thousands in PyTorch's libraries, and say
        // how many. Where they do not, all are read.
        let first = self.relative_relocations()?;
        for section in sections.clone() {
            if let Some(found) = self.number_in(section, first..u64::MAX)? {
                return Ok(Some(found));
            }
        }
        for section in sections {
            if let Some(found) = self.number_in(section, 0..first)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Returns the address of the module ID's word if one of these relocations of a table marks it.
    fn number_in(&self, table: &Section, relocations: Range<u64>) -> Result<Option<u64>> {
        let size = size_of::<RawRelocation>() as u64;
        let at = |index: u64| index.saturating_mul(size).min(table.size);
        let part = Section {
            offset: table.offset.saturating_add(at(relocations.start)),
            size: at(relocations.end) - at(relocations.start),
            ..table.clone()
        };
        for chunk in self.chunks(&part)? {
            let chunk = chunk?;
            let own = entries::<RawRelocation>(&chunk)?.iter().find(|relocation| {
                relocation.r_type(LittleEndian, false) == elf::R_X86_64_DTPMOD64
                    && relocation.r_sym(LittleEndian, false) == 0
            });
            if let Some(relocation) = own {
                return Ok(Some(relocation.r_offset.get(LittleEndian)));
            }
        }
        Ok(None)
    }

    /// Returns the number of relocations without a symbol at the start of the table (`DT_RELACOUNT`); 0 if the image
    /// does not say.
    fn relative_relocations(&self) -> Result<u64> {
        let mut sections = self.sections.iter();
        let Some(table) = sections.find(|section| section.kind == elf::SHT_DYNAMIC) else {
            return Ok(0);
        };
        let bytes = self.section_bytes(table)?;
        let mut all = entries::<RawDynamic>(&bytes)?.iter();
        let count = all.find(|entry| entry.d_tag(LittleEndian) == elf::DT_RELACOUNT);
        Ok(count.map_or(0, |entry| entry.d_val(LittleEndian)))
    }
}

/// Returns the offset of the first exported variable that matches a name. The symbols of source files, which
/// [`ThreadLocalName::source`] asks for, are not exported.
fn exported(hashes: HashTable<'_>, names: &[ThreadLocalName]) -> Result<Option<u64>> {
    let mut first: Option<(u32, Option<u64>)> = None;
    for name in names.iter().filter(|name| name.source.is_none()) {
        for (number, symbol) in hashes.symbols(name.symbol)? {
            let is_meant = is_variable(&symbol) && name.has_size_of(&symbol);
            if is_meant && first.is_none_or(|(before, _)| number < before) {
                let place = symbol.st_value(LittleEndian).checked_add(name.within);
                first = Some((number, place));
            }
        }
    }
    Ok(first.and_then(|(_, place)| place))
}

/// True for a thread-local variable that the image defines.
fn is_variable(symbol: &RawSymbol) -> bool {
    symbol.st_type() == elf::STT_TLS && symbol.st_shndx(LittleEndian) != elf::SHN_UNDEF
}

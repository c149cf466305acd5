//! Thread-local variables: where in a thread's own storage an image keeps them.

use object::LittleEndian;
use object::elf;
use object::read::elf::Sym;

use super::{ElfError, ElfImage, RawRelocation, RawSymbol, Section, entries};

/// How a symbol table names a thread-local variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLocalName {
    /// As mangled.
    pub symbol: &'static str,
    /// The source file whose symbols it is among, where others have a variable of that name too.
    pub source: Option<&'static str>,
    /// The bytes that it has, where versions have it in several sizes.
    pub size: Option<u64>,
    /// Where in it what is meant begins.
    pub within: u64,
}

impl ElfImage {
    /// Where in the image's block of thread-local storage a variable lies that has one of these
    /// names. A name with a source file is looked for among the local symbols that follow the
    /// file's own (`STT_FILE`; System V ABI, "Symbol Table").
    ///
    /// # Errors
    /// As [`Self::symbols`].
    pub fn thread_local(&self, names: &[ThreadLocalName]) -> Result<Option<u64>, ElfError> {
        for table in [elf::SHT_DYNSYM, elf::SHT_SYMTAB] {
            for section in self.sections.iter().filter(|section| section.kind == table) {
                if let Some(place) = self.thread_local_of(section, names)? {
                    return Ok(Some(place));
                }
            }
        }
        Ok(None)
    }

    fn thread_local_of(
        &self,
        table: &Section,
        names: &[ThreadLocalName],
    ) -> Result<Option<u64>, ElfError> {
        let strings = self.strings_of(table)?;
        let symbols = self.section_bytes(table)?;
        let name_of = |symbol: &RawSymbol| {
            let start = symbol.st_name(LittleEndian) as usize;
            let tail = strings.get(start..)?;
            tail.split(|&byte| byte == 0).next()
        };
        let mut source = None;
        for symbol in entries::<RawSymbol>(&symbols)? {
            match symbol.st_type() {
                elf::STT_FILE => source = name_of(symbol),
                elf::STT_TLS if symbol.st_shndx(LittleEndian) != elf::SHN_UNDEF => {
                    let own = name_of(symbol).unwrap_or_default();
                    let is_meant = |name: &ThreadLocalName| {
                        own == name.symbol.as_bytes()
                            && name.source.is_none_or(|of| source == Some(of.as_bytes()))
                            && name
                                .size
                                .is_none_or(|size| size == symbol.st_size(LittleEndian))
                    };
                    if let Some(name) = names.iter().find(|name| is_meant(name)) {
                        return Ok(symbol.st_value(LittleEndian).checked_add(name.within));
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// Address of the word into which the dynamic linker writes the image's number among those
    /// with thread-local storage: what an `R_X86_64_DTPMOD64` without a symbol relocates (ELF
    /// Handling For Thread-Local Storage, 4.1.6).
    ///
    /// # Errors
    /// [`ElfError`] where the relocations cannot be read.
    pub fn thread_local_number(&self) -> Result<Option<u64>, ElfError> {
        let is_dynamic = |section: &&Section| {
            let symbols = usize::try_from(section.link).map(|link| self.sections.get(link));
            section.kind == elf::SHT_RELA
                && symbols.is_ok_and(|symbols| symbols.is_some_and(|of| of.kind == elf::SHT_DYNSYM))
        };
        for section in self.sections.iter().filter(is_dynamic) {
            let bytes = self.section_bytes(section)?;
            let own = entries::<RawRelocation>(&bytes)?.iter().find(|relocation| {
                relocation.r_type(LittleEndian, false) == elf::R_X86_64_DTPMOD64
                    && relocation.r_sym(LittleEndian, false) == 0
            });
            if let Some(relocation) = own {
                return Ok(Some(relocation.r_offset.get(LittleEndian)));
            }
        }
        Ok(None)
    }
}

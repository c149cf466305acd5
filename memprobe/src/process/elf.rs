//! ELF files of the target: symbols, segments and load addresses.
//!
//! memprobe reads only the ranges that it needs of these huge files, and never maps a file: if somebody truncates
//! a mapped file, the reader dies of SIGBUS, whereas `read` returns an error.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use object::elf::{self, FileHeader64, SectionType};
use object::read::ReadCache;
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{LittleEndian, pod};

use super::maps::{MappedFile, Mapping, is_named, open_regular};
use crate::event::Tgid;

use hash::HashTable;
pub use names::FunctionNames;
pub use thread_local::ThreadLocalName;
pub use tracepoints::Tracepoint;

/// The most bytes read of one section. The string table of libtorch_cuda has some 100 MiB.
const MAX_SECTION_BYTES: u64 = 1 << 30;

/// Bytes of a table that are read at once: a whole number of entries of 24 bytes, as symbols and relocations have.
const CHUNK: u64 = 24 << 15;

/// Granularity of mappings (x86-64, the only machine that memprobe supports yet).
const PAGE: u64 = 4096;

/// The most bytes read of the section name table, and the longest section name.
const MAX_NAMES_BYTES: u64 = 1 << 20;
const MAX_NAME_BYTES: usize = 256;

type Header = FileHeader64<LittleEndian>;
type RawSymbol = elf::Sym64<LittleEndian>;
type RawDynamic = elf::Dyn64<LittleEndian>;
type RawRelocation = elf::Rela64<LittleEndian>;

/// A 64-bit little-endian ELF program or shared library.
#[derive(Debug)]
pub struct ElfImage {
    file: File,
    kind: ImageKind,
    segments: Vec<Segment>,
    sections: Vec<Section>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageKind {
    /// Loaded at the addresses in the file (`ET_EXEC`).
    Fixed,
    /// Loaded anywhere: shared libraries and position-independent programs (`ET_DYN`).
    Relocatable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub offset: u64,
    pub file_size: u64,
    /// The address before relocation (`p_vaddr`).
    pub vaddr: u64,
    pub executable: bool,
}

impl Segment {
    fn of(header: &elf::ProgramHeader64<LittleEndian>) -> Self {
        Self {
            offset: header.p_offset(LittleEndian),
            file_size: header.p_filesz(LittleEndian),
            vaddr: header.p_vaddr(LittleEndian),
            executable: header.p_flags(LittleEndian).contains(elf::PF_X),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    pub name: String,
    /// The address before relocation; 0 if the section is not loaded.
    pub vaddr: u64,
    pub offset: u64,
    pub size: u64,
    name_offset: u32,
    kind: SectionType,
    link: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// The address before relocation; add the load bias for the address in memory.
    pub vaddr: u64,
    /// Bytes; 0 if the file does not say.
    pub size: u64,
}

impl Symbol {
    fn of(symbol: &RawSymbol) -> Self {
        Self {
            vaddr: symbol.st_value(LittleEndian),
            size: symbol.st_size(LittleEndian),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ElfError {
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Not a 64-bit little-endian ELF program or library, or a corrupt one.
    #[error("not a usable ELF file: {0}")]
    Malformed(&'static str),
    /// Its code does not have the form that memprobe knows.
    #[error("its code is not understood: {0}")]
    Unexpected(&'static str),
}

type Result<T, E = ElfError> = std::result::Result<T, E>;

impl ElfImage {
    pub fn open(path: &Path) -> Result<Self> {
        Self::from_file(open_regular(path)?)
    }

    pub fn from_file(file: File) -> Result<Self> {
        let malformed = |_| ElfError::Malformed("broken headers");
        let (endian, cache) = (LittleEndian, ReadCache::new(&file));
        let header =
            Header::parse(&cache).map_err(|_| ElfError::Malformed("no 64-bit ELF header"))?;
        let is_little = header.endian();
        is_little.map_err(|_| ElfError::Malformed("not little-endian"))?;
        let other = ElfError::Malformed("neither a program nor a shared library");
        let kind = match header.e_type(endian) {
            elf::ET_EXEC => ImageKind::Fixed,
            elf::ET_DYN => ImageKind::Relocatable,
            _ => return Err(other),
        };
        if header.e_phnum(endian) == elf::PN_XNUM {
            return Err(ElfError::Malformed("more segments than an image has"));
        }
        let programs = header.program_headers(endian, &cache).map_err(malformed)?;
        let of_type = |kind| {
            let segments = programs.iter();
            segments
                .filter(move |segment| segment.p_type(endian) == kind)
                .map(Segment::of)
        };
        let dynamic = of_type(elf::PT_DYNAMIC).next();
        // A file without section headers (`sstrip`, or truncated after its segments) has only the dynamic segment. Files
        // with more than 65,279 sections store their number elsewhere; no linked image has so many.
        let table = match header.section_headers(endian, &cache) {
            _ if header.e_shnum(endian) == 0 => &[],
            Ok(table) => table,
            Err(_) if dynamic.is_some() => &[],
            Err(error) => return Err(malformed(error)),
        };
        let sections = table.iter().map(|section| Section {
            name: String::new(),
            name_offset: section.sh_name(endian),
            vaddr: section.sh_addr(endian),
            offset: section.sh_offset(endian),
            size: section.sh_size(endian),
            kind: section.sh_type(endian),
            link: section.sh_link(endian),
        });
        let (segments, sections) = (of_type(elf::PT_LOAD).collect(), sections.collect());
        let names = usize::from(header.e_shstrndx(endian).0);
        drop(cache);
        let mut image = Self {
            file,
            kind,
            segments,
            sections,
        };
        image.name_sections(names)?;
        if let Some(dynamic) = dynamic.filter(|_| image.sections.is_empty()) {
            image.sections = image.sections_of(dynamic)?;
        }
        Ok(image)
    }

    fn name_sections(&mut self, names: usize) -> Result<()> {
        let names = self.sections.get(names);
        let Some(names) = names.filter(|names| names.size <= MAX_NAMES_BYTES) else {
            return Ok(());
        };
        let names = self.section_bytes(names)?;
        for section in &mut self.sections {
            let tail = names.get(section.name_offset as usize..);
            let tail = tail.unwrap_or_default();
            let tail = &tail[..tail.len().min(MAX_NAME_BYTES)];
            let end = tail.iter().position(|&byte| byte == 0).unwrap_or(0);
            section.name = String::from_utf8_lossy(&tail[..end]).into_owned();
        }
        Ok(())
    }

    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// Returns the symbol with this mangled name, as [`Self::symbols`] finds it.
    pub fn symbol(&self, name: &str) -> Result<Option<Symbol>> {
        self.first_symbol(&[name])
    }

    /// Returns the symbols with these mangled names that the image defines, in the order of `names`. `.symtab` is read
    /// only for names that the dynamic symbols lack. Each table is scanned once, whatever the number of names.
    /// Fails with [`ElfError`] if a symbol table cannot be read; a file without one defines no symbols.
    pub fn symbols(&self, names: &[&str]) -> Result<Vec<Option<Symbol>>> {
        self.find(names, |found| found.iter().all(Option::is_some))
    }

    /// Returns the first of these mangled names that the image defines, as [`Self::symbols`] finds it.
    /// `.symtab` is read only if no dynamic symbol has any of the names.
    pub fn first_symbol(&self, names: &[&str]) -> Result<Option<Symbol>> {
        let found = self.find(names, |found| found.iter().any(Option::is_some))?;
        Ok(found.into_iter().flatten().next())
    }

    fn find(
        &self,
        names: &[&str],
        are_enough: impl Fn(&[Option<Symbol>]) -> bool,
    ) -> Result<Vec<Option<Symbol>>> {
        let mut found = vec![None; names.len()];
        for table in [elf::SHT_DYNSYM, elf::SHT_SYMTAB] {
            for section in self.sections.iter().filter(|section| section.kind == table) {
                if !are_enough(&found) {
                    self.search(section, names, &mut found)?;
                }
            }
        }
        Ok(found)
    }

    /// Looks for the names that were not found yet.
    fn search(&self, table: &Section, names: &[&str], found: &mut [Option<Symbol>]) -> Result<()> {
        let Some(hashes) = HashTable::of(self, table)? else {
            return self.scan(table, names, found);
        };
        for (name, found) in names.iter().zip(found).filter(|(_, found)| found.is_none()) {
            let named = hashes.symbols(name)?;
            let first = named.iter().find(|(_, symbol)| has_address(symbol));
            *found = first.map(|(_, symbol)| Symbol::of(symbol));
        }
        Ok(())
    }

    /// Looks for the names that were not found yet, in a table without hashes. The strings of a PyTorch library have
    /// 80 MB: they are read in parts, in the order in which they lie there.
    fn scan(&self, table: &Section, names: &[&str], found: &mut [Option<Symbol>]) -> Result<()> {
        let strings = self.string_section_of(table)?;
        let mut symbols = self.addressed_symbols(table)?;
        symbols.sort_unstable();
        let longest = names.iter().map(|name| name.len() as u64 + 1).max();
        let longest = longest.unwrap_or_default();
        let mut first = vec![None; names.len()];
        let mut rest = &symbols[..];
        while let Some((start, _)) = rest.first().copied() {
            let start = u64::from(start);
            let Some(left) = strings.size.checked_sub(start).filter(|left| *left > 0) else {
                break;
            };
            let offset = strings.offset.checked_add(start);
            let offset = offset.ok_or(ElfError::Malformed("strings without end"))?;
            let part = self.range(offset, left.min(CHUNK + longest))?;
            let inside = rest.partition_point(|(at, _)| u64::from(*at) < start + CHUNK);
            for (at, number) in &rest[..inside] {
                let tail = part.get((u64::from(*at) - start) as usize..);
                let tail = tail.unwrap_or_default();
                for (name, first) in names.iter().zip(&mut first) {
                    let ends = tail.get(name.len()) == Some(&0);
                    if ends && tail.starts_with(name.as_bytes()) {
                        *first = Some(first.map_or(*number, |first: u32| first.min(*number)));
                    }
                }
            }
            rest = &rest[inside..];
        }
        for (number, found) in first.into_iter().zip(found) {
            if let (Some(number), None) = (number, &found) {
                *found = Some(Symbol::of(&self.raw_symbol(table, number)?));
            }
        }
        Ok(())
    }

    /// Returns name and number of each symbol of a table that has an address here.
    fn addressed_symbols(&self, table: &Section) -> Result<Vec<(u32, u32)>> {
        let mut found = Vec::new();
        let mut number = 0;
        for chunk in self.chunks(table)? {
            for symbol in entries::<RawSymbol>(&chunk?)? {
                if has_address(symbol) {
                    found.push((symbol.st_name(LittleEndian), number));
                }
                number += 1;
            }
        }
        Ok(found)
    }

    fn raw_symbol(&self, table: &Section, number: u32) -> Result<RawSymbol> {
        let broken = ElfError::Malformed("a broken table");
        let size = size_of::<RawSymbol>() as u64;
        let within = u64::from(number) * size;
        let offset = table.offset.checked_add(within);
        let offset = offset.filter(|_| within + size <= table.size);
        let entry = self.range(offset.ok_or(broken)?, size)?;
        let symbol = entries::<RawSymbol>(&entry)?.first().copied();
        symbol.ok_or(ElfError::Malformed("a broken table"))
    }

    /// True if the image lists a library as needed (`DT_NEEDED`), so that the loader loads both together.
    /// `library` is matched as in [`super::maps::Maps::libraries`].
    /// Fails with [`ElfError`] if the list cannot be read; a file without one needs nothing.
    pub fn needs(&self, library: &str) -> Result<bool> {
        let mut sections = self.sections.iter();
        let Some(table) = sections.find(|section| section.kind == elf::SHT_DYNAMIC) else {
            return Ok(false);
        };
        let strings = self.strings_of(table)?;
        let bytes = self.section_bytes(table)?;
        let is_it = |entry: &RawDynamic| {
            let name = text_at(&strings, entry.d_val(LittleEndian));
            let is_needed = entry.d_tag(LittleEndian) == elf::DT_NEEDED;
            is_needed && name.is_some_and(|name| is_named(name, library))
        };
        Ok(entries(&bytes)?.iter().any(is_it))
    }

    fn strings_of(&self, table: &Section) -> Result<Vec<u8>> {
        self.section_bytes(self.string_section_of(table)?)
    }

    fn string_section_of(&self, table: &Section) -> Result<&Section> {
        let linked = usize::try_from(table.link).ok();
        let linked = linked.and_then(|link| self.sections.get(link));
        let strings = linked.filter(|section| section.kind == elf::SHT_STRTAB);
        strings.ok_or(ElfError::Malformed("a table without its strings"))
    }

    /// Returns the file offset of `vaddr`, for uprobes; `None` if no file content is loaded there (`.bss`).
    pub fn file_offset_of(&self, vaddr: u64) -> Option<u64> {
        let (segment, within) = self.segment_at(vaddr)?;
        segment.offset.checked_add(within)
    }

    /// Returns the first segment with file content at `vaddr`, and the distance from its start.
    fn segment_at(&self, vaddr: u64) -> Option<(&Segment, u64)> {
        self.segments.iter().find_map(|segment| {
            let within = vaddr.checked_sub(segment.vaddr)?;
            (within < segment.file_size).then_some((segment, within))
        })
    }

    /// Reads up to `len` bytes of the file from `vaddr` on, fewer if the segment ends before.
    /// Fails with [`ElfError::Malformed`] if no file content is loaded at `vaddr`; otherwise [`ElfError::Io`].
    pub fn bytes_at(&self, vaddr: u64, len: usize) -> Result<Vec<u8>> {
        let outside = ElfError::Malformed("an address outside of its segments");
        let found = self.segment_at(vaddr).zip(self.file_offset_of(vaddr));
        let ((segment, within), offset) = found.ok_or(outside)?;
        self.range(offset, (segment.file_size - within).min(len as u64))
    }

    /// Returns the load bias: the (wrapping) difference between addresses in memory and in the file, given its
    /// mappings; `None` if they match no segment. The loader maps a segment from the page of its file offset on. Every
    /// mapping that matches a segment votes, since parts of the file may be mapped elsewhere too.
    pub fn load_bias(&self, mappings: &[Mapping]) -> Option<u64> {
        if self.kind == ImageKind::Fixed {
            return Some(0);
        }
        let mut votes: Vec<(u64, usize)> = Vec::new();
        for mapping in mappings {
            let begins = self.segments.iter().filter(|segment| {
                segment.offset - segment.offset % PAGE == mapping.offset
                    && segment.executable == mapping.perms.execute
            });
            for segment in begins {
                let page = segment.vaddr - segment.vaddr % PAGE;
                let bias = mapping.start.wrapping_sub(page);
                match votes.iter_mut().find(|(candidate, _)| *candidate == bias) {
                    Some((_, count)) => *count += 1,
                    None => votes.push((bias, 1)),
                }
            }
        }
        let most = votes.iter().map(|&(_, count)| count).max()?;
        let mut votes = votes.into_iter();
        votes
            .find(|&(_, count)| count == most)
            .map(|(bias, _)| bias)
    }

    /// Returns the address range and the content of a section, if it has at most `most` bytes.
    pub fn section_contents(&self, name: &str, most: u64) -> Option<(Range<u64>, Vec<u8>)> {
        let section = self.section(name).filter(|section| section.size <= most)?;
        let end = section.vaddr.checked_add(section.size)?;
        Some((section.vaddr..end, self.section_bytes(section).ok()?))
    }

    fn section_bytes(&self, section: &Section) -> Result<Vec<u8>> {
        self.range(section.offset, section.size)
    }

    /// Reads a table of symbols or relocations in parts of whole entries: those of PyTorch's libraries have megabytes.
    fn chunks(&self, table: &Section) -> Result<impl Iterator<Item = Result<Vec<u8>>>> {
        let end = table.offset.checked_add(table.size);
        let end = end.filter(|_| table.size <= MAX_SECTION_BYTES);
        let end = end.ok_or(ElfError::Malformed("a table larger than any library has"))?;
        let starts = (table.offset..end).step_by(CHUNK as usize);
        Ok(starts.map(move |start| self.range(start, CHUNK.min(end - start))))
    }

    fn range(&self, offset: u64, size: u64) -> Result<Vec<u8>> {
        let end = offset.checked_add(size);
        let end = end.ok_or(ElfError::Malformed("a range without end"))?;
        if size > MAX_SECTION_BYTES || end > self.file.metadata()?.len() {
            return Err(ElfError::Malformed("a part that lies outside of the file"));
        }
        let mut bytes = vec![0; size as usize];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }
}

/// True for a symbol that the image defines and that has an address. One in thread-local storage names an offset;
/// those of sections (without a name) and source files name no code and no variable.
fn has_address(symbol: &RawSymbol) -> bool {
    let names_none = [elf::STT_TLS, elf::STT_SECTION, elf::STT_FILE];
    symbol.st_shndx(LittleEndian) != elf::SHN_UNDEF && !names_none.contains(&symbol.st_type())
}

/// Returns the text at an offset of a string table, without the zero byte that ends it.
fn text_at(strings: &[u8], start: u64) -> Option<&[u8]> {
    let tail = strings.get(usize::try_from(start).ok()?..)?;
    tail.split(|&byte| byte == 0).next()
}

/// Returns the complete entries of a table; an incomplete last one is ignored.
fn entries<T: pod::Pod>(table: &[u8]) -> Result<&[T]> {
    pod::slice_from_bytes(table, table.len() / size_of::<T>())
        .map(|(entries, _)| entries)
        .map_err(|()| ElfError::Malformed("a broken table"))
}

#[derive(Debug)]
pub struct LoadedImage {
    pub image: ElfImage,
    /// The value to add to the image's addresses for addresses in the target (wrapping).
    pub bias: u64,
}

impl LoadedImage {
    /// Opens a file that the target has mapped.
    /// Fails with [`ElfError`] also if the mappings do not determine the load bias.
    pub fn open(file: &MappedFile, tgid: Tgid) -> Result<Self> {
        let image = ElfImage::from_file(file.open(tgid)?.0)?;
        let bias = image.load_bias(&file.mappings);
        let bias = bias.ok_or(ElfError::Malformed("its mappings fit none of its segments"))?;
        Ok(Self { image, bias })
    }

    pub fn address_of(&self, symbol: Symbol) -> u64 {
        symbol.vaddr.wrapping_add(self.bias)
    }
}

mod dynamic;
mod functions;
mod hash;
mod linkage;
mod names;
mod thread_local;
mod tracepoints;

#[cfg(test)]
mod tests;

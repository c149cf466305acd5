//! The libraries and executables that a process has mapped.

use std::fmt;
use std::fs::File;
use std::path::PathBuf;

use memmap2::Mmap;
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSection as _, ObjectSymbol as _};

use super::maps::{Mapping, Maps};
use crate::event::Tgid;

/// A symbol's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Its address in the file's own numbering.
    pub address: u64,
    /// Its bytes; 0 where the file does not say.
    pub size: u64,
}

/// An ELF file, mapped into memprobe (libraries of PyTorch have hundreds of MB, of which little
/// is looked at).
pub struct ElfImage {
    bytes: Mmap,
}

/// Why a file is no use.
#[derive(Debug)]
pub enum ElfError {
    /// It cannot be opened.
    Io(std::io::Error),
    /// It is no 64-bit ELF file.
    Format(object::Error),
}

impl fmt::Display for ElfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Format(error) => write!(f, "not a 64-bit ELF file: {error}"),
        }
    }
}

impl std::error::Error for ElfError {}

impl From<std::io::Error> for ElfError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl ElfImage {
    /// Opens a file.
    ///
    /// # Errors
    /// When it cannot be opened or is no 64-bit ELF file.
    pub fn open(path: &std::path::Path) -> Result<Self, ElfError> {
        let file = File::open(path)?;
        // SAFETY: the file may change under us. Its bytes are only ever looked at through
        // `object`, which checks every offset each time; a file cut short would end memprobe with
        // SIGBUS, never the target.
        let bytes = unsafe { Mmap::map(&file)? };
        ElfFile64::<Endianness>::parse(&*bytes).map_err(ElfError::Format)?;
        Ok(Self { bytes })
    }

    /// Opens the file of a mapping; gives also the path by which it was opened.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn of_mapping(tgid: Tgid, mapping: &Mapping) -> Result<(Self, PathBuf), ElfError> {
        let path = mapping.openable(tgid);
        Ok((Self::open(&path)?, path))
    }

    fn parse(&self) -> Option<ElfFile64<'_, Endianness>> {
        ElfFile64::parse(&*self.bytes).ok()
    }

    /// A defined symbol by its exact name: from the dynamic table, else from the full one.
    pub fn symbol(&self, name: &str) -> Option<Symbol> {
        let file = self.parse()?;
        let found = |symbol: &object::read::elf::ElfSymbol64<'_, '_>| {
            !symbol.is_undefined() && symbol.address() != 0 && symbol.name() == Ok(name)
        };
        let symbol = file
            .dynamic_symbols()
            .find(found)
            .or_else(|| file.symbols().find(found))?;
        Some(Symbol {
            address: symbol.address(),
            size: symbol.size(),
        })
    }

    /// Where in the file an address lies.
    pub fn file_offset_of(&self, address: u64) -> Option<u64> {
        self.segments()?
            .into_iter()
            .find_map(|(start, in_file, offset)| {
                let at = address.checked_sub(start).filter(|at| *at < in_file)?;
                offset.checked_add(at)
            })
    }

    /// Up to `length` bytes at an address, as they are in the file.
    pub fn bytes_at(&self, address: u64, length: usize) -> Option<&[u8]> {
        let start = usize::try_from(self.file_offset_of(address)?).ok()?;
        let end = start.saturating_add(length).min(self.bytes.len());
        self.bytes.get(start..end)
    }

    /// The address of a section.
    pub fn section(&self, name: &str) -> Option<u64> {
        let file = self.parse()?;
        file.sections()
            .find(|section| section.name() == Ok(name))
            .map(|section| section.address())
    }

    /// What must be added to the file's addresses to get the process's: 0 for an executable that
    /// was linked to fixed addresses.
    pub fn load_bias(&self, maps: &Maps, mapping: &Mapping) -> Option<u64> {
        let file = self.parse()?;
        let endian = Endianness::Little;
        if file.elf_header().e_type(endian) == object::elf::ET_EXEC {
            return Some(0);
        }
        let segments = self.segments()?;
        maps.same_file(mapping).find_map(|mapped| {
            segments.iter().find_map(|(start, _, offset)| {
                const PAGE: u64 = 4096;
                (offset / PAGE * PAGE == mapped.offset)
                    .then(|| mapped.start.wrapping_sub(start / PAGE * PAGE))
            })
        })
    }

    /// Of each loaded segment: address, bytes in the file, offset in the file.
    fn segments(&self) -> Option<Vec<(u64, u64, u64)>> {
        let file = self.parse()?;
        let endian = Endianness::Little;
        let loaded = file
            .elf_program_headers()
            .iter()
            .filter(|header| header.p_type(endian) == object::elf::PT_LOAD);
        Some(
            loaded
                .map(|header| {
                    (
                        header.p_vaddr(endian),
                        header.p_filesz(endian),
                        header.p_offset(endian),
                    )
                })
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Our own libc, as it is mapped into this process.
    fn libc_image() -> (Maps, Mapping, ElfImage) {
        let tgid = Tgid(std::process::id());
        let maps = Maps::of(tgid).expect("our own mappings");
        let mapping = maps.library("libc.so").expect("libc is mapped").clone();
        let (image, _) = ElfImage::of_mapping(tgid, &mapping).expect("libc is an ELF file");
        (maps, mapping, image)
    }

    #[test]
    fn a_symbol_is_found_where_the_process_has_it() {
        let (maps, mapping, image) = libc_image();
        let symbol = image.symbol("getpid").expect("libc exports getpid");
        let bias = image.load_bias(&maps, &mapping).expect("libc is loaded");
        assert_eq!(bias + symbol.address, libc::getpid as *const () as u64);
    }

    #[test]
    fn code_of_a_function_is_read_from_the_file() {
        let (_, _, image) = libc_image();
        let symbol = image.symbol("getpid").expect("libc exports getpid");
        assert_eq!(image.bytes_at(symbol.address, 8).map(<[u8]>::len), Some(8));
    }

    #[test]
    fn what_is_not_there_is_none() {
        let (_, _, image) = libc_image();
        assert_eq!(image.symbol("no_such_function"), None);
        assert_eq!(image.file_offset_of(u64::MAX), None);
        assert_eq!(image.section(".nothing"), None);
    }

    #[test]
    fn a_file_that_is_no_program_is_refused() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), b"#!/bin/sh\n").expect("written");
        assert!(matches!(
            ElfImage::open(file.path()),
            Err(ElfError::Format(_))
        ));
        assert!(matches!(
            ElfImage::open("/nonexistent".as_ref()),
            Err(ElfError::Io(_))
        ));
    }
}

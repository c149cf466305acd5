//! The name of the function in which a probe sits, as the library's own symbols tell it.

use std::path::Path;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolizer};

/// The function at a file offset, demangled; `None` where the library has no symbol there.
pub fn at(library: &Path, file_offset: u64) -> Option<String> {
    let mut elf = Elf::new(library);
    elf.debug_syms = false;
    let symbolizer = Symbolizer::new();
    let symbolized = symbolizer
        .symbolize_single(&Source::Elf(elf), Input::FileOffset(file_offset))
        .ok()?;
    Some(symbolized.into_sym()?.name.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Tgid;
    use crate::process::elf::ElfImage;
    use crate::process::maps::Maps;

    #[test]
    fn an_offset_within_a_function_gives_its_name() {
        let tgid = Tgid(std::process::id());
        let maps = Maps::of(tgid).expect("our own mappings");
        let library = maps.library("libc.so").expect("libc is mapped");
        let (file, path) = library.open(tgid).expect("libc can be opened");
        let image = ElfImage::from_file(file).expect("libc is an ELF file");
        let symbol = image.symbol("getpid").expect("readable").expect("exported");
        let offset = image.file_offset_of(symbol.vaddr).expect("in the file");
        assert!(at(&path, offset + 1).is_some_and(|name| name.contains("getpid")));
    }

    #[test]
    fn what_is_no_library_gives_no_name() {
        assert_eq!(at(Path::new("/nonexistent"), 0), None);
    }
}

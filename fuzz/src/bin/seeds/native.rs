//! The unwind tables of a library, with a stack of addresses in its code.

use std::error::Error;
use std::ffi::OsStr;

use gimli::UnwindContext;
use memprobe::process::elf::ElfImage;
use memprobe::symbolize::native::unwind::{TableSection, UnwindTable};
use memprobe_fuzz::unwind::UnwindInput;

/// The most bytes of a table.
const MOST: u64 = u16::MAX as u64;

/// The most bytes of the linker's stubs.
const STUBS: u64 = 256;

/// The addresses on the stack.
const WORDS: usize = 64;

pub fn unwind_input(library: &OsStr) -> Result<Vec<u8>, Box<dyn Error>> {
    let image = ElfImage::open(library.as_ref())?;
    let section = |name: &str| {
        let found = TableSection::of(&image, name, MOST);
        found.ok_or_else(|| format!("{name}: missing or too large"))
    };
    let text = image.section(".text").ok_or("no code")?;
    let (entries, search) = (section(".eh_frame")?, section(".eh_frame_hdr")?);
    let table =
        UnwindTable::of_sections(entries.clone(), Some(search.clone()), Some(text.vaddr), 0);
    let mut context = UnwindContext::new();
    // The linker's stubs lie before the code. They come last: their rules need a register that is not known.
    let known: Vec<u64> = (text.vaddr.saturating_sub(STUBS)..text.vaddr + text.size)
        .rev()
        .filter(|address| table.rule_at(*address, &mut context).is_some())
        .map(|address| address + 1)
        .collect();
    let first = *known.first().ok_or("no function has a rule")?;
    let stack = (0..WORDS).map(|step| known[step * 37 % known.len()]);
    Ok(UnwindInput {
        address: first,
        frame_pointer: 64,
        stack_pointer: 0,
        entries,
        search,
        stack: stack.flat_map(u64::to_le_bytes).collect(),
    }
    .into_bytes())
}

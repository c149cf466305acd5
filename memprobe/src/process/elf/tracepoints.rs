//! Static tracepoints (USDT) of a library: the notes of `<sys/sdt.h>`.

use object::LittleEndian;
use object::elf;
use object::read::elf::{Note, NoteIterator};

use super::{ElfImage, Header};

/// The section of the notes, and the section whose address they are relative to.
const NOTES: &str = ".note.stapsdt";
const BASE: &str = ".stapsdt.base";

/// `_SDT_NOTE_NAME` and `_SDT_NOTE_TYPE` (`<sys/sdt.h>` of SystemTap).
const OWNER: &[u8] = b"stapsdt";
const TYPE: elf::NoteType = elf::NoteType(3);

/// The most bytes read of the notes. PyTorch's libraries have a few dozen notes of a hundred bytes.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracepoint {
    pub provider: String,
    pub name: String,
    /// The address of its `nop` before relocation.
    pub vaddr: u64,
    /// True if the code skips the tracepoint unless a semaphore in the process's memory is above 0.
    pub has_semaphore: bool,
    /// The arguments in assembler syntax, such as `-8@%rdi -8@-56(%rbp)`.
    pub operands: String,
}

impl ElfImage {
    /// Returns the image's tracepoints; empty if its notes cannot be parsed.
    pub fn tracepoints(&self) -> Vec<Tracepoint> {
        let Some((_, notes)) = self.section_contents(NOTES, MAX_BYTES) else {
            return Vec::new();
        };
        let base = self.section(BASE).map_or(0, |section| section.vaddr);
        let Ok(mut notes) = NoteIterator::<Header>::new(LittleEndian, 4, &notes) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        while let Ok(Some(note)) = notes.next() {
            found.extend(parse(&note, base));
        }
        found
    }
}

fn parse(note: &Note<'_, Header>, base: u64) -> Option<Tracepoint> {
    if note.name() != OWNER || note.n_type(LittleEndian) != TYPE {
        return None;
    }
    let (numbers, texts) = note.desc().split_at_checked(3 * 8)?;
    let word = |at: usize| Some(u64::from_le_bytes(*numbers.get(8 * at..)?.first_chunk()?));
    let mut texts = texts.split(|byte| *byte == 0);
    let mut text = || Some(String::from_utf8_lossy(texts.next()?).into_owned());
    // A linker that moves the library (prelink) moves the base section but does not update the notes.
    let own = word(1)?;
    let moved = if base == 0 { 0 } else { base.wrapping_sub(own) };
    Some(Tracepoint {
        vaddr: word(0)?.wrapping_add(moved),
        has_semaphore: word(2)? != 0,
        provider: text()?,
        name: text()?,
        operands: text()?,
    })
}

//! Tracepoints that a library was built with (USDT): the notes of `<sys/sdt.h>`.

use object::LittleEndian;
use object::elf;
use object::read::elf::{Note, NoteIterator};

use super::{ElfImage, Header};

/// The section of the notes, and the one whose address they are relative to.
const NOTES: &str = ".note.stapsdt";
const BASE: &str = ".stapsdt.base";

/// `_SDT_NOTE_NAME` and `_SDT_NOTE_TYPE` (`<sys/sdt.h>` of SystemTap).
const OWNER: &[u8] = b"stapsdt";
const TYPE: elf::NoteType = elf::NoteType(3);

/// The most that is read of them. PyTorch's libraries have a few dozen notes of a hundred bytes.
const MOST_BYTES: u64 = 1 << 20;

/// A place in the code that a tool can listen to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracepoint {
    /// Whose it is.
    pub provider: String,
    /// What it is called.
    pub name: String,
    /// Its `nop`, in the file's own terms.
    pub vaddr: u64,
    /// It is passed by unless a counter in the process's memory says that somebody listens.
    pub has_semaphore: bool,
    /// Its values, as the assembler writes them, such as `-8@%rdi -8@-56(%rbp)`.
    pub operands: String,
}

impl ElfImage {
    /// The tracepoints of the image; none where its notes make no sense.
    pub fn tracepoints(&self) -> Vec<Tracepoint> {
        let Some((_, notes)) = self.section_contents(NOTES, MOST_BYTES) else {
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
    let word = |at: usize| {
        Some(u64::from_le_bytes(
            numbers.get(8 * at..)?.first_chunk().copied()?,
        ))
    };
    let mut texts = texts.split(|byte| *byte == 0);
    let mut text = || Some(String::from_utf8_lossy(texts.next()?).into_owned());
    // A linker that moves the library (prelink) moves the base, and not what is in the notes.
    let moved = if base == 0 {
        0
    } else {
        base.wrapping_sub(word(1)?)
    };
    Some(Tracepoint {
        vaddr: word(0)?.wrapping_add(moved),
        has_semaphore: word(2)? != 0,
        provider: text()?,
        name: text()?,
        operands: text()?,
    })
}

//! Build IDs of libraries.

use super::elf::ElfImage;

const SECTION: &str = ".note.gnu.build-id";

/// The most bytes read of the section: 12 of header, `GNU`, and 20 of SHA-1 are usual.
const MOST: usize = 256;

/// `NT_GNU_BUILD_ID` (elf.h).
const KIND: u32 = 3;

impl ElfImage {
    /// Returns the build ID as hexadecimal digits; `None` if the linker wrote none.
    pub fn build_id(&self) -> Option<String> {
        let section = self.section(SECTION)?;
        let size = usize::try_from(section.size).ok()?.min(MOST);
        parse(&self.bytes_at(section.vaddr, size).ok()?)
    }
}

/// Parses a note: sizes of name and content, type, name, content.
fn parse(note: &[u8]) -> Option<String> {
    let word = |at: usize| {
        let bytes = note.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let (name, content, kind) = (word(0)?, word(4)?, word(8)?);
    if kind != KIND || name != 4 || note.get(12..16)? != b"GNU\0" {
        return None;
    }
    let content = note.get(16..16 + usize::try_from(content).ok().filter(|size| *size > 0)?)?;
    Some(content.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_holds_the_build_id() {
        let note = b"\x04\0\0\0\x03\0\0\0\x03\0\0\0GNU\0\xab\x0c\xff\0";
        assert_eq!(parse(note).as_deref(), Some("ab0cff"));
    }

    #[test]
    fn a_note_of_another_kind_or_cut_short_holds_none() {
        assert_eq!(
            parse(b"\x04\0\0\0\x03\0\0\0\x01\0\0\0GNU\0\xab\x0c\xff"),
            None
        );
        assert_eq!(
            parse(b"\x04\0\0\0\xff\xff\xff\xff\x03\0\0\0GNU\0\xab"),
            None
        );
        assert_eq!(parse(b"\x04\0\0\0\0\0\0\0\x03\0\0\0GNU\0"), None);
        assert_eq!(parse(b""), None);
    }
}

//! Where functions begin, also in files without symbols: the table by which exceptions are unwound.

use super::ElfImage;

/// The section, and the most that is read of it: libtorch_cuda's has some 20 MiB.
const TABLE: &str = ".eh_frame_hdr";
const MOST_BYTES: u64 = 256 << 20;

/// What precedes the entries where they have the form that every linker gives them: version 1, the
/// place of `.eh_frame` relative to itself, the number of entries in 32 bits, and entries of two signed
/// 32-bit numbers relative to the section (Linux Standard Base, "The .eh_frame_hdr section").
const FORM: [u8; 4] = [1, 0x1b, 0x03, 0x3b];

impl ElfImage {
    /// The addresses, in the file's own terms, at which functions or parts of them begin, in order;
    /// `None` where the file does not say.
    pub fn function_starts(&self) -> Option<Vec<u64>> {
        let (section, bytes) = self.section_contents(TABLE, MOST_BYTES)?;
        let (head, entries) = bytes.split_at_checked(12)?;
        if head[..4] != FORM {
            return None;
        }
        let count = u32::from_le_bytes(head[8..].try_into().ok()?);
        let starts = entries.chunks_exact(8).take(count as usize);
        let starts = starts.filter_map(|entry| {
            let relative = i32::from_le_bytes(*entry.first_chunk()?);
            Some(section.start.wrapping_add_signed(relative.into()))
        });
        let mut starts: Vec<_> = starts.collect();
        starts.sort_unstable();
        starts.dedup();
        Some(starts)
    }
}

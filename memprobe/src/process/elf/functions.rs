//! Function start addresses from the table for exception unwinding, which needs no symbols.

use super::ElfImage;

/// The section, and the most bytes read of it: that of libtorch_cuda has some 20 MiB.
const TABLE: &str = ".eh_frame_hdr";
const MAX_BYTES: u64 = 256 << 20;

/// The first bytes of the only supported table form, which every linker writes: version 1, `.eh_frame`
/// address relative to itself, 32-bit entry count. Entries are two signed 32-bit numbers relative to the
/// section (Linux Standard Base, "The .eh_frame_hdr section").
const FORM: [u8; 4] = [1, 0x1b, 0x03, 0x3b];

impl ElfImage {
    /// Returns the addresses before relocation at which functions or parts of them start, in order; `None`
    /// without a supported table.
    pub fn function_starts(&self) -> Option<Vec<u64>> {
        let (section, bytes) = self.section_contents(TABLE, MAX_BYTES)?;
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

//! Python strings (PEP 393) in the memory of another process.

use super::layout::StringLayout;
use crate::process::memory::{Cause, ReadMemory, ReadResult};

/// The most code points kept of a name; an ellipsis marks the cut.
pub const MAX_NAME_CHARS: u64 = 4096;

/// Bytes from the start of a string that hold its length and state in every version.
const HEADER_BYTES: usize = 40;

/// Reads the str at `address`, or a prefix of one that is only partly known ([`ReadMemory::read_prefix`]).
/// Invalid code points (a lone surrogate, as in undecodable file names) become U+FFFD.
/// Fails with [`Unreadable`] also if the header is not that of a string.
pub fn string(memory: &impl ReadMemory, layout: &StringLayout, address: u64) -> ReadResult<String> {
    let header: [u8; HEADER_BYTES] = memory.read_array(address)?;
    let length = u64::from_le_bytes(field(&header, StringLayout::LENGTH));
    let state = u32::from_le_bytes(field(&header, StringLayout::STATE));
    let no_string = Cause::NotAsExpected.at(address);
    let width = u64::from((state >> StringLayout::KIND_SHIFT) & 7);
    // 0 is a string of up to 3.11 that was never made ready; code objects hold none.
    if !matches!(width, 1 | 2 | 4) || i64::try_from(length).is_err() {
        return Err(no_string);
    }
    let compact = state & StringLayout::COMPACT != 0;
    let data = match (compact, state & StringLayout::ASCII != 0) {
        (true, true) => address.wrapping_add(layout.ascii_data.into()),
        (true, false) => address.wrapping_add(layout.compact_data.into()),
        (false, _) => memory.read_u64(address.wrapping_add(layout.compact_data.into()))?,
    };
    let chars = length.min(MAX_NAME_CHARS);
    let bytes = memory.read_prefix(data, chars * width, 4 * MAX_NAME_CHARS as usize)?;
    let mut text = decode(width, &bytes);
    if bytes.len() as u64 / width < length {
        text.push('…');
    }
    Ok(text)
}

/// Returns the `N` bytes of `head` at `offset`; offsets come from the layout table, never from the target.
pub(super) fn field<const N: usize>(head: &[u8], offset: u16) -> [u8; N] {
    let offset = usize::from(offset);
    let mut bytes = [0; N];
    bytes.copy_from_slice(&head[offset..offset + N]);
    bytes
}

/// Decodes code points of 1, 2 or 4 bytes.
fn decode(width: u64, bytes: &[u8]) -> String {
    let char_of = |code| char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    match width {
        1 => bytes.iter().map(|&byte| char::from(byte)).collect(),
        2 => {
            let units = bytes.as_chunks().0.iter();
            units
                .map(|&unit| char_of(u16::from_le_bytes(unit).into()))
                .collect()
        }
        _ => {
            let units = bytes.as_chunks().0.iter();
            units
                .map(|&unit| char_of(u32::from_le_bytes(unit)))
                .collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::map_str;
    use super::super::layout::PythonLayout;
    use super::super::versions::LAYOUTS;
    use super::*;
    use crate::process::memory::fake::FakeMemory;

    const AT: u64 = 0x1000;

    fn read(layout: &PythonLayout, memory: &FakeMemory) -> ReadResult<String> {
        string(memory, &layout.string, AT)
    }

    #[test]
    fn strings_of_every_width_are_read() {
        for layout in &LAYOUTS {
            for text in ["", "model.py", "größe.py", "漢字", "𠀀😀 wide"] {
                let mut memory = FakeMemory::default();
                map_str(&mut memory, layout, AT, text);
                assert_eq!(read(layout, &memory).unwrap(), text);
            }
        }
    }

    #[test]
    fn a_string_apart_from_its_data_is_read() {
        for layout in &LAYOUTS {
            let mut memory = FakeMemory::default();
            let mut object = vec![0; usize::from(layout.string.compact_data) + 8];
            object[16] = 3;
            object[32] = 2 << StringLayout::KIND_SHIFT;
            let pointer = usize::from(layout.string.compact_data);
            object[pointer..].copy_from_slice(&0x9000_u64.to_le_bytes());
            memory.map(AT, object);
            memory.map(0x9000, vec![b'a', 0, 0x00, 0xd8, 0x3b, 0x04]);
            assert_eq!(read(layout, &memory).unwrap(), "a\u{fffd}л");
        }
    }

    #[test]
    fn reads_the_beginning_of_a_partial_string() {
        for layout in &LAYOUTS {
            for (text, copied, beginning) in [
                ("a_long_name", 4, "a_lo…"),
                ("мир и труд", 5, "ми…"),
                ("мир", 6, "мир"),
            ] {
                let mut memory = FakeMemory::default();
                map_str(&mut memory, layout, AT, text);
                let header = if text.is_ascii() {
                    layout.string.ascii_data
                } else {
                    layout.string.compact_data
                };
                let memory = memory.copies_of(&[(AT, usize::from(header) + copied)]);
                assert_eq!(string(&memory, &layout.string, AT).unwrap(), beginning);
            }
        }
    }

    #[test]
    fn a_name_that_never_ends_is_cut_and_one_of_no_length_refused() {
        let layout = &LAYOUTS[0];
        let mut memory = FakeMemory::default();
        map_str(&mut memory, layout, AT, &"x".repeat(5_000));
        let text = read(layout, &memory).unwrap();
        assert_eq!(text.chars().count() as u64, MAX_NAME_CHARS + 1);
        assert!(text.ends_with("x…"));
        memory.write(AT + 16, &(-1_i64).to_le_bytes());
        assert_eq!(
            read(layout, &memory).unwrap_err().cause,
            Cause::NotAsExpected
        );
        memory.write(AT + 16, &i64::MAX.to_le_bytes());
        assert!(read(layout, &memory).is_ok());
        memory.write(AT + 32, &0_u32.to_le_bytes());
        assert_eq!(
            read(layout, &memory).unwrap_err().cause,
            Cause::NotAsExpected
        );
    }
}

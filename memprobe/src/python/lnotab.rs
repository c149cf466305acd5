//! The line tables of CPython before 3.11: pairs of bytes, one that counts bytes of instructions and one that
//! counts lines.

/// Returns the line of the instruction at `offset` bytes in a table of up to 3.9 (`PyCode_Addr2Line` of
/// `Objects/codeobject.c`@v3.9.18). Each pair advances by a number of bytes, then by a number of lines.
pub fn line_by_increments(table: &[u8], first_line: u32, offset: u32) -> u32 {
    let mut line = first_line;
    let mut at = 0_u32;
    for &[bytes, lines] in table.as_chunks().0 {
        at = at.saturating_add(bytes.into());
        if at > offset {
            break;
        }
        line = advance(line, lines);
    }
    line
}

/// Returns the line of the instruction at `offset` bytes in a table of 3.10 (`PyLineTable_NextAddressRange`
/// of `Objects/codeobject.c`@v3.10.13). Each pair advances by a number of lines, and the next bytes are on
/// that line. `None` if the bytes have no line, or the table ends before.
pub fn line_by_ranges(table: &[u8], first_line: u32, offset: u32) -> Option<u32> {
    /// The line count of bytes that have no line.
    const NO_LINE: u8 = 0x80;
    let mut line = first_line;
    let mut end = 0_u32;
    for &[bytes, lines] in table.as_chunks().0 {
        end = end.saturating_add(bytes.into());
        if lines != NO_LINE {
            line = advance(line, lines);
        }
        if offset < end {
            return (lines != NO_LINE).then_some(line);
        }
    }
    None
}

fn advance(line: u32, lines: u8) -> u32 {
    line.wrapping_add_signed(i8::from_le_bytes([lines]).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of `Objects/lnotab_notes.txt`@v3.9.18: lines 1, 2, 7, 207 (in two steps), 361.
    const INCREMENTS: [u8; 14] = [0, 1, 6, 1, 44, 5, 0, 127, 0, 73, 0, 0, 255, 0];

    #[test]
    fn increments_count_up_to_the_instruction() {
        let line = |offset| line_by_increments(&INCREMENTS, 1, offset);
        assert_eq!([line(0), line(5), line(6), line(49)], [2, 2, 3, 3]);
        assert_eq!([line(50), line(1000)], [208, 208]);
    }

    #[test]
    fn increments_go_back_too() {
        assert_eq!(line_by_increments(&[4, 10, 4, 0xfe], 1, 8), 9);
        assert_eq!(line_by_increments(&[], 7, 3), 7);
        assert_eq!(line_by_increments(&[4], 7, 30), 7);
    }

    #[test]
    fn ranges_have_a_line_or_none() {
        // Like the example of `Objects/lnotab_notes.txt`@v3.10.13.
        let table = [4, 1, 2, 0x80, 0, 127, 0, 127, 6, 4, 2, 0xff];
        let line = |offset| line_by_ranges(&table, 10, offset);
        assert_eq!([line(0), line(3)], [Some(11), Some(11)]);
        assert_eq!([line(4), line(5)], [None, None]);
        assert_eq!([line(6), line(11)], [Some(269), Some(269)]);
        assert_eq!([line(12), line(13)], [Some(268), Some(268)]);
        assert_eq!([line(14), line(u32::MAX)], [None, None]);
    }

    #[test]
    fn a_damaged_table_only_gives_a_wrong_line() {
        let mut state = 1_u32;
        let mut table = vec![0; 4097];
        for _ in 0..200 {
            for byte in &mut table {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = (state >> 24) as u8;
            }
            line_by_increments(&table, state, state);
            line_by_ranges(&table, state, state >> 12);
        }
    }
}

//! The location table of code objects, from 3.11 on
//! (Objects/locations.md@v3.11, InternalDocs/code_objects.md@v3.14).

/// Bytes of one code unit.
const UNIT: u64 = 2;

/// The line that the instruction at `offset` (bytes from the start of the code) belongs to; `None`
/// where the table gives it none.
pub(super) fn line_at(table: &[u8], first_line: i32, offset: u64) -> Option<u32> {
    let mut bytes = table.iter().copied();
    let mut line = i64::from(first_line);
    let mut end = 0u64;
    while let Some(head) = bytes.next() {
        let kind = head >> 3 & 0xf;
        end += (u64::from(head & 7) + 1) * UNIT;
        let mut has_line = true;
        match kind {
            15 => has_line = false,
            14 => {
                line += signed(&mut bytes)?;
                // End line, column and end column.
                for _ in 0..3 {
                    unsigned(&mut bytes)?;
                }
            }
            13 => line += signed(&mut bytes)?,
            10..=12 => {
                line += i64::from(kind - 10);
                bytes.next()?;
                bytes.next()?;
            }
            _ => {
                bytes.next()?;
            }
        }
        if offset < end {
            return has_line.then(|| u32::try_from(line).ok()).flatten();
        }
    }
    None
}

/// Six bits a byte, lowest first; bit 6 says that more follow.
fn unsigned(bytes: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..60).step_by(6) {
        let byte = bytes.next()?;
        value |= u64::from(byte & 0x3f) << shift;
        if byte & 0x40 == 0 {
            return Some(value);
        }
    }
    None
}

/// As [`unsigned`], the lowest bit being the sign.
fn signed(bytes: &mut impl Iterator<Item = u8>) -> Option<i64> {
    let value = unsigned(bytes)?;
    let magnitude = i64::try_from(value >> 1).ok()?;
    Some(if value & 1 == 1 {
        -magnitude
    } else {
        magnitude
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `def f(x):\n    y = x +\\\n        1\n    return y` compiled by CPython 3.11, by hand.
    const TABLE: &[u8] = &[
        0x80,
        0x00, // RESUME: short form, line +0
        0xd9,
        0x08,
        0x09, // one-line form, line +1, 2 units
        0xf2,
        0x02,
        0x00,
        0x05,
        0x0a, // long form, line +1, 3 units
        0xf8, // no location, 1 unit
        0x68 | 0x80,
        0x03, // no column, line -1, 1 unit
    ];

    #[test]
    fn each_form_of_entry_moves_the_line_as_it_says() {
        assert_eq!(line_at(TABLE, 10, 0), Some(10));
        assert_eq!(line_at(TABLE, 10, 2), Some(11));
        assert_eq!(line_at(TABLE, 10, 4), Some(11));
        assert_eq!(line_at(TABLE, 10, 6), Some(12));
        assert_eq!(line_at(TABLE, 10, 11), Some(12));
    }

    #[test]
    fn an_instruction_without_a_line_has_none_and_does_not_disturb_those_behind_it() {
        assert_eq!(line_at(TABLE, 10, 12), None);
        assert_eq!(line_at(TABLE, 10, 14), Some(11));
    }

    #[test]
    fn past_the_end_there_is_no_line() {
        assert_eq!(line_at(TABLE, 10, 16), None);
        assert_eq!(line_at(&[], 10, 0), None);
    }

    #[test]
    fn a_table_that_is_cut_short_or_absurd_gives_no_line() {
        for length in 0..TABLE.len() {
            let _ = line_at(&TABLE[..length], 10, 100);
        }
        assert_eq!(line_at(&[0xe8; 200], i32::MAX, 1000), None);
        assert_eq!(line_at(&[0xff; 64], 1, 1 << 40), None);
        assert_eq!(line_at(&[0xe8, 0x7f], 1, 0), None);
    }
}

//! The location table of CPython 3.11 and later, which maps instructions to lines: `Objects/locations.md`@v3.11.7,
//! v3.12.1, `get_line_delta` and `_PyCode_CheckLineNumber` of `Objects/codeobject.c`@v3.12.1.

/// Bytes of one code unit.
const UNIT: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineEntry {
    /// Offset in bytes after the last instruction.
    pub end: u32,
    /// The line; `None` for instructions without one.
    pub line: Option<u32>,
}

/// Returns the line of the instruction at `offset` bytes; `None` if it has no line or the table ends before it.
pub fn locate(table: &[u8], first_line: u32, offset: u32) -> Option<u32> {
    entries(table, first_line)
        .find(|entry| offset < entry.end)?
        .line
}

/// Returns the entries of a table, in the order of their instructions. A damaged table ends early.
pub fn entries(table: &[u8], first_line: u32) -> Entries<'_> {
    Entries {
        rest: table,
        line: first_line,
        offset: 0,
    }
}

#[derive(Clone, Debug)]
pub struct Entries<'a> {
    rest: &'a [u8],
    line: u32,
    offset: u32,
}

impl Iterator for Entries<'_> {
    type Item = LineEntry;

    fn next(&mut self) -> Option<LineEntry> {
        let (&first, tail) = self.rest.split_first()?;
        // Every entry starts with a byte whose highest bit is set; no other byte has it.
        let length = tail.iter().position(|byte| byte & 0x80 != 0);
        let (mut operands, rest) = tail.split_at(length.unwrap_or(tail.len()));
        self.rest = rest;
        let units = u32::from(first & 7) + 1;
        self.offset = self.offset.checked_add(units * UNIT)?;
        let code = (first >> 3) & 15;
        let lines = line_delta(code, &mut operands)?;
        self.line = self.line.wrapping_add_signed(lines);
        Some(LineEntry {
            end: self.offset,
            line: (code != NO_LOCATION).then_some(self.line),
        })
    }
}

/// The code of an entry for instructions without a line.
const NO_LOCATION: u8 = 15;

/// Returns the lines by which an entry advances; `None` if it is damaged. Columns are checked and not needed.
fn line_delta(code: u8, operands: &mut &[u8]) -> Option<i32> {
    let lines = match code {
        0..=9 => {
            take(operands)?;
            0
        }
        10..=12 => {
            take(operands)?;
            take(operands)?;
            i32::from(code) - 10
        }
        13 | 14 => signed_varint(operands)?,
        _ => 0,
    };
    if code == 14 {
        let _last_line_and_columns = [varint(operands)?, varint(operands)?, varint(operands)?];
    }
    Some(lines)
}

fn take(operands: &mut &[u8]) -> Option<u8> {
    let (&byte, tail) = operands.split_first()?;
    *operands = tail;
    Some(byte)
}

/// Decodes six bits per byte, lowest first; 0x40 marks that more follow.
fn varint(operands: &mut &[u8]) -> Option<u32> {
    let mut value = 0_u32;
    for shift in (0..32).step_by(6) {
        let byte = take(operands)?;
        value |= u32::from(byte & 0x3f) << shift;
        if byte & 0x40 == 0 {
            return Some(value);
        }
    }
    None
}

/// Decodes a varint whose lowest bit is the sign.
fn signed_varint(operands: &mut &[u8]) -> Option<i32> {
    let value = varint(operands)?;
    let magnitude = (value >> 1) as i32;
    Some(if value & 1 == 0 {
        magnitude
    } else {
        -magnitude
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn head(code: u8, units: u8) -> u8 {
        0x80 | code << 3 | (units - 1)
    }

    fn on(line: u32) -> Option<u32> {
        Some(line)
    }

    #[test]
    fn every_form_of_entry_moves_the_line_as_cpython_does() {
        let table = [
            &[head(13, 1), 0x02][..],                     // line + 1
            &[head(0, 2), 0x45],                          // same line, columns 4..9
            &[head(12, 1), 8, 20],                        // line + 2
            &[head(15, 3)],                               // on no line
            &[head(10, 1), 1, 2],                         // same line
            &[head(14, 1), 0x0b, 0x03, 0x05, 0x41, 0x01], // line - 5 .. + 3, columns 4..64
        ]
        .concat();
        let line = |offset| locate(&table, 10, offset);
        assert_eq!(line(0), on(11));
        assert_eq!(line(1), on(11));
        assert_eq!(line(2), on(11));
        assert_eq!(line(5), on(11));
        assert_eq!(line(6), on(13));
        assert_eq!(line(8), None);
        assert_eq!(line(13), None);
        assert_eq!(line(14), on(13));
        assert_eq!(line(16), on(8));
        assert_eq!(line(18), None);
        assert_eq!(line(4), on(11));
    }

    #[test]
    fn a_long_entry_may_lack_columns() {
        let table = [head(14, 1), 0x00, 0x01, 0x00, 0x00];
        assert_eq!(locate(&table, 3, 0), on(3));
    }

    #[test]
    fn an_empty_or_damaged_table_gives_no_line() {
        assert_eq!(locate(&[], 1, 0), None);
        assert_eq!(locate(&[head(0, 1)], 1, 0), None);
        assert_eq!(locate(&[head(13, 1), 0x40], 1, 0), None);
        assert_eq!(
            locate(
                &[head(13, 1), 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f],
                1,
                0
            ),
            None
        );
    }

    #[test]
    fn random_tables_end() {
        let mut state = 1_u32;
        let mut table = vec![0; 4096];
        for _ in 0..200 {
            for byte in &mut table {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = (state >> 24) as u8;
            }
            assert!(entries(&table, state).count() <= table.len());
        }
    }
}

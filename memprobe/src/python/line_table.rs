//! The location table of CPython 3.11 and later, which maps instructions to lines.
//!
//! Format: `Objects/locations.md`@v3.11.7, v3.12.1; each case as in `get_line_delta` and
//! `_PyCode_CheckLineNumber` of `Objects/codeobject.c`@v3.12.1.

/// Bytes of one code unit.
const UNIT: u32 = 2;

/// The source location of some instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    pub line: u32,
    pub end_line: u32,
    /// Columns, if the table has them (not with `-X no_debug_ranges`).
    pub columns: Option<Columns>,
}

/// Columns of a location, in UTF-8 bytes from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    pub start: u32,
    pub end: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Offset in bytes of the first instruction.
    pub start: u32,
    /// Offset in bytes after the last instruction.
    pub end: u32,
    /// The location; `None` for instructions without a line.
    pub location: Option<Location>,
}

/// Returns the location of the instruction at `offset` bytes from the first instruction. `None` if it has no
/// line, or the table ends before it.
pub fn locate(table: &[u8], first_line: u32, offset: u32) -> Option<Location> {
    entries(table, first_line)
        .find(|entry| offset < entry.end)?
        .location
}

/// Returns the entries of a table, in the order of their instructions. A damaged table ends early.
pub fn entries(table: &[u8], first_line: u32) -> Entries<'_> {
    Entries {
        rest: table,
        line: first_line,
        offset: 0,
    }
}

/// An iterator over the entries of a table.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    rest: &'a [u8],
    line: u32,
    offset: u32,
}

impl Iterator for Entries<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let (&first, tail) = self.rest.split_first()?;
        // Every entry starts with a byte whose highest bit is set; no other byte has it.
        let length = tail
            .iter()
            .position(|byte| byte & 0x80 != 0)
            .unwrap_or(tail.len());
        let (mut operands, rest) = tail.split_at(length);
        self.rest = rest;
        let start = self.offset;
        let units = u32::from(first & 7) + 1;
        self.offset = start.checked_add(units * UNIT)?;
        let location = self.location((first >> 3) & 15, &mut operands)?;
        Some(Entry {
            start,
            end: self.offset,
            location,
        })
    }
}

impl Entries<'_> {
    /// Decodes the location of an entry with this code; the outer `None` if the table is damaged.
    fn location(&mut self, code: u8, operands: &mut &[u8]) -> Option<Option<Location>> {
        let (end_delta, columns) = match code {
            0..=9 => {
                let byte = u32::from(take(operands)?);
                let start = u32::from(code) << 3 | byte >> 4;
                (
                    0,
                    Some(Columns {
                        start,
                        end: start + (byte & 15),
                    }),
                )
            }
            10..=12 => {
                self.line = self.line.wrapping_add(u32::from(code) - 10);
                let start = take(operands)?.into();
                (
                    0,
                    Some(Columns {
                        start,
                        end: take(operands)?.into(),
                    }),
                )
            }
            13 => {
                self.advance(signed_varint(operands)?);
                (0, None)
            }
            14 => {
                self.advance(signed_varint(operands)?);
                let end_delta = varint(operands)?;
                let start = varint(operands)?.checked_sub(1);
                let end = varint(operands)?.checked_sub(1);
                let columns = start.zip(end).map(|(start, end)| Columns { start, end });
                (end_delta, columns)
            }
            _ => return Some(None),
        };
        Some(Some(Location {
            line: self.line,
            end_line: self.line.wrapping_add(end_delta),
            columns,
        }))
    }

    fn advance(&mut self, lines: i32) {
        self.line = self.line.wrapping_add_signed(lines);
    }
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
        let line = |offset| locate(&table, 10, offset).map(|location| location.line);
        assert_eq!(line(0), on(11));
        assert_eq!(line(1), on(11));
        assert_eq!(line(2), on(11));
        assert_eq!(line(5), on(11));
        assert_eq!(line(6), on(13));
        assert_eq!(line(8), None);
        assert_eq!(line(13), None);
        assert_eq!(line(14), on(13));
        assert_eq!(
            locate(&table, 10, 16),
            Some(Location {
                line: 8,
                end_line: 11,
                columns: Some(Columns { start: 4, end: 64 })
            })
        );
        assert_eq!(line(18), None);
        assert_eq!(
            locate(&table, 10, 4).unwrap().columns,
            Some(Columns { start: 4, end: 9 })
        );
    }

    #[test]
    fn a_long_entry_may_lack_columns() {
        let table = [head(14, 1), 0x00, 0x01, 0x00, 0x00];
        assert_eq!(
            locate(&table, 3, 0),
            Some(Location {
                line: 3,
                end_line: 4,
                columns: None
            })
        );
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

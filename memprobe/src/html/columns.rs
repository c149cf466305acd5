//! Columns of numbers as bytes: varints of differences, which compress well and a page decodes fast.

use serde::Serialize;

/// Largest number that a page reads exactly: JavaScript's `Number.MAX_SAFE_INTEGER`.
pub(super) const MAX_EXACT: u64 = (1 << 53) - 1;

/// Place of a column in the data of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct ColumnPlace {
    offset: usize,
    bytes: usize,
}

/// All columns of a page, one after the other.
#[derive(Debug, Default)]
pub(super) struct Columns {
    pub data: Vec<u8>,
}

/// A column while it is written.
#[derive(Debug, Default)]
pub(super) struct PageColumn(Vec<u8>);

impl Columns {
    pub(super) fn push(&mut self, column: &PageColumn) -> ColumnPlace {
        let offset = self.data.len();
        self.data.extend_from_slice(&column.0);
        ColumnPlace {
            offset,
            bytes: column.0.len(),
        }
    }
}

impl PageColumn {
    /// Appends a number; one beyond [`MAX_EXACT`] becomes that.
    pub(super) fn number(&mut self, number: u64) {
        let mut rest = number.min(MAX_EXACT);
        while rest >= 0x80 {
            self.0.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.0.push(rest as u8);
    }

    /// Appends a number with a sign, in zigzag order.
    pub(super) fn signed(&mut self, number: i64) {
        let most = (MAX_EXACT / 2).cast_signed();
        let number = number.clamp(-most, most);
        self.number(((number << 1) ^ (number >> 63)).cast_unsigned());
    }

    /// Appends the difference from the number before, and remembers this one.
    pub(super) fn difference(&mut self, last: &mut u64, number: u64) {
        self.signed(number.cast_signed().wrapping_sub(last.cast_signed()));
        *last = number;
    }
}

#[cfg(test)]
pub(super) mod samples {
    use super::{ColumnPlace, Columns};

    impl Columns {
        /// Numbers of a column, as the page decodes them.
        pub(in crate::html) fn numbers(&self, place: ColumnPlace) -> Vec<u64> {
            let bytes = &self.data[place.offset..place.offset + place.bytes];
            let mut numbers = Vec::new();
            let (mut number, mut scale) = (0_u64, 0);
            for byte in bytes {
                number += u64::from(byte & 0x7f) << scale;
                scale += 7;
                if byte & 0x80 == 0 {
                    numbers.push(std::mem::take(&mut number));
                    scale = 0;
                }
            }
            numbers
        }

        pub(in crate::html) fn signed(&self, place: ColumnPlace) -> Vec<i64> {
            let numbers = self.numbers(place).into_iter();
            let signed = |it: u64| (it >> 1).cast_signed() ^ -(it & 1).cast_signed();
            numbers.map(signed).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_size_are_read_back() {
        let mut column = PageColumn::default();
        let numbers = [0, 1, 127, 128, 300, 1 << 31, 1 << 40, MAX_EXACT];
        numbers.iter().for_each(|number| column.number(*number));
        column.number(u64::MAX);
        let mut columns = Columns::default();
        let place = columns.push(&column);
        assert_eq!(columns.numbers(place)[..8], numbers);
        assert_eq!(columns.numbers(place)[8], MAX_EXACT);
    }

    #[test]
    fn signs_are_read_back() {
        let mut column = PageColumn::default();
        let numbers = [0, -1, 1, -64, 64, i64::from(i32::MIN), 1 << 50, -(1 << 50)];
        numbers.iter().for_each(|number| column.signed(*number));
        let mut columns = Columns::default();
        columns.push(&PageColumn::default());
        let place = columns.push(&column);
        assert_eq!(columns.signed(place), numbers);
    }
}

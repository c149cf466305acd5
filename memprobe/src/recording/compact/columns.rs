//! Columns of a frame of records.

use super::varint::{VarintReader, push_bytes};

/// Number of columns that this version writes. Readers skip later ones.
const COLUMNS: usize = 12;

#[derive(Clone, Copy)]
pub(super) enum FrameColumn {
    /// Number of the group's earlier strings, then the bytes of each new one.
    Strings,
    /// Number of the group's earlier lines, then file, line, function and library of each new one.
    Lines,
    /// Fields that many memory events of the frame share.
    Classes,
    /// Kind of each record, in order.
    Kinds,
    Times,
    Addresses,
    Sizes,
    Stacks,
    Purposes,
    Allocated,
    Reserved,
    /// Fields of the records that are no memory events.
    Details,
}

/// Columns that are being written.
#[derive(Default)]
pub(super) struct ColumnWriter([Vec<u8>; COLUMNS]);

impl ColumnWriter {
    #[inline]
    pub(super) fn of(&mut self, column: FrameColumn) -> &mut Vec<u8> {
        &mut self.0[column as usize]
    }

    /// Bytes of all columns.
    pub(super) fn length(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    /// Returns the payload, and empties the columns.
    pub(super) fn take(&mut self) -> Vec<u8> {
        let mut payload = Vec::with_capacity(self.length() + 5 * COLUMNS);
        for column in &mut self.0 {
            push_bytes(&mut payload, column);
            column.clear();
        }
        payload
    }
}

/// Columns of a payload. Missing ones are empty.
pub(super) struct ColumnReader<'a>([VarintReader<'a>; COLUMNS]);

impl<'a> ColumnReader<'a> {
    pub(super) fn new(payload: &'a [u8]) -> Result<Self, &'static str> {
        let mut columns = [VarintReader::default(); COLUMNS];
        let mut rest = VarintReader(payload);
        for column in &mut columns {
            if !rest.is_empty() {
                column.0 = rest.bytes()?;
            }
        }
        Ok(Self(columns))
    }

    #[inline]
    pub(super) fn of(&mut self, column: FrameColumn) -> &mut VarintReader<'a> {
        &mut self.0[column as usize]
    }
}

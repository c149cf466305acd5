//! Column layout of the table of lines.

use super::list::{self, ColumnPosition, GAP};
use super::sort::Column;

/// Width of the bar beside the share.
const BAR: u16 = 10;

/// Columns that fit a width, and their positions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Columns {
    /// Numeric columns.
    pub numbers: Vec<ColumnPosition<Column>>,
    /// Start and width of the share's bar, if shown.
    pub bar: Option<(u16, u16)>,
    /// Start of the line's name.
    pub line: u16,
    /// End of the table.
    pub end: u16,
}

impl Columns {
    /// Lays out the columns; narrow tables drop the least important.
    pub fn of(width: u16) -> Self {
        let wanted = [
            // Column, width, and minimum width of a table that shows it.
            (Column::Live, 11, 0),
            (Column::Peak, 11, 60),
            (Column::Blocks, 6, 70),
            (Column::Rate, 7, 76),
            (Column::Share, 6, 44),
        ];
        let (numbers, mut start) = list::places(width, &wanted);
        let bar = (width >= 110).then_some((start, BAR));
        if bar.is_some() {
            start += BAR + GAP;
        }
        Self {
            numbers,
            bar,
            line: (start + GAP).min(width),
            end: width,
        }
    }

    /// Returns the column at a cell of the head.
    pub fn at(&self, x: u16) -> Option<Column> {
        if x >= self.line {
            return Some(Column::Line);
        }
        // The bar has no head: its cells count as the share's.
        list::column_at(&self.numbers, x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_of_the_head_belongs_to_the_column_it_stands_over() {
        let columns = Columns::of(120);
        assert_eq!(columns.at(12), Some(Column::Live));
        assert_eq!(columns.at(14), Some(Column::Peak));
        assert_eq!(columns.at(119), Some(Column::Line));
        let (bar, _) = columns.bar.unwrap();
        assert_eq!(columns.at(bar + 3), Some(Column::Share));
    }

    #[test]
    fn eighty_columns_show_every_figure() {
        assert_eq!(Columns::of(80).numbers.len(), 5);
    }

    #[test]
    fn narrow_tables_keep_the_live_bytes() {
        assert_eq!(Columns::of(24).numbers.len(), 1);
        assert!(Columns::of(3).line <= 3);
    }
}

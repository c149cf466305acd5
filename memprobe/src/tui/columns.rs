//! Where the columns of the table stand at a given width.

use super::list::{self, GAP, Place};
use super::sort::Column;

/// A bar beside the share, where there is room.
const BAR: u16 = 10;

/// The columns that have room, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Columns {
    /// Columns of numbers.
    pub numbers: Vec<Place<Column>>,
    /// Where the bar of the share starts and how wide it is.
    pub bar: Option<(u16, u16)>,
    /// Where the name of the line starts.
    pub line: u16,
    /// Where the table ends.
    pub end: u16,
}

impl Columns {
    /// The columns of a table of this width. Narrow tables leave out what is least missed.
    pub fn of(width: u16) -> Self {
        let wanted = [
            // Column, its width, the least width of the table that shows it.
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

    /// The column at a cell of the head.
    pub fn at(&self, x: u16) -> Option<Column> {
        if x >= self.line {
            return Some(Column::Line);
        }
        // The bar has no head of its own: it belongs to the share before it.
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

//! Column layout of the table of processes.

use super::super::list::{self, ColumnPosition, GAP};
use super::sort::Column;

/// Width of the command if the top line is shown.
const COMMAND: u16 = 24;

/// Data that decides which optional columns are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Needs {
    /// A process runs in a container.
    pub container: bool,
    /// A process has a rank.
    pub rank: bool,
}

/// Columns that fit, from left to right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Columns(pub Vec<ColumnPosition<Column>>);

impl Columns {
    /// Lays out the columns; narrow tables drop the least important.
    pub fn of(width: u16, needs: Needs) -> Self {
        let wanted = [
            // Column, width, and minimum width of a table that shows it.
            (Column::Pid, 7, 0),
            (Column::User, 8, 72),
            (
                Column::Container,
                12,
                if needs.container { 112 } else { u16::MAX },
            ),
            (Column::Rank, 5, if needs.rank { 90 } else { u16::MAX }),
            (Column::Devices, 5, 56),
            (Column::Allocated, 8, 0),
            (Column::Reserved, 8, 64),
            (Column::Driver, 8, 40),
            (Column::Peak, 8, 72),
            (Column::Trend, 10, 112),
        ];
        let (mut places, start) = list::places(width, &wanted);
        let available = width.saturating_sub(start);
        // The top line gets the rest of a wide table.
        let command = if width >= 96 {
            (available * 2 / 5).min(COMMAND)
        } else {
            available
        };
        places.push(ColumnPosition {
            column: Column::Command,
            start: start.min(width),
            wide: command,
        });
        let start = start + command + GAP;
        if start < width {
            places.push(ColumnPosition {
                column: Column::Top,
                start,
                wide: width - start,
            });
        }
        Self(places)
    }

    /// Returns the column at a cell of the head.
    pub fn at(&self, x: u16) -> Option<Column> {
        list::column_at(&self.0, x)
    }

    pub fn shown(&self) -> Vec<Column> {
        self.0.iter().map(|place| place.column).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Needs = Needs {
        container: true,
        rank: true,
    };

    #[test]
    fn columns_stand_side_by_side_and_end_with_the_table() {
        for width in 0..300 {
            for needs in [ALL, Needs::default()] {
                let columns = Columns::of(width, needs).0;
                for pair in columns.windows(2) {
                    let apart = pair[0].start + pair[0].wide < pair[1].start;
                    assert!(apart || width < 24, "{width}: {columns:?}");
                }
                if width >= 24 {
                    let last = columns.last().unwrap();
                    assert!(last.start + last.wide <= width, "{width}: {columns:?}");
                }
            }
        }
    }

    #[test]
    fn eighty_columns_show_every_amount_and_wide_tables_everything() {
        let shown = Columns::of(80, ALL).shown();
        for column in [
            Column::Allocated,
            Column::Reserved,
            Column::Driver,
            Column::Peak,
        ] {
            assert!(shown.contains(&column));
        }
        assert_eq!(Columns::of(140, ALL).shown(), Column::ALL);
        assert!(
            Columns::of(100, Needs::default())
                .shown()
                .contains(&Column::Top)
        );
    }

    #[test]
    fn containers_and_ranks_have_no_column_if_there_are_none() {
        let shown = Columns::of(200, Needs::default()).shown();
        assert!(!shown.contains(&Column::Container) && !shown.contains(&Column::Rank));
    }

    #[test]
    fn every_cell_of_the_head_belongs_to_a_column() {
        let columns = Columns::of(140, ALL);
        assert_eq!(columns.at(0), Some(Column::Pid));
        assert_eq!(columns.at(139), Some(Column::Top));
        assert_eq!(columns.at(500), Some(Column::Top));
    }
}

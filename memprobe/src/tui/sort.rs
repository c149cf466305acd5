//! Sort order of the table of lines.

use std::cmp::Ordering;

use super::list;
use crate::ledger::snapshot::LineRow;
use crate::view::{BLOCKS, FileNames};

/// Sortable column of the table, from left to right.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Column {
    /// Live bytes.
    #[default]
    Live,
    /// Peak of the live bytes.
    Peak,
    /// Live blocks.
    Blocks,
    /// Allocations per second.
    Rate,
    /// Share of all allocated bytes. Sorts as `Live`.
    Share,
    /// Name of the line.
    Line,
}

impl Column {
    /// All columns, from left to right.
    pub const ALL: [Self; 6] = [
        Self::Live,
        Self::Peak,
        Self::Blocks,
        Self::Rate,
        Self::Share,
        Self::Line,
    ];

    pub fn head(self) -> &'static str {
        match self {
            Self::Live => "LIVE",
            Self::Peak => "PEAK",
            Self::Blocks => BLOCKS,
            Self::Rate => "ALLOC/s",
            Self::Share => "SHARE",
            Self::Line => "LINE",
        }
    }
}

/// Direction of a sort order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// Largest first.
    #[default]
    Falling,
    /// Smallest first, or alphabetical.
    Climbing,
}

impl Order {
    pub fn reversed(self) -> Self {
        match self {
            Self::Falling => Self::Climbing,
            Self::Climbing => Self::Falling,
        }
    }
}

/// Sort order of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sort {
    pub column: Column,
    pub order: Order,
}

impl Sort {
    /// Sorts by `column` in its default direction, or reverses the order if it is already the sort column.
    pub fn by(self, column: Column) -> Self {
        if self.column == column {
            return self.reversed();
        }
        let order = if column == Column::Line {
            Order::Climbing
        } else {
            Order::Falling
        };
        Self { column, order }
    }

    /// Sorts by the column `by` places to the right, wrapping around.
    pub fn step(self, by: isize) -> Self {
        list::further(&Column::ALL, self.column, by).map_or(self, |column| self.by(column))
    }

    /// Reverses the order.
    pub fn reversed(self) -> Self {
        let order = self.order.reversed();
        Self { order, ..self }
    }

    /// Compares two lines; ties are broken by name, so that the order is stable across snapshots.
    pub fn compare(self, a: &LineRow, b: &LineRow, names: &FileNames) -> Ordering {
        let by_name = || names.site(&a.site).cmp(&names.site(&b.site));
        let ordering = match self.column {
            Column::Live | Column::Share => a.live.cmp(&b.live).then(a.peak.cmp(&b.peak)),
            Column::Peak => a.peak.cmp(&b.peak),
            Column::Blocks => a.live_blocks.cmp(&b.live_blocks),
            Column::Rate => a.allocs_per_second.total_cmp(&b.allocs_per_second),
            Column::Line => by_name(),
        };
        self.directed(ordering).then_with(by_name)
    }

    /// Applies the direction to an ascending comparison.
    pub fn directed(self, ordering: Ordering) -> Ordering {
        match self.order {
            Order::Falling => ordering.reverse(),
            Order::Climbing => ordering,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stepping_wraps_around_in_both_directions() {
        let mut sort = Sort::default();
        for column in Column::ALL {
            assert_eq!(sort.column, column);
            sort = sort.step(1);
        }
        assert_eq!(sort.column, Column::Live);
        assert_eq!(sort.step(-1).column, Column::Line);
    }

    #[test]
    fn choosing_the_same_column_again_turns_it_around() {
        let sort = Sort::default().by(Column::Live);
        assert_eq!(sort.order, Order::Climbing);
        assert_eq!(sort.by(Column::Peak).order, Order::Falling);
        assert_eq!(sort.by(Column::Line).order, Order::Climbing);
    }
}

//! Column layout of the table of tensors.

use super::super::list::{self, ColumnPosition, GAP, Side};
use crate::tensors::Order;

/// Width of the allocation site, on wide screens.
const SITE: u16 = 30;

/// Column of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Column {
    /// Bytes of the allocator that the row accounts for.
    Holds,
    /// Bytes of the tensor's elements.
    Size,
    /// Kind of tensor.
    Kind,
    /// Number of tensors, and their shape.
    Shape,
    /// Element type.
    DType,
    /// `requires_grad` of the tensor.
    Grad,
    /// Best name.
    Name,
    /// Allocation site.
    Site,
}

impl Column {
    pub const fn head(self) -> &'static str {
        match self {
            Self::Holds => "ALLOCATED",
            Self::Size => "SIZE",
            Self::Kind => "KIND",
            Self::Shape => "SHAPE",
            Self::DType => "DTYPE",
            Self::Grad => "GRAD",
            Self::Name => "NAME",
            Self::Site => "ALLOCATED AT",
        }
    }

    /// Returns the sort order of the column; `None` if it cannot be sorted by.
    pub const fn order(self) -> Option<Order> {
        match self {
            Self::Holds => Some(Order::Holds),
            Self::Size => Some(Order::Size),
            Self::Kind => Some(Order::Kind),
            Self::Shape => Some(Order::Count),
            Self::Name => Some(Order::Name),
            Self::DType | Self::Grad | Self::Site => None,
        }
    }

    pub const fn side(self) -> Side {
        match self {
            Self::Holds | Self::Size => Side::Right,
            _ => Side::Left,
        }
    }
}

/// Returns the columns that fit, from left to right.
pub fn columns(width: u16) -> Vec<ColumnPosition<Column>> {
    let wanted = [
        // Column, width, and minimum width of a table that shows it.
        (Column::Holds, 11, 0),
        (Column::Size, 11, 96),
        (Column::Kind, 9, 56),
        (Column::Shape, if width >= 110 { 26 } else { 20 }, 64),
        (Column::DType, 8, 84),
        (Column::Grad, 4, 116),
    ];
    let (mut places, start) = list::places(width, &wanted);
    let site = if width >= 140 { SITE } else { 0 };
    let name = (width - start).saturating_sub(if site > 0 { site + GAP } else { 0 });
    places.push(ColumnPosition {
        column: Column::Name,
        start,
        wide: name,
    });
    if site > 0 {
        places.push(ColumnPosition {
            column: Column::Site,
            start: width - site,
            wide: site,
        });
    }
    places
}

/// Returns the column at a cell of the head.
pub fn column_at(width: u16, x: u16) -> Option<Column> {
    list::column_at(&columns(width), x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_side_by_side_and_end_with_the_table() {
        for width in 24..300 {
            let places = columns(width);
            for pair in places.windows(2) {
                assert!(pair[0].start + pair[0].wide < pair[1].start, "{width}");
            }
            let last = places.last().unwrap();
            assert_eq!(last.start + last.wide, width);
        }
        assert_eq!(column_at(80, 5), Some(Column::Holds));
        assert_eq!(column_at(80, 79), Some(Column::Name));
    }
}

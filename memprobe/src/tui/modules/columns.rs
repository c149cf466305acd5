//! The columns of the table of modules, and where they stand at a given width.

use super::super::list::{self, Place};
use super::rows::Row;
use super::subject::{Figures, Tells};
use crate::bytes::short;
use crate::event::Bytes;
use crate::label::{count, percent};
use crate::model::snapshot::why::{Category, Pass};

/// A column of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Column {
    /// Bytes now, of a module and its parts.
    #[default]
    Live,
    /// Bytes now, without its parts.
    Own,
    /// The most that it and its parts held together.
    Peak,
    /// What they held when the device held most.
    AtPeak,
    /// Of the live bytes those from the way forward.
    Forward,
    /// Those that were computed again.
    Recompute,
    /// Those from the way back.
    Backward,
    /// Part of all allocated bytes.
    Share,
    /// Blocks now.
    Blocks,
    /// Of the bytes in an iteration those for this.
    For(Category),
    /// Those for anything that has no column.
    Others,
    /// Its name.
    Module,
}

/// Categories that have no column of their own.
const UNNAMED: [Category; 3] = [Category::Temporary, Category::Workspace, Category::Unknown];

/// What is told of an iteration, as [`NOW`].
const THEN: [(Column, u16, u16); 10] = [
    (Column::Live, 9, 0),
    (Column::Own, 8, 130),
    (Column::For(Category::Activation), 10, 40),
    (Column::For(Category::Parameter), 8, 54),
    (Column::For(Category::Gradient), 9, 64),
    (Column::For(Category::IntermediateGradient), 9, 74),
    (Column::For(Category::OptimizerState), 9, 92),
    (Column::For(Category::Input), 8, 112),
    (Column::Others, 8, 102),
    (Column::Share, 6, 122),
];

/// Each with its width, and the least width of the table that shows it.
const NOW: [(Column, u16, u16); 9] = [
    (Column::Live, 9, 0),
    (Column::Own, 8, 60),
    (Column::Peak, 8, 44),
    (Column::AtPeak, 8, 96),
    (Column::Forward, 8, 70),
    (Column::Recompute, 9, 88),
    (Column::Backward, 8, 70),
    (Column::Share, 6, 78),
    (Column::Blocks, 8, 110),
];

impl Column {
    /// Its head.
    pub const fn head(self, tells: Tells) -> &'static str {
        match self {
            Self::Live => match tells {
                Tells::Now => "LIVE",
                Tells::Then => "HELD",
            },
            // Profilers that people know call them so.
            Self::For(Category::Activation) => "FEAT. MAPS",
            Self::For(Category::Parameter) => "WEIGHTS",
            Self::For(Category::Gradient) => "GRADIENTS",
            Self::For(Category::IntermediateGradient) => "INTERMED.",
            Self::For(Category::OptimizerState) => "OPTIMIZER",
            Self::For(Category::Input) => "INPUTS",
            Self::For(_) | Self::Others => "OTHER",
            Self::Own => "OWN",
            Self::Peak => "PEAK",
            Self::AtPeak => "AT PEAK",
            Self::Forward => "FORWARD",
            Self::Recompute => "RECOMPUTE",
            Self::Backward => "BACKWARD",
            Self::Share => "SHARE",
            Self::Blocks => "BLOCKS",
            Self::Module => "MODULE",
        }
    }

    /// What it orders by; names have no figure.
    pub fn figure(self, row: &Row) -> Option<i128> {
        let (own, total) = match (&row.figures, self) {
            (_, Self::Live | Self::Share) => return Some(row.live),
            (_, Self::AtPeak) => return Some(row.at_peak),
            (None, _) | (_, Self::Module) => return None,
            (Some((own, total)), _) => (own, total),
        };
        let bytes = match (self, total) {
            (Self::Own, _) => Some(own.bytes().0),
            (Self::For(category), _) => total.of(category),
            (Self::Others, _) => {
                let others = UNNAMED.iter().map(|category| total.of(*category));
                others.sum()
            }
            (Self::Peak, Figures::Now(sums)) => sums.all.peak.map(|peak| peak.0),
            (Self::Forward, Figures::Now(sums)) => Some(sums.pass(Pass::Forward).live.0),
            (Self::Recompute, Figures::Now(sums)) => Some(sums.pass(Pass::Recompute).live.0),
            (Self::Backward, Figures::Now(sums)) => Some(sums.pass(Pass::Backward).live.0),
            (_, Figures::Now(sums)) => Some(sums.all.live_blocks),
            (_, Figures::Then(_)) => None,
        };
        bytes.map(i128::from)
    }

    /// The text of its cell; `allocated` is what the device holds.
    pub fn cell(self, row: &Row, allocated: Bytes) -> String {
        let figure = self.figure(row);
        match (self, figure) {
            (Self::Share, Some(bytes)) => percent(bytes, allocated.0.into()),
            (Self::Blocks, Some(blocks)) => count(u64::try_from(blocks).unwrap_or(0)),
            (_, Some(bytes)) => amount(bytes),
            (_, None) => "-".to_owned(),
        }
    }
}

/// Bytes that can be negative, in few columns.
fn amount(bytes: i128) -> String {
    let size = short(Bytes(
        u64::try_from(bytes.unsigned_abs()).unwrap_or(u64::MAX),
    ));
    if bytes < 0 { format!("-{size}") } else { size }
}

/// The columns that have room, from left to right. What is computed again has one where there is any.
pub fn columns(width: u16, tells: Tells, recomputed: bool) -> Vec<Place<Column>> {
    let wanted = match tells {
        Tells::Now => NOW.iter(),
        Tells::Then => THEN.iter(),
    };
    let wanted: Vec<_> = wanted
        .copied()
        .filter(|(column, ..)| recomputed || *column != Column::Recompute)
        .collect();
    let (mut places, start) = list::places(width, &wanted);
    places.push(Place {
        column: Column::Module,
        start,
        wide: width - start,
    });
    places
}

/// The column at a cell of the head.
pub fn column_at(width: u16, tells: Tells, recomputed: bool, x: u16) -> Column {
    list::column_at(&columns(width, tells, recomputed), x).unwrap_or(Column::Module)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_side_by_side_and_end_with_the_table() {
        for width in 24..200 {
            for (tells, recomputed) in [
                (Tells::Now, false),
                (Tells::Now, true),
                (Tells::Then, false),
            ] {
                let places = columns(width, tells, recomputed);
                for pair in places.windows(2) {
                    assert!(pair[0].start + pair[0].wide < pair[1].start, "{width}");
                }
                let last = places.last().unwrap();
                assert_eq!(last.start + last.wide, width);
                assert!(last.wide >= 12, "{width}: {last:?}");
            }
        }
        assert_eq!(column_at(80, Tells::Now, false, 5), Column::Live);
        assert_eq!(column_at(80, Tells::Then, false, 79), Column::Module);
    }
}

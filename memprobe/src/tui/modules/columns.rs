//! Columns of the tables of modules and layers, and their layout.

use super::super::list::{self, ColumnPosition};
use super::rows::Row;
use super::subject::{Figures, ModulesView};
use crate::attribution::tables::{Category, Pass};
use crate::event::Bytes;
use crate::event::bytes::short;
use crate::view::{count, percent};

/// Column of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Column {
    /// Live bytes of a module and its submodules.
    #[default]
    Live,
    /// Live bytes without those of submodules.
    Own,
    /// Peak of a module and its submodules together.
    Peak,
    /// Bytes at the peak of the device.
    AtPeak,
    /// Live bytes from forward passes.
    Forward,
    /// Live bytes from recomputation.
    Recompute,
    /// Live bytes from backward passes.
    Backward,
    /// Share of all allocated bytes.
    Share,
    /// Live blocks.
    Blocks,
    /// Bytes of a category in an iteration.
    For(Category),
    /// Bytes of all categories without a column.
    Others,
    /// Module name.
    Module,
}

/// Categories without a column.
const UNNAMED: [Category; 3] = [Category::Temporary, Category::Workspace, Category::Unknown];

/// Columns of the table of layers, in the format of [`NOW`].
const THEN: [(Column, u16, u16); 10] = [
    (Column::Live, 9, 0),
    (Column::Own, 8, 130),
    (Column::For(Category::Activation), 11, 40),
    (Column::For(Category::Parameter), 8, 54),
    (Column::For(Category::Gradient), 9, 64),
    (Column::For(Category::IntermediateGradient), 9, 74),
    (Column::For(Category::OptimizerState), 9, 92),
    (Column::For(Category::Input), 8, 112),
    (Column::Others, 8, 102),
    (Column::Share, 6, 122),
];

/// Columns of the table of modules: width, and minimum width of a table that shows the column.
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
    pub const fn head(self, tells: ModulesView) -> &'static str {
        match self {
            Self::Live => match tells {
                ModulesView::Now => "LIVE",
                ModulesView::Then => "AT PEAK",
            },
            Self::For(Category::Activation) => "ACTIVATIONS",
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

    /// Returns the value that the column sorts by; `None` for names and missing values.
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

    /// Returns the text of a cell; `allocated` is the device's total for the share.
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

/// Formats bytes that may be negative, in few columns.
fn amount(bytes: i128) -> String {
    let size = short(Bytes(
        u64::try_from(bytes.unsigned_abs()).unwrap_or(u64::MAX),
    ));
    if bytes < 0 { format!("-{size}") } else { size }
}

/// Returns the columns that fit, from left to right. RECOMPUTE is shown only if `recomputed`.
pub fn columns(width: u16, tells: ModulesView, recomputed: bool) -> Vec<ColumnPosition<Column>> {
    let wanted = match tells {
        ModulesView::Now => NOW.iter(),
        ModulesView::Then => THEN.iter(),
    };
    let wanted: Vec<_> = wanted
        .copied()
        .filter(|(column, ..)| recomputed || *column != Column::Recompute)
        .collect();
    let (mut places, start) = list::places(width, &wanted);
    places.push(ColumnPosition {
        column: Column::Module,
        start,
        wide: width - start,
    });
    places
}

/// Returns the column at a cell of the head.
pub fn column_at(width: u16, tells: ModulesView, recomputed: bool, x: u16) -> Column {
    list::column_at(&columns(width, tells, recomputed), x).unwrap_or(Column::Module)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_side_by_side_and_end_with_the_table() {
        for width in 24..200 {
            for (tells, recomputed) in [
                (ModulesView::Now, false),
                (ModulesView::Now, true),
                (ModulesView::Then, false),
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
        assert_eq!(column_at(80, ModulesView::Now, false, 5), Column::Live);
        assert_eq!(column_at(80, ModulesView::Then, false, 79), Column::Module);
    }
}

//! Columns on the live screen: text of cells, sort order, and the columns that fit a width.

use ratatui::style::Style;

use super::super::theme::Theme;
use super::{Content, RowOf};
use crate::event::Bytes;
use crate::event::bytes::short;
use crate::view::short_count;
use crate::view::table::{Cell, Direction, OnScreen, Precision, SortOrder, Tone};

const GAP: u16 = 1;
/// Cells before the first column, for the mark of the selected row.
const MARGIN: u16 = 2;

pub fn cell_text(cell: &Cell<'_>, precision: Precision, wide: usize, theme: &Theme) -> String {
    match (cell, precision) {
        (Cell::Signed(bytes), Precision::Short) if *bytes < 0 => {
            format!("-{}", short(Bytes(bytes.unsigned_abs())))
        }
        (Cell::Growth(bytes, is_steady), _) => growth(*bytes, *is_steady, theme),
        (Cell::Count(number), Precision::Short) => short_count(*number),
        (Cell::Bar(part, whole), _) => bar(*part, *whole, wide, theme),
        (Cell::Trend(points, steps), _) => sparkline(points, *steps, wide, theme),
        (Cell::Path(direction, steps), _) => {
            let arrow = match direction {
                Direction::Callers => theme.glyphs.caller,
                Direction::Callees => theme.glyphs.callee,
            };
            format!("{arrow} {}", steps.join(&format!(" {arrow} ")))
        }
        _ => cell.text(precision),
    }
}

pub fn tone_style(tone: Tone, theme: &Theme) -> Style {
    match tone {
        Tone::Plain => Style::new(),
        Tone::Strong => theme.strong(),
        Tone::Faint => theme.faint(),
        Tone::Graph => theme.allocated(),
    }
}

pub fn amount(bytes: i128) -> String {
    Cell::from(bytes).text(Precision::Exact)
}

/// Formats growth in bytes, with a mark behind a steady one.
fn growth(bytes: i64, is_steady: bool, theme: &Theme) -> String {
    let sign = match bytes {
        ..0 => "-",
        0 => "",
        1.. => "+",
    };
    let mark = if is_steady {
        theme.glyphs.climbing
    } else {
        " "
    };
    format!("{sign}{}{mark}", short(Bytes(bytes.unsigned_abs())))
}

/// Draws a share as a bar, at least one eighth of a cell long.
pub fn bar(part: i128, whole: i128, wide: usize, theme: &Theme) -> String {
    let steps = wide as i128 * 8;
    let filled = if part > 0 && whole > 0 {
        (part.saturating_mul(steps) / whole).clamp(1, steps) as usize
    } else {
        0
    };
    let glyph = |cell: usize| theme.glyphs.growing[filled.saturating_sub(cell * 8).min(8)];
    (0..wide).map(glyph).collect()
}

/// Draws the highest point of each cell, relative to the highest of all; the newest is at the right.
fn sparkline(points: &[Bytes], steps: usize, wide: usize, theme: &Theme) -> String {
    let top = points.iter().max().map_or(0, |top| u128::from(top.0));
    let missing = steps.saturating_sub(points.len());
    let height = |cell: usize| {
        let from = (cell * steps / wide).saturating_sub(missing);
        let to = ((cell + 1) * steps / wide).saturating_sub(missing);
        let highest = points.get(from..to.min(points.len()))?.iter().max()?;
        let eighths = match top {
            0 => 0,
            top => (u128::from(highest.0) * 7).div_ceil(top) as usize,
        };
        // Zero is drawn as the lowest step, unlike a missing point.
        Some(eighths.clamp(0, 7) + 1)
    };
    let glyph = |cell| theme.glyphs.rising[height(cell).unwrap_or(0)];
    (0..wide).map(glyph).collect()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableSort {
    pub column: usize,
    pub order: SortOrder,
}

impl TableSort {
    /// Sorts items by a column of their rows. Ties stay in their order.
    pub fn apply<C: Content, T>(self, content: &C, items: &mut [T], row: impl Fn(&T) -> &RowOf<C>) {
        if let Some(column) = content.parts().columns.get(self.column) {
            items.sort_by(|one, other| {
                let [one, other] = [one, other].map(|item| (column.value)(&row(item).data));
                one.compare(&other, self.order)
            });
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ColumnPosition {
    pub column: usize,
    pub on: OnScreen,
    pub start: u16,
    pub wide: u16,
}

/// Returns the columns that fit, from left to right. A column without a width gets the rest of the table, two
/// of them two and three fifths of it. Without any, the last column gets the rest.
pub fn places<C: Content>(content: &C, width: u16) -> Vec<ColumnPosition> {
    let columns = content.parts().columns.iter().enumerate();
    let shown = columns.filter_map(|(at, column)| Some((at, column, column.screen?)));
    let shown = shown.filter(|(_, column, on)| width >= on.least && content.shows(column));
    let shown: Vec<(usize, OnScreen)> = shown.map(|(at, _, on)| (at, on)).collect();
    let used: u16 = shown.iter().map(|(_, on)| on.wide + GAP).sum();
    let rest = (width + GAP).saturating_sub(MARGIN + used);
    let flexible = shown.iter().filter(|(_, on)| on.wide == 0);
    let flexible: Vec<usize> = flexible.map(|(at, _)| *at).collect();
    let share = |column: usize| match flexible[..] {
        [one] if one == column => rest,
        [one, _] if one == column => rest * 2 / 5,
        [_, other] if other == column => rest - rest * 2 / 5,
        [] if shown.last().is_some_and(|(last, _)| *last == column) => rest,
        _ => 0,
    };
    let mut start = MARGIN.min(width);
    let mut places = Vec::new();
    for &(column, on) in &shown {
        let wide = (on.wide + share(column)).min(width - start);
        places.push(ColumnPosition {
            column,
            on,
            start,
            wide,
        });
        start = (start + wide + GAP).min(width);
    }
    places
}

/// Returns the column at a cell of the head; cells right of all belong to the last.
pub fn column_at(places: &[ColumnPosition], x: u16) -> Option<usize> {
    let is_at = |place: &&ColumnPosition| x < place.start + place.wide + GAP;
    let at = places.iter().find(is_at).or(places.last());
    at.map(|place| place.column)
}

/// Returns the element `by` places after `from` in `all`, wrapping around; the first if `all` lacks `from`.
pub fn further<T: Copy + PartialEq>(all: &[T], from: T, by: isize) -> Option<T> {
    let count = isize::try_from(all.len()).ok().filter(|count| *count > 0)?;
    let at = all.iter().position(|element| *element == from);
    let next = at.map_or(0, |at| (at as isize + by.rem_euclid(count)) % count);
    all.get(next as usize).copied()
}

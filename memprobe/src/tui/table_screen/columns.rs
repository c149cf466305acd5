//! Columns of a table screen: cells, order, and the columns that fit a width.

use std::cmp::Ordering;

use ratatui::style::Style;

use super::super::lines::Direction;
use super::super::theme::Theme;
use super::{Content, RowOf};
use crate::event::Bytes;
use crate::event::bytes::{human, short, signed};
use crate::view::table::{Align, Cut};
use crate::view::{count, percent, rate, short_count};

/// Cells between two columns.
const GAP: u16 = 1;
/// Cells before the first column, for the mark of the selected row.
const MARGIN: u16 = 2;

/// Value of a row in a column. Rows sort by it; rows without a value come last.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Bytes in full; negative ones occur if the ledger has more than the allocator.
    Bytes(i128),
    /// Bytes in at most eight cells.
    ShortBytes(i128),
    Count(u64),
    /// Count in at most six cells.
    ShortCount(u64),
    Rate(f64),
    /// Part and whole.
    Share(i128, i128),
    /// Part and whole, drawn as a bar.
    Bar(i128, i128),
    /// Text that sorts by a number.
    Ranked(i128, String),
    /// Points over time, drawn as a sparkline of so many steps; sorts by growth.
    Trend(Vec<Bytes>, usize),
    Text(String),
    /// Text in place of a value.
    Note(String),
    /// Frames in a direction, with an arrow before each.
    Path(Direction, Vec<String>),
    Unknown,
}

impl Cell {
    /// Makes a cell of bytes that may be unknown.
    pub fn bytes(bytes: Option<Bytes>) -> Self {
        bytes.map_or(Self::Unknown, |bytes| Self::Bytes(bytes.0.into()))
    }

    /// Makes a cell of bytes that may be unknown, in at most eight cells.
    pub fn short_bytes(bytes: Option<Bytes>) -> Self {
        bytes.map_or(Self::Unknown, |bytes| Self::ShortBytes(bytes.0.into()))
    }

    /// Makes a cell of text that may be unknown.
    pub fn text(text: Option<String>) -> Self {
        text.map_or(Self::Unknown, Self::Text)
    }

    /// Formats the cell for a column of so many cells.
    pub fn format(&self, wide: usize, theme: &Theme) -> String {
        match self {
            Self::Bytes(bytes) => amount(*bytes),
            Self::ShortBytes(bytes) => {
                let sign = if *bytes < 0 { "-" } else { "" };
                format!("{sign}{}", short(magnitude(*bytes)))
            }
            Self::Count(number) => count(*number),
            Self::ShortCount(number) => short_count(*number),
            Self::Rate(per_second) => rate(*per_second),
            Self::Share(part, whole) => percent(*part, *whole),
            Self::Bar(part, whole) => bar(*part, *whole, wide, theme),
            Self::Trend(points, steps) => sparkline(points, *steps, wide, theme),
            Self::Ranked(_, text) | Self::Text(text) | Self::Note(text) => text.clone(),
            Self::Path(direction, steps) => {
                let arrow = match direction {
                    Direction::Callers => theme.glyphs.caller,
                    Direction::Callees => theme.glyphs.callee,
                };
                format!("{arrow} {}", steps.join(&format!(" {arrow} ")))
            }
            Self::Unknown => "-".to_owned(),
        }
    }

    fn compare(&self, other: &Self, order: Order) -> Ordering {
        let ordering = match (self, other) {
            _ if self.is_empty() || other.is_empty() => {
                return self.is_empty().cmp(&other.is_empty());
            }
            (Self::Text(one), Self::Text(other)) => one.cmp(other),
            (Self::Rate(one), Self::Rate(other)) => one.total_cmp(other),
            _ => self.number().cmp(&other.number()),
        };
        match order {
            Order::Falling => ordering.reverse(),
            Order::Climbing => ordering,
        }
    }

    const fn is_empty(&self) -> bool {
        matches!(self, Self::Unknown | Self::Note(_))
    }

    fn number(&self) -> i128 {
        match self {
            Self::Bytes(number)
            | Self::ShortBytes(number)
            | Self::Share(number, _)
            | Self::Bar(number, _)
            | Self::Ranked(number, _) => *number,
            Self::Count(number) | Self::ShortCount(number) => i128::from(*number),
            Self::Trend(points, _) => {
                let end = |point: Option<&Bytes>| point.map_or(0, |bytes| i128::from(bytes.0));
                end(points.last()) - end(points.first())
            }
            _ => 0,
        }
    }
}

fn magnitude(bytes: i128) -> Bytes {
    Bytes(u64::try_from(bytes.unsigned_abs()).unwrap_or(u64::MAX))
}

/// Formats bytes that may be negative.
pub fn amount(bytes: i128) -> String {
    match u64::try_from(bytes) {
        Ok(bytes) => human(Bytes(bytes)),
        Err(_) => signed(i64::try_from(bytes).unwrap_or(i64::MIN)),
    }
}

/// Draws a share as a bar, at least one eighth of a cell long.
pub fn bar(part: i128, whole: i128, wide: usize, theme: &Theme) -> String {
    let steps = wide as i128 * 8;
    let filled = match part > 0 && whole > 0 {
        true => (part.saturating_mul(steps) / whole).clamp(1, steps) as usize,
        false => 0,
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

/// Part of a row that a column shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// One value.
    Value,
    /// Name, with indentation and fold mark.
    Name,
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

/// Value of a row in a column.
type Value<C> = fn(&C, &RowOf<C>) -> Cell;

/// Column of a table screen.
pub struct Column<C: Content> {
    pub head: &'static str,
    pub align: Align,
    pub role: Role,
    /// Width in cells; 0 for the rest of the table.
    pub wide: u16,
    /// Minimum width of a table that shows the column.
    pub least: u16,
    /// First direction that the column sorts in; `None` if the table cannot be sorted by it.
    pub order: Option<Order>,
    pub cut: Cut,
    pub style: fn(&Theme) -> Style,
    pub value: Value<C>,
}

impl<C: Content> Column<C> {
    /// Makes a column of numbers, which sorts largest first.
    pub const fn number(head: &'static str, wide: u16, least: u16, value: Value<C>) -> Self {
        Self {
            head,
            align: Align::Right,
            role: Role::Value,
            wide,
            least,
            order: Some(Order::Falling),
            cut: Cut::End,
            style: |_| Style::new(),
            value,
        }
    }

    /// Makes a column of text, which sorts alphabetically.
    pub const fn text(head: &'static str, wide: u16, least: u16, value: Value<C>) -> Self {
        Self {
            align: Align::Left,
            order: Some(Order::Climbing),
            ..Self::number(head, wide, least, value)
        }
    }

    /// Makes the column of names.
    pub const fn name(head: &'static str, wide: u16, cut: Cut, value: Value<C>) -> Self {
        Self {
            role: Role::Name,
            cut,
            ..Self::text(head, wide, 0, value)
        }
    }

    /// Sets the style of the cells.
    pub const fn styled(self, style: fn(&Theme) -> Style) -> Self {
        Self { style, ..self }
    }

    /// Sorts smallest first.
    pub const fn climbing(self) -> Self {
        Self {
            order: Some(Order::Climbing),
            ..self
        }
    }

    /// Sets the part of long texts that is dropped.
    pub const fn cut(self, cut: Cut) -> Self {
        Self { cut, ..self }
    }

    /// Excludes the column from sorting.
    pub const fn unsorted(self) -> Self {
        Self {
            order: None,
            ..self
        }
    }
}

/// Sort order of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sort {
    /// Index of the column.
    pub column: usize,
    pub order: Order,
}

impl Sort {
    /// Sorts items by a column of their rows. Ties stay in their order.
    pub fn apply<C: Content, T>(
        self,
        content: &C,
        items: &mut Vec<T>,
        row: impl Fn(&T) -> &RowOf<C>,
    ) {
        let Some(column) = content.columns().get(self.column) else {
            return;
        };
        let cell = |item: T| ((column.value)(content, row(&item)), item);
        let mut keyed: Vec<(Cell, T)> = items.drain(..).map(cell).collect();
        keyed.sort_by(|(one, _), (other, _)| one.compare(other, self.order));
        items.extend(keyed.into_iter().map(|(_, item)| item));
    }
}

/// Position of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ColumnPosition {
    /// Index among the columns of the table.
    pub column: usize,
    pub start: u16,
    pub wide: u16,
}

/// Returns the columns that fit, from left to right. A column without a width gets the rest of the table, two
/// of them two and three fifths of it. Without any, the last column gets the rest.
pub fn places<C: Content>(content: &C, width: u16) -> Vec<ColumnPosition> {
    let columns = content.columns();
    let is_shown = |at: &usize| width >= columns[*at].least && content.shows(&columns[*at]);
    let shown: Vec<usize> = (0..columns.len()).filter(is_shown).collect();
    let used: u16 = shown.iter().map(|at| columns[*at].wide + GAP).sum();
    let rest = (width + GAP).saturating_sub(MARGIN + used);
    let is_flexible = |at: &&usize| columns[**at].wide == 0;
    let flexible: Vec<usize> = shown.iter().filter(is_flexible).copied().collect();
    let share = |column: usize| match flexible[..] {
        [one] if one == column => rest,
        [one, _] if one == column => rest * 2 / 5,
        [_, other] if other == column => rest - rest * 2 / 5,
        [] if shown.last() == Some(&column) => rest,
        _ => 0,
    };
    let mut start = MARGIN.min(width);
    let mut places = Vec::new();
    for &column in &shown {
        let wide = (columns[column].wide + share(column)).min(width - start);
        places.push(ColumnPosition {
            column,
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

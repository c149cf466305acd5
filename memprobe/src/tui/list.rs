//! Shared parts of all tables: columns that fit a width, heads with a sort arrow, and the selected row.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::layout::{page, scrolled};
use super::sort::Order;
use super::theme::Theme;
use crate::view::width;

/// Columns between two table columns.
pub const GAP: u16 = 1;
/// Columns before the first table column, for the mark of the selected row.
pub const MARGIN: u16 = 2;

/// Position of a table column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ColumnPosition<C> {
    pub column: C,
    /// Start, in cells.
    pub start: u16,
    /// Width, in cells.
    pub wide: u16,
}

/// Returns the columns of `wanted` that fit the width, from left to right, and the start of the next one.
/// Each entry is a column, its width, and the minimum width of a table that shows it.
pub fn places<C: Copy>(width: u16, wanted: &[(C, u16, u16)]) -> (Vec<ColumnPosition<C>>, u16) {
    let mut places = Vec::new();
    let mut start = MARGIN.min(width);
    for &(column, wide, least) in wanted {
        if width >= least {
            let wide = wide.min(width - start);
            places.push(ColumnPosition {
                column,
                start,
                wide,
            });
            start = (start + wide + GAP).min(width);
        }
    }
    (places, start)
}

/// Returns the column at a cell of the head; cells right of all belong to the last.
pub fn column_at<C: Copy>(places: &[ColumnPosition<C>], x: u16) -> Option<C> {
    let at = places
        .iter()
        .find(|place| x < place.start + place.wide + GAP);
    at.or(places.last()).map(|place| place.column)
}

/// Returns the column `by` places after `from` in `all`, wrapping around; the first if `all` lacks `from`.
pub fn further<C: Copy + PartialEq>(all: &[C], from: C, by: isize) -> Option<C> {
    let at = all.iter().position(|column| *column == from);
    let next = at.map_or(0, |at| around(at, by, all.len()));
    all.get(next).copied()
}

/// Returns the index `by` places after `place`, modulo `count`.
pub fn around(place: usize, by: isize, count: usize) -> usize {
    let count = count.max(1);
    let steps = by.rem_euclid(isize::try_from(count).unwrap_or(isize::MAX));
    place.wrapping_add_signed(steps) % count
}

/// Alignment of a cell's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// For text.
    Left,
    /// For numbers.
    Right,
}

/// Draws the head of a column, with an arrow if `orders` is set.
pub fn draw_head<C>(
    buffer: &mut Buffer,
    line: Rect,
    place: &ColumnPosition<C>,
    (head, side): (&str, Side),
    orders: Option<Order>,
    theme: &Theme,
) {
    let (arrow, style) = match orders {
        None => ("", theme.bar()),
        Some(Order::Falling) => (theme.glyphs.falling, theme.bar_strong()),
        Some(Order::Climbing) => (theme.glyphs.climbing, theme.bar_strong()),
    };
    let text = format!("{arrow}{head}");
    let start = match side {
        // An arrow may extend into the gap before a column.
        Side::Right => (line.x + place.start + place.wide).saturating_sub(width(&text) as u16),
        Side::Left => line.x + place.start,
    };
    let available = usize::from(line.right().saturating_sub(start));
    buffer.set_stringn(start, line.y, text, available, style);
}

/// Highlights the selected row.
pub fn draw_selected(buffer: &mut Buffer, line: Rect, theme: &Theme) {
    buffer.set_style(line, theme.bar());
    buffer.set_string(line.x, line.y, theme.glyphs.cursor, theme.bar_strong());
}

/// Selected row and scroll position of a table.
#[derive(Clone, Debug)]
pub struct Selection<K> {
    /// Key that identifies the row across tables; `None` selects the first row of each table.
    pub key: Option<K>,
    /// Index of the selected row.
    pub cursor: usize,
    /// Index of the first visible row.
    pub offset: usize,
}

impl<K> Default for Selection<K> {
    fn default() -> Self {
        Self {
            key: None,
            cursor: 0,
            offset: 0,
        }
    }
}

impl<K> Selection<K> {
    /// Restores the selection in a table of `rows` rows, `height` of them visible. `place` finds the selected
    /// key; if it is gone, the selection stays at its index. Scrolls to keep the selected row visible and the
    /// screen full.
    pub fn settle(&mut self, rows: usize, height: u16, place: impl FnOnce(&K) -> Option<usize>) {
        let last = rows.saturating_sub(1);
        self.cursor = match &self.key {
            None => 0,
            Some(key) => place(key).unwrap_or(self.cursor.min(last)),
        };
        self.offset = scrolled(self.offset, self.cursor, rows, height);
    }

    /// Moves the selection by rows; the caller then updates `key`.
    pub fn step(&mut self, by: isize, rows: usize) {
        let last = rows.saturating_sub(1);
        self.cursor = self.cursor.saturating_add_signed(by).min(last);
    }

    /// Returns the index of the row at screen line `y`, if there is one.
    pub fn at(&self, area: Rect, y: u16, rows: usize) -> Option<usize> {
        let place = self.offset + usize::from(y.checked_sub(area.y)?);
        (place < rows).then_some(place)
    }
}

/// Returns the rows that `by` pages amount to.
pub fn pages(by: isize, height: Option<u16>) -> isize {
    by.saturating_mul(page(height.unwrap_or(1)))
}

/// Scrolls a text by lines. The drawing code clamps the offset to the text's length.
pub fn scroll(at: &mut usize, by: isize) {
    *at = at.saturating_add_signed(by).min(1000);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_go_around_the_ends_however_long_they_are() {
        assert_eq!(further(&['a', 'b', 'c'], 'c', 1), Some('a'));
        assert_eq!(further(&['a', 'b', 'c'], 'a', -1), Some('c'));
        assert_eq!(further(&['a', 'b', 'c'], 'z', 1), Some('a'));
        assert_eq!(further(&[], 'z', 1), None);
        for by in [isize::MIN, -7, 7, isize::MAX] {
            assert!(around(2, by, 3) < 3);
        }
        assert_eq!(around(0, 1, 0), 0);
    }

    #[test]
    fn a_row_is_found_again_and_one_that_is_gone_leaves_its_place() {
        let rows = ["a", "b", "c", "d"];
        let mut selection = Selection {
            key: Some("c"),
            ..Selection::default()
        };
        let place = |key: &&str| rows.iter().position(|row| row == key);
        selection.settle(4, 2, place);
        assert_eq!((selection.cursor, selection.offset), (2, 1));
        selection.settle(2, 2, |_| None);
        assert_eq!((selection.cursor, selection.offset), (1, 0));
        selection.key = None;
        selection.settle(4, 2, place);
        assert_eq!(selection.cursor, 0);
    }

    #[test]
    fn columns_stay_within_a_table_of_any_width() {
        for width in 0..60 {
            let (places, next) = places(width, &[('a', 9, 0), ('b', 12, 20), ('c', 40, 0)]);
            assert!(places.iter().all(|it| it.start + it.wide <= width));
            assert!(next <= width);
        }
        let (places, _) = places(40, &[('a', 9, 0), ('b', 12, 0)]);
        assert_eq!(column_at(&places, 0), Some('a'));
        assert_eq!(column_at(&places, 39), Some('b'));
    }
}

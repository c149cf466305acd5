//! Selected row and scroll position of a table.

use ratatui::layout::Rect;

#[derive(Clone, Debug)]
pub struct Selection<K> {
    /// Key that identifies the row across tables; `None` selects the first row of each table.
    pub key: Option<K>,
    pub cursor: usize,
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
        let height = usize::from(height).max(1);
        let lowest = self.cursor.saturating_sub(height - 1);
        let offset = self.offset.clamp(lowest, self.cursor);
        self.offset = offset.min(rows.saturating_sub(height));
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

#[cfg(test)]
mod tests {
    use super::*;

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
}

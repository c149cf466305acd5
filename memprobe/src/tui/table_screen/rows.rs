//! Rows of a table, the query that selects them, and the selected row.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use ratatui::layout::Rect;

use super::super::filter::Filter;
use super::Content;
use super::columns::TableSort;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fold {
    Leaf,
    Closed,
    Open,
    /// Continuation of the open row above, at its depth.
    Part,
}

#[derive(Clone, PartialEq, Debug)]
pub struct TableRow<K, D> {
    pub key: K,
    /// Level in the tree; 0 for the outermost.
    pub depth: usize,
    pub fold: Fold,
    pub data: D,
}

impl<K, D> TableRow<K, D> {
    /// Makes an outermost row without rows beneath.
    pub fn leaf(key: K, data: D) -> Self {
        Self {
            key,
            depth: 0,
            fold: Fold::Leaf,
            data,
        }
    }

    pub fn at(self, depth: usize, fold: Fold) -> Self {
        Self {
            depth,
            fold,
            ..self
        }
    }
}

pub type RowOf<C> = TableRow<<C as Content>::Key, <C as Content>::Data>;

#[derive(Clone, PartialEq, Debug)]
pub struct ScreenTable<K, D> {
    pub rows: Vec<TableRow<K, D>>,
    /// Rows that match the filter, without those beneath them.
    pub shown: usize,
    pub all: usize,
    /// Bytes of the rows that match the filter.
    pub shown_bytes: i128,
    pub all_bytes: i128,
}

impl<K, D> Default for ScreenTable<K, D> {
    fn default() -> Self {
        Self {
            rows: Vec::new(),
            shown: 0,
            all: 0,
            shown_bytes: 0,
            all_bytes: 0,
        }
    }
}

pub type TableOf<C> = ScreenTable<<C as Content>::Key, <C as Content>::Data>;

#[derive(Clone, Debug)]
pub struct Query<K> {
    pub sort: TableSort,
    pub filter: Filter,
    pub open: HashSet<K>,
    /// Places of the rows in a frozen order; `None` if rows move with their values.
    pub frozen: Option<HashMap<K, usize>>,
}

impl<K> Default for Query<K> {
    fn default() -> Self {
        Self {
            sort: TableSort::default(),
            filter: Filter::default(),
            open: HashSet::new(),
            frozen: None,
        }
    }
}

impl<K: Eq + Hash> Query<K> {
    pub fn fold(&self, has_beneath: bool, key: &K) -> Fold {
        match has_beneath {
            false => Fold::Leaf,
            true if self.open.contains(key) => Fold::Open,
            true => Fold::Closed,
        }
    }

    /// Sorts items by their rows, or puts them in the frozen order, with new rows behind.
    pub fn arrange<C: Content<Key = K>, T>(
        &self,
        content: &C,
        items: &mut [T],
        row: impl Fn(&T) -> &RowOf<C>,
    ) {
        self.sort.apply(content, items, &row);
        if let Some(frozen) = &self.frozen {
            let place = |item: &T| frozen.get(&row(item).key).copied();
            items.sort_by_key(|item| place(item).unwrap_or(usize::MAX));
        }
    }

    /// Makes a table of outermost rows: filters and sorts them, and adds the rows beneath each.
    pub fn table<C: Content<Key = K>, T>(
        &self,
        content: &C,
        mut entries: Vec<(RowOf<C>, T)>,
        bytes: impl Fn(&RowOf<C>) -> i128,
        searched: impl Fn(&RowOf<C>) -> String,
        beneath: impl Fn(&RowOf<C>, T) -> Vec<RowOf<C>>,
    ) -> TableOf<C> {
        let sum = |entries: &[(RowOf<C>, T)]| entries.iter().map(|(row, _)| bytes(row)).sum();
        let (all, all_bytes) = (entries.len(), sum(&entries));
        if self.filter.is_active() {
            entries.retain(|(row, _)| self.filter.shows(&searched(row)));
        }
        let (shown, shown_bytes) = (entries.len(), sum(&entries));
        self.arrange(content, &mut entries, |(row, _)| row);
        let mut rows = Vec::new();
        for (row, entry) in entries {
            let more = beneath(&row, entry);
            rows.push(row);
            rows.extend(more);
        }
        ScreenTable {
            rows,
            shown,
            all,
            shown_bytes,
            all_bytes,
        }
    }
}

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

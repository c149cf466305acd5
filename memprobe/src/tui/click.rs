//! Mouse clicks on the screen of lines.

use ratatui::layout::Position;

use super::columns::Columns;
use super::header::{BETWEEN_TABS, tabs};
use super::lines::{MARK, indent};
use super::state::{Overlay, State};
use super::table::Row;

impl State {
    /// Handles a click on a cell of the screen.
    pub(super) fn click(&mut self, column: u16, row: u16) {
        if self.overlay != Overlay::None {
            self.overlay = Overlay::None;
            return;
        }
        let Some(layout) = self.layout() else { return };
        let at = Position { x: column, y: row };
        if layout.head.contains(at) {
            if let Some(head) = Columns::of(layout.head.width).at(column) {
                self.sort = self.sort.by(head);
            }
        } else if layout.rows.contains(at) {
            let rows = self.table.rows.len();
            if let Some(place) = self.selection.at(layout.rows, row, rows) {
                self.click_row(place, column);
            }
        } else if layout.devices.contains(at) {
            self.click_device(column);
        }
    }

    /// Selects a row. A click on its fold mark, or on the row already selected, opens or closes it.
    fn click_row(&mut self, place: usize, column: u16) {
        let Some(row) = self.table.rows.get(place) else {
            return;
        };
        let again = place == self.selection.cursor || self.is_mark(row, column);
        self.selection.cursor = place;
        self.keep_selected();
        if again {
            self.toggle();
        }
    }

    fn is_mark(&self, row: &Row, column: u16) -> bool {
        let width = self.layout().map_or(0, |layout| layout.rows.width);
        let columns = Columns::of(width);
        let name = columns.line + indent(row.depth);
        (name..name + MARK).contains(&column)
    }

    fn click_device(&mut self, column: u16) {
        let tabs = tabs(&self.shown.devices);
        let mut start = 1;
        for (device, tab) in self.shown.devices.iter().zip(tabs) {
            let end = start + tab.len();
            if (start..end).contains(&usize::from(column)) {
                self.device = Some(device.index);
                self.selection.key = None;
                return;
            }
            start = end + BETWEEN_TABS;
        }
    }
}

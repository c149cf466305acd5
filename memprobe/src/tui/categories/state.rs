//! State of the screen of categories between two drawings, and its input handling. No I/O.

use std::collections::HashSet;
use std::sync::Arc;

use ratatui::layout::Position;

use super::super::input::InputEvent;
use super::super::list::{self, Selection};
use super::super::secondary_screens::{OfDevices, ScreenRequest};
use super::super::table::Fold;
use super::layout::{Layout, layout};
use super::rows::{Column, Row, rows};
use super::table::column_at;
use crate::attribution::tables::{CategoryRule, DeviceCategories, Portion};
use crate::event::DeviceIndex;

/// Key of a row across tables.
type Mark = (Portion, Option<CategoryRule>);

/// State of the screen.
#[derive(Debug, Default)]
pub struct CategoriesState {
    news: OfDevices<DeviceCategories>,
    size: (u16, u16),
    pub(super) order: Column,
    pub(super) reversed: bool,
    /// Scroll offset of help; `None` if it is closed.
    pub(super) help: Option<usize>,
    open: HashSet<Portion>,
    pub(super) selection: Selection<Mark>,
    pub(super) rows: Vec<Row>,
    pub(super) note: Option<&'static str>,
}

impl CategoriesState {
    /// Sets the screen's size.
    pub fn resize(&mut self, width: u16, height: u16) {
        self.size = (width, height);
        self.rebuild();
    }

    /// Stores a new answer from the caller.
    pub fn update(&mut self, news: Arc<Vec<DeviceCategories>>) {
        self.news.update(news);
        self.rebuild();
    }

    /// Selects another device.
    pub fn show(&mut self, device: Option<DeviceIndex>) {
        if self.news.show(device) {
            self.rebuild();
        }
    }

    /// Returns the device shown; `None` if it has no data.
    pub(super) fn shown_device(&self) -> Option<&DeviceCategories> {
        self.news.shown()
    }

    /// Returns true once any answer has arrived.
    pub(super) fn has_data(&self) -> bool {
        self.news.has_data()
    }

    pub(super) fn layout(&self) -> Option<Layout> {
        layout(self.size.0, self.size.1, self.news.count())
    }

    pub(super) fn selected(&self) -> Option<&Row> {
        self.rows.get(self.selection.cursor)
    }

    /// Handles input. Returns a request if the screen's owner must act.
    pub fn handle(&mut self, wanted: InputEvent) -> Option<ScreenRequest> {
        self.note = None;
        match wanted {
            InputEvent::Quit => return Some(ScreenRequest::Quit),
            InputEvent::Categories => return Some(ScreenRequest::Leave),
            InputEvent::Back if self.help.is_none() => return Some(ScreenRequest::Leave),
            InputEvent::Back => self.help = None,
            InputEvent::Device(_)
            | InputEvent::Pause
            | InputEvent::Suspend
            | InputEvent::Redraw => {
                return Some(ScreenRequest::AsOnLines(wanted));
            }
            InputEvent::Move(by) => self.step(by),
            InputEvent::Page(by) => self.step(list::pages(by, self.rows_height())),
            InputEvent::First => match &mut self.help {
                Some(at) => *at = 0,
                None => self.selection.key = None,
            },
            InputEvent::Last => self.step(isize::MAX),
            InputEvent::Toggle => match self.selected().map(|row| row.fold) {
                Some(Fold::Open) => self.close(),
                _ => self.open(),
            },
            InputEvent::Open => self.open(),
            InputEvent::Close => self.close(),
            InputEvent::OpenAll => self.open.extend(Portion::ALL),
            InputEvent::SortStep(by) => {
                let next = list::further(&Column::ORDERS, self.order, by);
                (self.order, self.reversed) = (next.unwrap_or_default(), false);
            }
            InputEvent::Reverse => self.reversed = !self.reversed,
            InputEvent::Help => {
                self.help = match self.help {
                    Some(_) => None,
                    None => Some(0),
                };
            }
            InputEvent::Click(x, y) => self.click(Position { x, y }),
            InputEvent::Resize(width, height) => self.size = (width, height),
            InputEvent::Filter => self.note = Some("nothing to filter: there are few categories"),
            // The owner of the screen handles these.
            InputEvent::Tensors
            | InputEvent::Modules
            | InputEvent::Layers
            | InputEvent::Probes
            | InputEvent::Outside => {}
            InputEvent::Iteration(_) => {
                self.note = Some("iterations are on the screen of layers: L")
            }
            // This screen has no prompt.
            InputEvent::Type(_)
            | InputEvent::Erase
            | InputEvent::EraseWord
            | InputEvent::EraseAll
            | InputEvent::Accept => {}
            InputEvent::SortBy(_) | InputEvent::Regroup | InputEvent::Source => {
                self.note = Some("this key works on the screen of lines: c leads back");
            }
        }
        self.rebuild();
        None
    }

    fn rebuild(&mut self) {
        let made = self
            .shown_device()
            .map(|device| rows(device, self.order, self.reversed, &self.open));
        self.rows = made.unwrap_or_default();
        let height = self.rows_height().unwrap_or(0);
        let rows = &self.rows;
        self.selection.settle(rows.len(), height, |mark| {
            rows.iter().position(|row| marked(row) == *mark)
        });
    }

    fn rows_height(&self) -> Option<u16> {
        Some(self.layout()?.rows.height)
    }

    fn step(&mut self, by: isize) {
        if let Some(at) = &mut self.help {
            return list::scroll(at, by);
        }
        self.selection.step(by, self.rows.len());
        self.keep_selected();
    }

    fn keep_selected(&mut self) {
        self.selection.key = self.selected().map(marked);
    }

    fn open(&mut self) {
        self.keep_selected();
        match self.selected().map(|row| (row.fold, row.portion)) {
            Some((Fold::Closed, portion)) => {
                self.open.insert(portion);
            }
            Some((Fold::Leaf, _)) => self.note = Some("nothing beneath"),
            _ => {}
        }
    }

    fn close(&mut self) {
        let Some(portion) = self.selected().map(|row| row.portion) else {
            return;
        };
        self.open.remove(&portion);
        self.selection.key = Some((portion, None));
    }

    /// Handles a click: on a head it sorts, on a row it selects and opens or closes.
    fn click(&mut self, at: Position) {
        if self.help.take().is_some() {
            return;
        }
        let Some(layout) = self.layout() else { return };
        if layout.head.contains(at) {
            match column_at(layout.head.width, at.x) {
                same if same == self.order => self.reversed = !self.reversed,
                column if Column::ORDERS.contains(&column) => {
                    (self.order, self.reversed) = (column, false);
                }
                _ => {}
            }
        } else if layout.rows.contains(at)
            && let Some(place) = self.selection.at(layout.rows, at.y, self.rows.len())
        {
            self.selection.cursor = place;
            self.keep_selected();
            match self.rows[place].fold {
                Fold::Closed => self.open(),
                Fold::Open => self.close(),
                Fold::Leaf => {}
            }
        }
    }
}

fn marked(row: &Row) -> Mark {
    (row.portion, row.rule.map(|rule| rule.rule))
}

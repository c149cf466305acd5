//! State of the screens of modules and layers between two drawings, and their input handling. No I/O.

use std::collections::HashSet;
use std::sync::Arc;

use ratatui::layout::Position;

use super::super::filter::Filter;
use super::super::input::{Focus, InputEvent};
use super::super::list::{self, Selection};
use super::super::secondary_screens::{AttributionQuery, OfDevices, ScreenRequest};
use super::super::table::Fold;
use super::super::tensors::layout::{Layout, layout};
use super::columns::{Column, column_at, columns};
use super::rows::{self, ModuleTableOptions, Row, RowKey, Table};
use super::subject::{ModulesView, Subject};
use crate::attribution::tables::{DeviceModules, IterationChoice, IterationLayers};
use crate::event::DeviceIndex;

/// Grouping of modules that differ only in their number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Alike {
    /// One row for all.
    #[default]
    Together,
    /// One row each.
    Apart,
}

/// State of the screen.
#[derive(Debug, Default)]
pub struct ModulesState {
    pub(super) view: ModulesView,
    now: OfDevices<DeviceModules>,
    then: OfDevices<IterationLayers>,
    /// Iteration shown.
    which: IterationChoice,
    size: (u16, u16),
    pub(super) alike: Alike,
    /// Data of the device shown.
    pub(super) subject: Option<Subject>,
    pub(super) order: Column,
    pub(super) reversed: bool,
    pub(super) filter: Filter,
    focus: Option<Focus>,
    /// Scroll offset of help; `None` if it is closed.
    pub(super) help: Option<usize>,
    open: HashSet<RowKey>,
    /// True after the first table, which opens the only root module.
    begun: bool,
    pub(super) selection: Selection<RowKey>,
    pub(super) table: Table,
    pub(super) note: Option<&'static str>,
}

impl ModulesState {
    /// Creates the state of the screen of layers.
    pub fn of_iterations() -> Self {
        Self {
            view: ModulesView::Then,
            ..Self::default()
        }
    }

    /// Returns the attribution table that the screen needs.
    pub const fn explains(&self) -> AttributionQuery {
        match self.view {
            ModulesView::Now => AttributionQuery::Modules,
            ModulesView::Then => AttributionQuery::Layers(self.which),
        }
    }

    /// Sets the screen's size.
    pub fn resize(&mut self, width: u16, height: u16) {
        self.size = (width, height);
        self.rebuild();
    }

    /// Returns the receiver of key events.
    pub fn focus(&self) -> Focus {
        self.focus.unwrap_or(Focus::Table)
    }

    /// Stores new tables of live modules.
    pub fn update(&mut self, news: Arc<Vec<DeviceModules>>) {
        self.now.update(news);
        self.renew();
    }

    /// Stores new tables of an iteration.
    pub fn update_then(&mut self, news: Arc<Vec<IterationLayers>>) {
        self.then.update(news);
        self.renew();
    }

    /// Selects another device.
    pub fn show(&mut self, device: Option<DeviceIndex>) {
        let (now, then) = (self.now.show(device), self.then.show(device));
        if now || then {
            self.renew();
        }
    }

    /// Returns true once any answer has arrived.
    pub(super) fn has_data(&self) -> bool {
        self.now.has_data() || self.then.has_data()
    }

    pub(super) fn layout(&self) -> Option<Layout> {
        layout(self.size.0, self.size.1)
    }

    pub(super) fn selected(&self) -> Option<&Row> {
        self.table.rows.get(self.selection.cursor)
    }

    /// Handles input. Returns a request if the screen's owner must act.
    pub fn handle(&mut self, wanted: InputEvent) -> Option<ScreenRequest> {
        self.note = None;
        match wanted {
            InputEvent::Quit => return Some(ScreenRequest::Quit),
            InputEvent::Modules if self.view == ModulesView::Now => {
                return Some(ScreenRequest::Leave);
            }
            InputEvent::Layers if self.view == ModulesView::Then => {
                return Some(ScreenRequest::Leave);
            }
            InputEvent::Iteration(by) if self.view == ModulesView::Then => {
                if let Some(asked) = self.go_iteration(by) {
                    return Some(asked);
                }
            }
            InputEvent::Iteration(_) => {
                self.note = Some("iterations are on the screen of layers: L")
            }
            InputEvent::Back => {
                if let Some(asked) = self.back() {
                    return Some(asked);
                }
            }
            InputEvent::Device(_)
            | InputEvent::Pause
            | InputEvent::Suspend
            | InputEvent::Redraw => {
                return Some(ScreenRequest::AsOnLines(wanted));
            }
            InputEvent::Move(by) => self.step(by),
            InputEvent::Page(by) => self.step(list::pages(by, self.rows_height())),
            InputEvent::First => self.go_first(),
            InputEvent::Last => self.step(isize::MAX),
            InputEvent::Toggle => self.toggle(),
            InputEvent::Open => self.open(),
            InputEvent::Close => self.close(),
            InputEvent::OpenAll => self.open_all(),
            InputEvent::SortStep(by) => {
                let columns = columns(self.size.0, self.view, self.table.recomputed);
                let columns: Vec<Column> = columns.iter().map(|place| place.column).collect();
                let next = list::further(&columns, self.order, by);
                (self.order, self.reversed) = (next.unwrap_or_default(), false);
            }
            InputEvent::Reverse => self.reversed = !self.reversed,
            InputEvent::Regroup => self.regroup(),
            InputEvent::Help => {
                self.help = match self.help {
                    Some(_) => None,
                    None => Some(0),
                };
            }
            InputEvent::Click(x, y) => self.click(Position { x, y }),
            InputEvent::Resize(width, height) => self.size = (width, height),
            InputEvent::Filter => (self.help, self.focus) = (None, Some(Focus::Prompt)),
            InputEvent::Type(_)
            | InputEvent::Erase
            | InputEvent::EraseWord
            | InputEvent::EraseAll => {
                if let Some(filter) = self.filter.edited(wanted) {
                    self.filter = filter;
                    self.selection.key = None;
                }
            }
            InputEvent::Accept => self.focus = None,
            // The owner of the screen handles these.
            InputEvent::Tensors
            | InputEvent::Categories
            | InputEvent::Modules
            | InputEvent::Layers
            | InputEvent::Probes
            | InputEvent::Outside => {}
            InputEvent::SortBy(_) | InputEvent::Source => {
                self.note = Some("this key works on the screen of lines: Esc leads back");
            }
        }
        self.rebuild();
        None
    }

    /// Rebuilds the subject after new data, or after a change of device or grouping.
    fn renew(&mut self) {
        self.subject = match self.view {
            ModulesView::Now => self.now.shown().map(|it| Subject::now(it, self.alike)),
            ModulesView::Then => self.then.shown().map(|it| Subject::then(it, self.alike)),
        };
        let modules = self.subject.as_ref().map(|subject| &subject.modules[..]);
        let modules = modules.unwrap_or_default();
        if let ([only], false) = (modules, self.begun) {
            // A model is one root module: open it to show its submodules.
            let key = RowKey::Module(crate::view::clean(&only.name));
            self.open.insert(key);
        }
        self.begun |= !modules.is_empty();
        self.rebuild();
    }

    fn rebuild(&mut self) {
        let wish = ModuleTableOptions {
            order: self.order,
            reversed: self.reversed,
            filter: &self.filter,
            open: &self.open,
        };
        let subject = self.subject.as_ref();
        let table = subject.map(|subject| rows::table(subject, &wish));
        self.table = table.unwrap_or_default();
        let height = self.rows_height().unwrap_or(0);
        let rows = &self.table.rows;
        self.selection.settle(rows.len(), height, |key| {
            rows.iter().position(|row| row.key == *key)
        });
    }

    fn rows_height(&self) -> Option<u16> {
        Some(self.layout()?.rows.height)
    }

    fn step(&mut self, by: isize) {
        if let Some(at) = &mut self.help {
            return list::scroll(at, by);
        }
        self.selection.step(by, self.table.rows.len());
        self.keep_selected();
    }

    fn keep_selected(&mut self) {
        self.selection.key = self.selected().map(|row| row.key.clone());
    }

    fn go_first(&mut self) {
        match &mut self.help {
            Some(at) => *at = 0,
            None => self.selection.key = None,
        }
    }

    fn toggle(&mut self) {
        match self.selected().map(|row| row.fold) {
            Some(Fold::Open) => self.close(),
            _ => self.open(),
        }
    }

    fn open(&mut self) {
        self.keep_selected();
        match self.selected() {
            Some(Row {
                fold: Fold::Closed,
                key,
                ..
            }) => {
                self.open.insert(key.clone());
            }
            Some(Row {
                fold: Fold::Leaf, ..
            }) => self.note = Some("nothing beneath: no submodule allocated memory"),
            _ => {}
        }
    }

    fn close(&mut self) {
        let Some(row) = self.selected() else { return };
        if row.fold == Fold::Open && self.open.contains(&row.key) {
            let key = row.key.clone();
            self.open.remove(&key);
        } else {
            let depth = row.depth;
            let above = self.table.rows[..self.selection.cursor].iter();
            self.selection.cursor = above
                .clone()
                .rposition(|row| row.depth < depth)
                .unwrap_or(self.selection.cursor);
        }
        self.keep_selected();
    }

    fn open_all(&mut self) {
        self.keep_selected();
        let path = match self.selected().map(|row| &row.key) {
            Some(RowKey::Module(path)) => path.as_str(),
            _ => "",
        };
        let modules = self.subject.as_ref().map(|subject| &subject.modules[..]);
        let keys = rows::keys_beneath(modules.unwrap_or_default(), path);
        self.open.extend(keys);
    }

    /// Goes to another iteration. Going to the last one follows the latest from then on.
    fn go_iteration(&mut self, by: isize) -> Option<ScreenRequest> {
        let moment = self.subject.as_ref()?.moment.as_ref()?;
        let (Some(iteration), Some((first, last))) = (&moment.iteration, moment.whole) else {
            self.note = Some("no iteration has ended yet");
            return None;
        };
        let number = iteration.number.saturating_add_signed(by as i64);
        self.which = match number {
            _ if number >= last => IterationChoice::Latest,
            _ => IterationChoice::Numbered(number.max(first)),
        };
        if number < first {
            self.note = Some("older iterations are gone: `memprobe record` keeps all");
        }
        Some(ScreenRequest::Explain(self.explains()))
    }

    fn regroup(&mut self) {
        self.alike = match self.alike {
            Alike::Together => Alike::Apart,
            Alike::Apart => Alike::Together,
        };
        self.renew();
    }

    fn back(&mut self) -> Option<ScreenRequest> {
        if self.help.is_some() {
            self.help = None;
        } else if self.focus() == Focus::Prompt || !self.filter.pattern().is_empty() {
            self.focus = None;
            self.filter = Filter::default();
        } else {
            return Some(ScreenRequest::Leave);
        }
        None
    }

    /// Handles a click: on a head it sorts, on a row it selects and opens or closes.
    fn click(&mut self, at: Position) {
        if self.help.take().is_some() {
            return;
        }
        let Some(layout) = self.layout() else { return };
        if layout.head.contains(at) {
            match column_at(layout.head.width, self.view, self.table.recomputed, at.x) {
                same if same == self.order => self.reversed = !self.reversed,
                column => (self.order, self.reversed) = (column, false),
            }
        } else if layout.rows.contains(at) {
            let rows = self.table.rows.len();
            if let Some(place) = self.selection.at(layout.rows, at.y, rows) {
                self.selection.cursor = place;
                self.keep_selected();
                if self.table.rows[place].fold != Fold::Leaf {
                    self.toggle();
                }
            }
        }
    }
}

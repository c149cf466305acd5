//! State of the screens of modules and layers between two drawings, and their input handling. No I/O.

use std::collections::HashSet;
use std::sync::Arc;

use ratatui::layout::Position;

use super::super::beside::{Asked, Explain, OfDevices};
use super::super::filter::Filter;
use super::super::input::{Focus, Wanted};
use super::super::list::{self, Selection};
use super::super::table::Fold;
use super::super::tensors::layout::{Layout, layout};
use super::columns::{Column, column_at, columns};
use super::rows::{self, Row, RowKey, Table, Wish};
use super::subject::{Subject, Tells};
use crate::event::DeviceIndex;
use crate::model::snapshot::why::{DeviceModules, IterationLayers, Which};

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
    pub(super) tells: Tells,
    now: OfDevices<DeviceModules>,
    then: OfDevices<IterationLayers>,
    /// Iteration shown.
    which: Which,
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
            tells: Tells::Then,
            ..Self::default()
        }
    }

    /// Returns the attribution table that the screen needs.
    pub const fn explains(&self) -> Explain {
        match self.tells {
            Tells::Now => Explain::Modules,
            Tells::Then => Explain::Layers(self.which),
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
    pub(super) fn is_told(&self) -> bool {
        self.now.is_told() || self.then.is_told()
    }

    pub(super) fn layout(&self) -> Option<Layout> {
        layout(self.size.0, self.size.1)
    }

    pub(super) fn selected(&self) -> Option<&Row> {
        self.table.rows.get(self.selection.cursor)
    }

    /// Handles input. Returns a request if the screen's owner must act.
    pub fn handle(&mut self, wanted: Wanted) -> Option<Asked> {
        self.note = None;
        match wanted {
            Wanted::Quit => return Some(Asked::Quit),
            Wanted::Modules if self.tells == Tells::Now => return Some(Asked::Leave),
            Wanted::Layers if self.tells == Tells::Then => return Some(Asked::Leave),
            Wanted::Iteration(by) if self.tells == Tells::Then => {
                if let Some(asked) = self.go_iteration(by) {
                    return Some(asked);
                }
            }
            Wanted::Iteration(_) => self.note = Some("iterations are on the screen of layers: L"),
            Wanted::Back => {
                if let Some(asked) = self.back() {
                    return Some(asked);
                }
            }
            Wanted::Device(_) | Wanted::Pause | Wanted::Suspend | Wanted::Redraw => {
                return Some(Asked::AsOnLines(wanted));
            }
            Wanted::Move(by) => self.step(by),
            Wanted::Page(by) => self.step(list::pages(by, self.rows_height())),
            Wanted::First => self.go_first(),
            Wanted::Last => self.step(isize::MAX),
            Wanted::Toggle => self.toggle(),
            Wanted::Open => self.open(),
            Wanted::Close => self.close(),
            Wanted::OpenAll => self.open_all(),
            Wanted::SortStep(by) => {
                let columns = columns(self.size.0, self.tells, self.table.recomputed);
                let columns: Vec<Column> = columns.iter().map(|place| place.column).collect();
                let next = list::further(&columns, self.order, by);
                (self.order, self.reversed) = (next.unwrap_or_default(), false);
            }
            Wanted::Reverse => self.reversed = !self.reversed,
            Wanted::Regroup => self.regroup(),
            Wanted::Help => {
                self.help = match self.help {
                    Some(_) => None,
                    None => Some(0),
                };
            }
            Wanted::Click(x, y) => self.click(Position { x, y }),
            Wanted::Resize(width, height) => self.size = (width, height),
            Wanted::Filter => (self.help, self.focus) = (None, Some(Focus::Prompt)),
            Wanted::Type(_) | Wanted::Erase | Wanted::EraseWord | Wanted::EraseAll => {
                if let Some(filter) = self.filter.edited(wanted) {
                    self.filter = filter;
                    self.selection.key = None;
                }
            }
            Wanted::Accept => self.focus = None,
            // The owner of the screen handles these.
            Wanted::Tensors | Wanted::Categories | Wanted::Modules | Wanted::Layers => {}
            Wanted::SortBy(_) | Wanted::Source | Wanted::Probes | Wanted::Outside => {
                self.note = Some("this key works on the screen of lines: Esc leads back");
            }
        }
        self.rebuild();
        None
    }

    /// Rebuilds the subject after new data, or after a change of device or grouping.
    fn renew(&mut self) {
        self.subject = match self.tells {
            Tells::Now => self.now.shown().map(|it| Subject::now(it, self.alike)),
            Tells::Then => self.then.shown().map(|it| Subject::then(it, self.alike)),
        };
        let modules = self.subject.as_ref().map(|subject| &subject.modules[..]);
        let modules = modules.unwrap_or_default();
        if let ([only], false) = (modules, self.begun) {
            // A model is one root module: open it to show its submodules.
            let key = RowKey::Module(crate::label::clean(&only.name));
            self.open.insert(key);
        }
        self.begun |= !modules.is_empty();
        self.rebuild();
    }

    fn rebuild(&mut self) {
        let wish = Wish {
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
    fn go_iteration(&mut self, by: isize) -> Option<Asked> {
        let moment = self.subject.as_ref()?.moment.as_ref()?;
        let (Some(iteration), Some((first, last))) = (&moment.iteration, moment.whole) else {
            self.note = Some("no iteration has ended yet");
            return None;
        };
        let number = iteration.number.saturating_add_signed(by as i64);
        self.which = match number {
            _ if number >= last => Which::Latest,
            _ => Which::Numbered(number.max(first)),
        };
        if number < first {
            self.note = Some("older iterations are gone: `memprobe record` keeps all");
        }
        Some(Asked::Explain(self.explains()))
    }

    fn regroup(&mut self) {
        self.alike = match self.alike {
            Alike::Together => Alike::Apart,
            Alike::Apart => Alike::Together,
        };
        self.renew();
    }

    fn back(&mut self) -> Option<Asked> {
        if self.help.is_some() {
            self.help = None;
        } else if self.focus() == Focus::Prompt || !self.filter.pattern().is_empty() {
            self.focus = None;
            self.filter = Filter::default();
        } else {
            return Some(Asked::Leave);
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
            match column_at(layout.head.width, self.tells, self.table.recomputed, at.x) {
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

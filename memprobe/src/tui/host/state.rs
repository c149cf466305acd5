//! State of the host screen between two drawings, and its input handling. No I/O.

use std::sync::Arc;

use ratatui::layout::Position;

use super::super::filter::Filter;
use super::super::input::{Focus, InputEvent};
use super::super::list::{self, Selection};
use super::super::state::Follow;
use super::HostCommand;
use super::columns::{Columns, Needs};
use super::input::HostWanted;
use super::layout::{Layout, layout};
use super::rows::{self, ProcessVisibility, Sums};
use super::sort::Sort;
use crate::event::Tgid;
use crate::ledger::snapshot::host::{DriverSnapshot, HostSnapshot, ProcessRow, ProcessState};
use crate::view::{FileNames, clean};

/// State of the screen.
#[derive(Debug)]
pub struct HostState {
    /// Command that shows the screen.
    pub(super) name: String,
    pub(super) shown: Arc<HostSnapshot>,
    latest: Arc<HostSnapshot>,
    pub(super) follow: Follow,
    size: (u16, u16),
    pub(super) sort: Sort,
    pub(super) filter: Filter,
    pub(super) extent: ProcessVisibility,
    pub(super) focus: Focus,
    /// Scroll offset of help; `None` if it is closed.
    pub(super) help: Option<usize>,
    /// Indices of the rows in the snapshot, in order.
    pub(super) order: Vec<usize>,
    pub(super) names: FileNames,
    pub(super) all: Sums,
    pub(super) sums: Sums,
    pub(super) selection: Selection<Tgid>,
    pub(super) note: Option<String>,
}

impl HostState {
    /// Creates the state of the first drawing.
    pub fn new(snapshot: Arc<HostSnapshot>, size: (u16, u16), name: String) -> Self {
        let mut state = Self {
            name,
            shown: snapshot.clone(),
            latest: snapshot,
            follow: Follow::Live,
            size,
            sort: Sort::default(),
            filter: Filter::default(),
            extent: ProcessVisibility::default(),
            focus: Focus::Table,
            help: None,
            order: Vec::new(),
            names: FileNames::default(),
            all: Sums::default(),
            sums: Sums::default(),
            selection: Selection::default(),
            note: None,
        };
        state.rebuild();
        state
    }

    /// Takes a new snapshot; shows it unless paused.
    pub fn update(&mut self, snapshot: Arc<HostSnapshot>) {
        self.latest = snapshot;
        if self.follow == Follow::Live {
            self.shown = self.latest.clone();
            self.rebuild();
        }
    }

    /// Returns the columns and rows of the terminal.
    pub fn size(&self) -> (u16, u16) {
        self.size
    }

    pub fn layout(&self) -> Option<Layout> {
        let devices = match &self.shown.driver {
            DriverSnapshot::Devices(devices) => devices.len(),
            DriverSnapshot::Unasked | DriverSnapshot::Silent(_) => 1,
        };
        layout(self.size.0, self.size.1, devices)
    }

    /// Returns the column layout.
    pub fn columns(&self) -> Columns {
        let processes = &self.shown.processes;
        let needs = Needs {
            container: processes.iter().any(|row| row.target.container.is_some()),
            rank: processes.iter().any(|row| row.facts.rank.is_some()),
        };
        Columns::of(self.size.0, needs)
    }

    /// Returns the process of a table row.
    pub fn row(&self, place: usize) -> Option<&ProcessRow> {
        self.shown.processes.get(*self.order.get(place)?)
    }

    /// Returns the number of processes hidden because they hold no memory.
    pub fn left_out(&self) -> usize {
        self.shown.processes.len() - self.all.rows
    }

    pub fn selected(&self) -> Option<&ProcessRow> {
        self.row(self.selection.cursor)
    }

    /// Handles input. Returns a request if the caller must act.
    pub fn handle(&mut self, wanted: HostWanted) -> Option<HostCommand> {
        self.note = None;
        let wanted = match wanted {
            HostWanted::Common(wanted) => wanted,
            HostWanted::SortBy(column) => {
                self.sort = self.sort.by(column);
                self.rebuild();
                return None;
            }
            HostWanted::Extent => {
                self.extent = match self.extent {
                    ProcessVisibility::Holders => ProcessVisibility::All,
                    ProcessVisibility::All => ProcessVisibility::Holders,
                };
                self.rebuild();
                return None;
            }
        };
        let mut command = None;
        match wanted {
            InputEvent::Quit => return Some(HostCommand::Quit),
            InputEvent::Back => self.back(),
            InputEvent::Move(by) => self.step(by),
            InputEvent::Page(by) => self.step(list::pages(by, self.rows_height())),
            InputEvent::First => self.go_first(),
            InputEvent::Last => self.step(isize::MAX),
            InputEvent::Toggle | InputEvent::Open => command = self.open(),
            InputEvent::SortStep(by) => {
                let shown = self.columns().shown();
                self.sort = self.sort.step(by, &shown);
            }
            InputEvent::Reverse => self.sort = self.sort.reversed(),
            InputEvent::Pause => self.pause(),
            InputEvent::Help => self.help = self.help.is_none().then_some(0),
            InputEvent::Click(column, row) => command = self.click(Position { x: column, y: row }),
            InputEvent::Resize(width, height) => self.size = (width, height),
            InputEvent::Suspend => {
                self.note = Some("stopping memprobe would lose events: q quits".to_owned());
            }
            InputEvent::Filter => {
                self.help = None;
                self.focus = Focus::Prompt;
            }
            InputEvent::Type(_)
            | InputEvent::Erase
            | InputEvent::EraseWord
            | InputEvent::EraseAll => {
                if let Some(filter) = self.filter.edited(wanted) {
                    self.filter = filter;
                    self.selection.key = None;
                }
            }
            InputEvent::Accept => self.focus = Focus::Table,
            // Only the screens of a process handle these.
            InputEvent::SortBy(_)
            | InputEvent::Close
            | InputEvent::OpenAll
            | InputEvent::Device(_)
            | InputEvent::Regroup
            | InputEvent::Source
            | InputEvent::Probes
            | InputEvent::Outside
            | InputEvent::Tensors
            | InputEvent::Modules
            | InputEvent::Layers
            | InputEvent::Iteration(_)
            | InputEvent::Categories => {
                self.note =
                    Some("this key works on the screen of a process: Enter opens it".to_owned());
            }
            InputEvent::Redraw => {}
        }
        self.rebuild();
        command
    }

    fn rebuild(&mut self) {
        let processes = &self.shown.processes;
        self.names = rows::names(processes);
        self.order = rows::order(
            &self.shown,
            self.extent,
            self.sort,
            &self.filter,
            &self.names,
        );
        let within = |row: &&ProcessRow| rows::is_within(&self.shown, self.extent, row);
        self.all = Sums::of(processes.iter().filter(within));
        self.sums = Sums::of(self.order.iter().map(|place| &processes[*place]));
        let height = self.rows_height().unwrap_or(0);
        let order = &self.order;
        self.selection.settle(order.len(), height, |tgid| {
            let found = order.iter();
            found
                .map(|place| processes[*place].tgid)
                .position(|it| it == *tgid)
        });
    }

    fn rows_height(&self) -> Option<u16> {
        Some(self.layout()?.rows.height)
    }

    fn step(&mut self, by: isize) {
        if let Some(at) = &mut self.help {
            return list::scroll(at, by);
        }
        self.selection.step(by, self.order.len());
        self.keep_selected();
    }

    fn keep_selected(&mut self) {
        self.selection.key = self.selected().map(|row| row.tgid);
    }

    fn go_first(&mut self) {
        match &mut self.help {
            Some(at) => *at = 0,
            None => self.selection.key = None,
        }
    }

    fn open(&mut self) -> Option<HostCommand> {
        if self.help.take().is_some() {
            return None;
        }
        self.keep_selected();
        let row = self.selected()?;
        let tgid = row.tgid;
        // Some refused processes have events all the same.
        if let ProcessState::Refused(reason) = &row.state
            && row.events == 0
        {
            self.note = Some(format!("nothing to open: {}", clean(reason)));
            return None;
        }
        Some(HostCommand::Open(tgid))
    }

    fn pause(&mut self) {
        self.follow = match self.follow {
            Follow::Live => Follow::Paused,
            Follow::Paused => Follow::Live,
        };
        if self.follow == Follow::Live {
            self.shown = self.latest.clone();
        }
    }

    /// Closes what is open. Never quits: Esc from a process must not leave memprobe.
    fn back(&mut self) {
        if self.help.take().is_some() {
        } else if self.focus == Focus::Prompt || !self.filter.pattern().is_empty() {
            self.focus = Focus::Table;
            self.filter = Filter::default();
        } else {
            self.note = Some("q quits".to_owned());
        }
    }

    /// Handles a click: on a head it sorts, on a row it selects, on the selected row it opens.
    fn click(&mut self, at: Position) -> Option<HostCommand> {
        if self.help.take().is_some() {
            return None;
        }
        let layout = self.layout()?;
        if layout.head.contains(at) {
            let column = self.columns().at(at.x);
            self.sort = column.map_or(self.sort, |column| self.sort.by(column));
        } else if layout.rows.contains(at) {
            let rows = self.order.len();
            let place = self.selection.at(layout.rows, at.y, rows)?;
            let again = place == self.selection.cursor && self.selection.key.is_some();
            self.selection.cursor = place;
            self.keep_selected();
            if again {
                return self.open();
            }
        }
        None
    }
}

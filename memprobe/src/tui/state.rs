//! State of the screen of lines between two drawings, and its input handling. No I/O.

use std::collections::HashSet;
use std::sync::Arc;

use super::Command;
use super::filter::Filter;
use super::input::{Focus, InputEvent};
use super::layout::{Layout, Needs, layout};
use super::list::{self, Selection};
use super::sort::Sort;
use super::table::{self, Fold, Row, RowKey, Subject, Table, TableOptions};
use crate::event::DeviceIndex;
use crate::ledger::snapshot::{DeviceSnapshot, Grouping, Snapshot, TargetState};
use crate::view::FileNames;

/// Overlay on the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Overlay {
    #[default]
    None,
    /// Help, with its scroll offset in lines.
    Help(usize),
    /// Probes, with their scroll offset in lines.
    Probes(usize),
    /// CUDA memory outside the caching allocator, with its scroll offset in lines.
    Outside(usize),
}

/// Display of new snapshots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Follow {
    /// Each new snapshot is shown.
    Live,
    /// The current snapshot stays.
    Paused,
}

/// Destination on leaving the screen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WayBack {
    /// Quit memprobe.
    #[default]
    Out,
    /// The host screen that opened the process.
    Host,
}

/// State of the screen.
#[derive(Debug)]
pub struct State {
    pub(super) way_back: WayBack,
    pub(super) shown: Arc<Snapshot>,
    latest: Arc<Snapshot>,
    pub(super) follow: Follow,
    pub(super) device: Option<DeviceIndex>,
    size: (u16, u16),
    pub(super) sort: Sort,
    pub(super) filter: Filter,
    pub(super) focus: Focus,
    pub(super) overlay: Overlay,
    pub(super) source: bool,
    pub(super) grouping: Grouping,
    open: HashSet<RowKey>,
    pub(super) selection: Selection<RowKey>,
    pub(super) table: Table,
    pub(super) names: FileNames,
    pub(super) note: Option<&'static str>,
}

impl State {
    /// Creates the state of the first drawing.
    pub fn new(snapshot: Arc<Snapshot>, size: (u16, u16)) -> Self {
        let mut state = Self {
            way_back: WayBack::default(),
            shown: snapshot.clone(),
            latest: snapshot,
            follow: Follow::Live,
            device: None,
            size,
            sort: Sort::default(),
            filter: Filter::default(),
            focus: Focus::Table,
            overlay: Overlay::None,
            source: false,
            grouping: Grouping::default(),
            open: HashSet::new(),
            selection: Selection::default(),
            table: Table::default(),
            names: FileNames::default(),
            note: None,
        };
        state.rebuild();
        state
    }

    /// Takes a new snapshot; shows it unless paused.
    pub fn update(&mut self, snapshot: Arc<Snapshot>) {
        self.latest = snapshot;
        if self.follow == Follow::Live {
            self.shown = self.latest.clone();
            self.rebuild();
        }
    }

    /// Returns the device shown; `None` before any device was used.
    pub fn device(&self) -> Option<&DeviceSnapshot> {
        let devices = &self.shown.devices;
        devices
            .iter()
            .find(|device| Some(device.index) == self.device)
            .or_else(|| devices.first())
    }

    pub fn layout(&self) -> Option<Layout> {
        let needs = Needs {
            devices: self.shown.devices.len(),
            source: self.source,
        };
        layout(self.size.0, self.size.1, needs)
    }

    pub fn selected(&self) -> Option<&Row> {
        self.table.rows.get(self.selection.cursor)
    }

    /// Handles input. Returns a request if the caller must act.
    pub fn handle(&mut self, wanted: InputEvent) -> Option<Command> {
        self.note = None;
        match wanted {
            InputEvent::Quit => return Some(Command::Quit),
            InputEvent::Back => return self.back(),
            InputEvent::Regroup => return self.regroup(),
            InputEvent::Move(by) => self.step(by),
            InputEvent::Page(by) => self.step(list::pages(by, self.rows_height())),
            InputEvent::First => self.go_first(),
            InputEvent::Last => self.step(isize::MAX),
            InputEvent::Toggle => self.toggle(),
            InputEvent::Open => self.open(),
            InputEvent::Close => self.close(),
            InputEvent::OpenAll => self.open_all(),
            InputEvent::SortStep(by) => self.sort = self.sort.step(by),
            InputEvent::SortBy(column) => self.sort = self.sort.by(column),
            InputEvent::Reverse => self.sort = self.sort.reversed(),
            InputEvent::Device(by) => self.go_device(by),
            InputEvent::Pause => self.pause(),
            InputEvent::Source => self.source = !self.source,
            InputEvent::Help => self.overlay = toggled(self.overlay, Overlay::Help(0)),
            InputEvent::Probes => self.overlay = toggled(self.overlay, Overlay::Probes(0)),
            InputEvent::Outside => self.overlay = toggled(self.overlay, Overlay::Outside(0)),
            InputEvent::Click(column, row) => self.click(column, row),
            InputEvent::Resize(width, height) => self.size = (width, height),
            InputEvent::Redraw => {}
            // `ProcessStage` handles these before they get here.
            InputEvent::Tensors
            | InputEvent::Modules
            | InputEvent::Layers
            | InputEvent::Categories => {}
            InputEvent::Iteration(_) => {
                self.note = Some("iterations are on the screen of layers: L")
            }
            // A stopped memprobe does not drain the ring buffer: events of the target would be lost.
            InputEvent::Suspend => self.note = Some("stopping memprobe would lose events: q quits"),
            InputEvent::Filter => self.ask_filter(),
            InputEvent::Type(_)
            | InputEvent::Erase
            | InputEvent::EraseWord
            | InputEvent::EraseAll => self.edit(wanted),
            InputEvent::Accept => self.focus = Focus::Table,
        }
        self.rebuild();
        None
    }

    fn rebuild(&mut self) {
        let Some(device) = self.device() else {
            self.table = Table::default();
            (self.selection.cursor, self.selection.offset) = (0, 0);
            return;
        };
        let frames = device.lines.iter().filter_map(|line| line.site.frame());
        let names = FileNames::of(frames.map(|frame| &frame.file));
        let wish = TableOptions {
            sort: self.sort,
            filter: &self.filter,
            open: &self.open,
            names: &names,
        };
        self.table = table::table(device, &wish);
        self.names = names;
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
        if let Overlay::Help(at) | Overlay::Probes(at) | Overlay::Outside(at) = &mut self.overlay {
            return list::scroll(at, by);
        }
        self.selection.step(by, self.table.rows.len());
        self.keep_selected();
    }

    pub(super) fn keep_selected(&mut self) {
        self.selection.key = self.selected().map(|row| row.key.clone());
    }

    fn go_first(&mut self) {
        match &mut self.overlay {
            Overlay::Help(at) | Overlay::Probes(at) | Overlay::Outside(at) => *at = 0,
            Overlay::None => self.selection.key = None,
        }
    }

    pub(super) fn toggle(&mut self) {
        match self.selected().map(|row| row.fold) {
            Some(Fold::Closed) => self.open(),
            Some(Fold::Open) => self.close(),
            _ => {}
        }
    }

    fn open(&mut self) {
        self.keep_selected();
        match self.selected() {
            Some(row) if row.fold == Fold::Closed => {
                self.open.insert(row.key.clone());
            }
            Some(Row {
                fold: Fold::Leaf,
                depth: 0,
                ..
            }) => {
                self.note = Some("nothing beneath: no other frame is known here");
            }
            _ => {}
        }
    }

    fn close(&mut self) {
        let Some(row) = self.selected() else { return };
        if row.fold == Fold::Open {
            self.open.remove(&row.key.clone());
        } else if let Some(parent) = self.parent() {
            self.selection.cursor = parent;
        }
        self.keep_selected();
    }

    /// Returns the index of the selected row's parent.
    fn parent(&self) -> Option<usize> {
        let row = self.selected()?;
        let is_frame = matches!(row.subject, Subject::Frame(..));
        self.table.rows[..self.selection.cursor]
            .iter()
            .rposition(|above| {
                above.depth < row.depth
                    || (is_frame && above.depth == row.depth && above.fold == Fold::Open)
            })
    }

    fn open_all(&mut self) {
        self.keep_selected();
        let site = match self.selected().map(|row| &row.key) {
            Some(RowKey::Site(site) | RowKey::Branch(site, ..) | RowKey::Frame(site, ..)) => site,
            _ => return,
        };
        let Some(device) = self.device() else { return };
        if let Some(line) = device.lines.iter().find(|line| line.site == *site) {
            let keys = table::keys_beneath(line);
            self.open.extend(keys);
        }
    }

    fn go_device(&mut self, by: isize) {
        let devices = &self.shown.devices;
        if devices.len() < 2 {
            self.note = Some("only one device has been used so far");
            return;
        }
        let all: Vec<DeviceIndex> = devices.iter().map(|device| device.index).collect();
        let shown = self.device().map(|device| device.index);
        self.device = shown.and_then(|shown| list::further(&all, shown, by));
        self.selection.key = None;
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

    fn regroup(&mut self) -> Option<Command> {
        if self.follow == Follow::Paused {
            self.note = Some("paused: press Space to continue, then i");
            return None;
        }
        self.grouping = match self.grouping {
            Grouping::User => Grouping::Innermost,
            Grouping::Innermost => Grouping::User,
        };
        if self.shown.health.state == TargetState::Exited {
            self.note = Some("regrouping the last state");
        }
        Some(Command::SetGrouping(self.grouping))
    }

    fn back(&mut self) -> Option<Command> {
        if self.overlay != Overlay::None {
            self.overlay = Overlay::None;
        } else if self.focus == Focus::Prompt || !self.filter.pattern().is_empty() {
            self.focus = Focus::Table;
            self.filter = Filter::default();
        } else if self.source {
            self.source = false;
        } else {
            return Some(Command::Quit);
        }
        self.rebuild();
        None
    }

    fn ask_filter(&mut self) {
        self.overlay = Overlay::None;
        self.focus = Focus::Prompt;
    }

    fn edit(&mut self, wanted: InputEvent) {
        if let Some(filter) = self.filter.edited(wanted) {
            self.filter = filter;
            self.selection.key = None;
        }
    }
}

fn toggled(shown: Overlay, asked: Overlay) -> Overlay {
    let same = std::mem::discriminant(&shown) == std::mem::discriminant(&asked);
    if same { Overlay::None } else { asked }
}

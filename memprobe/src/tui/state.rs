//! What the screen remembers between two drawings, and how input changes it. No I/O.

use std::collections::HashSet;
use std::sync::Arc;

use super::Command;
use super::filter::Filter;
use super::input::{Focus, Wanted};
use super::layout::{Layout, Needs, layout};
use super::list::{self, Selection};
use super::sort::Sort;
use super::table::{self, Fold, Row, RowKey, Subject, Table, Wish};
use crate::event::DeviceIndex;
use crate::label::FileNames;
use crate::model::snapshot::{DeviceSnapshot, Grouping, Snapshot, TargetState};

/// What lies over the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Overlay {
    /// Nothing.
    #[default]
    None,
    /// Help, scrolled down by so many lines.
    Help(usize),
    /// The probes, scrolled down by so many lines.
    Probes(usize),
    /// What CUDA gave to others than the caching allocator, scrolled down by so many lines.
    Outside(usize),
}

/// Whether the screen follows the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Follow {
    /// Each new snapshot is shown.
    Live,
    /// The one shown stays.
    Paused,
}

/// Where leaving the screen leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WayBack {
    /// Out.
    #[default]
    Out,
    /// To the screen of the host that it was opened from.
    Host,
}

/// What the screen remembers.
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
    /// The first screen.
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

    /// Takes a new snapshot; while paused it is kept for later.
    pub fn update(&mut self, snapshot: Arc<Snapshot>) {
        self.latest = snapshot;
        if self.follow == Follow::Live {
            self.shown = self.latest.clone();
            self.rebuild();
        }
    }

    /// The device shown, if any was seen yet.
    pub fn device(&self) -> Option<&DeviceSnapshot> {
        let devices = &self.shown.devices;
        devices
            .iter()
            .find(|device| Some(device.index) == self.device)
            .or_else(|| devices.first())
    }

    /// Where everything stands.
    pub fn layout(&self) -> Option<Layout> {
        let needs = Needs {
            devices: self.shown.devices.len(),
            source: self.source,
        };
        layout(self.size.0, self.size.1, needs)
    }

    /// The selected row.
    pub fn selected(&self) -> Option<&Row> {
        self.table.rows.get(self.selection.cursor)
    }

    /// Does what is wanted; some of it only the caller can do.
    pub fn handle(&mut self, wanted: Wanted) -> Option<Command> {
        self.note = None;
        match wanted {
            Wanted::Quit => return Some(Command::Quit),
            Wanted::Back => return self.back(),
            Wanted::Regroup => return self.regroup(),
            Wanted::Move(by) => self.step(by),
            Wanted::Page(by) => self.step(list::pages(by, self.rows_height())),
            Wanted::First => self.go_first(),
            Wanted::Last => self.step(isize::MAX),
            Wanted::Toggle => self.toggle(),
            Wanted::Open => self.open(),
            Wanted::Close => self.close(),
            Wanted::OpenAll => self.open_all(),
            Wanted::SortStep(by) => self.sort = self.sort.step(by),
            Wanted::SortBy(column) => self.sort = self.sort.by(column),
            Wanted::Reverse => self.sort = self.sort.reversed(),
            Wanted::Device(by) => self.go_device(by),
            Wanted::Pause => self.pause(),
            Wanted::Source => self.source = !self.source,
            Wanted::Help => self.overlay = toggled(self.overlay, Overlay::Help(0)),
            Wanted::Probes => self.overlay = toggled(self.overlay, Overlay::Probes(0)),
            Wanted::Outside => self.overlay = toggled(self.overlay, Overlay::Outside(0)),
            Wanted::Click(column, row) => self.click(column, row),
            Wanted::Resize(width, height) => self.size = (width, height),
            Wanted::Redraw => {}
            // They lead to screens of their own before they come here.
            Wanted::Tensors | Wanted::Modules | Wanted::Layers | Wanted::Categories => {}
            Wanted::Iteration(_) => self.note = Some("iterations are on the screen of layers: L"),
            // Who is stopped empties no buffers: events of the target would be lost.
            Wanted::Suspend => self.note = Some("stopping memprobe would lose events: q quits"),
            Wanted::Filter => self.ask_filter(),
            Wanted::Type(_) | Wanted::Erase | Wanted::EraseWord | Wanted::EraseAll => {
                self.edit(wanted)
            }
            Wanted::Accept => self.focus = Focus::Table,
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
        let wish = Wish {
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

    /// The row that the selected one lies beneath.
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
            self.note = Some("paused: press Space to go on, then i");
            return None;
        }
        self.grouping = match self.grouping {
            Grouping::User => Grouping::Innermost,
            Grouping::Innermost => Grouping::User,
        };
        if self.shown.health.state == TargetState::Exited {
            self.note = Some("regrouping what was last seen");
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

    fn edit(&mut self, wanted: Wanted) {
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

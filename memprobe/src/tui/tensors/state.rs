//! State of the screen of tensors between two drawings, and its input handling. No I/O.

use std::sync::Arc;

use ratatui::layout::Position;

use super::super::filter::Filter;
use super::super::input::{Focus, InputEvent};
use super::super::list::{self, Selection};
use super::Tensors;
use super::columns::column_at;
use super::input::TensorWanted;
use super::layout::{Layout, layout};
use super::table::{self, Totals};
use crate::event::Address;
use crate::event::tensors::Device;
use crate::tensors::{DeviceTable, Group, GroupBy, Order, Row, RowKind, TensorTable, groups_of};
use crate::view::FileNames;

/// Request to the screen's owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TensorsRequest {
    /// Quit memprobe.
    Quit,
    /// Return to the screen of lines.
    Leave,
    /// Read the process.
    Take,
}

/// Overlay on the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Overlay {
    #[default]
    None,
    /// Help, with its scroll offset in lines.
    Help(usize),
    /// Details of the selected row, with their scroll offset in lines.
    Detail(usize),
}

/// Direction of the sort order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Direction {
    /// Default direction of the order.
    #[default]
    Natural,
    /// Opposite of the default.
    Reversed,
}

/// Key of a row across tables: kind, name, storage, and object. The object identifies unnamed rows only,
/// several of which may share a storage.
type Mark = (RowKind, Option<Arc<str>>, Option<Address>, u64);

/// Groupings, in the order of the key that cycles through them.
const GROUPINGS: [GroupBy; 7] = [
    GroupBy::Unnamed,
    GroupBy::Shape,
    GroupBy::Kind,
    GroupBy::Module,
    GroupBy::Site,
    GroupBy::Retainer,
    GroupBy::Nothing,
];

/// Sort orders, in the order of their columns.
const ORDERS: [Order; 5] = [
    Order::Holds,
    Order::Size,
    Order::Kind,
    Order::Count,
    Order::Name,
];

/// State of the screen.
#[derive(Debug, Default)]
pub struct TensorsState {
    pub(super) news: Tensors,
    /// Last table received.
    pub(super) table: Option<Arc<TensorTable>>,
    device: Option<Device>,
    size: (u16, u16),
    pub(super) by: GroupBy,
    pub(super) order: Order,
    pub(super) direction: Direction,
    pub(super) filter: Filter,
    pub(super) focus: Option<Focus>,
    pub(super) overlay: Overlay,
    pub(super) groups: Vec<Group>,
    pub(super) shown: Totals,
    pub(super) all: Totals,
    pub(super) names: FileNames,
    pub(super) selection: Selection<Mark>,
    pub(super) note: Option<&'static str>,
}

impl TensorsState {
    /// Sets the screen's size.
    pub fn resize(&mut self, width: u16, height: u16) {
        self.size = (width, height);
        self.rebuild();
    }

    /// Returns the receiver of key events.
    pub fn focus(&self) -> Focus {
        self.focus.unwrap_or(Focus::Table)
    }

    /// Stores the progress or result of a reading.
    pub fn update(&mut self, news: Tensors) {
        if let Tensors::Taken(table) = &news {
            self.table = Some(Arc::clone(table));
        }
        self.news = news;
        self.note = None;
        self.rebuild();
    }

    /// Returns true if opening the screen must start a reading.
    pub fn is_unread(&self) -> bool {
        self.table.is_none() && !matches!(self.news, Tensors::Taking)
    }

    /// Returns the tables of all devices.
    pub(super) fn devices(&self) -> &[DeviceTable] {
        self.table.as_ref().map_or(&[], |table| &table.devices)
    }

    pub(super) fn shown_device(&self) -> Option<&DeviceTable> {
        let devices = self.devices();
        let chosen = devices
            .iter()
            .find(|table| Some(table.device) == self.device);
        chosen.or(devices.first())
    }

    /// Returns the rows of the table shown.
    pub(super) fn rows(&self) -> &[Row] {
        self.shown_device().map_or(&[], |table| &table.rows)
    }

    pub(super) fn selected(&self) -> Option<&Group> {
        self.groups.get(self.selection.cursor)
    }

    pub(super) fn layout(&self) -> Option<Layout> {
        layout(self.size.0, self.size.1)
    }

    /// Handles input. Returns a request if the screen's owner must act.
    pub fn handle(&mut self, wanted: TensorWanted) -> Option<TensorsRequest> {
        self.note = None;
        let wanted = match wanted {
            TensorWanted::Refresh if matches!(self.news, Tensors::Taking) => {
                self.note = Some("the process is being read already");
                return None;
            }
            TensorWanted::Refresh => return Some(TensorsRequest::Take),
            TensorWanted::Common(wanted) => wanted,
        };
        match wanted {
            InputEvent::Quit => return Some(TensorsRequest::Quit),
            InputEvent::Tensors => return Some(TensorsRequest::Leave),
            InputEvent::Back => {
                if let Some(asked) = self.back() {
                    return Some(asked);
                }
            }
            InputEvent::Move(by) => self.step(by),
            InputEvent::Page(by) => self.step(list::pages(by, self.rows_height())),
            InputEvent::First => self.go_first(),
            InputEvent::Last => self.step(isize::MAX),
            InputEvent::Toggle | InputEvent::Open => self.toggle_detail(),
            InputEvent::Close => self.overlay = Overlay::None,
            InputEvent::SortStep(by) => self.sort_step(by),
            InputEvent::Reverse => self.reverse(),
            InputEvent::Regroup => self.regroup(),
            InputEvent::Device(by) => self.go_device(by),
            InputEvent::Help => {
                self.overlay = match self.overlay {
                    Overlay::Help(_) => Overlay::None,
                    _ => Overlay::Help(0),
                };
            }
            InputEvent::Click(x, y) => self.click(Position { x, y }),
            InputEvent::Resize(width, height) => self.size = (width, height),
            InputEvent::Suspend => self.note = Some("stopping memprobe would lose events: q quits"),
            InputEvent::Filter => {
                self.overlay = Overlay::None;
                self.focus = Some(Focus::Prompt);
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
            InputEvent::Accept => self.focus = None,
            InputEvent::Redraw => {}
            // The owner of the screen handles these.
            InputEvent::Modules
            | InputEvent::Categories
            | InputEvent::Layers
            | InputEvent::Probes
            | InputEvent::Outside => {}
            InputEvent::Pause => self.note = Some("this screen is a snapshot: R reads again"),
            // Only the screen of lines handles these.
            InputEvent::OpenAll
            | InputEvent::SortBy(_)
            | InputEvent::Source
            | InputEvent::Iteration(_) => {
                self.note = Some("this key works on the screen of lines: t leads back")
            }
        }
        self.rebuild();
        None
    }

    fn rebuild(&mut self) {
        let rows = self.rows();
        let names = FileNames::of(
            rows.iter()
                .filter_map(|row| row.site.as_ref())
                .map(|site| &site.file),
        );
        let all = Totals::of(rows, 0..rows.len());
        let filter = &self.filter;
        let found = |at: &usize| !filter.is_active() || filter.shows(&table::searched(rows, *at));
        let places = (0..rows.len()).filter(found);
        // Memory outside the allocator is listed last, so that the rows before it add up to the allocator's
        // total.
        let (theirs, ours): (Vec<usize>, Vec<usize>) =
            places.partition(|at| rows[*at].outside.is_some());
        let shown = Totals::of(rows, ours.iter().chain(&theirs).copied());
        let mut groups = Vec::new();
        for places in [ours, theirs] {
            let mut part = groups_of(rows, places, self.by, self.order);
            if self.direction == Direction::Reversed {
                part.reverse();
            }
            groups.extend(part);
        }
        let place = self.selection.key.as_ref().and_then(|mark| {
            let is_it = |group: &Group| marked(&rows[group.rows[0]]) == *mark;
            groups.iter().position(is_it)
        });
        let height = self.rows_height().unwrap_or(0);
        self.selection.settle(groups.len(), height, |_| place);
        self.groups = groups;
        self.names = names;
        (self.all, self.shown) = (all, shown);
    }

    fn rows_height(&self) -> Option<u16> {
        Some(self.layout()?.rows.height)
    }

    fn step(&mut self, by: isize) {
        if let Overlay::Help(at) | Overlay::Detail(at) = &mut self.overlay {
            return list::scroll(at, by);
        }
        self.selection.step(by, self.groups.len());
        self.keep_selected();
    }

    fn keep_selected(&mut self) {
        let row = self
            .selected()
            .and_then(|group| self.rows().get(group.rows[0]));
        self.selection.key = row.map(marked);
    }

    fn go_first(&mut self) {
        match &mut self.overlay {
            Overlay::Help(at) | Overlay::Detail(at) => *at = 0,
            Overlay::None => self.selection.key = None,
        }
    }

    fn toggle_detail(&mut self) {
        self.overlay = match self.overlay {
            Overlay::None if !self.groups.is_empty() => Overlay::Detail(0),
            _ => Overlay::None,
        };
        self.keep_selected();
    }

    fn sort_step(&mut self, by: isize) {
        self.order = list::further(&ORDERS, self.order, by).unwrap_or_default();
        self.direction = Direction::Natural;
    }

    fn reverse(&mut self) {
        self.direction = match self.direction {
            Direction::Natural => Direction::Reversed,
            Direction::Reversed => Direction::Natural,
        };
    }

    fn regroup(&mut self) {
        self.by = list::further(&GROUPINGS, self.by, 1).unwrap_or_default();
        self.selection.key = None;
        self.overlay = Overlay::None;
    }

    fn go_device(&mut self, by: isize) {
        let devices = self.devices();
        if devices.len() < 2 {
            self.note = Some("tensors lie on one device only");
            return;
        }
        let all: Vec<Device> = devices.iter().map(|table| table.device).collect();
        let shown = self.shown_device().map(|table| table.device);
        self.device = shown.and_then(|shown| list::further(&all, shown, by));
        self.selection.key = None;
        self.overlay = Overlay::None;
    }

    fn back(&mut self) -> Option<TensorsRequest> {
        if self.overlay != Overlay::None {
            self.overlay = Overlay::None;
        } else if self.focus() == Focus::Prompt || !self.filter.pattern().is_empty() {
            self.focus = None;
            self.filter = Filter::default();
        } else {
            return Some(TensorsRequest::Leave);
        }
        None
    }

    /// Handles a click: on a head it sorts, on a row it selects, on the selected row it opens.
    fn click(&mut self, at: Position) {
        if self.overlay != Overlay::None {
            self.overlay = Overlay::None;
            return;
        }
        let Some(layout) = self.layout() else { return };
        if layout.head.contains(at) {
            let order = column_at(layout.head.width, at.x).and_then(|column| column.order());
            match order {
                Some(order) if order == self.order => self.reverse(),
                Some(order) => (self.order, self.direction) = (order, Direction::Natural),
                None => {}
            }
        } else if layout.rows.contains(at) {
            let rows = self.groups.len();
            let Some(place) = self.selection.at(layout.rows, at.y, rows) else {
                return;
            };
            let again = place == self.selection.cursor && self.selection.key.is_some();
            self.selection.cursor = place;
            self.keep_selected();
            if again {
                self.toggle_detail();
            }
        }
    }
}

fn marked(row: &Row) -> Mark {
    let name = row.name().map(|name| Arc::clone(&name.text));
    let object = if name.is_some() { 0 } else { row.object };
    (row.kind, name, row.storage, object)
}

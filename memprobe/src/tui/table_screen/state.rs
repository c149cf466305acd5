//! State of a table screen between two drawings, and its input handling. No I/O.

use std::cell::Cell;

use ratatui::buffer::Buffer;
use ratatui::layout::Position;

use super::super::Command;
use super::super::bars::tab_at;
use super::super::filter::Filter;
use super::super::input::{Focus, InputEvent};
use super::super::theme::Theme;
use super::columns::{TableSort, column_at, further, places};
use super::layout::{ScreenLayout, layout};
use super::rows::Selection;
use super::{
    Content, Errand, Fold, Note, Query, Reaction, RowOf, ScreenContext, ScreenRequest, SourcePlace,
    TableOf,
};
use crate::view::clean;
use crate::view::table::Column;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OverlayKind {
    Help,
    Probes,
    Detail,
}

/// Most lines that an overlay is scrolled before it was drawn.
const MAX_SCROLL: usize = 1000;

/// Text that a prompt asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PromptKind {
    /// Pattern of the rows that are shown.
    Filter,
    /// Pattern of the rows to go to.
    Search,
}

/// Overlay, scrolled down by lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Overlay {
    pub kind: OverlayKind,
    pub scroll: usize,
}

#[derive(Clone, Debug)]
pub struct TableState<K> {
    pub query: Query<K>,
    pub focus: Focus,
    pub overlay: Option<Overlay>,
    pub selection: Selection<K>,
    pub note: Option<Note>,
    /// Largest useful scroll of the overlay, as of its last drawing.
    pub overlay_end: Cell<usize>,
    /// Pattern of the rows that `n` goes to.
    pub search: Filter,
    /// Row at which the search began.
    pub(super) search_from: usize,
    /// Cells that long names are scrolled to the left.
    pub sideways: usize,
    /// Work for the terminal, until it is done.
    pub errand: Option<Errand>,
    size: (u16, u16),
}

pub struct TableScreen<C: Content> {
    pub content: C,
    pub state: TableState<C::Key>,
    pub table: TableOf<C>,
    /// True if letters of the filter were typed since the rows were made.
    is_behind: bool,
}

/// Screen of any table in a context.
pub trait ScreenHandle<X> {
    fn focus(&self) -> Focus;

    /// Makes the rows anew, after new data or a new size.
    fn rebuild(&mut self, context: &X);

    /// Makes the rows of a filter whose letters were typed. To be called before a drawing: the letters that are typed
    /// until then are taken together.
    fn catch_up(&mut self, context: &X);

    fn resize(&mut self, width: u16, height: u16, context: &X);

    /// Handles input. Returns a request if the screen's owner must act.
    fn handle(&mut self, event: InputEvent, context: &mut X) -> Option<ScreenRequest>;

    /// Draws the screen. Returns the position of the visible cursor, if any.
    fn draw(&self, buffer: &mut Buffer, context: &X, theme: &Theme) -> Option<Position>;

    /// Returns work for the terminal that the last input asked for.
    fn take_errand(&mut self) -> Option<Errand>;

    /// Shows a note until the next input.
    fn say(&mut self, note: Note);

    /// Removes the note.
    fn clear_note(&mut self);
}

/// Note for a row without a line of source.
const NO_PLACE: &str = "this row has no line of source: select one that has";

/// Returns the index of the column of the live screen with this head.
fn column_headed<R>(columns: &[Column<R>], head: &str) -> Option<usize> {
    let is_headed = |column: &Column<R>| column.screen.is_some() && column.head == head;
    columns.iter().position(is_headed)
}

impl<C: Content> ScreenHandle<C::Context> for TableScreen<C> {
    fn focus(&self) -> Focus {
        self.state.focus
    }

    fn rebuild(&mut self, context: &C::Context) {
        self.is_behind = false;
        if self.content.has_changed(&self.state.query, context) {
            self.table = self.content.build(&mut self.state.query, context);
        }
        let height = self.rows_height(context);
        let rows = &self.table.rows;
        let place = |key: &C::Key| rows.iter().position(|row| row.key == *key);
        self.state.selection.settle(rows.len(), height, place);
    }

    fn catch_up(&mut self, context: &C::Context) {
        if self.is_behind {
            self.rebuild(context);
        }
    }

    fn resize(&mut self, width: u16, height: u16, context: &C::Context) {
        self.state.size = (width, height);
        self.rebuild(context);
    }

    fn handle(&mut self, event: InputEvent, context: &mut C::Context) -> Option<ScreenRequest> {
        self.state.note = None;
        if self.edits_filter(event) {
            self.react(event, context);
            self.is_behind = true;
            return None;
        }
        // Other keys are meant for the rows of the whole filter.
        self.catch_up(context);
        let request = match self.react(event, context) {
            Reaction::Request(request) => Some(request),
            Reaction::Note(note) => {
                self.state.note = Some(note);
                None
            }
            Reaction::Detail => {
                self.toggle_overlay(OverlayKind::Detail);
                None
            }
            Reaction::Done | Reaction::Ignored => None,
        };
        self.rebuild(context);
        request
    }

    fn draw(&self, buffer: &mut Buffer, context: &C::Context, theme: &Theme) -> Option<Position> {
        self.draw_screen(buffer, context, theme)
    }

    fn take_errand(&mut self) -> Option<Errand> {
        self.state.errand.take()
    }

    fn say(&mut self, note: Note) {
        self.state.note = Some(note);
    }

    fn clear_note(&mut self) {
        self.state.note = None;
    }
}

impl<C: Content> TableScreen<C> {
    /// Creates a screen without size.
    pub fn new(content: C, context: &C::Context) -> Self {
        let columns = content.parts().columns;
        let is_first = |column: &Column<C::Data>| {
            column.screen.is_some() && [column.head, ""].contains(&C::FIRST_SORT)
        };
        let on_screen = |column: &Column<C::Data>| column.screen.is_some();
        let column = columns.iter().position(is_first);
        let column = column.or_else(|| columns.iter().position(on_screen));
        let column = column.unwrap_or(0);
        let first = columns[column].screen.and_then(|screen| screen.order);
        let order = first.unwrap_or_default();
        let mut screen = Self {
            content,
            state: TableState {
                query: Query {
                    sort: TableSort { column, order },
                    ..Query::default()
                },
                focus: Focus::Table,
                overlay: None,
                selection: Selection::default(),
                note: None,
                overlay_end: Cell::new(MAX_SCROLL),
                search: Filter::default(),
                search_from: 0,
                sideways: 0,
                errand: None,
                size: (0, 0),
            },
            table: TableOf::<C>::default(),
            is_behind: false,
        };
        screen.rebuild(context);
        screen
    }

    pub fn selected(&self) -> Option<&RowOf<C>> {
        self.table.rows.get(self.state.selection.cursor)
    }

    /// States that no row matches the filter; `noun` and `plural` name the rows.
    pub fn no_match(&self, noun: &str, plural: &str) -> Option<[Note; 2]> {
        let pattern = clean(self.state.query.filter.pattern());
        let problem = format!("No {noun} matches /{pattern}/");
        Some([problem.into(), format!("Esc shows all {plural}.").into()])
    }

    pub fn layout(&self, context: &C::Context) -> Option<ScreenLayout> {
        let (width, height) = self.state.size;
        layout(width, height, self.content.needs(width, height, context))
    }

    pub fn size(&self) -> (u16, u16) {
        self.state.size
    }

    fn rows_height(&self, context: &C::Context) -> u16 {
        self.layout(context).map_or(0, |layout| layout.rows.height)
    }

    fn react(&mut self, event: InputEvent, context: &mut C::Context) -> Reaction {
        match event {
            InputEvent::Quit => return Reaction::Request(ScreenRequest::Quit),
            InputEvent::Back => return self.back(context),
            InputEvent::Move(by) => self.step(by),
            InputEvent::Page(by) => {
                let page = isize::try_from(self.rows_height(context)).unwrap_or(1);
                self.step(by.saturating_mul(page.max(2) - 1));
            }
            InputEvent::First => match &mut self.state.overlay {
                Some(overlay) => overlay.scroll = 0,
                None => self.state.selection.key = None,
            },
            InputEvent::Last => self.step(isize::MAX),
            InputEvent::Toggle => return self.enter(),
            InputEvent::Open => match self.selected().map(|row| row.fold) {
                Some(Fold::Open) => self.keep_selected(),
                _ => return self.enter(),
            },
            InputEvent::Close => self.close(),
            InputEvent::OpenAll => self.open_all(context),
            InputEvent::SortStep(by) => self.sort_step(by),
            InputEvent::SortBy(place) => {
                let column = match C::DIGITS.get(place) {
                    Some(head) => column_headed(self.content.parts().columns, head),
                    None if C::DIGITS.is_empty() => self.sortable().nth(place),
                    None => None,
                };
                column.into_iter().for_each(|column| self.sort_by(column));
            }
            InputEvent::Reverse => self.reverse(),
            InputEvent::Help => self.toggle_overlay(OverlayKind::Help),
            InputEvent::Click(x, y) => return self.click(Position { x, y }, context),
            InputEvent::Resize(width, height) => self.state.size = (width, height),
            // A stopped memprobe does not drain the ring buffer: events of the target would be lost.
            InputEvent::Suspend => {
                return Reaction::Note("stopping memprobe would lose events: q quits".into());
            }
            InputEvent::Filter => {
                (self.state.overlay, self.state.focus) = (None, Focus::Prompt(PromptKind::Filter));
            }
            InputEvent::Search => self.begin_search(),
            InputEvent::SearchNext(by) => return self.search_next(by),
            InputEvent::Sideways(by) => self.scroll_sideways(by),
            InputEvent::CopyPlace => return self.copy_place(),
            InputEvent::Edit => return self.edit(),
            InputEvent::Accept => return self.accept(),
            _ if self.state.focus == Focus::Prompt(PromptKind::Search) => {
                if !self.edit_search(event) {
                    return self.react_alone(event, context);
                }
            }
            _ => match self.state.query.filter.edited(event) {
                Some(filter) => {
                    self.state.query.filter = filter;
                    self.state.selection.key = None;
                }
                None => return self.react_alone(event, context),
            },
        }
        Reaction::Done
    }

    /// True for input that changes the filter and nothing else.
    fn edits_filter(&self, event: InputEvent) -> bool {
        use InputEvent::{Erase, EraseAll, EraseWord, Type};
        let is_edit = matches!(event, Type(_) | Erase | EraseWord | EraseAll);
        is_edit && self.state.focus == Focus::Prompt(PromptKind::Filter)
    }

    /// Ends a prompt with its pattern.
    fn accept(&mut self) -> Reaction {
        let focus = std::mem::replace(&mut self.state.focus, Focus::Table);
        if focus != Focus::Prompt(PromptKind::Search) || !self.state.search.is_active() {
            return Reaction::Done;
        }
        let pattern = clean(self.state.search.pattern());
        Reaction::Note(match self.matches().len() {
            0 => format!("no row matches {pattern}").into(),
            1 => format!("1 row matches {pattern}").into(),
            number => format!("{number} rows match {pattern}: n next, N previous").into(),
        })
    }

    fn selected_place(&self) -> Option<SourcePlace> {
        self.content.place(self.selected()?)
    }

    fn copy_place(&mut self) -> Reaction {
        let Some(place) = self.selected_place() else {
            return Reaction::Note(NO_PLACE.into());
        };
        let text = place.text();
        let note = format!("copied {text}");
        self.state.errand = Some(Errand::Copy(text));
        Reaction::Note(note.into())
    }

    fn edit(&mut self) -> Reaction {
        let Some(place) = self.selected_place() else {
            return Reaction::Note(NO_PLACE.into());
        };
        self.state.errand = Some(Errand::Edit(place));
        Reaction::Done
    }

    /// Handles input that not all tables share.
    fn react_alone(&mut self, event: InputEvent, context: &mut C::Context) -> Reaction {
        let reaction = self.content.handle(event, &mut self.state, context);
        match (reaction, event) {
            (Reaction::Ignored, InputEvent::Refresh) => self.reverse(),
            (Reaction::Ignored, InputEvent::Freeze) => return self.freeze(),
            (Reaction::Ignored, InputEvent::Save) if self.content.parts().tab.is_some() => {
                return Reaction::Request(ScreenRequest::Send(Command::SaveRecording));
            }
            (Reaction::Ignored, InputEvent::Probes) if self.content.parts().tab.is_some() => {
                self.toggle_overlay(OverlayKind::Probes);
            }
            (Reaction::Ignored, _) => {
                if let InputEvent::Device(_) = event {
                    self.state.selection.key = None;
                    self.state.query.frozen = None;
                }
                return context.handle(event).map_or(Reaction::Done, Reaction::Note);
            }
            (reaction, _) => return reaction,
        }
        Reaction::Done
    }

    fn step(&mut self, by: isize) {
        if let Some(Overlay { scroll, .. }) = &mut self.state.overlay {
            let end = self.state.overlay_end.get();
            *scroll = (*scroll).min(end).saturating_add_signed(by).min(end);
            return;
        }
        self.state.selection.step(by, self.table.rows.len());
        self.keep_selected();
    }

    pub fn keep_selected(&mut self) {
        self.state.selection.key = self.selected().map(|row| row.key.clone());
    }

    fn toggle_overlay(&mut self, kind: OverlayKind) {
        self.state.overlay_end.set(MAX_SCROLL);
        self.state.overlay = match self.state.overlay {
            Some(shown) if shown.kind == kind => None,
            _ => Some(Overlay { kind, scroll: 0 }),
        };
    }

    fn enter(&mut self) -> Reaction {
        self.keep_selected();
        let Some(row) = self.selected() else {
            return Reaction::Done;
        };
        let is_covered = self.state.overlay.is_some();
        match self.content.enter(row) {
            Reaction::Ignored => return self.toggle(),
            _ if is_covered => self.state.overlay = None,
            reaction => return reaction,
        }
        Reaction::Done
    }

    fn toggle(&mut self) -> Reaction {
        let Some(row) = self.selected() else {
            return Reaction::Done;
        };
        let (key, is_outermost) = (row.key.clone(), row.depth == 0);
        match row.fold {
            Fold::Closed => drop(self.state.query.open.insert(key)),
            Fold::Open => self.close(),
            Fold::Leaf if is_outermost => return Reaction::Note(C::NOTHING_BENEATH.into()),
            Fold::Leaf | Fold::Part => {}
        }
        Reaction::Done
    }

    /// Closes the selected row, or else goes to its parent.
    fn close(&mut self) {
        if matches!(self.state.overlay, Some(shown) if shown.kind == OverlayKind::Detail) {
            self.state.overlay = None;
        }
        let Some(row) = self.selected() else { return };
        let (key, depth, fold) = (row.key.clone(), row.depth, row.fold);
        if fold != Fold::Open || !self.state.query.open.remove(&key) {
            let is_parent = |above: &RowOf<C>| match fold {
                Fold::Part => above.depth == depth && above.fold == Fold::Open,
                _ => above.depth < depth,
            };
            let cursor = self.state.selection.cursor;
            let parent = self.table.rows[..cursor].iter().rposition(is_parent);
            self.state.selection.cursor = parent.unwrap_or(cursor);
        }
        self.keep_selected();
    }

    fn open_all(&mut self, context: &C::Context) {
        self.keep_selected();
        if let Some(row) = self.selected() {
            let keys = self.content.keys_beneath(row, context);
            self.state.query.open.extend(keys);
        }
    }

    fn sortable(&self) -> impl Iterator<Item = usize> + use<'_, C> {
        let columns = self.content.parts().columns.iter().enumerate();
        let sortable =
            columns.filter(|(_, column)| column.is_sortable() && self.content.shows(column));
        sortable.map(|(at, _)| at)
    }

    /// Sorts by the visible column so many places to the right, wrapping around.
    fn sort_step(&mut self, by: isize) {
        let visible = places(&self.content, self.state.size.0);
        let is_visible = |column: &usize| visible.iter().any(|place| place.column == *column);
        let columns: Vec<usize> = self.sortable().filter(is_visible).collect();
        if let Some(column) = further(&columns, self.state.query.sort.column, by) {
            self.sort_by(column);
        }
    }

    /// Sorts by a column in its first direction, or reverses the order if it is already the sort column.
    pub fn sort_by(&mut self, column: usize) {
        self.state.query.frozen = None;
        let screen = self.content.parts().columns[column].screen;
        match screen.and_then(|screen| screen.order) {
            Some(_) if self.state.query.sort.column == column => self.reverse(),
            Some(order) => self.state.query.sort = TableSort { column, order },
            None => {}
        }
    }

    fn reverse(&mut self) {
        self.state.query.frozen = None;
        let sort = &mut self.state.query.sort;
        sort.order = sort.order.reversed();
    }

    /// Keeps the rows in their places while their values change, or lets them move again.
    fn freeze(&mut self) -> Reaction {
        let frozen = &mut self.state.query.frozen;
        if frozen.take().is_some() {
            return Reaction::Note("rows move with their values again".into());
        }
        let rows = self.table.rows.iter().enumerate();
        *frozen = Some(rows.map(|(at, row)| (row.key.clone(), at)).collect());
        Reaction::Note("order frozen: f lets rows move again".into())
    }

    fn back(&mut self, context: &C::Context) -> Reaction {
        let state = &mut self.state;
        if state.overlay.take().is_some() {
            return Reaction::Done;
        }
        if state.focus == Focus::Prompt(PromptKind::Search) {
            state.focus = Focus::Table;
            self.abandon_search();
            return Reaction::Done;
        }
        if state.focus != Focus::Table || !state.query.filter.pattern().is_empty() {
            state.focus = Focus::Table;
            state.query.filter = Filter::default();
            return Reaction::Done;
        }
        if std::mem::take(&mut state.sideways) > 0 {
            return Reaction::Done;
        }
        match self.content.handle(InputEvent::Back, state, context) {
            Reaction::Ignored => Reaction::Request(ScreenRequest::Leave),
            reaction => reaction,
        }
    }

    /// Handles a click: on a head it sorts, on a row it selects, on a fold mark or the selected row it is Enter.
    fn click(&mut self, at: Position, context: &mut C::Context) -> Reaction {
        let Some(layout) = self
            .layout(context)
            .filter(|_| self.state.overlay.take().is_none())
        else {
            return Reaction::Done;
        };
        if layout.head.contains(at) {
            if let Some(column) = column_at(&places(&self.content, layout.head.width), at.x) {
                self.sort_by(column);
            }
        } else if layout.rows.contains(at) {
            let selection = &mut self.state.selection;
            let Some(place) = selection.at(layout.rows, at.y, self.table.rows.len()) else {
                return Reaction::Done;
            };
            let is_selected = place == selection.cursor && selection.key.is_some();
            selection.cursor = place;
            self.keep_selected();
            if is_selected || self.is_fold_mark(place, at.x, layout.rows.width) {
                return self.enter();
            }
        } else if layout.devices.contains(at) {
            let devices = self.content.devices(context);
            if let Some(clicked) = tab_at(&devices.tabs, at.x) {
                let by = clicked as isize - devices.shown as isize;
                return self.react_alone(InputEvent::Device(by), context);
            }
        }
        Reaction::Done
    }
}

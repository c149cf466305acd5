//! The table screen: a table with cursor, sort order, filter and open rows, and the parts around it.
//!
//! A screen is its [`Content`]: rows, columns, keys of its own, and the texts around the table. Everything
//! else is the same on all screens.

mod columns;
mod draw;
mod layout;
mod rows;
mod search;
mod state;

use std::borrow::Cow;
use std::fmt::Debug;
use std::hash::Hash;

use ratatui::buffer::Buffer;
use ratatui::text::{Line, Span};

use super::Command;
use super::bars::{StatusLine, Tab};
use super::input::InputEvent;
use super::theme::Theme;
use crate::event::{Frame, Tgid};

use crate::view::clean;
use crate::view::table::Column;
pub use columns::TableSort;
pub use columns::{bar, cell_text, further};
pub use draw::draw_text;
pub use layout::{Needs, SIDE_BY_SIDE, SMALLEST, ScreenLayout, cut_at};
pub use rows::{Fold, Query, RowOf, TableOf, TableRow};
pub use state::{PromptKind, ScreenHandle, TableScreen, TableState};

/// Note about the last key.
pub type Note = Cow<'static, str>;

/// Line of a file of the target. Its path may hold anything.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourcePlace {
    pub file: String,
    pub line: u32,
}

impl SourcePlace {
    /// Returns the line of a frame; `None` for native code and unknown lines.
    pub fn of(frame: &Frame) -> Option<Self> {
        let is_known = frame.line > 0 && !frame.file.is_empty();
        is_known.then(|| Self {
            file: frame.file.to_string(),
            line: frame.line,
        })
    }

    /// Formats the place without characters that a terminal interprets.
    pub fn text(&self) -> String {
        clean(&format!("{}:{}", self.file, self.line))
    }
}

/// Work for the terminal, outside the screen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Errand {
    /// Copy a text to the user's clipboard.
    Copy(String),
    /// Open a file in the user's editor, which takes the terminal until it ends.
    Edit(SourcePlace),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScreenRequest {
    Quit,
    Leave,
    Send(Command),
    Open(Tgid),
}

/// Reaction to an input event that not all screens share.
pub enum Reaction {
    /// The screen has no reaction of its own.
    Ignored,
    Done,
    /// Show or hide the details of the selected row.
    Detail,
    Note(Note),
    Request(ScreenRequest),
}

/// Key, its action, and its drop rank: the highest is dropped first where space is short.
pub type KeyHint = (&'static str, &'static str, u8);

pub struct ScreenTitle {
    pub name: String,
    pub text: String,
    /// Facts at the right with their drop ranks: the highest is dropped first where space is short.
    pub facts: Vec<(u8, String)>,
}

impl ScreenTitle {
    /// Lowest rank of facts that only a wide screen shows.
    pub const WIDE_ONLY: u8 = 10;
}

/// Text of each device tab, and the index of the device shown.
#[derive(Default)]
pub struct DeviceTabs {
    pub tabs: Vec<String>,
    pub shown: usize,
}

/// State that all screens of a process, or of a host, share.
pub trait ScreenContext {
    /// Handles input for all screens. Returns a note about it, if any.
    fn handle(&mut self, event: InputEvent) -> Option<Note>;

    fn title(&self, tab: Option<Tab>) -> ScreenTitle;

    fn devices(&self) -> DeviceTabs;

    fn status(&self, theme: &Theme) -> StatusLine;

    /// Returns the rows that most screens need around their table.
    fn needs(&self, height: u16) -> Needs;

    fn keys(&self) -> Vec<KeyHint>;

    /// Returns the help on the keys of all screens, a line each; the text starts at its 13th character.
    fn help(&self) -> Cow<'static, str>;

    /// Returns the most important number, for a terminal too small for any table.
    fn number(&self) -> String;

    fn probes(&self, _theme: &Theme) -> Vec<Line<'static>> {
        Vec::new()
    }
}

/// Parts of a table screen that are always the same.
pub struct ScreenParts<D: 'static> {
    /// `None` for a screen of its own, without tabs.
    pub tab: Option<Tab>,
    pub columns: &'static [Column<D>],
    /// Description of the text that the filter matches.
    pub searched: &'static str,
    pub keys: &'static [KeyHint],
    /// Help on the keys of this screen, and below on the terms in its table.
    pub help: &'static str,
    pub terms: &'static str,
}

pub trait Content: Sized + 'static {
    type Key: Clone + Eq + Hash + Debug;
    type Data;
    type Context: ScreenContext;

    /// Note if a row has nothing beneath.
    const NOTHING_BENEATH: &'static str = "nothing beneath";

    /// Head of the column that the table sorts by at first; empty for the first column.
    const FIRST_SORT: &'static str = "";
    /// Heads of the columns that the keys 1 to 9 sort by, if these are not the first ones.
    const DIGITS: &'static [&'static str] = &[];

    fn parts(&self) -> &ScreenParts<Self::Data>;

    /// Returns true unless the column has nothing to show.
    fn shows(&self, _column: &Column<Self::Data>) -> bool {
        true
    }

    fn head(&self, column: &Column<Self::Data>) -> &'static str {
        column.head
    }

    /// Returns a hint at the right end of the heads.
    fn hint(&self) -> Option<String> {
        None
    }

    fn build(&mut self, query: &mut Query<Self::Key>, context: &Self::Context) -> TableOf<Self>;

    /// Returns false if [`Self::build`] would make the rows that it made the last time.
    fn has_changed(&self, _query: &Query<Self::Key>, _context: &Self::Context) -> bool {
        true
    }

    /// Returns the reaction to Enter on a row, if it does not open or close it.
    fn enter(&self, _row: &RowOf<Self>) -> Reaction {
        Reaction::Ignored
    }

    /// Returns the keys of all rows that can be opened at and beneath a row.
    fn keys_beneath(&self, _row: &RowOf<Self>, _context: &Self::Context) -> Vec<Self::Key> {
        Vec::new()
    }

    /// Handles a key that not all screens share.
    fn handle(
        &mut self,
        _event: InputEvent,
        _state: &mut TableState<Self::Key>,
        _context: &Self::Context,
    ) -> Reaction {
        Reaction::Ignored
    }

    fn needs(&self, _width: u16, height: u16, context: &Self::Context) -> Needs {
        context.needs(height)
    }

    fn devices(&self, context: &Self::Context) -> DeviceTabs {
        context.devices()
    }

    fn status(&self, context: &Self::Context, theme: &Theme) -> StatusLine {
        context.status(theme)
    }

    /// Describes the totals above the table, if no other totals are drawn.
    fn account(&self, _context: &Self::Context) -> Option<String> {
        None
    }

    /// Draws the parts that only this screen has: totals, graph, second table, source text.
    fn draw_around(
        _screen: &TableScreen<Self>,
        _buffer: &mut Buffer,
        _layout: &ScreenLayout,
        _context: &Self::Context,
        _theme: &Theme,
    ) {
    }

    /// Returns the reason for an empty table, and a remedy.
    fn nothing(screen: &TableScreen<Self>, context: &Self::Context) -> Option<[Note; 2]>;

    /// Returns a mark and a style of a row, if they are not the usual ones.
    fn mark(&self, _row: &RowOf<Self>, _theme: &Theme) -> Option<Span<'static>> {
        None
    }

    /// Returns a letter before the name.
    fn badge(&self, _row: &RowOf<Self>, _theme: &Theme) -> Option<Span<'static>> {
        None
    }

    /// Returns a text beside the name, such as source text.
    fn aside(&self, _row: &RowOf<Self>) -> Option<String> {
        None
    }

    /// Returns the total that the rows must add up to, and its name.
    fn total(&self, _context: &Self::Context) -> Option<(i128, &'static str)> {
        None
    }

    /// Describes the sum of the rows in other words than usual.
    fn sum(&self, _table: &TableOf<Self>, _filters: bool) -> Option<String> {
        None
    }

    /// Returns the line of source of a row; `None` if it has none.
    fn place(&self, _row: &RowOf<Self>) -> Option<SourcePlace> {
        None
    }

    /// Summarizes the selected row in lines of so many cells.
    fn detail(&self, row: &RowOf<Self>, wide: usize, cut: &str) -> Vec<String>;

    /// Returns the text of [`state::OverlayKind::Detail`], and its title.
    fn full_detail(
        &self,
        _row: &RowOf<Self>,
        _theme: &Theme,
    ) -> (&'static str, Vec<Line<'static>>) {
        ("", Vec::new())
    }
}

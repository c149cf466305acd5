//! Tables with common columns for text and structured formats.

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::bytes::{human, signed};
use crate::event::{Bytes, DeviceIndex};
use crate::label::{CUT, clean, count, duration, fit, width};
use crate::report::document_old::Layout;
use crate::report::structured::known_device;
use crate::report::table::{Style, push_line};

/// Minimum width of the last column.
const NARROWEST: usize = 20;

/// Text of an unknown value.
const NONE: &str = "-";

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    /// Unknown.
    None,
    /// Not applicable.
    Blank,
    Bytes(u64),
    Signed(i64),
    Count(u64),
    Truth(bool),
    Nanoseconds(u64),
    Share(String),
    Words(String),
    List(Vec<String>),
    Device(DeviceIndex),
}

impl Cell {
    pub(super) fn words(words: &str) -> Self {
        Self::Words(words.to_owned())
    }

    fn for_people(&self) -> String {
        match self {
            Self::None => NONE.to_owned(),
            Self::Blank => String::new(),
            Self::Bytes(bytes) => human(Bytes(*bytes)),
            Self::Signed(bytes) => signed(*bytes),
            Self::Count(number) => count(*number),
            Self::Truth(is_so) => is_so.to_string(),
            Self::Nanoseconds(time) => duration(std::time::Duration::from_nanos(*time)),
            Self::Share(words) | Self::Words(words) => clean(words),
            Self::List(all) if all.is_empty() => NONE.to_owned(),
            Self::List(all) => clean(&all.join(", ")),
            Self::Device(device) => device.to_string(),
        }
    }

    fn for_csv(&self) -> String {
        match self {
            Self::None | Self::Blank => String::new(),
            Self::Bytes(number) | Self::Count(number) | Self::Nanoseconds(number) => {
                number.to_string()
            }
            Self::Signed(number) => number.to_string(),
            Self::Truth(is_so) => is_so.to_string(),
            Self::Share(words) | Self::Words(words) => words.clone(),
            Self::List(all) => all.join(" "),
            Self::Device(device) => match *device {
                DeviceIndex::CPU => device.to_string(),
                device => known_device(device).map_or(String::new(), |it| it.0.to_string()),
            },
        }
    }
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None | Self::Blank => to.serialize_none(),
            Self::Bytes(number) | Self::Count(number) | Self::Nanoseconds(number) => {
                to.serialize_u64(*number)
            }
            Self::Signed(number) => to.serialize_i64(*number),
            Self::Truth(is_so) => to.serialize_bool(*is_so),
            Self::Share(words) | Self::Words(words) => to.serialize_str(words),
            Self::List(all) => all.serialize(to),
            Self::Device(device) => known_device(*device).serialize(to),
        }
    }
}

/// Audience of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnAudience {
    /// Text and structured formats; in text under this heading.
    All(&'static str),
    /// Like `All`, but dropped from narrow text; the highest number goes first.
    Wide(&'static str, u8),
    /// Like `Wide`; if dropped, its bytes count in the column `Rest`.
    Part(&'static str, u8),
    /// Text only: bytes without a column of their own.
    Rest(&'static str),
    /// Structured formats only.
    Programs,
    /// Text only: repeats other columns in another form.
    People(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    /// Name in structured formats.
    pub(super) key: &'static str,
    pub(super) shown: ColumnAudience,
}

impl Column {
    pub(super) const fn all(key: &'static str, heading: &'static str) -> Self {
        let shown = ColumnAudience::All(heading);
        Self { key, shown }
    }

    pub(super) const fn wide(key: &'static str, heading: &'static str, rank: u8) -> Self {
        let shown = ColumnAudience::Wide(heading, rank);
        Self { key, shown }
    }

    pub(super) const fn part(key: &'static str, heading: &'static str, rank: u8) -> Self {
        let shown = ColumnAudience::Part(heading, rank);
        Self { key, shown }
    }

    pub(super) const fn rest(heading: &'static str) -> Self {
        let shown = ColumnAudience::Rest(heading);
        Self { key: "", shown }
    }

    pub(super) const fn programs(key: &'static str) -> Self {
        let shown = ColumnAudience::Programs;
        Self { key, shown }
    }

    pub(super) const fn people(heading: &'static str) -> Self {
        let shown = ColumnAudience::People(heading);
        Self { key: "", shown }
    }

    fn heading(&self) -> Option<&'static str> {
        match self.shown {
            ColumnAudience::All(heading)
            | ColumnAudience::People(heading)
            | ColumnAudience::Rest(heading) => Some(heading),
            ColumnAudience::Wide(heading, _) | ColumnAudience::Part(heading, _) => Some(heading),
            ColumnAudience::Programs => None,
        }
    }

    fn is_for_people(&self) -> bool {
        matches!(
            self.shown,
            ColumnAudience::People(_) | ColumnAudience::Rest(_)
        )
    }

    fn rank(&self) -> Option<u8> {
        match self.shown {
            ColumnAudience::Wide(_, rank) | ColumnAudience::Part(_, rank) => Some(rank),
            _ => None,
        }
    }
}

/// Audience of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowAudience {
    Everybody,
    People,
    Programs,
}

/// One row: a cell for each column.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) cells: Vec<Cell>,
    pub(super) seen: RowAudience,
}

impl Row {
    pub(super) fn new(cells: Vec<Cell>) -> Self {
        let seen = RowAudience::Everybody;
        Self { cells, seen }
    }

    pub(super) fn seen(self, seen: RowAudience) -> Self {
        Self { seen, ..self }
    }
}

/// Rows of one device.
#[derive(Clone, Debug)]
pub(super) struct Grid {
    pub(super) columns: &'static [Column],
    pub(super) rows: Vec<Row>,
}

/// Rows of one moment of a device, for text.
pub(super) struct Section {
    /// Name of the moment; `None` if it is the only one.
    pub(super) title: Option<String>,
    pub(super) grid: Grid,
}

impl Grid {
    /// Writes the table as text. Columns that do not fit are dropped; returns their headings.
    pub(super) fn render(
        &self,
        text: &mut String,
        columns: usize,
        style: Style,
    ) -> Vec<&'static str> {
        let seen = self.rows.iter();
        let mut rows: Vec<Row> = seen
            .filter(|row| row.seen != RowAudience::Programs)
            .cloned()
            .collect();
        let mut shown: Vec<usize> = (0..self.columns.len())
            .filter(|at| self.columns[*at].heading().is_some() && self.says_anything(*at))
            .collect();
        let widths = self.widths(&rows);
        let mut left_out = Vec::new();
        while needed(&shown, &widths) > columns {
            let ranked = shown.iter().filter_map(|at| self.columns[*at].rank());
            let Some(last) = ranked.max() else { break };
            let goes = |at: &usize| self.columns[*at].rank() == Some(last);
            for at in shown.iter().copied().filter(goes) {
                left_out.extend(self.columns[at].heading());
                self.count_in_rest(&mut rows, at);
            }
            shown.retain(|at| !goes(at));
        }
        let widths = self.widths(&rows);
        let headings = self.columns.iter().map(|column| {
            let heading = column.heading().unwrap_or_default();
            Cell::words(heading)
        });
        let headings = Row::new(headings.collect());
        let line = |row: &Row| lay_out(row, &shown, &widths, &self.sides(), columns);
        push_line(text, &style.strong(&line(&headings)));
        for row in &rows {
            push_line(text, &line(row));
        }
        left_out
    }

    /// Adds the bytes of a dropped `Part` column to the `Rest` column.
    fn count_in_rest(&self, rows: &mut [Row], part: usize) {
        let is_rest = |column: &Column| matches!(column.shown, ColumnAudience::Rest(_));
        let rest = self.columns.iter().position(is_rest);
        let is_part = matches!(self.columns[part].shown, ColumnAudience::Part(..));
        let Some(rest) = rest.filter(|_| is_part) else {
            return;
        };
        for row in rows {
            let Some(Cell::Bytes(bytes)) = row.cells.get(part) else {
                continue;
            };
            let bytes = *bytes;
            match row.cells.get_mut(rest) {
                Some(Cell::Bytes(rest)) => *rest = rest.saturating_add(bytes),
                Some(Cell::Signed(rest)) => *rest = rest.saturating_add_unsigned(bytes),
                _ => {}
            }
        }
    }

    /// Returns false for a column to hide. Droppable and text-only columns are hidden if all their
    /// cells are empty.
    fn says_anything(&self, at: usize) -> bool {
        let nothing = |row: &Row| matches!(row.cells.get(at), Some(Cell::None | Cell::Blank));
        let stays = matches!(
            self.columns[at].shown,
            ColumnAudience::All(_) | ColumnAudience::Rest(_)
        );
        stays || !self.rows.iter().all(nothing)
    }

    fn widths(&self, rows: &[Row]) -> Vec<usize> {
        let of_column = |at: usize| {
            let heading = self.columns[at].heading().map_or(0, width);
            let cells = rows.iter().filter_map(|row| row.cells.get(at));
            let cells = cells.map(|cell| width(&cell.for_people()));
            cells.max().unwrap_or(0).max(heading)
        };
        (0..self.columns.len()).map(of_column).collect()
    }

    /// Alignment of each column: left if it has text.
    fn sides(&self) -> Vec<Side> {
        let of_column = |at: usize| {
            let cells = self.rows.iter().filter_map(|row| row.cells.get(at));
            let mut words = cells.filter(|cell| matches!(cell, Cell::Words(_) | Cell::List(_)));
            match words.next() {
                Some(_) => Side::Left,
                None => Side::Right,
            }
        };
        (0..self.columns.len()).map(of_column).collect()
    }

    /// Rows for structured formats.
    pub(super) fn into_rows(self, layout: Layout) -> impl Iterator<Item = Keyed> {
        let columns = self.columns;
        let rows = self.rows.into_iter();
        let seen = rows.filter(|row| row.seen != RowAudience::People);
        seen.map(move |row| Keyed {
            columns,
            row,
            layout,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

fn needed(shown: &[usize], widths: &[usize]) -> usize {
    let (last, others) = shown.split_last().map_or((0, &[][..]), |(last, others)| {
        (widths[*last].min(NARROWEST), others)
    });
    others.iter().map(|at| widths[*at] + 2).sum::<usize>() + last
}

fn lay_out(row: &Row, shown: &[usize], widths: &[usize], sides: &[Side], columns: usize) -> String {
    let mut line = String::new();
    for (place, at) in shown.iter().enumerate() {
        let cell = row.cells.get(*at).map_or(String::new(), Cell::for_people);
        if place + 1 == shown.len() && sides[*at] == Side::Left {
            let available = columns.saturating_sub(width(&line)).max(NARROWEST);
            line.push_str(&fit(&cell, available, CUT));
            break;
        }
        let gap = " ".repeat(widths[*at].saturating_sub(width(&cell)));
        match sides[*at] {
            Side::Left => line.extend([&*cell, &*gap]),
            Side::Right => line.extend([&*gap, &*cell]),
        }
        line.push_str("  ");
    }
    line
}

/// A row with its column names, which flat formats omit.
pub(super) struct Keyed {
    columns: &'static [Column],
    row: Row,
    layout: Layout,
}

impl Keyed {
    fn cells(&self) -> impl Iterator<Item = (&'static str, &Cell)> {
        let pairs = self.columns.iter().zip(&self.row.cells);
        pairs
            .filter(|(column, _)| !column.is_for_people())
            .map(|(column, cell)| (column.key, cell))
    }
}

impl Serialize for Keyed {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.layout == Layout::Flat {
            return to.collect_seq(self.cells().map(|(_, cell)| cell.for_csv()));
        }
        let mut map = to.serialize_map(None)?;
        for (key, cell) in self.cells() {
            map.serialize_entry(key, cell)?;
        }
        map.end()
    }
}

/// Column names in structured formats.
pub(super) fn headings(columns: &[Column]) -> Vec<&'static str> {
    let columns = columns.iter().filter(|column| !column.is_for_people());
    columns.map(|column| column.key).collect()
}

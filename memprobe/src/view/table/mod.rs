//! One definition of a table, with a writer for each output.
//!
//! A [`Column`] has a key for CSV and JSON, a heading for text, and a function from a row to a
//! [`Cell`]. A [`Table`] is columns and rows; [`Page`] writes it as text, [`csv()`], [`json_lines`]
//! and [`JsonRows`] for other programs.

mod cell;
mod data;
mod text;

#[cfg(test)]
mod tests;

pub use cell::{Cell, Sizes};
pub use data::{CsvWriter, JsonRow, JsonRows, csv, json_document, json_lines};
pub use text::{Colour, Page, Style};

/// A column of rows `R`.
pub struct Column<R> {
    /// Key in JSON and heading in CSV.
    pub key: &'static str,
    pub data: Data,
    /// Heading in text and on the screen; `None` for columns of data.
    pub head: Option<&'static str>,
    pub align: Align,
    /// Columns of the highest priority are dropped first if space is short; 0 is never dropped.
    pub priority: u8,
    /// Smallest useful width of the last column.
    pub min: usize,
    /// Largest width; longer text is cut.
    pub max: usize,
    pub cut: Cut,
    pub sizes: Sizes,
    pub part: Part,
    pub value: fn(&R) -> Cell<'_>,
}

/// Presence of a column in CSV and JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    None,
    All,
    /// Like `All`, but left out of JSON objects where it is empty.
    Sparse,
    /// In JSON only, where it is not empty.
    Json,
    Csv,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
    /// A list behind the last column, as far as it fits; without a heading.
    Trail,
}

/// Part of a long text that is replaced by a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    End,
    Middle,
}

/// Role of a column in a sum of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    None,
    /// Counted in the column `Rest` if space is short.
    Summand,
    /// Bytes without a visible column of their own.
    Rest,
}

impl<R> Column<R> {
    const fn new(key: &'static str, head: Option<&'static str>, value: fn(&R) -> Cell<'_>) -> Self {
        Self {
            key,
            data: Data::All,
            head,
            align: Align::Right,
            priority: 0,
            min: 20,
            max: usize::MAX,
            cut: Cut::End,
            sizes: Sizes::Exact,
            part: Part::None,
            value,
        }
    }

    /// A column of every output, right-aligned.
    pub const fn number(key: &'static str, head: &'static str, value: fn(&R) -> Cell<'_>) -> Self {
        Self::new(key, Some(head), value)
    }

    /// A column of every output, left-aligned.
    pub const fn text(key: &'static str, head: &'static str, value: fn(&R) -> Cell<'_>) -> Self {
        Self::new(key, Some(head), value).aligned(Align::Left)
    }

    /// A column of text only, right-aligned.
    pub const fn figure(head: &'static str, value: fn(&R) -> Cell<'_>) -> Self {
        Self::new("", Some(head), value).only(Data::None)
    }

    /// A column of text only, left-aligned.
    pub const fn label(head: &'static str, value: fn(&R) -> Cell<'_>) -> Self {
        Self::figure(head, value).aligned(Align::Left)
    }

    /// A list behind the last column of text.
    pub const fn trail(value: fn(&R) -> Cell<'_>) -> Self {
        Self::figure("", value).aligned(Align::Trail)
    }

    /// A column of CSV and JSON.
    pub const fn data(key: &'static str, value: fn(&R) -> Cell<'_>) -> Self {
        Self::new(key, None, value)
    }

    /// A column of JSON, left out where it is empty.
    pub const fn json(key: &'static str, value: fn(&R) -> Cell<'_>) -> Self {
        Self::data(key, value).only(Data::Json)
    }

    pub const fn only(mut self, data: Data) -> Self {
        self.data = data;
        self
    }

    pub const fn aligned(mut self, align: Align) -> Self {
        self.align = align;
        self
    }

    pub const fn priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    pub const fn width(mut self, min: usize, max: usize) -> Self {
        (self.min, self.max) = (min, max);
        self
    }

    pub const fn cut(mut self, cut: Cut) -> Self {
        self.cut = cut;
        self
    }

    /// Shows sizes with three figures.
    pub const fn short(mut self) -> Self {
        self.sizes = Sizes::Short;
        self
    }

    pub const fn part(mut self, part: Part) -> Self {
        self.part = part;
        self
    }
}

/// Columns and rows.
pub struct Table<R> {
    pub columns: Vec<Column<R>>,
    pub rows: Vec<Entry<R>>,
}

/// A row, and its outputs.
pub struct Entry<R> {
    pub row: R,
    pub output: Output,
}

/// Outputs of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    All,
    /// All but one JSON document, which has the row's figures elsewhere.
    Flat,
    Text,
    /// A remark on the row before, as text.
    Remark,
    /// CSV and JSON.
    Data,
}

impl Output {
    const fn is_text(self) -> bool {
        !matches!(self, Self::Data)
    }

    const fn is_data(self) -> bool {
        !matches!(self, Self::Text | Self::Remark)
    }
}

impl<R> Table<R> {
    pub const fn new(columns: Vec<Column<R>>) -> Self {
        let rows = Vec::new();
        Self { columns, rows }
    }

    pub fn push(&mut self, output: Output, row: R) {
        self.rows.push(Entry { row, output });
    }

    pub fn extend(&mut self, output: Output, rows: impl IntoIterator<Item = R>) {
        let rows = rows.into_iter();
        self.rows.extend(rows.map(|row| Entry { row, output }));
    }

    /// The rows of CSV and JSON lines.
    pub fn data_rows(&self) -> impl Iterator<Item = &R> {
        let entries = self.rows.iter().filter(|entry| entry.output.is_data());
        entries.map(|entry| &entry.row)
    }
}

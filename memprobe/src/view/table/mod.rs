//! One definition of a table, with a writer for each output.
//!
//! A [`Column`] has a key for CSV and JSON, a heading for text and the live screen, and a function from a row
//! to a [`Cell`]. A [`Table`] is columns and rows. [`Page`] writes it as text, [`CsvWriter`] and
//! [`json_object`] row by row; in a JSON document it is an array. The live screen draws columns that have an
//! [`OnScreen`].

mod cell;
mod data;
mod html;
mod text;

#[cfg(test)]
mod tests;

pub use cell::{Cell, Direction, Precision};
pub use data::{CsvWriter, Rows, json_document, json_object};
pub use html::{MarkupColumn, html_table};
pub use text::{Colour, Drawn, Page, Style};

/// Makes an array of [`Column`]s of a row type, one a line: constructor, options, and the value of a row.
/// `number("live", "LIVE").priority(1) => row.live` stands for
/// `Column::number("live", "LIVE", |row| Cell::from(row.live)).priority(1)`.
macro_rules! columns {
    (
        |$row:ident: $Row:ty|
        $($make:ident($($argument:expr),*) $(.$option:ident($($setting:expr),*))* => $value:expr),* $(,)?
    ) => {
        [$(
            $crate::view::table::Column::<$Row>::$make(
                $($argument,)*
                |$row| $crate::view::table::Cell::from($value),
            )$(.$option($($setting),*))*
        ),*]
    };
}
pub(crate) use columns;

pub struct Column<R> {
    /// Key in JSON and heading in CSV.
    pub key: &'static str,
    pub data: Data,
    /// Heading in text and on the live screen.
    pub head: &'static str,
    pub in_text: bool,
    pub align: Align,
    /// Columns of the highest priority are dropped first from text if space is short; 0 is never dropped.
    pub priority: u8,
    /// Smallest useful width of the last column in text.
    pub min: usize,
    /// Largest width in text; longer text is cut.
    pub max: usize,
    pub cut: Cut,
    pub precision: Precision,
    pub part: Summand,
    /// `None` for columns that the live screen lacks.
    pub screen: Option<OnScreen>,
    pub value: fn(&R) -> Cell<'_>,
}

impl<R> Clone for Column<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for Column<R> {}

/// Joins the columns of two arrays, which must have `N` in all and at least one in the first.
pub const fn joined<R, const A: usize, const B: usize, const N: usize>(
    first: [Column<R>; A],
    second: [Column<R>; B],
) -> [Column<R>; N] {
    assert!(A + B == N, "each column has its place");
    let mut all = [first[0]; N];
    let mut at = 1;
    while at < N {
        all[at] = if at < A { first[at] } else { second[at - A] };
        at += 1;
    }
    all
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnScreen {
    /// Width in cells; 0 for the rest of the table.
    pub wide: u16,
    /// Minimum width of a table that shows the column.
    pub least: u16,
    /// First direction that the column sorts in; `None` if the table cannot be sorted by it.
    pub order: Option<SortOrder>,
    pub tone: Tone,
    pub precision: Precision,
    /// True for the column with indentation and fold mark.
    pub is_name: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Strong,
    Faint,
    /// Colour of allocated bytes in graphs.
    Graph,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SortOrder {
    /// Largest first.
    #[default]
    Falling,
    /// Smallest first, or alphabetical.
    Climbing,
}

impl SortOrder {
    pub fn reversed(self) -> Self {
        match self {
            Self::Falling => Self::Climbing,
            Self::Climbing => Self::Falling,
        }
    }
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
pub enum Summand {
    None,
    /// Counted in the column `Rest` if space is short.
    Named,
    /// Bytes without a visible column of their own.
    Rest,
}

impl<R> Column<R> {
    const fn new(key: &'static str, head: &'static str, value: fn(&R) -> Cell<'_>) -> Self {
        Self {
            key,
            data: Data::All,
            head,
            in_text: true,
            align: Align::Right,
            priority: 0,
            min: 20,
            max: usize::MAX,
            cut: Cut::End,
            precision: Precision::Exact,
            part: Summand::None,
            screen: None,
            value,
        }
    }

    /// A column of every output, right-aligned.
    pub const fn number(key: &'static str, head: &'static str, value: fn(&R) -> Cell<'_>) -> Self {
        Self::new(key, head, value)
    }

    /// A column of every output, left-aligned.
    pub const fn text(key: &'static str, head: &'static str, value: fn(&R) -> Cell<'_>) -> Self {
        Self::new(key, head, value).aligned(Align::Left)
    }

    /// A column of text and screen only, right-aligned.
    pub const fn figure(head: &'static str, value: fn(&R) -> Cell<'_>) -> Self {
        Self::new("", head, value).only(Data::None)
    }

    /// A column of text and screen only, left-aligned.
    pub const fn label(head: &'static str, value: fn(&R) -> Cell<'_>) -> Self {
        Self::figure(head, value).aligned(Align::Left)
    }

    /// A list behind the last column of text.
    pub const fn trail(value: fn(&R) -> Cell<'_>) -> Self {
        Self::figure("", value).aligned(Align::Trail)
    }

    /// A column of CSV and JSON.
    pub const fn data(key: &'static str, value: fn(&R) -> Cell<'_>) -> Self {
        Self::new(key, "", value).not_in_text()
    }

    /// A column of JSON, left out where it is empty.
    pub const fn json(key: &'static str, value: fn(&R) -> Cell<'_>) -> Self {
        Self::data(key, value).only(Data::Json)
    }

    pub const fn only(self, data: Data) -> Self {
        Self { data, ..self }
    }

    /// Sets the heading on the live screen of a column of data.
    pub const fn headed(self, head: &'static str) -> Self {
        Self { head, ..self }
    }

    pub const fn not_in_text(self) -> Self {
        Self {
            in_text: false,
            ..self
        }
    }

    pub const fn aligned(self, align: Align) -> Self {
        Self { align, ..self }
    }

    pub const fn priority(self, priority: u8) -> Self {
        Self { priority, ..self }
    }

    pub const fn width(self, min: usize, max: usize) -> Self {
        Self { min, max, ..self }
    }

    pub const fn cut(self, cut: Cut) -> Self {
        Self { cut, ..self }
    }

    pub const fn short(self) -> Self {
        let precision = Precision::Short;
        Self { precision, ..self }
    }

    pub const fn part(self, part: Summand) -> Self {
        Self { part, ..self }
    }

    /// Shows the column on the live screen, from a width of the table on. Numbers sort largest first, texts from A.
    pub const fn screen(self, wide: u16, least: u16) -> Self {
        let order = match self.align {
            Align::Right => SortOrder::Falling,
            Align::Left | Align::Trail => SortOrder::Climbing,
        };
        let screen = OnScreen {
            wide,
            least,
            order: Some(order),
            tone: Tone::Plain,
            precision: self.precision,
            is_name: false,
        };
        Self {
            screen: Some(screen),
            ..self
        }
    }

    /// Shows fewer digits on the live screen than in text.
    pub const fn brief(mut self) -> Self {
        if let Some(screen) = &mut self.screen {
            screen.precision = Precision::Short;
        }
        self
    }

    /// Shows the column of names on the live screen.
    pub const fn name(self, wide: u16) -> Self {
        let mut column = self.screen(wide, 0);
        if let Some(screen) = &mut column.screen {
            screen.is_name = true;
        }
        column
    }

    pub const fn tone(mut self, tone: Tone) -> Self {
        if let Some(screen) = &mut self.screen {
            screen.tone = tone;
        }
        self
    }

    /// Sets the first direction that the live screen sorts in; `None` for a column without order.
    pub const fn order(mut self, order: Option<SortOrder>) -> Self {
        if let Some(screen) = &mut self.screen {
            screen.order = order;
        }
        self
    }

    /// Precision on the live screen.
    pub fn screen_precision(&self) -> Precision {
        self.screen
            .map_or(self.precision, |screen| screen.precision)
    }

    pub fn is_sortable(&self) -> bool {
        let screen = self.screen.as_ref();
        !self.head.is_empty() && screen.is_some_and(|screen| screen.order.is_some())
    }
}

pub struct Table<R> {
    pub columns: Vec<Column<R>>,
    pub rows: Vec<OutputRow<R>>,
}

pub struct OutputRow<R> {
    pub row: R,
    pub output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    All,
    /// All but the JSON document, where the device has the same figures.
    Flat,
    Text,
    /// A remark on the row before, as text.
    Remark,
    /// CSV and JSON.
    Data,
}

impl<R> Table<R> {
    pub fn new(columns: impl Into<Vec<Column<R>>>) -> Self {
        Self {
            columns: columns.into(),
            rows: Vec::new(),
        }
    }

    /// A table with rows for every output.
    pub fn of(columns: impl Into<Vec<Column<R>>>, rows: impl IntoIterator<Item = R>) -> Self {
        let mut table = Self::new(columns);
        for row in rows {
            table.push(Output::All, row);
        }
        table
    }

    pub fn push(&mut self, output: Output, row: R) {
        self.rows.push(OutputRow { row, output });
    }

    pub fn extend(&mut self, output: Output, rows: impl IntoIterator<Item = R>) {
        let rows = rows.into_iter();
        self.rows.extend(rows.map(|row| OutputRow { row, output }));
    }

    /// The rows of CSV and JSON lines.
    pub fn data_rows(&self) -> impl Iterator<Item = &R> {
        let entries = self.rows.iter();
        let entries =
            entries.filter(|entry| !matches!(entry.output, Output::Text | Output::Remark));
        entries.map(|entry| &entry.row)
    }
}

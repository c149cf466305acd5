//! Text for people: tables fitted to a width, with the lines around them.

use super::{Align, Cell, Column, Cut, Output, OutputRow, Summand, Table};
use crate::view::{CUT, fit, fit_middle, width, wrap};

const GAP: usize = 2;
/// Maximum lines of a legend. Longer explanations belong to `--help` and the guide.
const MAX_LEGEND_LINES: usize = 3;
/// Width at which a legend must fit.
const LEGEND_WIDTH: usize = 100;
/// Width below which a trailing text that does not fit is dropped rather than cut.
const SHORTEST_TRAIL: usize = 14;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// None: for pipes, files and `NO_COLOR`.
    Plain,
    /// The sixteen colours of every terminal.
    Ansi,
}

/// Emphasis by escape sequences, if colour is on.
#[derive(Clone, Copy)]
pub struct Style(pub Colour);

impl Style {
    pub fn strong(self, text: &str) -> String {
        self.paint("1", text)
    }

    pub fn weak(self, text: &str) -> String {
        self.paint("2", text)
    }

    pub fn warning(self, text: &str) -> String {
        self.paint("33", text)
    }

    pub fn paint(self, code: &str, text: &str) -> String {
        match self.0 {
            Colour::Ansi if !text.is_empty() => format!("\x1b[{code}m{text}\x1b[0m"),
            _ => text.to_owned(),
        }
    }
}

pub struct Page {
    text: String,
    pub width: usize,
    style: Style,
}

impl Page {
    pub const fn new(width: usize, colour: Colour) -> Self {
        Self {
            text: String::new(),
            width,
            style: Style(colour),
        }
    }

    pub fn into_text(self) -> String {
        self.text
    }

    /// Adds a line as it is, without spaces at its end.
    pub fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    pub fn blank(&mut self) {
        self.text.push('\n');
    }

    pub fn fitted(&mut self, line: &str) {
        self.line(&fit(line, self.width, CUT));
    }

    pub fn strong(&mut self, line: &str) {
        self.line(&self.style.strong(line));
    }

    pub fn fitted_strong(&mut self, line: &str) {
        self.strong(&fit(line, self.width, CUT));
    }

    pub fn note(&mut self, note: &str) {
        for line in wrap(note, self.width) {
            self.line(&line);
        }
    }

    /// Adds the explanation of a table: a line for each sentence, or one paragraph if these would be too many lines.
    pub fn legend(&mut self, sentences: &[impl AsRef<str>]) {
        let sentences = sentences.iter().map(AsRef::as_ref);
        let sentences: Vec<&str> = sentences.collect();
        let paragraph = sentences.join(" ");
        debug_assert!(
            wrap(&paragraph, LEGEND_WIDTH).len() <= MAX_LEGEND_LINES,
            "a long legend: {paragraph}"
        );
        let lines = sentences.iter().map(|it| wrap(it, self.width).len());
        if lines.sum::<usize>() <= MAX_LEGEND_LINES {
            sentences.iter().for_each(|sentence| self.note(sentence));
        } else {
            self.note(&paragraph);
        }
    }

    pub fn warning(&mut self, note: &str) {
        for line in wrap(note, self.width) {
            self.line(&self.style.warning(&line));
        }
    }

    /// Adds a table. Columns that do not fit are dropped by priority.
    pub fn table<R>(&mut self, table: &Table<R>) -> Drawn {
        let (sheet, dropped) = Sheet::new(table, self.width);
        let heads = sheet.columns.iter().map(|column| column.head.to_owned());
        let heads = sheet.line(&heads.collect::<Vec<_>>(), self.width);
        self.strong(heads.trim_end());
        for (at, entry) in sheet.rows.iter().enumerate() {
            let mut line = sheet.line(&sheet.cells[at], self.width);
            if let Some(trail) = sheet.trail {
                let pieces = (trail.value)(&entry.row);
                let left = sheet.end(self.width).saturating_sub(width(&line));
                let pieces = pieces_that_fit(&pieces, trail, left);
                if !pieces.is_empty() {
                    line.push_str(&self.style.weak(&pieces));
                }
            }
            match entry.output {
                Output::Remark => self.line(&self.style.weak(&line)),
                _ => self.line(&line),
            }
        }
        let first = sheet.widths.first().copied().unwrap_or(0);
        Drawn { dropped, first }
    }
}

/// Layout of a table in text.
pub struct Drawn {
    pub dropped: Vec<&'static str>,
    pub first: usize,
}

/// The visible columns of a table, with the texts of their cells.
struct Sheet<'a, R> {
    columns: Vec<&'a Column<R>>,
    trail: Option<&'a Column<R>>,
    rows: Vec<&'a OutputRow<R>>,
    cells: Vec<Vec<String>>,
    widths: Vec<usize>,
}

impl<'a, R> Sheet<'a, R> {
    fn new(table: &'a Table<R>, available: usize) -> (Self, Vec<&'static str>) {
        let rows = table
            .rows
            .iter()
            .filter(|entry| entry.output != Output::Data);
        let rows: Vec<&OutputRow<R>> = rows.collect();
        let has_text = |column: &&Column<R>| {
            let is_empty = |entry: &&OutputRow<R>| (column.value)(&entry.row).is_empty();
            column.in_text && (column.priority == 0 || !rows.iter().all(is_empty))
        };
        let columns = table.columns.iter().filter(has_text);
        let (trails, columns) = columns.partition(|column| column.align == Align::Trail);
        let trails: Vec<&Column<R>> = trails;
        let mut sheet = Self {
            columns,
            trail: trails.into_iter().next(),
            rows,
            cells: Vec::new(),
            widths: Vec::new(),
        };
        let mut dropped = Vec::new();
        sheet.measure(&dropped);
        while sheet.needed() > available {
            let Some(last) = sheet.columns.iter().map(|column| column.priority).max() else {
                break;
            };
            if last == 0 {
                break;
            }
            let (gone, kept) = sheet
                .columns
                .into_iter()
                .partition::<Vec<_>, _>(|column| column.priority == last);
            dropped.extend(gone);
            sheet.columns = kept;
            sheet.measure(&dropped);
        }
        sheet.shrink(available);
        let heads = dropped.iter().map(|column| column.head);
        (sheet, heads.collect())
    }

    fn measure(&mut self, dropped: &[&Column<R>]) {
        let columns = &self.columns;
        let of_row = |entry: &&OutputRow<R>| {
            let text =
                |column: &&Column<R>| cell(column, &entry.row, dropped).text(column.precision);
            columns.iter().map(text).collect()
        };
        self.cells = self.rows.iter().map(of_row).collect();
        let width_of = |(at, column): (usize, &&Column<R>)| {
            let cells = self.cells.iter().map(|cells| width(&cells[at])).max();
            cells.unwrap_or(0).min(column.max).max(width(column.head))
        };
        self.widths = columns.iter().enumerate().map(width_of).collect();
    }

    /// Width of all columns, with flexible ones as narrow as they may be.
    fn needed(&self) -> usize {
        let last = self.columns.len().saturating_sub(1);
        let widths = self.columns.iter().zip(&self.widths).enumerate();
        let narrow = widths.map(|(at, (column, width))| {
            if at == last {
                (*width).min(column.min)
            } else if is_flexible(column) {
                (*width).min(column.min) + GAP
            } else {
                width + GAP
            }
        });
        narrow.sum()
    }

    /// Narrows flexible columns, so that the last one has its smallest width.
    fn shrink(&mut self, available: usize) {
        let Some((last, others)) = self.columns.split_last() else {
            return;
        };
        let widths = &mut self.widths[..others.len()];
        let used: usize = widths.iter().map(|width| *width + GAP).sum();
        let mut excess = (used + last.min).saturating_sub(available);
        let flexible = others.iter().zip(widths);
        for (column, width) in flexible.filter(|(column, _)| is_flexible(column)) {
            let less = excess.min(width.saturating_sub(column.min));
            *width -= less;
            excess -= less;
        }
    }

    fn end(&self, available: usize) -> usize {
        let Some((last, others)) = self.columns.split_last() else {
            return available;
        };
        let used: usize = self.widths[..others.len()]
            .iter()
            .map(|width| width + GAP)
            .sum();
        available.max(used + last.min)
    }

    /// Joins the cells of a row. A text before empty cells takes their place.
    fn line(&self, cells: &[String], available: usize) -> String {
        let mut line = String::new();
        let end = self.end(available);
        for (at, (column, text)) in self.columns.iter().zip(cells).enumerate() {
            let cut = |columns| match column.cut {
                Cut::End => fit(text, columns, CUT),
                Cut::Middle => fit_middle(text, columns, CUT),
            };
            let is_left = column.align == Align::Left;
            if is_left && cells[at + 1..].iter().all(String::is_empty) {
                line.push_str(&cut(end.saturating_sub(width(&line))));
                break;
            }
            let text = cut(self.widths[at]);
            let space = " ".repeat(self.widths[at] - width(&text));
            let text = if is_left {
                text + &space
            } else {
                space + &text
            };
            line.extend([&*text, "  "]);
        }
        line
    }
}

fn is_flexible<R>(column: &Column<R>) -> bool {
    column.max < usize::MAX && column.align == Align::Left
}

/// Value of a cell. The column of the rest also has the bytes of dropped columns.
fn cell<'r, R>(column: &Column<R>, row: &'r R, dropped: &[&Column<R>]) -> Cell<'r> {
    let cell = (column.value)(row);
    if column.part != Summand::Rest {
        return cell;
    }
    let parts = dropped
        .iter()
        .filter(|column| column.part == Summand::Named);
    parts.fold(cell, |rest, part| match (rest, (part.value)(row)) {
        (Cell::Bytes(rest), Cell::Bytes(bytes)) => Cell::Bytes(rest.saturating_add(bytes)),
        (Cell::Signed(rest), Cell::Bytes(bytes)) => {
            Cell::Signed(rest.saturating_add_unsigned(bytes))
        }
        (rest, _) => rest,
    })
}

/// The first texts that fit whole. If none fits, the first is cut, unless too little of it would remain.
fn pieces_that_fit<R>(pieces: &Cell<'_>, trail: &Column<R>, available: usize) -> String {
    let Cell::List(pieces) = pieces else {
        return String::new();
    };
    let mut text = String::new();
    for piece in pieces {
        let next = format!("  {}", piece.text(trail.precision));
        if width(&text) + width(&next) > available {
            if text.is_empty() && available >= SHORTEST_TRAIL {
                text = fit(&next, available, CUT);
            }
            break;
        }
        text.push_str(&next);
    }
    text
}

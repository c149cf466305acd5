//! Tables of a process's tensors, and of their changes between two snapshots.

mod account;
mod columns;
mod diff;
mod diff_json;
pub(super) mod heading;
mod requests;
mod text;

#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::sync::Arc;

use super::{Colour, ReportError, RowLimit, unless_closed};
use crate::event::tensors::TensorSnapshot;
use crate::tensors::{GroupBy, Order, TensorDiff, diff as compare, explain};
use crate::view::table::{CsvWriter, Page, Table, json_document};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorOptions {
    pub format: TensorFormat,
    pub by: GroupBy,
    pub order: Order,
    /// Number of rows in text; structured formats have all.
    pub top: RowLimit,
    pub names: TensorNames,
    pub width: usize,
    pub colour: Colour,
}

impl Default for TensorOptions {
    fn default() -> Self {
        Self {
            format: TensorFormat::Text,
            by: GroupBy::default(),
            order: Order::default(),
            top: RowLimit::Rows(50),
            names: TensorNames::Best,
            width: 120,
            colour: Colour::Plain,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorFormat {
    Text,
    Json,
    Csv,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorNames {
    Best,
    /// All names, one per line.
    All,
}

/// Writes the table of a snapshot.
///
/// `out` should be buffered. Returns `None` if the reader closes the output early.
pub fn write_tensors(
    snapshot: &Arc<TensorSnapshot>,
    options: &TensorOptions,
    out: &mut impl Write,
) -> Result<Option<()>, ReportError> {
    let written = match options.format {
        TensorFormat::Text => page(options, out, |page| {
            let table = explain(Arc::clone(snapshot));
            match options.by {
                GroupBy::Request => requests::push(page, &table, options),
                _ => text::push(page, &table, options),
            }
        }),
        TensorFormat::Json => crate::recording::write::tensors::write_tensors(
            snapshot,
            env!("CARGO_PKG_VERSION"),
            out,
        )
        .and_then(|()| out.flush()),
        TensorFormat::Csv if options.by == GroupBy::Request => {
            requests::write_csv(&explain(Arc::clone(snapshot)), out)
        }
        TensorFormat::Csv => text::write_csv(&explain(Arc::clone(snapshot)), options, out),
    };
    unless_closed(written.map_err(ReportError::Output))
}

/// Writes the difference of two snapshots. Returns `None` if the reader closes the output early.
pub fn write_tensor_diff(
    before: &Arc<TensorSnapshot>,
    after: &Arc<TensorSnapshot>,
    options: &TensorOptions,
    out: &mut impl Write,
) -> Result<Option<()>, ReportError> {
    let diff: TensorDiff = compare(explain(Arc::clone(before)), explain(Arc::clone(after)));
    let written = match options.format {
        TensorFormat::Text => page(options, out, |page| diff::push(page, &diff, options)),
        TensorFormat::Json => {
            json_document(&diff_json::document(&diff, options), out).and_then(|()| out.flush())
        }
        TensorFormat::Csv => csv(&diff::table(&diff, options), out),
    };
    unless_closed(written.map_err(ReportError::Output))
}

fn page(
    options: &TensorOptions,
    out: &mut impl Write,
    push: impl FnOnce(&mut Page),
) -> io::Result<()> {
    let mut page = Page::new(options.width, options.colour);
    push(&mut page);
    out.write_all(page.into_text().as_bytes())?;
    out.flush()
}

fn csv<R>(table: &Table<R>, out: &mut impl Write) -> io::Result<()> {
    let mut csv = CsvWriter::new(&table.columns, out)?;
    table.data_rows().try_for_each(|row| csv.row(row))?;
    csv.flush()
}

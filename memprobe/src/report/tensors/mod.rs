//! Tables of the tensors of a process, and of what changed between two moments.

mod account;
mod columns;
mod csv;
mod diff;
mod diff_json;
pub(super) mod heading;
mod text;

#[cfg(test)]
mod tests;

use std::io::{self, Write};

use super::{Colour, ReportError, Top};
use crate::model::tensors::{GroupBy, Order, TensorDiff, diff as compare, explain};
use crate::tensors::TensorSnapshot;

/// What a table of tensors shows, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorOptions {
    /// How it is written.
    pub format: TensorFormat,
    /// Which rows are shown as one.
    pub by: GroupBy,
    /// The order of rows.
    pub order: Order,
    /// How many rows are shown; of files for programs, all are.
    pub top: Top,
    /// Which names are shown.
    pub names: TensorNames,
    /// Columns of text.
    pub width: usize,
    /// Whether text is coloured.
    pub colour: Colour,
}

impl Default for TensorOptions {
    fn default() -> Self {
        Self {
            format: TensorFormat::Text,
            by: GroupBy::default(),
            order: Order::default(),
            top: Top::Rows(50),
            names: TensorNames::Best,
            width: 120,
            colour: Colour::Plain,
        }
    }
}

/// How a table of tensors is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorFormat {
    /// For people.
    Text,
    /// One JSON document with all that is known.
    Json,
    /// Comma-separated values with a line of headings.
    Csv,
}

/// Which names of a tensor are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorNames {
    /// The best.
    Best,
    /// All, each on a line.
    All,
}

/// Writes the table of a snapshot.
///
/// Give a buffered `out`. A reader of the output that has seen enough (`| head`) is no error: `None`
/// is given then.
///
/// # Errors
/// When `out` cannot be written.
pub fn write_tensors(
    snapshot: &TensorSnapshot,
    options: &TensorOptions,
    out: &mut impl Write,
) -> Result<Option<()>, ReportError> {
    finished(match options.format {
        TensorFormat::Text => {
            let text = text::render(&explain(snapshot), options);
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        }
        TensorFormat::Json => {
            crate::export::tensors::write_tensors(snapshot, env!("CARGO_PKG_VERSION"), out)
                .and_then(|()| out.flush())
        }
        TensorFormat::Csv => csv::write(&explain(snapshot), options, out),
    })
}

/// Writes what changed between two snapshots; `None` where nobody reads it any more.
///
/// # Errors
/// When `out` cannot be written.
pub fn write_tensor_diff(
    before: &TensorSnapshot,
    after: &TensorSnapshot,
    options: &TensorOptions,
    out: &mut impl Write,
) -> Result<Option<()>, ReportError> {
    let diff: TensorDiff = compare(explain(before), explain(after));
    finished(match options.format {
        TensorFormat::Text => {
            let text = diff::render(&diff, options);
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        }
        TensorFormat::Json => diff_json::write(&diff, options, out),
        TensorFormat::Csv => csv::write_diff(&diff, options, out),
    })
}

fn finished(written: io::Result<()>) -> Result<Option<()>, ReportError> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(None),
        written => Ok(Some(written?)),
    }
}

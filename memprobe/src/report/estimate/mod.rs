//! Reports of expected GPU memory, as text or JSON.

mod json;
mod lines;
mod text;

#[cfg(test)]
mod tests;

use std::io::Write;

use super::{
    By, Colour, DocumentFormat, ReportError, ReportFormat, ReportOptions, RowLimit, unless_closed,
};
use crate::estimate::Estimate;
use crate::event::{Bytes, Target};
use crate::view::table::{Page, json_document};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EstimateOptions {
    pub format: DocumentFormat,
    /// Number of lines of Python in text; JSON has all.
    pub top: RowLimit,
    /// Bytes of the device to fit into.
    pub device_memory: Option<Bytes>,
    /// Width of text, in columns.
    pub width: usize,
    pub colour: Colour,
}

impl EstimateOptions {
    /// Options for the table of model size, shared with `report --by size`.
    fn of_sizes(&self) -> ReportOptions {
        ReportOptions {
            by: By::Size,
            format: match self.format {
                DocumentFormat::Text => ReportFormat::Text,
                DocumentFormat::Json => ReportFormat::Json,
            },
            top: self.top,
            width: self.width,
            colour: self.colour,
            ..ReportOptions::default()
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct EstimateSubject {
    /// The process that ran on the CPU.
    pub target: Target,
    /// Notes on the run, one sentence each.
    pub notes: Vec<String>,
}

/// Writes an estimate. `out` should be buffered. Returns `None` if the reader closes the output
/// early.
pub fn write_estimate(
    subject: &EstimateSubject,
    estimate: &Estimate,
    options: &EstimateOptions,
    out: &mut impl Write,
) -> Result<Option<()>, ReportError> {
    let written = match options.format {
        DocumentFormat::Text => {
            let mut page = Page::new(options.width, options.colour);
            text::push(&mut page, subject, estimate, options);
            out.write_all(page.into_text().as_bytes())
        }
        DocumentFormat::Json => json_document(&json::document(subject, estimate, options), out),
    };
    unless_closed(
        written
            .and_then(|()| out.flush())
            .map_err(ReportError::Output),
    )
}

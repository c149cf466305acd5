//! What a run on a GPU is expected to need, as a table or for programs.

mod json;
mod text;

#[cfg(test)]
mod tests;

use std::io::{self, Write};

use super::{By, Colour, Format, ReportError, ReportOptions, Top};
use crate::event::Bytes;
use crate::model::estimate::Estimate;
use crate::model::snapshot::Target;

/// What an estimate shows, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EstimateOptions {
    /// How it is written.
    pub format: EstimateFormat,
    /// How many lines of Python are shown; of a file for programs, all are.
    pub top: Top,
    /// Bytes of the device that it may have to fit into.
    pub device_memory: Option<Bytes>,
    /// Columns of text.
    pub width: usize,
    /// Whether text is coloured.
    pub colour: Colour,
}

impl EstimateOptions {
    /// How the table of how large the model is, which is that of a report, is written.
    fn of_sizes(&self) -> ReportOptions {
        ReportOptions {
            by: By::Size,
            format: match self.format {
                EstimateFormat::Text => Format::Text,
                EstimateFormat::Json => Format::Json,
            },
            top: self.top,
            width: self.width,
            colour: self.colour,
            ..ReportOptions::default()
        }
    }
}

/// How an estimate is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EstimateFormat {
    /// For people.
    Text,
    /// One JSON document.
    Json,
}

/// Whose estimate it is.
#[derive(Clone, Debug, Default)]
pub struct EstimateSubject {
    /// The process that ran on the CPU.
    pub target: Target,
    /// What else there is to say of the run, each in a sentence.
    pub notes: Vec<String>,
}

/// Writes an estimate.
///
/// Give a buffered `out`. A reader of the output that has seen enough (`| head`) is no error: `None`
/// is given then.
///
/// # Errors
/// When `out` cannot be written.
pub fn write_estimate(
    subject: &EstimateSubject,
    estimate: &Estimate,
    options: &EstimateOptions,
    out: &mut impl Write,
) -> Result<Option<()>, ReportError> {
    let written = match options.format {
        EstimateFormat::Text => {
            let text = text::render(subject, estimate, options);
            out.write_all(text.as_bytes())
        }
        EstimateFormat::Json => json::write(subject, estimate, options, out),
    };
    match written.and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(None),
        written => Ok(Some(written?)),
    }
}

//! Reports: tables of a recording, tensors of a process, processes of a host, estimates.

mod attribution;
mod cells;
mod document;
mod estimate;
mod events;
mod growth;
mod held;
mod host;
mod lines;
mod many;
mod modules;
mod outline;
mod outside;
mod peak;
mod preamble;
mod replay;
mod shapes;
mod tensors;
mod threads;

pub use estimate::{EstimateFormat, EstimateOptions, EstimateSubject, write_estimate};
pub use host::{HostExtent, HostFormat, HostOptions, write_host};
pub use many::{Many, is_possible as is_possible_for_many};
pub use tensors::{TensorFormat, TensorNames, TensorOptions, write_tensor_diff, write_tensors};

use std::fmt;
use std::io::{self, BufRead, Write};
use std::ops::RangeInclusive;

use crate::attribution::iterations::IterationLine;
use crate::event::Losses;
use crate::ledger::snapshot::Grouping;
use crate::recording::{Reader, RecordingError};
pub use crate::view::table::Colour;
use lines::LineReport;

/// Content and format of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportOptions {
    pub by: By,
    pub format: Format,
    /// Order of lines; events keep their own order.
    pub sort: Sort,
    /// Number of lines; events are never cut.
    pub top: Top,
    /// Stack frame that names a line.
    pub grouping: Grouping,
    /// Levels of modules below the outermost ones; `None` for all.
    pub depth: Option<usize>,
    /// Display of modules that differ only in a number.
    pub alike: Alike,
    /// Width of text, in columns.
    pub width: usize,
    pub colour: Colour,
    /// Line that starts an iteration, if the user gave one.
    pub iteration: Option<IterationLine>,
    /// Moments in the table of layers.
    pub layers: LayersOf,
}

impl Default for ReportOptions {
    fn default() -> Self {
        Self {
            by: By::Line,
            format: Format::Text,
            sort: Sort::Peak,
            top: Top::Rows(30),
            grouping: Grouping::User,
            depth: None,
            alike: Alike::Folded,
            width: 100,
            colour: Colour::Plain,
            iteration: None,
            layers: LayersOf::Peak,
        }
    }
}

/// Kind of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A line of Python.
    Line,
    /// Tensors of one shape and element type, allocated by one line of Python.
    Tensor,
    /// An event, in the order of the recording.
    Event,
    Module,
    /// Memory of a device at its peak.
    Peak,
    /// Memory that grows from iteration to iteration.
    Growth,
    /// An iteration of a training loop.
    Iteration,
    /// A category, and the rule that decided it.
    Category,
    /// A phase of the program.
    Phase,
    /// Memory that a module, operation and line saved for backward passes.
    Saved,
    /// Size of a module: its parameters and buffers, and its tensors made in an iteration.
    Size,
    /// Memory of a module at its device's peak, by category.
    Layer,
    /// A thread that allocated memory.
    Thread,
}

/// Moments in the table of layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayersOf {
    /// The device's peak.
    Peak,
    /// The device's peak in each iteration with one of these numbers.
    Iterations(RangeInclusive<u64>),
    /// The device's peak in each iteration, and in the intervals between.
    Each,
}

/// Output format of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    /// One JSON document.
    Json,
    /// One JSON object per row.
    Jsonl,
    /// Comma-separated values with a heading.
    Csv,
}

/// Order of lines, largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Maximum of live bytes.
    Peak,
    /// Live bytes at the end.
    Live,
    /// Live blocks at the end.
    Blocks,
    /// Number of allocations.
    Allocs,
}

impl Sort {
    /// Sort key of a row: the chosen figure, then all others in turn. The figures are peak bytes,
    /// live bytes, live blocks and allocations.
    fn rank(self, figures: [u64; 4]) -> (u64, [u64; 4]) {
        let first = match self {
            Self::Peak => figures[0],
            Self::Live => figures[1],
            Self::Blocks => figures[2],
            Self::Allocs => figures[3],
        };
        (first, figures)
    }
}

/// Maximum number of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Top {
    All,
    /// At most this many on each device.
    Rows(usize),
}

impl Top {
    /// Number of rows to show out of `all`.
    fn of(self, all: usize) -> usize {
        match self {
            Self::All => all,
            Self::Rows(most) => most.min(all),
        }
    }
}

/// Display of modules that differ only in a number, such as a transformer's layers. Structured
/// formats always have each one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alike {
    /// Shown as one row.
    Folded,
    /// One row per module.
    Each,
}

/// Result of reading a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Number of memory events read.
    pub events: u64,
    /// Losses while recording.
    pub losses: Losses,
    /// True if the end of the recording is missing.
    pub truncated: bool,
}

/// Reason for a missing or incomplete report.
#[derive(Debug)]
pub enum ReportError {
    /// The recording cannot be read.
    Recording(RecordingError),
    /// The report cannot be written.
    Output(io::Error),
    /// The recording lacks the iteration; the text has the available ones and advice.
    NoIteration(String),
}

impl fmt::Display for ReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recording(error) => error.fmt(f),
            Self::Output(error) => write!(
                f,
                "cannot write the report: {error}; send it to another file or disk"
            ),
            Self::NoIteration(what) => write!(f, "the recording has no such iteration: {what}"),
        }
    }
}

// The message includes the cause; a `source` would print it twice.
impl std::error::Error for ReportError {}

impl From<RecordingError> for ReportError {
    fn from(error: RecordingError) -> Self {
        Self::Recording(error)
    }
}

impl From<io::Error> for ReportError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Writes a report of a recording. Events are written as they are read, up to any damage. All other
/// reports are written only if the whole recording could be read.
///
/// `out` should be buffered. Returns `None` if the reader closes the output early (`
///  head`).
pub fn write<R: BufRead>(
    reader: Reader<R>,
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<Option<Outcome>, ReportError> {
    let written = match options.by {
        By::Line => lines(reader, options, out),
        By::Tensor => shapes::write(reader, options, out),
        By::Event => events::write(reader, options, out),
        By::Module => modules::write(reader, options, out),
        By::Peak => peak::write(reader, options, out),
        By::Growth => growth::write(reader, options, out),
        By::Thread => threads::write(reader, options, out),
        By::Iteration | By::Category | By::Phase | By::Saved | By::Size | By::Layer => {
            attribution::write(reader, options, out)
        }
    };
    let flushed = written.and_then(|outcome| Ok(out.flush().map(|()| outcome)?));
    match flushed {
        Err(ReportError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(None),
        flushed => flushed.map(Some),
    }
}

fn lines<R: BufRead>(
    reader: Reader<R>,
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<Outcome, ReportError> {
    let (replay, ()) = replay::run(reader, options.grouping, ())?;
    let report = LineReport {
        replay: &replay,
        options,
    };
    document::write(&report, options, out)?;
    Ok(replay.outcome())
}

#[cfg(test)]
mod tests;

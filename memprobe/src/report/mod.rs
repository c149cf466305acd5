//! Reports: of a recording, the table of lines or every event; of a process, its tensors.

mod columns;
mod document;
mod estimate;
mod events;
mod growth;
mod host;
mod lines;
mod many;
mod modules;
mod outline;
mod peak;
mod replay;
mod shapes;
mod structured;
mod table;
mod tensors;
mod why;

pub use estimate::{EstimateFormat, EstimateOptions, EstimateSubject, write_estimate};
pub use host::{HostExtent, HostFormat, HostOptions, write_host};
pub use many::{Many, is_possible as is_possible_for_many};
pub use tensors::{TensorFormat, TensorNames, TensorOptions, write_tensor_diff, write_tensors};

use std::fmt;
use std::io::{self, BufRead, Write};
use std::ops::RangeInclusive;

use crate::event::Losses;
use crate::model::snapshot::Grouping;
use crate::model::why::iterations::IterationLine;
use crate::recording::{Reader, RecordingError};
use structured::LineTable;

/// What a report shows, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportOptions {
    /// What a row stands for.
    pub by: By,
    /// How rows are written.
    pub format: Format,
    /// The order of lines; events keep their own.
    pub sort: Sort,
    /// How many lines are shown; events are all shown.
    pub top: Top,
    /// Which frame of a stack names its line.
    pub grouping: Grouping,
    /// How many levels of modules are shown below the outermost ones; `None` for all.
    pub depth: Option<usize>,
    /// What becomes of modules that differ in number alone.
    pub alike: Alike,
    /// Columns of text.
    pub width: usize,
    /// Whether text is coloured.
    pub colour: Colour,
    /// The line at which an iteration begins, where the user names one.
    pub iteration: Option<IterationLine>,
    /// Of which moments a table of layers is.
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

/// What a row stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A line of Python.
    Line,
    /// The tensors of one shape and element type that a line of Python made.
    Tensor,
    /// An event, in the order of the recording.
    Event,
    /// A module.
    Module,
    /// What a device held when it held most.
    Peak,
    /// What grows from iteration to iteration.
    Growth,
    /// An iteration of a training loop.
    Iteration,
    /// What memory is for, and the rule that says so.
    Category,
    /// What the program was doing.
    Phase,
    /// What a module, operation and line saved for backward passes.
    Saved,
    /// How large a module is: what it keeps, and what it makes in an iteration.
    Size,
    /// What a module held when its device held most, by what it was for.
    Layer,
}

/// Of which moments a table of layers is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayersOf {
    /// That at which the device held most.
    Peak,
    /// Those of the iterations of these numbers: of each that at which the device held most in it.
    Iterations(RangeInclusive<u64>),
    /// Those of all iterations, and of what is between them.
    Each,
}

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON document.
    Json,
    /// One JSON object a row.
    Jsonl,
    /// Comma-separated values with a line of headings.
    Csv,
}

/// The order of lines, largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// By the most bytes that were live at once.
    Peak,
    /// By the bytes that were live at the end.
    Live,
    /// By the blocks that were live at the end.
    Blocks,
    /// By the number of allocations.
    Allocs,
}

impl Sort {
    /// What rows of these figures are ordered by: what they were asked to be, then each in turn. The figures are the most
    /// bytes, live bytes, live blocks and allocations.
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

/// How many lines are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Top {
    /// All of them.
    All,
    /// The first ones, on each device.
    Rows(usize),
}

impl Top {
    /// How many rows of so many are shown.
    fn of(self, all: usize) -> usize {
        match self {
            Self::All => all,
            Self::Rows(most) => most.min(all),
        }
    }
}

/// What becomes of modules that differ in number alone, as the layers of a transformer. Other programs than people always get each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alike {
    /// They are one row.
    Folded,
    /// Each is a row.
    Each,
}

/// Whether text is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// For pipes, files and `NO_COLOR`.
    Plain,
    /// With the sixteen colours that every terminal has.
    Ansi,
}

/// What the recording turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Memory events that were read.
    pub events: u64,
    /// What was lost while recording.
    pub losses: Losses,
    /// Whether the end of the recording is missing.
    pub truncated: bool,
}

/// Why there is no report, or not all of it.
#[derive(Debug)]
pub enum ReportError {
    /// The recording cannot be read.
    Recording(RecordingError),
    /// The report cannot be written.
    Output(io::Error),
    /// The recording has no such iteration. What it has, and what to do.
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

// The text holds that of the cause: as a source it would be printed twice.
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

/// Writes a report on a recording. Lines are written only when all of the recording could be
/// read; events are written as they are read, up to the damage if there is some.
///
/// Give a buffered `out`. A reader of the output that has seen enough (`| head`) is no error:
/// the outcome is then `None`.
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
        By::Iteration | By::Category | By::Phase | By::Saved | By::Size | By::Layer => {
            why::write(reader, options, out)
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
    let replay = replay::run(reader, options.grouping)?;
    let table = LineTable {
        replay: &replay,
        options,
    };
    document::write(&table, options.format, out)?;
    Ok(replay.outcome())
}

#[cfg(test)]
mod tests;

//! Reports: tables of a recording, tensors of a process, processes of a host, estimates.

mod annotate;
mod attribution;
mod before_attach;
mod breakdown;
mod cells;
mod difference;
mod document;
mod estimate;
mod events;
pub mod explain;
mod growth;
mod held;
mod history;
mod host;
mod lines;
mod many;
mod modules;
mod named_records;
mod outline;
mod outside;
mod owners;
mod peak;
mod preamble;
mod ranks;
mod replay;
mod segments;
mod session;
mod shapes;
mod tensors;
mod what_if;

pub use annotate::{
    AnnotatedFile, Annotation, SourceFile, SourceOrigin, SourceReader, write_annotated,
};
pub use difference::{DiffOptions, NamedRecording, write_difference};
pub use estimate::{EstimateOptions, EstimateSubject, write_estimate};
pub use host::{HostExtent, HostOptions, write_host};
pub use many::ManyReport;
pub(crate) use preamble::limit_warning;
pub use ranks::{RankComparison, RankDevice, RankRow, label as rank_label, write_ranks};
pub use replay::RecordingReplay;
pub use session::session_summary;
pub use shapes::tensor as purpose_name;
pub use tensors::{TensorFormat, TensorNames, TensorOptions, write_tensor_diff, write_tensors};
pub use what_if::WhatIfSettings;

use std::io::{self, BufRead, Write};
use std::ops::RangeInclusive;

use crate::attribution::breakdown::Breakdown;
use crate::attribution::iterations::IterationLine;
use crate::event::{Bytes, Losses};
use crate::ledger::snapshot::Grouping;
use crate::recording::{Reader, RecordingDamage, RecordingError};
pub use crate::view::Alike;
pub use crate::view::table::Colour;
use crate::view::{BreakdownView, clean};
use lines::LineReport;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportOptions {
    pub by: By,
    pub format: ReportFormat,
    /// Order of lines; events keep their own order.
    pub sort: Sort,
    /// Number of lines; events are never cut.
    pub top: RowLimit,
    /// Stack frame that names a line.
    pub grouping: Grouping,
    /// Levels of modules below the outermost ones; `None` for all.
    pub depth: Option<usize>,
    /// Display of modules that differ only in a number, in text. Structured formats have each.
    pub alike: Alike,
    /// Width of text, in columns.
    pub width: usize,
    pub colour: Colour,
    /// Line that starts an iteration, if the user gave one.
    pub iteration: Option<IterationLine>,
    pub layers: LayersOf,
    /// Moment of the segments.
    pub moment: SegmentMoment,
    /// Size of a request, for the free memory that it cannot use.
    pub request: Option<Bytes>,
    /// Settings to replay the recording under, instead of a table of its rows.
    pub what_if: Option<WhatIfSettings>,
}

impl Default for ReportOptions {
    fn default() -> Self {
        Self {
            by: By::Line,
            format: ReportFormat::Text,
            sort: Sort::Peak,
            top: RowLimit::Rows(30),
            grouping: Grouping::User,
            depth: None,
            alike: Alike::Folded,
            width: 100,
            colour: Colour::Plain,
            iteration: None,
            layers: LayersOf::Peak,
            moment: SegmentMoment::Peak,
            request: None,
            what_if: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Line,
    /// Tensors of one shape and element type, allocated by one line of Python.
    Tensor,
    Event,
    Module,
    Peak,
    /// Memory that grows from iteration to iteration.
    Growth,
    Iteration,
    /// A category, and the rule that decided it.
    Category,
    Phase,
    /// Memory that a module, operation and line saved for backward passes.
    Saved,
    /// Size of a module: its parameters and buffers, and its tensors made in an iteration.
    Size,
    /// Memory of a module at its device's peak, by category.
    Layer,
    /// A key of a block, such as the thread that allocated it.
    Breakdown(Breakdown),
    /// A segment of the caching allocator.
    Segment,
    /// Owner of the process's memory on a device: CUDA's context, a library, PyTorch's allocator and its parts.
    Owner,
    /// Differences between the ranks of a directory: [`write_ranks`].
    Rank,
}

impl By {
    /// Returns the breakdowns, each with its word and its meaning.
    pub fn breakdowns() -> impl Iterator<Item = (&'static str, Self, &'static str)> {
        Breakdown::ALL.iter().map(|breakdown| {
            let BreakdownView { noun, meaning, .. } = BreakdownView::of(*breakdown);
            (*noun, Self::Breakdown(*breakdown), *meaning)
        })
    }
}

/// Moment of a recording whose segments a report shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentMoment {
    /// The highest allocated bytes of all devices together.
    Peak,
    End,
    /// The last out-of-memory error.
    OutOfMemory,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayersOf {
    Peak,
    /// The device's peak in each iteration with one of these numbers.
    Iterations(RangeInclusive<u64>),
    /// The device's peak in each iteration, and in the intervals between.
    Each,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportFormat {
    Text,
    /// One JSON document.
    Json,
    /// One JSON object per row.
    Jsonl,
    Csv,
}

/// Format of a report without rows for other programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DocumentFormat {
    Text,
    /// One JSON document.
    Json,
}

/// Order of lines, largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Maximum of live bytes.
    Peak,
    Live,
    Blocks,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowLimit {
    All,
    /// At most this many on each device.
    Rows(usize),
}

impl RowLimit {
    fn of(self, all: usize) -> usize {
        match self {
            Self::All => all,
            Self::Rows(most) => most.min(all),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub events: u64,
    pub losses: Losses,
    pub truncated: bool,
    /// Damage of the file that was left out.
    pub damage: Option<RecordingDamage>,
}

/// Reason for a missing or incomplete report. The messages include their cause, which is no `source`.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error(transparent)]
    Recording(#[from] RecordingError),
    #[error("cannot write the report: {0}; send it to another file or disk")]
    Output(io::Error),
    /// The recording lacks the iteration; the text has the available ones and advice.
    #[error("the recording has no such iteration: {0}")]
    NoIteration(String),
    /// The recording lacks the moment; the text has the reason and advice.
    #[error("the recording has no such moment: {0}")]
    NoMoment(String),
    /// The recording has no memory of the wanted lines; the text has the reason and advice.
    #[error("the recording has nothing to show there: {0}")]
    NoLines(String),
}

impl From<io::Error> for ReportError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Returns `None` for a reader that closed the output early (`| head`).
fn unless_closed<T>(written: Result<T, ReportError>) -> Result<Option<T>, ReportError> {
    match written {
        Err(ReportError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(None),
        written => written.map(Some),
    }
}

/// Returns the line for standard error about what is missing from the report of a file.
pub fn warning_line(file: &str, warning: &str) -> String {
    format!("memprobe: {}: {warning}", clean(file))
}

/// Writes a report of a recording. Events are written as they are read, up to any damage. All other
/// reports are written only if the whole recording could be read.
///
/// `out` should be buffered. Returns `None` if the reader closes the output early.
pub fn write<R: BufRead>(
    reader: Reader<R>,
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<Option<Outcome>, ReportError> {
    if let Some(settings) = &options.what_if {
        let written = what_if::write(reader, settings, options, out);
        return unless_closed(written.and_then(|outcome| Ok(out.flush().map(|()| outcome)?)));
    }
    let written = match options.by {
        By::Line => lines(reader, options, out),
        By::Tensor => shapes::write(reader, options, out),
        By::Event => events::write(reader, options, out),
        By::Module => modules::write(reader, options, out),
        By::Peak => peak::write(reader, options, out),
        By::Growth => growth::write(reader, options, out),
        By::Breakdown(breakdown) => breakdown::write(reader, breakdown, options, out),
        By::Segment => segments::write(reader, options, out),
        By::Owner => owners::write(reader, options, out),
        By::Rank => Err(ReportError::NoMoment(
            "ranks are those of a directory of recordings; give that".to_owned(),
        )),
        By::Iteration | By::Category | By::Phase | By::Saved | By::Size | By::Layer => {
            attribution::write(reader, options, out)
        }
    };
    unless_closed(written.and_then(|outcome| Ok(out.flush().map(|()| outcome)?)))
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
    document::write(&report, &replay, options, out)
}

#[cfg(test)]
mod tests;

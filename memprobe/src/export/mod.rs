//! Recordings in the formats of other programs.
//!
//! Each format is written from one replay of the recording ([`replay`]); those with a row for each event replay it
//! again. Every allocation has the category that its whole life shows.

mod allocation_rows;
mod csv;
mod ended;
mod folded;
mod memory_viz;
#[cfg(feature = "parquet")]
mod parquet;
mod perfetto;
mod phase_spans;
mod pprof;
mod profile;
mod replay;
mod second_replay;
mod side_events;
mod speedscope;
#[cfg(test)]
mod tests;

use std::io::{self, BufRead, Write};
use std::sync::atomic::AtomicU64;

use crate::recording::{Reader, RecordingError};
use ended::ExportHistory;
use profile::Profile;
use replay::ExportReplay;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// Live bytes by stack, for flamegraph.pl and inferno.
    Folded,
    /// A profile for speedscope.app.
    Speedscope,
    /// A gzipped profile for pprof.
    Pprof,
    /// PyTorch's own memory snapshot, for its page.
    MemoryViz,
    /// A trace for ui.perfetto.dev.
    Perfetto,
    /// A row for each allocation, as text.
    Csv,
    /// A row for each allocation, in compressed columns.
    Parquet,
}

/// Moment whose live memory a profile shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportMoment {
    End,
    /// The highest allocated bytes of each device.
    Peak,
    /// The last out-of-memory error.
    OutOfMemory,
}

/// Wanted export of one recording.
#[derive(Clone, Copy, Debug)]
pub struct ExportRequest {
    pub format: ExportFormat,
    /// Moment of formats that have one.
    pub moment: ExportMoment,
    /// Rank of the process in its job; `None` if it has none, or if it is unknown.
    pub rank: Option<u32>,
}

impl ExportMoment {
    /// Names the moment in a sentence.
    pub const fn phrase(self) -> &'static str {
        match self {
            Self::End => "at the end of the recording",
            Self::Peak => "at the peak",
            Self::OutOfMemory => "at the last out-of-memory error",
        }
    }
}

impl ExportFormat {
    /// True for text, which a terminal can show.
    pub const fn is_text(self) -> bool {
        match self {
            Self::Folded | Self::Speedscope | Self::Csv => true,
            Self::Pprof | Self::MemoryViz | Self::Perfetto | Self::Parquet => false,
        }
    }

    /// True if the format shows the memory of one moment.
    pub const fn has_moment(self) -> bool {
        match self {
            Self::Folded | Self::Speedscope | Self::Pprof => true,
            Self::MemoryViz | Self::Perfetto | Self::Csv | Self::Parquet => false,
        }
    }

    /// Program that opens the format.
    pub const fn next_step(self) -> &'static str {
        match self {
            Self::Folded => {
                "draw it with `inferno-flamegraph` or `flamegraph.pl --countname bytes`"
            }
            Self::Speedscope => "open it in https://www.speedscope.app",
            Self::Pprof => "open it with `go tool pprof -http : FILE`",
            Self::MemoryViz => "open it in https://pytorch.org/memory_viz",
            Self::Perfetto => "open it in https://ui.perfetto.dev",
            Self::Csv => "a row for each allocation",
            Self::Parquet => "open it with pandas, Polars or DuckDB",
        }
    }
}

/// Reason for a missing export. The messages include their cause, which is no `source`.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error(transparent)]
    Recording(#[from] RecordingError),
    #[error("cannot write the export: {0}; send it to another file or disk")]
    Output(io::Error),
    /// The recording lacks the moment; the text has the reason and advice.
    #[error("the recording has no such moment: {0}")]
    NoMoment(String),
    #[error("this format reads the recording twice, and a pipe can be read once: give a file")]
    Pipe,
    #[cfg(not(feature = "parquet"))]
    #[error(
        "this memprobe was built without Parquet: give --format csv, or build it with `--features parquet`"
    )]
    LeftOut,
    /// There is nothing to export; the text has the reason and advice.
    #[error("the recording has nothing to export: {0}")]
    Nothing(String),
}

impl From<io::Error> for ExportError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Writes a recording in another format. Nothing is written unless the whole recording could be read. Counts the events
/// read in `progress`.
///
/// `out` should be buffered. Returns sentences on what the export lacks.
pub fn write_export<R: BufRead>(
    mut reader: Reader<R>,
    request: ExportRequest,
    progress: &AtomicU64,
    out: &mut impl Write,
) -> Result<Vec<String>, ExportError> {
    let moment = request.format.has_moment().then_some(request.moment);
    let replay = ExportReplay::run(&mut reader, ExportHistory::new(moment), progress)?;
    if replay.ledger.moments(replay.end()).next().is_none() {
        return Err(ExportError::Nothing(
            "it has no block of PyTorch's allocators; `memprobe report FILE` prints the other CUDA memory".to_owned(),
        ));
    }
    let mut notes = replay.notes();
    match request.format {
        ExportFormat::MemoryViz => {
            notes.extend(memory_viz::write(&replay, &reader, progress, out)?);
        }
        ExportFormat::Perfetto => {
            notes.extend(perfetto::write(&replay, &reader, progress, out)?);
        }
        ExportFormat::Csv => csv::write(&replay, &reader, progress, out)?,
        #[cfg(feature = "parquet")]
        ExportFormat::Parquet => parquet::write(&replay, &reader, progress, out)?,
        #[cfg(not(feature = "parquet"))]
        ExportFormat::Parquet => return Err(ExportError::LeftOut),
        ExportFormat::Folded | ExportFormat::Speedscope | ExportFormat::Pprof => {
            notes.extend(write_profile(&replay, request, out)?);
        }
    }
    out.flush()?;
    Ok(notes)
}

/// Writes the memory of a moment by stack.
fn write_profile(
    replay: &ExportReplay,
    request: ExportRequest,
    out: &mut impl Write,
) -> Result<Vec<String>, ExportError> {
    let ExportRequest { format, moment, .. } = request;
    let profile = Profile::of(replay, moment)?;
    if format != ExportFormat::Pprof && profile.is_empty() {
        return Err(ExportError::Nothing(format!(
            "no memory is live {}; give --at peak",
            moment.phrase()
        )));
    }
    match format {
        ExportFormat::Speedscope => speedscope::write(replay, &profile, moment, out)?,
        ExportFormat::Pprof => pprof::write(replay, &profile, request, out)?,
        _ => folded::write(replay, &profile, out)?,
    }
    Ok(profile.notes())
}

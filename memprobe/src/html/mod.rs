//! Recordings as one HTML file, which opens without network.
//!
//! One replay ([`replay`]) feeds the page of a recording. The file holds the verdict, the parts and the largest rows as
//! text, and all events and allocations of each device as compressed columns ([`device`]). The scripts rebuild any moment
//! from them. Pages of a directory ([`ranks`]) and of an annotated source have no script.

mod annotated;
mod columns;
mod device;
mod facts;
mod history;
mod page;
mod ranks;
mod replay;
mod static_page;
mod tables;
#[cfg(test)]
mod tests;
mod window;

use std::io::{BufRead, Write};
use std::sync::atomic::AtomicU64;

use crate::attribution::iterations::IterationLine;
use crate::recording::Reader;
use crate::report::ReportError;
pub use annotated::write_annotated_page;
pub use ranks::write_rank_page;

use device::MAX_EVENTS;
use facts::PageFacts;
use replay::PageReplay;

/// Reads the source text of a file; an error is the reason for missing text.
pub type SourceOf<'a> = &'a dyn Fn(&str) -> Result<String, String>;

/// Paths of source files in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PagePaths {
    Whole,
    /// The shortest unambiguous ends, no command line and no source text.
    Short,
}

pub struct PageOptions<'a> {
    /// Name of the recording.
    pub file: &'a str,
    /// Line that starts an iteration, if the user gave one.
    pub iteration: Option<IterationLine>,
    pub paths: PagePaths,
    pub source_of: SourceOf<'a>,
}

/// Writes the page of a recording. Nothing is written unless the whole recording could be read. Counts the events read
/// in `progress`.
///
/// `out` should be buffered. Returns sentences on what the page lacks.
pub fn write_page<R: BufRead>(
    reader: Reader<R>,
    options: &PageOptions<'_>,
    progress: &AtomicU64,
    out: &mut impl Write,
) -> Result<Vec<String>, ReportError> {
    let line = options.iteration.clone();
    let replay = PageReplay::run(reader, options.file, line, MAX_EVENTS, progress)?;
    let (facts, columns) = PageFacts::of(&replay, options);
    page::write(&replay, &facts, &columns, options, out)?;
    out.flush()?;
    Ok(facts.lacks())
}

//! Options of pages and of annotated sources.

use std::path::PathBuf;

use clap::Args;

use crate::html::PagePaths;

/// Options of single tables.
const OF_TABLES: [&str; 10] = [
    "by",
    "format",
    "sort",
    "limit",
    "no_fold",
    "frame",
    "depth",
    "iteration",
    "request",
    "what_if",
];

/// Options of tables beside the annotated source.
const OF_OTHER_TABLES: [&str; 10] = [
    "by",
    "sort",
    "limit",
    "no_fold",
    "frame",
    "depth",
    "iteration",
    "iteration_start",
    "request",
    "what_if",
];

/// `--html` and `--annotate`, and what goes with them.
#[derive(Args, Debug)]
pub(super) struct PageOption {
    /// Write an HTML page instead: one file, which opens in any browser without network
    ///
    /// Of a directory, it compares the ranks: by iteration, and what one has more of than another. Of a recording,
    /// it has the verdict, memory over time with two cursors, live memory by line, tensor, module and retainer, a flame
    /// graph, iterations, the map of addresses and growth. It holds the source text of the Python files that its lines
    /// name, as far as they are on this machine.
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_TABLES)]
    pub(super) html: Option<PathBuf>,
    /// With --html: no command line, no source text, and file names without their folders
    #[arg(long, requires = "html", conflicts_with = "annotate")]
    redact: bool,
    /// Print a source file with the memory of each line beside it; with --html, write it as a page
    ///
    /// PY may be the end of a path, such as train.py or models/net.py. `--at` is the moment of the live bytes: the end
    /// if not given.
    #[arg(long, value_name = "PY", conflicts_with_all = OF_OTHER_TABLES)]
    pub(super) annotate: Option<PathBuf>,
    /// With --annotate: only this function, such as forward or Net.forward; may be given several times
    #[arg(long, value_name = "NAME", requires = "annotate")]
    pub(super) function: Vec<String>,
}

impl PageOption {
    pub(super) fn paths(&self) -> PagePaths {
        if self.redact {
            PagePaths::Short
        } else {
            PagePaths::Whole
        }
    }
}

//! Options of pages.

use std::path::PathBuf;

use clap::Args;

use crate::html::PagePaths;

/// Options of single tables.
const OF_TABLES: [&str; 10] = [
    "by", "format", "sort", "limit", "no_fold", "frame", "depth", "iteration", "at", "request",
];

/// `--html`, and what goes with it.
#[derive(Args, Debug)]
pub(super) struct PageOption {
    /// Write an HTML page instead: one file, which opens in any browser without network
    ///
    /// It has the verdict, memory over time with two cursors, live memory by line, tensor, module and retainer, a flame
    /// graph, iterations, the map of addresses and growth. It holds the source text of the Python files that its lines
    /// name, as far as they are on this machine.
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_TABLES)]
    pub(super) html: Option<PathBuf>,
    /// With --html: no command line, no source text, and file names without their folders
    #[arg(long, requires = "html")]
    redact: bool,
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

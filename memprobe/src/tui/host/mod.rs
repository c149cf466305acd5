//! Live screen of all processes of a host. Enter opens one process, Esc returns.

mod detail;
mod header;
mod processes;
mod rows;
mod run;
#[cfg(test)]
mod samples;
#[cfg(test)]
mod screens;

pub use run::{Title, run};

use std::sync::Arc;

use super::{Command, News, SourceText};
use crate::event::Tgid;
use crate::ledger::snapshot::host::HostSnapshot;

/// Data that the caller provides to the screen.
#[derive(Clone, Debug)]
pub struct HostView {
    /// All processes.
    pub host: Arc<HostSnapshot>,
    /// Process opened by [`HostCommand::Open`], as long as it exists.
    pub process: Option<(Tgid, News)>,
}

/// Request to the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostCommand {
    /// End. The screen has already been left.
    Quit,
    /// Include this process in [`HostView::process`] from now on.
    Open(Tgid),
    /// Stop providing a process.
    Close,
    /// Request from the screens of the open process.
    Ask(Command),
}

/// Returns the source text as a process sees it.
pub type SourcesOf = Box<dyn FnMut(Tgid) -> Box<dyn SourceText + Send> + Send>;

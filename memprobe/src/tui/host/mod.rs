//! Live screen of all processes of a host. Enter opens one process, Esc returns.

mod panels;
mod processes;
mod run;
#[cfg(test)]
mod samples;
#[cfg(test)]
mod screens;

pub use run::{HostTitle, run};

use std::sync::Arc;

use super::{Command, News, SourceText};
use crate::event::Tgid;
use crate::ledger::snapshot::host::HostSnapshot;

#[derive(Clone, Debug)]
pub struct HostView {
    pub host: Arc<HostSnapshot>,
    /// Process opened by [`HostCommand::Open`], as long as it exists.
    pub process: Option<(Tgid, News)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostCommand {
    /// End. The screen has already been left.
    Quit,
    /// Include this process in [`HostView::process`] from now on.
    Open(Tgid),
    Close,
    Ask(Command),
}

/// Returns the source text as a process sees it.
pub type SourcesOf = Box<dyn FnMut(Tgid) -> Box<dyn SourceText + Send> + Send>;

/// Returns the content and context of the screen of a sample host.
#[cfg(test)]
pub(super) fn sample() -> (processes::Processes, processes::HostContext) {
    let host = Arc::new(samples::busy());
    let context = processes::HostContext::new(Arc::clone(&host), "memprobe top".to_owned());
    (processes::Processes::new(host), context)
}

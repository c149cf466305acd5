//! The live screen of all processes of a host. Enter opens the screen of one, Esc leads back.

mod columns;
mod detail;
mod header;
mod help;
mod input;
mod layout;
mod rows;
#[cfg(test)]
mod samples;
#[cfg(test)]
mod screens;
mod sort;
mod stage;
mod state;
mod status;
mod table;
mod view;

pub use stage::{Title, run};

use std::sync::Arc;

use super::SourceText;
use crate::event::Tgid;
use crate::model::snapshot::host::HostSnapshot;
use crate::model::snapshot::{Grouping, Snapshot};

/// What the caller gives the screen to show.
#[derive(Clone, Debug, PartialEq)]
pub struct HostView {
    /// All processes.
    pub host: Arc<HostSnapshot>,
    /// The one that was asked for by [`HostCommand::Open`].
    pub process: Option<Arc<Snapshot>>,
}

/// What a person asks of the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostCommand {
    /// End. The screen is left already when this arrives.
    Quit,
    /// Views from now on hold this process too.
    Open(Tgid),
    /// Views need not hold a process any more.
    Close,
    /// Snapshots of the process count memory under other frames from now on.
    SetGrouping(Grouping),
}

/// Gives the source text that a process sees.
pub type SourcesOf = Box<dyn FnMut(Tgid) -> Box<dyn SourceText + Send> + Send>;

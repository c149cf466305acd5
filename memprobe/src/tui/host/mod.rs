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

use super::{Command, News, SourceText};
use crate::event::Tgid;
use crate::model::snapshot::host::HostSnapshot;

/// What the caller gives the screen to show.
#[derive(Clone, Debug)]
pub struct HostView {
    /// All processes.
    pub host: Arc<HostSnapshot>,
    /// The one that was asked for by [`HostCommand::Open`], for as long as it is there.
    pub process: Option<(Tgid, News)>,
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
    /// What the screens of that process ask for.
    Ask(Command),
}

/// Gives the source text that a process sees.
pub type SourcesOf = Box<dyn FnMut(Tgid) -> Box<dyn SourceText + Send> + Send>;

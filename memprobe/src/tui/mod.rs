//! The live screen. It sees snapshots alone: [`run`] draws each new one and takes keys and the
//! mouse until a person quits or the caller does.

mod beside;
mod callers;
mod categories;
mod click;
mod columns;
mod filter;
mod graph;
mod header;
pub mod host;
mod input;
mod layout;
mod lines;
mod list;
mod modules;
mod notice;
mod overlay;
mod process;
#[cfg(test)]
mod samples;
#[cfg(test)]
mod screens;
mod sort;
mod source;
mod state;
mod status;
mod table;
mod tensors;
mod terminal;
mod theme;
#[cfg(test)]
mod trial;
mod view;

pub use beside::{Explain, Reasons};
pub use process::{News, run};
pub use tensors::Tensors;

use crate::model::snapshot::Grouping;

/// What a person asks of the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// End. The screen is left already when this arrives.
    Quit,
    /// Snapshots from now on count memory under other frames.
    SetGrouping(Grouping),
    /// Read the tensors of the process. The process is paused for a moment.
    TakeTensors,
    /// From now on, tell this of why its memory is there, and nothing else of it.
    Explain(Explain),
}

/// The text of the target's source files, wherever it is read from.
///
/// Answers are drawn on each change of the screen: an implementation keeps what it has read.
/// The text may hold anything; the screen cleans it.
pub trait SourceText {
    /// One line, without its end; `None` if it cannot be read. Lines count from 1.
    fn line(&mut self, file: &str, line: u32) -> Option<String>;

    /// Up to `radius` lines before and after a line, with their numbers; `None` if they cannot
    /// be read.
    fn around(&mut self, file: &str, line: u32, radius: u32) -> Option<Vec<(u32, String)>>;
}

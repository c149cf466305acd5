//! The live screen. Its only input is snapshots: [`run`] draws each new one, and handles keys and the mouse
//! until the user quits or the caller ends it.

mod background;
mod bars;
mod breakdown;
mod categories;
mod context;
mod filter;
#[cfg(test)]
mod gallery;
pub mod host;
mod input;
mod lines;
mod modules;
mod outside;
mod overlay;
mod owners;
mod palette;
pub mod picker;
#[cfg(test)]
mod pictures;
mod plot;
mod process;
mod replay;
#[cfg(test)]
mod samples;
mod saving;
mod segments;
#[cfg(test)]
mod sizes;
mod table_screen;
mod tensors;
mod terminal;
#[cfg(test)]
mod test_support;
mod theme;

pub use context::{AttributionQuery, AttributionTables};
pub use process::{News, run};
pub use replay::ReplaySeek;
pub use saving::Saving;
pub use tensors::Tensors;
pub use theme::ThemeChoice;

use crate::ledger::snapshot::Grouping;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// End. The screen has already been left.
    Quit,
    /// Group memory by other frames in later snapshots.
    SetGrouping(Grouping),
    /// Count peaks and growth of lines from now on.
    ResetPeaks,
    /// Read the tensors of the process, which pauses it briefly.
    TakeTensors,
    /// Provide this attribution table, and no other, from now on.
    Explain(AttributionQuery),
    /// Show another moment of the recording.
    Seek(ReplaySeek),
    /// Begin a recording of the process, or end it.
    SaveRecording,
    /// Save the tensors of the reading in progress, once it is complete; without one, of the last reading.
    SaveTensors,
}

/// Source text of the target's files, which may contain anything: the screen cleans it. The screen asks on each
/// drawing, so implementations cache what they have read.
pub trait SourceText {
    /// Returns one line without its newline; `None` if it cannot be read. Lines count from 1.
    fn line(&mut self, file: &str, line: u32) -> Option<String>;

    /// Returns up to `radius` lines before and after a line, with their numbers.
    fn around(&mut self, file: &str, line: u32, radius: u32) -> Option<Vec<(u32, String)>>;

    /// Opens a line in the user's editor, and returns when the editor has ended. The terminal is the editor's. Returns
    /// the reason if that is impossible.
    fn edit(&mut self, file: &str, line: u32) -> Result<(), String>;
}

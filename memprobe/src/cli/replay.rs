//! `memprobe replay`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;

use super::options::ThemeOption;
use crate::commands::ReplayPlace;
use crate::commands::replay::ReplayScreen;
use crate::recording::{open_tensors, recordings_in};

/// Show a recording on the screen of `attach`, at any moment
///
/// Reads recordings of `memprobe record` and PyTorch's own memory snapshots. Needs no root and no GPU. Left and Right
/// move through time; a click into the graph goes to a moment; b compares two. Press ? for the keys.
#[derive(Args)]
#[command(after_help = "\
Examples:
  memprobe replay trace.mprb
  memprobe replay trace.mprb --at peak
  memprobe replay trace.mprb --at oom
  memprobe replay trace.mprb --at 12.5s
  memprobe replay trace.mprb --at \"iteration 40\"
  memprobe replay snapshot.pickle                a snapshot that PyTorch pickled, with its history")]
pub struct ReplayArgs {
    /// Recording that `memprobe record` wrote, or a pickle of PyTorch's memory snapshot
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// First moment: peak, oom, start, end, a time such as 12.5s, "iteration N", "event N" [default: end]
    #[arg(long, value_name = "MOMENT")]
    at: Option<ReplayPlace>,
    #[command(flatten)]
    theme: ThemeOption,
}

impl ReplayArgs {
    pub(super) fn run(self) -> Result<ExitCode> {
        let file = self.file.display();
        if self.file.is_dir() {
            let first = recordings_in(&self.file).ok();
            match first.and_then(|all| all.into_iter().next()) {
                Some(first) => bail!(
                    "{file}: this is a directory of recordings: replay one of them, such as {}",
                    first.display()
                ),
                None => bail!("{file}: this is a directory without recordings: give a recording"),
            }
        }
        // What is read of a pipe cannot be read again.
        if self.file.is_file() && open_tensors(&self.file).is_ok() {
            bail!(
                "{file}: this is a snapshot of tensors, of one moment: print it with `memprobe snapshot {file}`"
            );
        }
        ReplayScreen {
            file: self.file,
            at: self.at,
            theme: self.theme.theme,
        }
        .run()
    }
}

//! `memprobe diff`.

use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use super::tensors::Table;
use crate::recording::open_tensors;
use crate::report::write_tensor_diff;
use crate::tensors::TensorSnapshot;

/// Print what came and what went between two snapshots of a process's tensors
///
/// `+` came, `-` went, `~` is the same tensor with another name or another storage size. A tensor is
/// the same in both where object, data address, offset, shape and dtype are; else tensors of equal
/// kind, name, shape and dtype are taken for each other whatever their addresses, so that what a loop
/// frees and allocates again is no difference. The rows add up to the change of memory_allocated().
/// Needs no root, no GPU and not the process.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo memprobe snapshot --pid 1234 -o a.json
  sudo memprobe snapshot --pid 1234 -o b.json
  memprobe diff a.json b.json
  memprobe diff a.json b.json --group shape
  memprobe diff a.json b.json --format json | jq '.devices[].came[] | [.count, .name, .holds]'")]
pub struct Diff {
    /// Earlier snapshot, written by `memprobe snapshot -o`
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// Later snapshot
    #[arg(value_name = "AFTER")]
    after: PathBuf,
    #[command(flatten)]
    table: Table,
}

impl Diff {
    pub(super) fn run(self) -> Result<ExitCode> {
        if self.before.as_os_str() == "-" && self.after.as_os_str() == "-" {
            bail!("standard input can be one of the two snapshots: name a file for the other");
        }
        let before = read(&self.before)?;
        let after = read(&self.after)?;
        let mut out = BufWriter::new(std::io::stdout().lock());
        write_tensor_diff(&before, &after, &self.table.options(), &mut out)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn read(path: &Path) -> Result<TensorSnapshot> {
    let read = if path.as_os_str() == "-" {
        crate::recording::read_tensors(std::io::stdin().lock())
    } else {
        open_tensors(path)
    };
    read.with_context(|| path.display().to_string())
}

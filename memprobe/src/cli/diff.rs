//! `memprobe diff`.

use std::io::BufWriter;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;

use super::options::formats;
use super::snapshot::{FORMATS, TensorRows, read};
use crate::report::write_tensor_diff;

/// Print the tensors added and removed between two snapshots of a process
///
/// `+` was added, `-` was removed, `~` has another name or another storage size. A tensor is the same in both if object,
/// data address, offset, shape and dtype are equal; else tensors of equal kind, name, shape and dtype match, whatever
/// their addresses, so that memory which a loop frees and allocates again is no difference. The rows add up to the change
/// of memory_allocated(). Needs no root, no GPU and not the process.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo memprobe snapshot --pid 1234 -o a.json
  sudo memprobe snapshot --pid 1234 -o b.json
  memprobe diff a.json b.json
  memprobe diff a.json b.json --by shape
  memprobe diff a.json b.json --format json | jq '.devices[].added[] | [.count, .name, .allocated]'")]
#[command(mut_arg("format", formats(FORMATS)))]
#[command(mut_arg("no_fold", |arg| arg.help("With --by tensor: show identical unnamed tensors one by one")))]
#[command(mut_arg("limit", |arg| arg.help("Rows of each device in text, or `all` [default: 50]")))]
pub struct Diff {
    /// Earlier snapshot, written by `memprobe snapshot -o` (`-` for standard input)
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// Later snapshot
    #[arg(value_name = "AFTER")]
    after: PathBuf,
    #[command(flatten)]
    rows: TensorRows,
}

impl Diff {
    pub(super) fn run(self) -> Result<ExitCode> {
        let options = self.rows.options()?;
        if self.before.as_os_str() == "-" && self.after.as_os_str() == "-" {
            bail!("standard input can be one of the two snapshots: name a file for the other");
        }
        let before = read(&self.before)?;
        let after = read(&self.after)?;
        let mut out = BufWriter::new(std::io::stdout().lock());
        write_tensor_diff(&before, &after, &options, &mut out)?;
        Ok(ExitCode::SUCCESS)
    }
}

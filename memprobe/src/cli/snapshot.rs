//! `memprobe snapshot`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use super::tensors::{Table, Writing};
use super::{Detail, parse_buffer_size, parse_duration};
use crate::event::Tgid;
use crate::pipeline::snapshot::{CaptureMode, Extent, Snapshots};

/// Print every tensor of a running process: name, shape, dtype, what it holds
///
/// The process is paused for a fraction of a second while its memory is read; how long is said. Nothing
/// is written into it, and it goes on whatever happens to memprobe. Parameters, buffers, gradients and
/// optimizer state are named by their module path, others by variable, attribute or slot; tensors that
/// only the backward pass keeps, by the operation that saved them. HOLDS adds up to
/// torch.cuda.memory_allocated(): of tensors that share a storage one has its bytes, the others say
/// (->which).
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo memprobe snapshot --pid 1234
  sudo memprobe snapshot --pid 1234 --group shape
  sudo memprobe snapshot --pid 1234 -o a.json      to keep, and for `memprobe diff a.json b.json`
  sudo memprobe snapshot --pid 1234 --watch 5s     first all, then what came and went
  sudo memprobe snapshot --pid 1234 --cpu --all
  sudo memprobe snapshot --pid 1234 --format json | jq '.tensors[] | select(.kind == \"saved\")'")]
pub struct Snapshot {
    /// The process
    #[arg(short, long, value_name = "PID")]
    pid: u32,
    /// Write to this file: all that is known as JSON, or a table if it ends in .csv or .txt (`-` for
    /// standard output)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print again and again what came and went, such as every 5s. Blocks allocated meanwhile have
    /// their line
    #[arg(short, long, value_name = "TIME", value_parser = parse_interval, conflicts_with = "output")]
    watch: Option<Duration>,
    /// Do not pause the process: what it changes meanwhile may be read torn, which is said
    #[arg(short, long)]
    nonblocking: bool,
    /// Tensors of the host too, in a table of their own
    #[arg(short, long)]
    cpu: bool,
    #[command(flatten)]
    table: Table,
    /// With --watch: detail of each block allocated meanwhile, for blocks that no tensor reaches. Cost to the process:
    /// `tensors` a trap for each new tensor, `full` also a copy of the stack for each block without a tensor
    #[arg(long, value_enum, default_value_t = Detail::Lines, requires = "watch")]
    detail: Detail,
    /// With --watch: room for events that were not read yet
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = parse_buffer_size)]
    buffer_size: u32,
}

impl Snapshot {
    pub(super) fn run(self) -> Result<ExitCode> {
        let mut options = self.table.options();
        if let Some(output) = self
            .output
            .as_deref()
            .filter(|path| path.as_os_str() != "-")
        {
            options.format = self.table.format.unwrap_or_else(|| writing(output)).into();
        }
        let snapshots = Snapshots {
            tgid: Tgid(self.pid),
            manner: if self.nonblocking {
                CaptureMode::Running
            } else {
                CaptureMode::Paused
            },
            extent: if self.cpu {
                Extent::DevicesAndHost
            } else {
                Extent::Devices
            },
            options,
        };
        match self.watch {
            Some(interval) => snapshots.watch(interval, self.detail.into(), self.buffer_size),
            None => snapshots.once(self.output.as_deref()),
        }
    }
}

/// File format, chosen by the ending of the name.
fn writing(path: &Path) -> Writing {
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("csv") => Writing::Csv,
        Some("txt") => Writing::Text,
        _ => Writing::Json,
    }
}

/// Each snapshot pauses the process: no more than ten a second.
fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text)?;
    if interval < Duration::from_millis(100) {
        return Err("each snapshot pauses the process: give 100ms or more".to_owned());
    }
    Ok(interval)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_of_a_file_says_how_it_is_written() {
        assert!(writing(Path::new("a.json")) == Writing::Json);
        assert!(writing(Path::new("a")) == Writing::Json);
        assert!(writing(Path::new("a.csv")) == Writing::Csv);
        assert!(writing(Path::new("a.txt")) == Writing::Text);
    }

    #[test]
    fn a_process_is_not_paused_all_the_time() {
        assert!(parse_interval("5s").is_ok());
        assert!(parse_interval("0").is_err());
        assert!(parse_interval("10ms").is_err());
    }
}

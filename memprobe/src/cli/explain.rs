//! `memprobe explain`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use super::options::{
    BufferOption, DriverOption, Format, FormatOption, StdoutStyle, formats, parse_duration,
};
use super::subject::{ProcessOption, pid_of};
use crate::commands::choose::Chooser;
use crate::commands::explain::{Explain, explain_all, explain_file};
use crate::commands::snapshot::{BlockProbes, CaptureMode};
use crate::commands::{Allocators, Detail, MatchScope};
use crate::report::DocumentFormat;
use crate::report::explain::ExplainOptions;

/// Time to watch without `--duration`.
const WATCH: Duration = Duration::from_secs(3);

/// Explain GPU memory on one page: its parts, its growth, and measures that give memory back
///
/// memprobe watches the process for three seconds, then reads its objects, which pauses it for a fraction of a second. The
/// GPU is drawn as one bar, whose parts add up; the first sentence says what matters most. Figures are computed, not
/// estimated: `<=` marks an upper bound. Of a recording the page is about the moment of most allocated bytes.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo memprobe explain                      choose among the processes with CUDA
  sudo memprobe explain 1234
  sudo memprobe explain train.py --duration 30s   slow growth needs more time
  sudo memprobe explain --all                all processes of this machine
  memprobe explain trace.mprb                a recording; needs no root
  memprobe explain a.json                    a snapshot of `memprobe snapshot -o`
  sudo memprobe explain 1234 --format json | jq '.verdict'")]
#[command(mut_arg("format", formats(&[Format::Text, Format::Json])))]
#[command(mut_arg("process", |arg| arg.value_name("PROCESS|FILE").help(
    "PID, or a script or part of a command line that one process with CUDA or PyTorch has; or a recording or snapshot \
     that memprobe wrote, which needs no root. Without it, memprobe lists these processes to choose from")))]
pub struct ExplainArgs {
    #[command(flatten)]
    process: ProcessOption,
    /// All processes of this machine
    #[arg(short, long, conflicts_with_all = ["process", "pid"])]
    all: bool,
    /// Time to watch [default: 3s]
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Do not pause the process. What it changes meanwhile may be read torn; the page says so
    #[arg(long)]
    nonblocking: bool,
    #[command(flatten)]
    format: FormatOption,
    #[command(flatten)]
    driver: DriverOption,
    #[command(flatten)]
    buffer: BufferOption,
}

/// Columns of a page that does not go to a terminal.
const PIPED_WIDTH: usize = 100;

impl ExplainArgs {
    pub(super) fn run(self) -> Result<ExitCode> {
        let style = StdoutStyle::detect();
        let options = ExplainOptions {
            format: match self.format.or_text() {
                Format::Json => DocumentFormat::Json,
                _ => DocumentFormat::Text,
            },
            width: style.columns.unwrap_or(PIPED_WIDTH),
            colour: style.colour,
        };
        let watch = self.duration.unwrap_or(WATCH);
        let probes = BlockProbes {
            detail: Detail::Lines,
            driver: self.driver.calls(),
            ring_bytes: self.buffer.buffer_size,
        };
        if self.all {
            return explain_all(watch, probes, options);
        }
        if let Some(file) = self.file() {
            if self.duration.is_some() || self.nonblocking {
                bail!(
                    "--duration and --nonblocking are for a process, and {} is a file: leave them out",
                    file.display()
                );
            }
            return explain_file(file, options);
        }
        let chooser = Chooser::new("explain", Allocators::Cuda, MatchScope::Process);
        let tgid = match self.process.choose(chooser)? {
            Ok(tgid) => tgid,
            Err(status) => return Ok(status),
        };
        Explain {
            tgid,
            manner: if self.nonblocking {
                CaptureMode::Running
            } else {
                CaptureMode::Paused
            },
            watch,
            probes,
            options,
        }
        .run()
    }

    /// Returns the file to explain, if the argument is one. A number is a process; `./1234` is a file.
    fn file(&self) -> Option<&Path> {
        let text = self.process.process.as_deref()?;
        let path = Path::new(text);
        let is_python = path.extension().is_some_and(|ending| ending == "py");
        let is_named = [".json", ".mprb"]
            .iter()
            .any(|ending| text.ends_with(ending));
        let is_file = || is_named || path.is_file() && !is_python;
        (pid_of(text.as_ref()).is_none() && is_file()).then_some(path)
    }
}

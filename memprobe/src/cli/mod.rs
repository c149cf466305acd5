//! The command line. clap's types stop here.

mod attach;
mod diff;
mod doctor;
mod estimate;
mod record;
mod report;
mod snapshot;
mod tensors;
mod top;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

use crate::pipeline;

/// Exit status of every error.
const ERROR: u8 = 2;

/// Shows the lines of Python that hold the GPU memory of a running PyTorch process
#[derive(Parser)]
#[command(name = "memprobe", version, max_term_width = 100, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
    /// Print diagnostics of the kernel programs on standard error: ignored events, unreadable stacks, dropped records
    #[arg(long, global = true, value_name = "LEVEL")]
    log: Option<LogLevel>,
}

#[derive(Clone, Copy, ValueEnum)]
enum LogLevel {
    Debug,
}

const EXAMPLES: &str = "\
Examples:
  sudo memprobe attach --pid 1234                             watch a running process
  sudo memprobe top                                           watch all that hold CUDA memory
  sudo memprobe record -o trace.json --pid 1234 --duration 30s
  sudo memprobe record -o trace.json -- python train.py
  memprobe report trace.json                                  the table of lines; needs no root
  sudo memprobe snapshot --pid 1234                           every tensor by name, now
  memprobe diff a.json b.json                                 what came and what went
  sudo memprobe estimate -- python train.py                   what it would need on a GPU
  sudo memprobe doctor --pid 1234                             can it work here; if not, what to do";

#[derive(Subcommand)]
enum Verb {
    Attach(attach::Attach),
    Top(top::Top),
    Record(record::Record),
    Report(report::Report),
    Snapshot(snapshot::Snapshot),
    Diff(diff::Diff),
    Estimate(estimate::Estimate),
    Doctor(doctor::Doctor),
}

/// Runs the command line and says how it ended: 0, 2 after an error, or the status of the
/// command that `record` or `estimate` ran.
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(LogLevel::Debug) = arguments.log {
        let draws = matches!(arguments.verb, Verb::Attach(_) | Verb::Top(_));
        if draws && std::io::stderr().is_terminal() {
            let _ = writeln!(
                std::io::stderr(),
                "memprobe: --log would overwrite the screen; add 2> FILE"
            );
            return ExitCode::from(ERROR);
        }
        pipeline::enable_diagnostics();
    }
    let outcome = match arguments.verb {
        Verb::Attach(attach) => attach.run(),
        Verb::Top(top) => top.run(),
        Verb::Record(record) => record.run(),
        Verb::Report(report) => report.run(),
        Verb::Snapshot(snapshot) => snapshot.run(),
        Verb::Diff(diff) => diff.run(),
        Verb::Estimate(estimate) => estimate.run(),
        Verb::Doctor(doctor) => doctor.run(),
    };
    outcome.unwrap_or_else(|error| {
        // Nobody is left to tell where standard error is gone too.
        let _ = writeln!(std::io::stderr(), "memprobe: {error:#}");
        ExitCode::from(ERROR)
    })
}

/// Detail of each block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Detail {
    /// The line that allocated it
    Lines,
    /// The line, and the tensor: shape, element type and bytes that were asked for
    Tensors,
    /// All of that, and what each block without a tensor is for: a library's workspace, a resized storage, scratch
    Full,
}

impl From<Detail> for pipeline::Detail {
    fn from(detail: Detail) -> Self {
        match detail {
            Detail::Lines => Self::Lines,
            Detail::Tensors => Self::Tensors,
            Detail::Full => Self::Full,
        }
    }
}

/// Treatment of libcuda.
#[derive(clap::Args, Clone, Copy)]
struct Driver {
    /// Put no probe into libcuda, for processes in which another tool rewrites its functions (UCX in NIXL, UCC and Open
    /// MPI); what NCCL, cuBLAS and the like ask the driver for is not seen then
    #[arg(long)]
    no_driver: bool,
}

impl Driver {
    fn calls(self) -> pipeline::DriverCalls {
        match self.no_driver {
            true => pipeline::DriverCalls::LeftAlone,
            false => pipeline::DriverCalls::Probed,
        }
    }
}

/// Allocators to watch.
fn allocators(cpu: bool) -> pipeline::Allocators {
    if cpu {
        pipeline::Allocators::CudaAndCpu
    } else {
        pipeline::Allocators::Cuda
    }
}

/// Attribution of backward passes to the forward pass.
fn graph(ignored: bool) -> pipeline::Graph {
    if ignored {
        pipeline::Graph::Ignored
    } else {
        pipeline::Graph::Followed
    }
}

/// Parses a duration: `30s`, `5m`, `1h 30m`, or a plain number of seconds.
fn parse_duration(text: &str) -> Result<std::time::Duration, String> {
    if let Ok(seconds) = text.parse::<f64>() {
        return std::time::Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string());
    }
    humantime::parse_duration(text).map_err(|error| format!("{error}; write it like 30s, 5m or 1h"))
}

/// Parses a size of the ring buffer: `8M`, `64MiB`, or a plain number of bytes.
fn parse_buffer_size(text: &str) -> Result<u32, String> {
    const MOST: u64 = 1 << 30;
    let bytes = text.parse::<bytesize::ByteSize>()?.as_u64();
    match u32::try_from(bytes) {
        Ok(size) if (4096..=MOST).contains(&bytes) => Ok(size),
        _ => Err("give 4 KiB to 1 GiB, such as 64MiB".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;
    use std::time::Duration;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn durations_are_written_as_people_write_them() {
        assert_eq!(parse_duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_duration("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1h 30m"), Ok(Duration::from_secs(5400)));
        assert!(parse_duration("-1").is_err());
        assert!(parse_duration("soon").is_err());
    }

    #[test]
    fn ring_buffer_sizes_are_bounded() {
        assert_eq!(parse_buffer_size("8MiB"), Ok(8 << 20));
        assert!(parse_buffer_size("1").is_err());
        assert!(parse_buffer_size("2GiB").is_err());
    }
}

//! The command line. clap's types stop here.

mod attach;
mod diff;
mod doctor;
mod estimate;
mod explain;
mod export;
mod html;
mod misplaced;
mod options;
mod packaging;
mod record;
mod replay;
mod report;
mod snapshot;
mod subject;
mod suspend;
mod top;
mod watch;

use std::ffi::OsString;
use std::io::ErrorKind;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

use crate::commands::{self, messages};

/// Exit status of every error.
const ERROR: u8 = 2;

/// Shows which lines of Python allocated the GPU memory of a running PyTorch process
#[derive(Parser)]
#[command(name = "memprobe", version, max_term_width = 100, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
    /// Print diagnostics of the kernel programs on standard error: ignored events, unreadable stacks, dropped records
    #[arg(long, global = true, value_name = "LEVEL")]
    log: Option<LogLevel>,
    /// Longest time to stop a process for a reading, such as 5s [default: 1s; of estimate, which stops the process that
    /// it started: 30s]
    #[arg(long, global = true, value_name = "TIME", value_parser = options::parse_duration)]
    max_pause: Option<Duration>,
}

#[derive(Clone, Copy, ValueEnum)]
enum LogLevel {
    Debug,
}

const EXAMPLES: &str = "\
Examples:
  sudo memprobe attach                        choose a running process, and watch it
  sudo memprobe attach 1234                   or by PID
  sudo memprobe attach train.py               or by script
  sudo memprobe top                           watch all processes with CUDA memory
  sudo memprobe record -o trace.mprb 1234 --duration 30s
  sudo memprobe record -o trace.mprb -- python train.py
  memprobe report trace.mprb                  the table of lines; needs no root
  memprobe replay trace.mprb                  the live screen at any moment of a recording
  memprobe export trace.mprb -o trace.pickle  for pytorch.org/memory_viz, pprof, speedscope
  sudo memprobe snapshot 1234                 every tensor by name, now
  memprobe diff old.mprb new.mprb             lines with more or less memory
  sudo memprobe explain 1234                  where the memory went, on one page
  sudo memprobe watch --all                   a file at each out-of-memory error, with its cause
  sudo memprobe estimate -- python train.py   GPU memory that it would need
  sudo memprobe suspend 1234                  device memory to the host, until `memprobe resume`
  sudo memprobe doctor 1234                   check kernel, rights and process";

#[derive(Subcommand)]
enum Verb {
    Attach(attach::Attach),
    Top(top::TopArgs),
    Record(record::RecordArgs),
    Report(Box<report::Report>),
    Replay(replay::ReplayArgs),
    Export(export::ExportArgs),
    Snapshot(snapshot::SnapshotArgs),
    Diff(diff::Diff),
    Explain(explain::ExplainArgs),
    Watch(watch::WatchArgs),
    Estimate(estimate::EstimateArgs),
    Suspend(suspend::SuspendArgs),
    Resume(suspend::ResumeArgs),
    Doctor(doctor::DoctorArgs),
    Completions(packaging::Completions),
    #[command(hide = true)]
    Man(packaging::ManualPage),
    /// Run a command as the user who called sudo
    #[command(hide = true, name = commands::editor::VERB)]
    RunAsCaller {
        #[arg(last = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
}

/// Longest pause of a process that runs for the estimate alone. It is read while it stands still.
const PAUSE_OF_ESTIMATE: Duration = Duration::from_secs(30);

impl Verb {
    /// Longest pause without `--max-pause`, if not the usual one.
    fn longest_pause(&self) -> Option<Duration> {
        matches!(self, Self::Estimate(_)).then_some(PAUSE_OF_ESTIMATE)
    }

    fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Attach(attach) => attach.run(),
            Self::Top(top) => top.run(),
            Self::Record(record) => record.run(),
            Self::Report(report) => report.run(),
            Self::Replay(replay) => replay.run(),
            Self::Export(export) => export.run(),
            Self::Snapshot(snapshot) => snapshot.run(),
            Self::Diff(diff) => diff.run(),
            Self::Explain(explain) => explain.run(),
            Self::Watch(watch) => watch.run(),
            Self::Estimate(estimate) => estimate.run(),
            Self::Suspend(suspend) => suspend.run(),
            Self::Resume(resume) => resume.run(),
            Self::Doctor(doctor) => doctor.run(),
            Self::Completions(completions) => completions.run(),
            Self::Man(page) => page.run(),
            Self::RunAsCaller { command } => commands::editor::run_as_caller(&command),
        }
    }
}

/// Runs the command line. Returns 0, 2 after an error, or the status of the command that `record`,
/// `estimate` or `suspend` ran.
pub fn run() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return print_parsed(&error),
    };
    if let Some(LogLevel::Debug) = arguments.log {
        let draws = matches!(
            arguments.verb,
            Verb::Attach(_) | Verb::Top(_) | Verb::Replay(_)
        );
        if draws && messages::go_to_a_terminal() {
            messages::print("--log would overwrite the screen; add 2> FILE");
            return ExitCode::from(ERROR);
        }
        commands::enable_diagnostics();
    }
    let longest = arguments.max_pause.or(arguments.verb.longest_pause());
    if let Some(longest) = longest {
        commands::allow_longest_pause(longest);
    }
    let outcome = commands::begin_start().and_then(|()| arguments.verb.run());
    outcome.unwrap_or_else(|error| {
        messages::print(&format!("{error:#}"));
        ExitCode::from(ERROR)
    })
}

/// Prints the help, the version, or an error of the command line. Returns the exit status.
fn print_parsed(error: &clap::Error) -> ExitCode {
    let printed = error.print().and_then(|()| commands::stdout::flush());
    if let Some(suggestion) = misplaced::suggestion(error) {
        messages::print_line(&format!("\n  tip: {suggestion}"));
    }
    match printed {
        Err(cause) if !error.use_stderr() && cause.kind() != ErrorKind::BrokenPipe => {
            messages::print(&format!("cannot write to standard output: {cause}"));
            ExitCode::from(ERROR)
        }
        _ => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(ERROR)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}

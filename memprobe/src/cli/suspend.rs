//! `memprobe suspend` and `memprobe resume`.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use super::options::{AsRootOption, parse_duration};
use super::subject::ProcessOption;
use crate::commands::choose::Chooser;
use crate::commands::suspend::{CheckpointLimits, Consent, Resume, Suspend};
use crate::commands::{Allocators, MatchScope};

/// Take a process off the GPU: its device memory moves to host memory until `memprobe resume`
///
/// memprobe asks the NVIDIA driver for this (checkpoint calls, driver 570 or newer). No code runs in the process; its
/// calls of CUDA wait. With a command after --, the process is suspended until the command has ended, however it ends.
/// This changes the process. memprobe says what moves and what may fail, and asks first.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo memprobe suspend 1234                  asks, then frees its device memory
  sudo memprobe resume 1234                   brings it back
  sudo memprobe suspend train.py -- python benchmark.py
  sudo memprobe suspend --yes 1234            in a script

Exit status: 0 if the process is suspended, 2 after an error; with a command that of the command.")]
pub struct SuspendArgs {
    #[command(flatten)]
    process: ProcessOption,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Longest wait for running work of the process to end; then it is not suspended
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    lock_timeout: Duration,
    #[command(flatten)]
    timeout: TimeoutOption,
    #[command(flatten)]
    as_root: AsRootOption,
    /// Command for whose length the process is suspended
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Bring a process back that `memprobe suspend` has taken off the GPU
///
/// Also finishes or undoes what a memprobe that was killed has left, or NVIDIA's cuda-checkpoint. The GPU must have room
/// for the process's memory: a restore that fails can be the end of the process.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo memprobe resume 1234
  sudo memprobe resume train.py")]
pub struct ResumeArgs {
    #[command(flatten)]
    process: ProcessOption,
    #[command(flatten)]
    timeout: TimeoutOption,
}

/// `--timeout`.
#[derive(Args, Clone, Copy)]
struct TimeoutOption {
    /// Longest wait for any other call of the driver. A call cannot be cancelled: after it the state is unknown
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_duration)]
    timeout: Duration,
}

impl SuspendArgs {
    pub(super) fn run(self) -> Result<ExitCode> {
        let chooser = Chooser::new("suspend", Allocators::Cuda, MatchScope::Process);
        let tgid = match self.process.choose(chooser)? {
            Ok(tgid) => tgid,
            Err(status) => return Ok(status),
        };
        let user = self.as_root.user();
        Suspend {
            tgid,
            limits: CheckpointLimits {
                lock: self.lock_timeout,
                call: self.timeout.timeout,
            },
            consent: if self.yes {
                Consent::Given
            } else {
                Consent::Asked
            },
            command: (!self.command.is_empty()).then_some((self.command, user)),
        }
        .run()
    }
}

impl ResumeArgs {
    pub(super) fn run(self) -> Result<ExitCode> {
        let chooser = Chooser::new("resume", Allocators::Cuda, MatchScope::Process);
        let tgid = match self.process.choose(chooser)? {
            Ok(tgid) => tgid,
            Err(status) => return Ok(status),
        };
        let call = self.timeout.timeout;
        let limits = CheckpointLimits { lock: call, call };
        Resume { tgid, limits }.run()
    }
}

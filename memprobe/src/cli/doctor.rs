//! `memprobe doctor`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::options::{Format, FormatOption, StdoutStyle, formats};
use super::subject::ProcessOption;
use crate::commands::choose::{Chooser, ProcessName};
use crate::commands::{self, Allocators, MatchScope, doctor};

/// Check whether memprobe can work here, and say what to do if not
///
/// Loads the programs into the kernel and tries one on memprobe itself. With a process, also prints what it finds in
/// it and where each probe would go; attaches nothing. The exit status is 2 if something is in the way.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo memprobe doctor
  sudo memprobe doctor 1234
  sudo memprobe doctor train.py
  sudo memprobe doctor 1234 --format json | jq '.machine[] | select(.level == \"fail\")'")]
#[command(mut_arg("format", formats(&[Format::Text, Format::Json])))]
#[command(mut_arg("process", |arg| arg.help(
    "Process to check too: its PID, or a script or part of a command line that one process with CUDA or PyTorch has")))]
pub struct DoctorArgs {
    #[command(flatten)]
    process: ProcessOption,
    #[command(flatten)]
    format: FormatOption,
    /// File for the log of the kernel's verifier if it refuses a program
    #[arg(long, value_name = "FILE")]
    verifier_log: Option<PathBuf>,
    /// Print the diagnostics of the kernel programs too, like --log debug
    #[arg(short, long)]
    verbose: bool,
}

impl DoctorArgs {
    pub(super) fn run(self) -> Result<ExitCode> {
        if self.verbose {
            commands::enable_diagnostics();
        }
        let tgid = match self.process.name() {
            ProcessName::Unnamed => None,
            _ => match self.process.choose(Chooser::new(
                "doctor",
                Allocators::CudaAndCpu,
                MatchScope::Process,
            ))? {
                Ok(tgid) => Some(tgid),
                Err(status) => return Ok(status),
            },
        };
        doctor::Doctor {
            tgid,
            format: match self.format.or_text() {
                Format::Json => doctor::DoctorFormat::Json,
                _ => doctor::DoctorFormat::Text(StdoutStyle::detect().colour),
            },
            verifier_log: self.verifier_log,
        }
        .run()
    }
}

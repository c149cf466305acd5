//! `memprobe doctor`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::options::{Format, FormatOption, StdoutStyle, formats, parse_pid};
use crate::commands::{self, doctor};
use crate::event::Tgid;

/// Check whether memprobe can work here, and say what to do if not
///
/// Loads the programs into the kernel and tries one on memprobe itself. With --pid, also prints what it finds in the
/// process and where each probe would go; attaches nothing. The exit status is 2 if something is in the way.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo memprobe doctor
  sudo memprobe doctor --pid 1234
  sudo memprobe doctor --pid 1234 --format json | jq '.machine[] | select(.level == \"fail\")'")]
#[command(mut_arg("format", formats(&[Format::Text, Format::Json])))]
pub struct DoctorArgs {
    /// Process to check too
    #[arg(short, long, value_name = "PID", value_parser = parse_pid)]
    pid: Option<u32>,
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
        doctor::Doctor {
            tgid: self.pid.map(Tgid),
            format: match self.format.or_text() {
                Format::Json => doctor::DoctorFormat::Json,
                _ => doctor::DoctorFormat::Text(StdoutStyle::detect().colour),
            },
            verifier_log: self.verifier_log,
        }
        .run()
    }
}

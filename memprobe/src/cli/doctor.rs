//! `memprobe doctor`.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::event::Tgid;
use crate::pipeline::{self, doctor};
use crate::report::Colour;

/// Say whether memprobe can work here, and if not, what to do
///
/// The programs are loaded into the kernel and one is tried on memprobe itself. With --pid it also
/// says what it found in the process and where each probe would sit; nothing is attached to it. The
/// exit status is 2 where something stands in the way.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo memprobe doctor
  sudo memprobe doctor --pid 1234
  sudo memprobe doctor --pid 1234 --format json | jq '.machine[] | select(.level == \"fail\")'")]
pub struct Doctor {
    /// Look at this process too
    #[arg(short, long, value_name = "PID")]
    pid: Option<u32>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Writing::Text)]
    format: Writing,
    /// Write here why the kernel's verifier refuses a program, if it does
    #[arg(long, value_name = "FILE")]
    verifier_log: Option<PathBuf>,
    /// Print the diagnostics of the kernel programs too, like --log debug
    #[arg(short, long)]
    verbose: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Writing {
    /// For people
    Text,
    /// For programs
    Json,
}

impl Doctor {
    pub(super) fn run(self) -> Result<ExitCode> {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
            && std::env::var_os("TERM").is_none_or(|terminal| terminal != "dumb");
        let format = match self.format {
            Writing::Json => doctor::Format::Json,
            Writing::Text if wanted && std::io::stdout().is_terminal() => {
                doctor::Format::Text(Colour::Ansi)
            }
            Writing::Text => doctor::Format::Text(Colour::Plain),
        };
        if self.verbose {
            pipeline::enable_diagnostics();
        }
        doctor::Doctor {
            tgid: self.pid.map(Tgid),
            format,
            verifier_log: self.verifier_log,
        }
        .run()
    }
}

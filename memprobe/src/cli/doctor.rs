//! `memprobe doctor`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::event::Tgid;
use crate::pipeline::doctor;

/// Say whether memprobe can work here, and if not, what to do
///
/// With --pid it also says what it found in the process and where each probe would sit. Nothing
/// is attached.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sudo memprobe doctor
  sudo memprobe doctor --pid 1234")]
pub struct Doctor {
    /// Look at this process too
    #[arg(short, long, value_name = "PID")]
    pid: Option<u32>,
}

impl Doctor {
    pub(super) fn run(self) -> Result<ExitCode> {
        doctor::run(self.pid.map(Tgid))
    }
}

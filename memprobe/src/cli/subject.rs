//! The process of a verb: `memprobe VERB 1234`, `memprobe VERB train.py`, or `--pid 1234`.

use std::ffi::OsStr;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::options::parse_pid;
use crate::commands::choose::{Chooser, ProcessName};
use crate::event::Tgid;

/// Process of a verb that does not work without one.
#[derive(Args, Clone)]
pub(super) struct ProcessOption {
    /// PID, or a script or part of a command line that one process with CUDA or PyTorch has. Without it, memprobe lists
    /// these processes to choose from
    #[arg(value_name = "PROCESS", conflicts_with = "pid")]
    pub(super) process: Option<String>,
    /// Process by its number alone
    #[arg(short, long, value_name = "PID", value_parser = parse_pid)]
    pub(super) pid: Option<u32>,
}

impl ProcessOption {
    pub(super) fn name(&self) -> ProcessName {
        match (&self.process, self.pid) {
            (_, Some(pid)) => ProcessName::Number(Tgid(pid)),
            (Some(text), None) => name_of(text),
            (None, None) => ProcessName::Unnamed,
        }
    }

    /// Finds the process, or lets the user choose one. Returns the exit status if nothing was chosen.
    pub(super) fn choose(&self, chooser: Chooser) -> Result<Result<Tgid, ExitCode>> {
        chooser.choose(&self.name())
    }
}

/// Tells a PID from a name.
pub(super) fn name_of(text: &str) -> ProcessName {
    match pid_of(text.as_ref()) {
        Some(tgid) => ProcessName::Number(tgid),
        None => ProcessName::Text(text.to_owned()),
    }
}

/// Returns the process of an argument that is a number.
pub(super) fn pid_of(text: &OsStr) -> Option<Tgid> {
    parse_pid(text.to_str()?).ok().map(Tgid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_process_and_anything_else_a_name() {
        assert_eq!(name_of("1234"), ProcessName::Number(Tgid(1234)));
        for text in ["train.py", "0", "-1", "12.py", "99999999999"] {
            assert_eq!(name_of(text), ProcessName::Text(text.to_owned()), "{text}");
        }
    }
}

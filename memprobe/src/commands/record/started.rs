//! A command that memprobe starts in order to record it.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command};

use anyhow::{Context as _, Result};

use super::progress::Progress;
use crate::event::Tgid;

pub(crate) struct Started {
    child: Child,
    name: String,
}

impl Started {
    pub(crate) fn spawn(words: &[OsString]) -> Result<Self> {
        let command = words.split_first();
        let (program, arguments) = command.context("no command was given after --")?;
        let name = program.to_string_lossy().into_owned();
        // Ctrl-C at the terminal ends the recording; whether the command ends too is its own
        // affair, as it gets the same signal.
        let child = Command::new(program).args(arguments).spawn();
        let child = child.with_context(|| {
            format!("starting {name}: give a program after --, such as `-- python train.py`")
        })?;
        Ok(Self { child, name })
    }

    pub(crate) fn tgid(&self) -> Tgid {
        Tgid(self.child.id())
    }

    /// The command's own exit status, as the shell would tell it.
    pub(crate) fn exit_status(&mut self) -> Result<u8> {
        let status = self.child.wait();
        let status = status.with_context(|| format!("waiting for {}", self.name))?;
        let by_signal = || status.signal().map(|signal| 128 + signal);
        let code = status.code().or_else(by_signal);
        Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
    }

    pub(crate) fn leave_running(&mut self, progress: &mut Progress) {
        if let Ok(None) = self.child.try_wait() {
            progress.say(&format!("{} (PID {}) runs on", self.name, self.child.id()));
        }
    }
}

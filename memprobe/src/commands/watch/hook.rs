//! Program of `--on-oom`, which runs after each dump of an out-of-memory error.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::commands::{editor, messages};
use crate::event::Tgid;

/// Most programs that run at once.
const MAX_RUNNING: usize = 8;

#[derive(Clone)]
pub(super) struct Hook {
    program: OsString,
    running: Arc<AtomicUsize>,
}

impl Hook {
    pub(super) fn new(program: OsString) -> Self {
        Self {
            program,
            running: Arc::default(),
        }
    }

    /// Runs the program as the user who called sudo, and waits for its end. No text of the target is an argument: the
    /// path has only the number of the process and the time.
    pub(super) fn run(&self, tgid: Tgid, path: &str, cause: &str) {
        let name = self.program.to_string_lossy().into_owned();
        if self.running.fetch_add(1, Ordering::SeqCst) >= MAX_RUNNING {
            self.running.fetch_sub(1, Ordering::SeqCst);
            messages::print(&format!(
                "{name} was not started: {MAX_RUNNING} of it still run"
            ));
            return;
        }
        // memprobe itself has given up the rights to become another user; a new program of root has them.
        let status = Command::new("/proc/self/exe")
            .args([editor::VERB, "--"])
            .args([&self.program, &OsString::from(path)])
            .env("MEMPROBE_DUMP", path)
            .env("MEMPROBE_PID", tgid.0.to_string())
            .env("MEMPROBE_CAUSE", cause)
            .stdin(Stdio::null())
            .status();
        self.running.fetch_sub(1, Ordering::SeqCst);
        match status {
            Ok(status) if status.success() => {}
            Ok(status) => messages::print(&format!("{name} ended with {status}")),
            Err(error) => messages::print(&format!("{name} could not be started: {error}")),
        }
    }
}

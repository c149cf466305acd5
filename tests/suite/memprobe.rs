//! The program under test.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::events::{Event, parse_events};
use crate::ground::Ground;
use crate::process::{Background, Finished, wait_until};
use crate::pytorch::PyTorch;

/// What `record` says once its probes are in place.
pub const RECORDING: &str = "recording PID";

/// A recording that is being made.
pub struct Recording {
    /// The running memprobe.
    pub memprobe: Background,
    file: PathBuf,
}

impl Ground {
    /// A command that starts memprobe.
    pub fn memprobe(&self) -> Command {
        let mut command = Command::new(&self.memprobe);
        command.env("RUST_BACKTRACE", "0");
        command
    }

    /// Runs memprobe to its end.
    pub fn run(&self, arguments: &[&str]) -> Finished {
        Background::start(self.memprobe().args(arguments)).finish()
    }

    /// Starts to record a running process; returns once the probes are in place.
    pub fn record(&self, pid: u32, file: &Path, options: &[&str]) -> Recording {
        let mut recording = self.record_unready(pid, file, options);
        recording.memprobe.wait_for(RECORDING);
        recording
    }

    /// Starts to record a running process.
    ///
    /// # Errors
    ///
    /// The one clear error with which memprobe ended before it recorded anything.
    ///
    /// # Panics
    ///
    /// Where it ended in another way.
    pub fn try_to_record(&self, pid: u32, file: &Path) -> Result<Recording, String> {
        let mut recording = self.record_unready(pid, file, &[]);
        let records = wait_until("memprobe records or refuses", || {
            if recording.memprobe.stderr().contains(RECORDING) {
                return Some(true);
            }
            recording.memprobe.has_ended().then_some(false)
        });
        if records {
            Ok(recording)
        } else {
            Err(recording.memprobe.finish().one_clear_error())
        }
    }

    /// Starts to record a process that may not be ready.
    pub fn record_unready(&self, pid: u32, file: &Path, options: &[&str]) -> Recording {
        let mut command = self.memprobe();
        command.arg("record").arg("-o").arg(file);
        command.arg("--pid").arg(pid.to_string()).args(options);
        Recording {
            memprobe: Background::start(&mut command),
            file: file.to_owned(),
        }
    }

    /// Records a workload to `trace.json` in a folder, with names, until its objects were read so often at steps, beside once
    /// when it first calls a module; then it may end, for which it waits with `--until`.
    pub fn record_named(
        &self,
        pytorch: &PyTorch,
        workload: &[&str],
        folder: &Path,
        readings: usize,
    ) -> Finished {
        let until = folder.join("until");
        let mut command = self.memprobe();
        command.arg("record").arg("--names").arg("-o");
        command.arg(folder.join("trace.json"));
        command.arg("--").arg(pytorch.python()).args(workload);
        command.arg("--until").arg(&until);
        pytorch.settle(&mut command);
        let recording = Background::start(&mut command);
        wait_until("the objects are read", || {
            let read = recording.stderr().matches("blocks named").count();
            (read > readings).then_some(())
        });
        std::fs::write(until, "").expect("a file");
        let printed = recording.finish().succeeded();
        assert_eq!(lost(&printed.stderr), 0, "losses: {}", printed.stderr);
        printed
    }

    /// Every event of a recording, in order.
    pub fn events(&self, file: &Path) -> Vec<Event> {
        let file = file.to_str().expect("UTF-8");
        let report = self.run(&["report", file, "--by", "event", "--format", "jsonl"]);
        parse_events(&report.succeeded().stdout)
    }

    /// The report on a recording, as JSON.
    pub fn report(&self, file: &Path) -> Value {
        let file = file.to_str().expect("UTF-8");
        let report = self.run(&["report", file, "--format", "json"]).succeeded();
        serde_json::from_str(&report.stdout).expect("the report is JSON")
    }
}

impl Recording {
    /// Ends it as Ctrl-C does.
    pub fn interrupt(self) -> Finished {
        self.memprobe.signal(Signal::INT);
        self.finish()
    }

    /// Waits for its end.
    pub fn finish(self) -> Finished {
        self.memprobe.finish().succeeded()
    }

    /// Where it is written.
    pub fn file(&self) -> &Path {
        &self.file
    }
}

/// How many records memprobe lost, by the last line of `record`.
///
/// # Panics
///
/// Where it does not say.
pub fn lost(stderr: &str) -> u64 {
    let line = stderr.lines().rfind(|line| line.contains(" lost "));
    let line = line.unwrap_or_else(|| panic!("no word on losses: {stderr}"));
    let (_, number) = line.split_once(" lost ").expect("found before");
    let number = number.split_whitespace().next().unwrap_or_default();
    number
        .replace(',', "")
        .parse()
        .unwrap_or_else(|_| panic!("no number: {line}"))
}

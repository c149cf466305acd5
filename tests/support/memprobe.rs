//! Runs the program under test.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::environment::TestEnvironment;
use crate::events::{Event, parse_events};
use crate::process::{Background, Finished, wait_until};
use crate::pytorch::PyTorch;

/// Text that `record` prints once its probes are attached.
pub const RECORDING: &str = "recording PID";

/// Options of a reading: a debug build on a busy machine may need more than the usual second of a pause.
pub const PATIENT: [&str; 2] = ["--max-pause", "10s"];

/// A recording in progress.
pub struct Recording {
    pub memprobe: Background,
    file: PathBuf,
}

impl TestEnvironment {
    /// Returns a command that starts memprobe, as root does without sudo.
    pub fn memprobe(&self) -> Command {
        let mut command = Command::new(&self.memprobe);
        command.env("RUST_BACKTRACE", "0");
        for variable in ["SUDO_UID", "SUDO_GID", "SUDO_USER"] {
            command.env_remove(variable);
        }
        command
    }

    /// Runs memprobe to its end.
    pub fn run(&self, arguments: &[&str]) -> Finished {
        Background::start(self.memprobe().args(arguments)).finish()
    }

    /// Starts recording a running process; returns once the probes are attached.
    pub fn record(&self, pid: u32, file: &Path, options: &[&str]) -> Recording {
        let mut recording = self.record_unready(pid, file, options);
        recording.memprobe.wait_for(RECORDING);
        recording
    }

    /// Starts recording a running process.
    ///
    /// # Errors
    ///
    /// memprobe's error message, if it ended before it recorded anything.
    ///
    /// # Panics
    ///
    /// If it ended in another way.
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

    /// Starts recording a process that may not be ready, without names of memory from before attach: to read the
    /// objects takes time, and most tests are about events.
    pub fn record_unready(&self, pid: u32, file: &Path, options: &[&str]) -> Recording {
        let says_names = |option: &&str| ["--names", "--no-names"].contains(option);
        let without: &[&str] = match options.iter().any(says_names) {
            true => &[],
            false => &["--no-names"],
        };
        self.start_recording(pid, file, &[without, options].concat())
    }

    /// Starts recording a running process with exactly these options; returns once the probes are attached.
    pub fn record_as_asked(&self, pid: u32, file: &Path, options: &[&str]) -> Recording {
        let mut recording = self.start_recording(pid, file, options);
        recording.memprobe.wait_for(RECORDING);
        recording
    }

    fn start_recording(&self, pid: u32, file: &Path, options: &[&str]) -> Recording {
        let mut command = self.memprobe();
        command.arg("record").arg("-o").arg(file);
        command.arg("--pid").arg(pid.to_string()).args(options);
        command.args(PATIENT);
        Recording {
            memprobe: Background::start(&mut command),
            file: file.to_owned(),
        }
    }

    /// Records a workload with `--names` to `trace.json` in `folder`. Waits until its objects were
    /// read `readings` times at optimizer steps, besides once at the first module call. The
    /// workload waits with `--until` and may then end.
    pub fn record_named(
        &self,
        pytorch: &PyTorch,
        workload: &[&str],
        folder: &Path,
        readings: usize,
    ) -> Finished {
        let until = folder.join("until");
        let mut command = self.memprobe();
        command.args(["record", "--names"]).args(PATIENT).arg("-o");
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

    /// Returns every event of a recording, in order.
    pub fn events(&self, file: &Path) -> Vec<Event> {
        let file = file.to_str().expect("UTF-8");
        let report = self.run(&["report", file, "--by", "event", "--format", "jsonl"]);
        parse_events(&report.succeeded().stdout)
    }

    /// Returns the JSON report of a recording.
    pub fn report(&self, file: &Path) -> Value {
        let file = file.to_str().expect("UTF-8");
        let report = self.run(&["report", file, "--format", "json"]).succeeded();
        serde_json::from_str(&report.stdout).expect("the report is JSON")
    }
}

impl Recording {
    /// Interrupts memprobe as Ctrl-C does and waits for its end.
    pub fn interrupt(self) -> Finished {
        self.memprobe.signal(Signal::INT);
        self.finish()
    }

    /// Waits until memprobe says this.
    pub fn wait_for(&mut self, text: &str) {
        self.memprobe.wait_for(text);
    }

    /// Waits for a successful end.
    pub fn finish(self) -> Finished {
        self.memprobe.finish().succeeded()
    }

    /// Returns the path of the recording.
    pub fn file(&self) -> &Path {
        &self.file
    }
}

/// Returns the number of lost records from the last line of `record`.
///
/// # Panics
///
/// If there is no such line.
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

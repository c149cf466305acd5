//! A recorded training loop, and its exports.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

use crate::environment::TestEnvironment;
use crate::process::Background;

/// A recording of a training loop, and a folder for its exports.
pub struct RecordedTraining {
    folder: TempDir,
}

impl RecordedTraining {
    /// Runs the training loop under `memprobe record`, the first time in this program; then returns copies of that
    /// recording.
    ///
    /// # Panics
    ///
    /// If it fails.
    pub fn take(environment: &TestEnvironment) -> Self {
        static TRACE: OnceLock<Vec<u8>> = OnceLock::new();
        let folder = tempfile::tempdir().expect("a folder");
        let trace = TRACE.get_or_init(|| {
            let file = folder.path().join("trace.json");
            record(environment, &file);
            std::fs::read(file).expect("a recording")
        });
        let training = Self { folder };
        std::fs::write(training.trace(), trace).expect("a copy of the recording");
        training
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Path of a file beside the recording.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn trace(&self) -> PathBuf {
        self.path("trace.json")
    }

    /// Exports to a file; returns its content.
    ///
    /// # Panics
    ///
    /// If memprobe fails.
    pub fn export(&self, environment: &TestEnvironment, name: &str, options: &[&str]) -> Vec<u8> {
        let (trace, out) = (self.trace(), self.path(name));
        let mut arguments = vec!["export", text(&trace), "-o", text(&out)];
        arguments.extend(options);
        let finished = environment.run(&arguments).succeeded();
        assert!(
            finished.stderr.contains("memprobe: wrote"),
            "{}",
            finished.stderr
        );
        std::fs::read(&out).expect("an export")
    }

    /// The device of `report --by peak`.
    ///
    /// # Panics
    ///
    /// If memprobe fails.
    pub fn peak(&self, environment: &TestEnvironment) -> Value {
        let trace = self.trace();
        let arguments = ["report", text(&trace), "--by", "peak", "--format", "json"];
        let report = environment.run(&arguments).succeeded();
        let mut report: Value = serde_json::from_str(&report.stdout).expect("JSON");
        report["devices"][0].take()
    }
}

/// Runs the training loop under `memprobe record`.
fn record(environment: &TestEnvironment, file: &Path) {
    let pytorch = environment.pytorch();
    let mut command = environment.memprobe();
    command.args(["record", "-q", "--detail", "tensors", "-o"]);
    command.arg(file).arg("--").arg(pytorch.python());
    command.args(["mlp_adam.py", "--hidden", "256"]);
    pytorch.settle(&mut command);
    Background::start(&mut command).finish().succeeded();
}

/// Path as text.
///
/// # Panics
///
/// If it is not UTF-8.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

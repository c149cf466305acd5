//! Runs recorded from inside (PyTorch) and from outside (memprobe).

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::agreement::Agreement;
use crate::environment::TestEnvironment;
use crate::events::Event;
use crate::ledger::Ledger;
use crate::memprobe::lost;
use crate::process::Background;
use crate::pytorch::PyTorch;
use crate::reference::Reference;

/// A workload under PyTorch's recorder, waiting for its start signal.
pub struct GatedWorkload {
    pub target: Background,
    folder: TempDir,
}

impl GatedWorkload {
    /// Starts `workload` (with its arguments); returns once CUDA is initialised, before any
    /// allocation.
    pub fn prepare(pytorch: &PyTorch, workload: &[&str], settings: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = reference(pytorch, &folder, workload, settings);
        let mut target = Background::start(&mut command);
        target.wait_for("ready ");
        Self { target, folder }
    }

    /// Gives the start signal.
    pub fn go(&self) {
        std::fs::write(self.folder.path().join("go"), "").expect("written");
    }

    /// Waits for the end; returns PyTorch's record.
    pub fn finish(self) -> Reference {
        let path = self.folder.path().join("reference.json");
        self.target.finish().succeeded();
        Reference::read(&path).expect("the reference")
    }

    /// Returns a path in its folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Returns the command that runs a workload under `reference.py`.
fn reference(
    pytorch: &PyTorch,
    folder: &TempDir,
    workload: &[&str],
    settings: &[(&str, &str)],
) -> Command {
    let mut command = pytorch.command();
    command.envs(settings.iter().copied()).arg("reference.py");
    command
        .arg("--out")
        .arg(folder.path().join("reference.json"));
    command.arg("--wait-file").arg(folder.path().join("go"));
    command.args(workload);
    command
}

/// A run recorded by both sides from its first allocation to its end.
pub struct BothSides {
    /// PyTorch's record.
    pub reference: Reference,
    /// memprobe's events.
    pub events: Vec<Event>,
}

impl BothSides {
    /// Attaches to a workload before its first allocation and records it to its end.
    ///
    /// # Panics
    ///
    /// If memprobe refuses.
    pub fn record(
        environment: &TestEnvironment,
        pytorch: &PyTorch,
        workload: &[&str],
        settings: &[(&str, &str)],
    ) -> Self {
        Self::attempt(environment, pytorch, workload, settings)
            .unwrap_or_else(|refusal| panic!("memprobe refuses: {refusal}"))
    }

    /// Like [`Self::record`], but returns the error if memprobe refuses this PyTorch or Python.
    ///
    /// # Errors
    ///
    /// memprobe's error message, if it ended before it recorded anything.
    ///
    /// # Panics
    ///
    /// If it ended in another way, or lost records.
    pub fn attempt(
        environment: &TestEnvironment,
        pytorch: &PyTorch,
        workload: &[&str],
        settings: &[(&str, &str)],
    ) -> Result<Self, String> {
        let workload_run = GatedWorkload::prepare(pytorch, workload, settings);
        let file = workload_run.path("trace.mprb");
        let recording = environment.try_to_record(workload_run.target.pid(), &file)?;
        workload_run.go();
        let printed = recording.finish();
        assert_eq!(lost(&printed.stderr), 0, "losses: {}", printed.stderr);
        let events = environment.events(&file);
        Ok(Self::until_the_end_of(workload_run.finish(), events))
    }

    /// Records a workload that memprobe itself starts, with these options.
    pub fn record_from_the_start(
        environment: &TestEnvironment,
        pytorch: &PyTorch,
        options: &[&str],
        workload: &[&str],
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("go"), "").expect("written");
        let driver = reference(pytorch, &folder, workload, &[]);
        let file = folder.path().join("trace.json");
        let mut command = environment.memprobe();
        command.arg("record").args(options);
        command.arg("-o").arg(&file).arg("--");
        command.arg(driver.get_program()).args(driver.get_args());
        for (name, value) in driver.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(directory) = driver.get_current_dir() {
            command.current_dir(directory);
        }
        let printed = Background::start(&mut command).finish().succeeded();
        assert_eq!(lost(&printed.stderr), 0, "losses: {}", printed.stderr);
        let reference = Reference::read(&folder.path().join("reference.json"));
        Self::until_the_end_of(reference.expect("the reference"), environment.events(&file))
    }

    /// Keeps the caching allocator's events up to the end of PyTorch's recording. PyTorch 2.1 frees
    /// workspaces to make its snapshot.
    pub fn until_the_end_of(reference: Reference, mut events: Vec<Event>) -> Self {
        events.retain(Event::is_of_the_allocator);
        events.retain(|event| event.time_ns <= reference.end_ns);
        Self { reference, events }
    }

    /// Compares events, frames, and the allocator's totals at every checkpoint and at the end.
    pub fn compare(&self) -> Agreement {
        let mut agreement = Agreement::of(&self.reference, &self.events);
        match Ledger::of(&self.events) {
            Ok(ledger) => {
                let checkpoints = self.reference.checkpoints.iter();
                agreement
                    .differences
                    .extend(checkpoints.filter_map(|checkpoint| ledger.check(checkpoint).err()));
                for end in &self.reference.r#final {
                    let last = ledger.last(end.device);
                    let ours = last.map_or((0, 0), |last| (last.allocated, last.reserved));
                    if ours != (end.allocated, end.reserved) {
                        agreement.differences.push(format!("at the end: {last:?}"));
                    }
                }
            }
            Err(difference) => agreement.differences.push(difference),
        }
        agreement
    }

    /// Compares both sides and prints the result as a table row.
    ///
    /// # Panics
    ///
    /// If both sides differ; the message contains the first differences in full.
    pub fn agree(&self, workload: &str) -> Agreement {
        let agreement = self.compare();
        println!(
            "{workload:<20}  python {:<7}  torch {:<13}  {:>6} events  {:>6} stacks  {:>6} backward  \
             {:>3} checkpoints  {:>3} differing",
            self.reference.python,
            self.reference.torch,
            agreement.events,
            agreement.stacks,
            agreement.backward,
            self.reference.checkpoints.len(),
            agreement.differences.len()
        );
        let first: Vec<&str> = agreement
            .differences
            .iter()
            .take(3)
            .map(String::as_str)
            .collect();
        assert!(
            first.is_empty(),
            "{} differences of {workload} on Python {}, PyTorch {}, first\n{}",
            agreement.differences.len(),
            self.reference.python,
            self.reference.torch,
            first.join("\n")
        );
        agreement
    }
}

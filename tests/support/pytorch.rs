//! PyTorch installations of the suite, and its workloads.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cuda_programs::Entries;
use crate::process::{Background, Finished};

/// Environment variable with the interpreter for most tests. `cargo xtask test` sets it.
pub const TEST_PYTHON: &str = "MEMPROBE_TEST_PYTHON";

/// Environment variable with the interpreters for version-dependent tests, in the format of `PATH`.
/// If unset, those tests use [`TEST_PYTHON`] alone.
pub const EACH_PYTHON: &str = "MEMPROBE_TEST_EACH_PYTHON";

/// A Python with a PyTorch that sees at least one GPU, real or simulated.
#[derive(Debug, Clone)]
pub struct PyTorch {
    python: PathBuf,
}

impl PyTorch {
    /// Returns the PyTorch for most tests; prints why the test is skipped if there is none.
    pub fn of_this_run() -> Option<Self> {
        let found = std::env::var_os(TEST_PYTHON).map(|python| Self {
            python: python.into(),
        });
        if found.is_none() {
            println!("skipped: {TEST_PYTHON} names no PyTorch; run `cargo xtask test`");
        }
        found
    }

    /// Returns the PyTorches for version-dependent tests, newest first; empty if the variable is
    /// unset.
    pub fn each() -> Vec<Self> {
        let named = std::env::var_os(EACH_PYTHON).unwrap_or_default();
        std::env::split_paths(&named)
            .filter(|python| !python.as_os_str().is_empty())
            .map(|python| Self { python })
            .collect()
    }

    /// Like [`Self::of_this_run`], but only if its GPUs are simulated.
    pub fn simulated() -> Option<Self> {
        let found = Self::of_this_run()?;
        if found.simulated_libraries().is_none() {
            println!(
                "skipped: the PyTorch of {TEST_PYTHON} runs on a real GPU, not on a simulated one"
            );
            return None;
        }
        Some(found)
    }

    pub fn python(&self) -> &Path {
        &self.python
    }

    /// Returns the virtual environment of the interpreter.
    pub fn environment(&self) -> PathBuf {
        let bin = self.python.parent().expect("an interpreter lies in bin");
        bin.parent().expect("and that in an environment").to_owned()
    }

    /// Returns the release of PyTorch, such as `2.15.0`.
    ///
    /// # Panics
    ///
    /// If its folder contains no version.
    pub fn release(&self) -> String {
        let lib = self.environment().join("lib");
        let pythons = std::fs::read_dir(lib).expect("an environment has a folder lib");
        let texts = pythons.filter_map(|entry| {
            let file = entry.ok()?.path().join("site-packages/torch/version.py");
            std::fs::read_to_string(file).ok()
        });
        let release = texts.into_iter().find_map(|text| {
            let (_, version) = text.split_once("__version__ = '")?;
            let version = version.split(['+', '\'']).next()?;
            Some(version.to_owned())
        });
        release.expect("torch/version.py says its version")
    }

    /// True if this many GPUs exist or can be simulated; otherwise prints a line.
    pub fn has_devices(&self, wanted: u32) -> bool {
        if self.simulated_libraries().is_some() {
            return true;
        }
        let question = "import torch; print(torch.cuda.device_count())";
        let answer = succeed(self.command().args(["-c", question]));
        let present = answer.stdout.trim().parse().unwrap_or(0);
        if present < wanted {
            println!("skipped: {wanted} GPUs are wanted and {present} are here");
        }
        present >= wanted
    }

    /// Returns a command that starts the interpreter in the folder of workloads. Simulation
    /// settings of this process are not inherited.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.python);
        self.settle(&mut command);
        command
    }

    /// Sets working directory and environment variables as for [`Self::command`].
    pub fn settle(&self, command: &mut Command) {
        command
            .current_dir(workloads())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            // Has Python import `sitecustomize.py`.
            .env("PYTHONPATH", workloads())
            // Unbuffered output splits a line from its newline, so that lines of concurrent
            // processes mix.
            .env_remove("PYTHONUNBUFFERED");
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("CUDASIM_") {
                command.env_remove(name);
            }
        }
    }

    /// Returns a command that runs a workload (such as `mlp_adam.py`) under PyTorch's own recorder,
    /// which writes to `out`. The caller may append arguments of the workload, but no more options
    /// of the driver.
    pub fn reference(&self, workload: &str, out: &Path) -> Command {
        let mut command = self.command();
        command
            .arg("reference.py")
            .arg("--out")
            .arg(out)
            .arg(workload);
        command
    }

    /// Returns the simulated driver with a form of entries, for `LD_PRELOAD`; `None` on a real GPU, and for the
    /// form that is used without it.
    pub fn preloaded_driver(&self, entries: Entries) -> Option<PathBuf> {
        let folder = self.simulated_libraries()?;
        match entries {
            Entries::Trampolines => None,
            Entries::Push => Some(folder.join("push-entries/libcuda.so.1")),
        }
    }

    /// Returns words to put before a command, for each form of the simulated driver's entries: none, and
    /// those that preload the other driver. On a real GPU there is one form.
    pub fn each_driver(&self) -> Vec<Vec<String>> {
        let preload = |driver: PathBuf| format!("LD_PRELOAD={}", driver.display());
        let others = Entries::ALL
            .into_iter()
            .filter_map(|entries| self.preloaded_driver(entries))
            .map(|driver| vec!["env".to_owned(), preload(driver)]);
        std::iter::once(Vec::new()).chain(others).collect()
    }

    /// Returns the folder of the simulated CUDA libraries; `None` on a real GPU.
    pub fn simulated_libraries(&self) -> Option<PathBuf> {
        let lib = self.python.parent()?.parent()?.join("lib");
        let pythons = std::fs::read_dir(lib).ok()?;
        pythons
            .filter_map(|entry| {
                std::fs::read_dir(entry.ok()?.path().join("site-packages/nvidia")).ok()
            })
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path().join("lib")))
            .find(|folder| folder.join("memprobe-simulated-cuda").exists())
    }
}

/// Returns the folder of the workloads.
pub fn workloads() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads")
}

/// Runs a command that must succeed, without input.
///
/// # Panics
///
/// If it does not start or fails; the message contains its output.
pub fn succeed(command: &mut Command) -> Finished {
    Background::start(command).finish().succeeded()
}

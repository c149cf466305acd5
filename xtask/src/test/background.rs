//! Tasks of this repository that run beside others, each as a process of its own.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::repository::Repository;

/// A task that runs. Its output goes to a file: it would mix with that of the compiler.
#[derive(Debug)]
pub struct Background {
    name: &'static str,
    child: Child,
    start: Instant,
    log: PathBuf,
}

impl Background {
    /// Starts `cargo xtask ARGUMENTS`; its log is named by `name`.
    pub fn start(repository: &Repository, name: &'static str, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        Self::spawn(repository, name, command.args(arguments))
    }

    fn spawn(repository: &Repository, name: &'static str, command: &mut Command) -> Result<Self> {
        let folder = repository.target();
        fs::create_dir_all(&folder)?;
        let log = folder.join(format!("test-{name}.log"));
        let out = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stderr(out.try_clone()?)
            .stdout(out)
            .spawn()
            .with_context(|| format!("cannot start the task {name}"))?;
        println!("Runs meanwhile: {name}, {}", log.display());
        Ok(Self {
            name,
            child,
            start: Instant::now(),
            log,
        })
    }

    /// Waits for the end, and prints the output.
    ///
    /// # Errors
    ///
    /// If the task failed.
    pub fn finish(mut self) -> Result<()> {
        let waiting = Instant::now();
        while self.child.try_wait()?.is_none() {
            std::thread::sleep(Duration::from_millis(100));
        }
        let status = self.child.wait()?;
        print!("{}", fs::read_to_string(&self.log).unwrap_or_default());
        if !status.success() {
            bail!("{} failed ({status}): see above", self.name);
        }
        println!(
            "{:.1} s at most, {:.1} s of them waited for",
            self.start.elapsed().as_secs_f64(),
            waiting.elapsed().as_secs_f64()
        );
        Ok(())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Both fail only for a process that has already ended. The next run repeats an interrupted
        // set-up.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(folder: &tempfile::TempDir, script: &str) -> Background {
        let repository = Repository::at(folder.path());
        Background::spawn(
            &repository,
            "a-task",
            Command::new("sh").args(["-c", script]),
        )
        .unwrap()
    }

    #[test]
    fn a_task_that_fails_is_named() {
        let folder = tempfile::tempdir().unwrap();
        shell(&folder, "exit 0").finish().unwrap();
        let error = shell(&folder, "exit 3").finish().unwrap_err().to_string();
        assert!(
            error.contains("a-task failed") && error.contains('3'),
            "{error}"
        );
    }

    #[test]
    fn a_task_ends_with_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let task = shell(&folder, "exec sleep 100");
        let process = PathBuf::from(format!("/proc/{}", task.child.id()));
        assert!(process.exists());
        drop(task);
        assert!(!process.exists());
    }
}

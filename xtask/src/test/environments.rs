//! Pythons and PyTorches of the tests, set up by another process while this one compiles.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::outcome::{Skip, Skipped};
use super::{Extent, interpreter_of};
use crate::python;
use crate::pytorch::{self, Gpus, Interpreter, PythonVersion};
use crate::repository::Repository;

/// Environment variable with the interpreter for most tests.
pub const DEFAULT_PYTHON: &str = "MEMPROBE_TEST_PYTHON";
/// Environment variable with the interpreters for version-dependent tests, in the format of `PATH`.
pub const VERSION_PYTHONS: &str = "MEMPROBE_TEST_EACH_PYTHON";

/// Environments of a run.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Environments {
    /// Environment variables of the tests.
    pub variables: Vec<(String, String)>,
    /// PyTorches without a Python, with the reason.
    missing: Vec<(String, String)>,
    /// Seconds of each set-up.
    times: Vec<(String, f64)>,
}

impl Environments {
    /// Returns the skips that missing PyTorches stand for.
    pub fn skips(&self) -> impl Iterator<Item = Skip> {
        self.missing.iter().map(|(torch, reason)| Skip {
            test: format!("a PyTorch::{torch}"),
            extent: Skipped::Whole,
            reason: reason.clone(),
        })
    }
}

/// Sets up every tested pair of this extent whose Python this machine can have. If another pair has
/// the first one's PyTorch, the version-dependent tests leave out the first.
///
/// # Errors
///
/// If a set-up fails, or there is no Python at all.
pub fn set_up(extent: Extent) -> Result<Environments> {
    let mut made = Environments::default();
    let mut timed = |name: &str, start: Instant| {
        let seconds = start.elapsed().as_secs_f64();
        println!("{seconds:>8.1} s  {name}");
        made.times.push((name.to_owned(), seconds));
    };
    let start = Instant::now();
    let pythons = python::for_tests(extent);
    timed("every Python", start);
    let mut interpreters: Vec<(&str, PathBuf)> = Vec::new();
    let (mut missing, mut used) = (Vec::new(), Vec::new());
    for pair in pairs(extent) {
        let name = format!("PyTorch {}", pair.torch);
        let interpreter = interpreter_of(*pair).or_else(|| another(pair.torch, &used));
        let Some(interpreter) = interpreter else {
            let minors = pair.pythons.iter().map(|minor| format!("3.{minor}"));
            let minors = minors.collect::<Vec<_>>().join(" or ");
            missing.push((
                pair.torch.to_owned(),
                format!("no Python {minors} found or installed"),
            ));
            continue;
        };
        used.push(interpreter.clone());
        let mut request = pytorch::Request::new(interpreter, pair.torch);
        if !interpreters.is_empty() {
            request.gpus = Gpus::Simulated;
        }
        let start = Instant::now();
        let environment = pytorch::set_up(&request)?;
        print_found(&environment);
        timed(&name, start);
        interpreters.push((pair.torch, environment.python));
    }
    let Some(((torch, most), others)) = interpreters.split_first() else {
        bail!("no Python to test on: install Python 3.13, 3.12 or 3.11 and run this again");
    };
    let another = others.iter().any(|(other, _)| other == torch);
    let each = if another { others } else { &interpreters };
    let each = std::env::join_paths(each.iter().map(|(_, python)| python))?;
    made.missing = missing;
    for (name, value) in [
        (DEFAULT_PYTHON, most.clone().into_os_string()),
        (VERSION_PYTHONS, each),
        (python::TEST_PYTHONS, pythons),
    ] {
        let value = value
            .to_str()
            .context("a path of an environment is not UTF-8")?;
        made.variables.push((name.to_owned(), value.to_owned()));
    }
    Ok(made)
}

/// Returns the pairs of PyTorch and Python of an extent: all, or one PyTorch on two Pythons.
pub fn pairs(extent: Extent) -> &'static [pytorch::TestedPair] {
    match extent {
        Extent::Everything => &pytorch::TESTED,
        Extent::Short => &pytorch::TESTED[..2],
        Extent::WithoutPyTorch => &[],
    }
}

/// Returns the newest Python here that this PyTorch supports and no other pair uses.
fn another(torch: &str, used: &[Interpreter]) -> Option<Interpreter> {
    let pythons = pytorch::release_of(torch)?.pythons.iter().rev();
    pythons
        .map(|minor| Interpreter::Version(PythonVersion::three(*minor)))
        .find(|interpreter| !used.contains(interpreter) && interpreter.present().is_some())
}

fn print_found(environment: &pytorch::Environment) {
    let cuda = if environment.simulated {
        "simulated CUDA"
    } else {
        "the GPU of this machine"
    };
    println!(
        "{}: Python {}, PyTorch {}, {cuda}",
        environment.python.display(),
        environment.python_version,
        environment.torch,
    );
}

/// A set-up that runs in another process.
#[derive(Debug)]
pub struct SettingUp {
    child: Child,
    start: Instant,
    /// Output of the process.
    log: PathBuf,
    result: PathBuf,
}

impl SettingUp {
    /// Starts the set-up. Its output goes to a file: it would mix with that of the compiler.
    pub fn start(repository: &Repository, extent: Extent) -> Result<Self> {
        let folder = repository.target();
        fs::create_dir_all(&folder)?;
        let (log, result) = (
            folder.join("test-environments.log"),
            folder.join("test-environments.json"),
        );
        let _ = fs::remove_file(&result);
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("environments").arg("--out").arg(&result);
        if extent == Extent::Everything {
            command.arg("--all");
        }
        let out = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stderr(out.try_clone()?)
            .stdout(out)
            .spawn()
            .context("cannot start the set-up of the environments")?;
        println!("\nThe environments are set up meanwhile: {}", log.display());
        Ok(Self {
            child,
            start: Instant::now(),
            log,
            result,
        })
    }

    /// Waits for the set-up, and prints its output.
    ///
    /// # Errors
    ///
    /// If it failed.
    pub fn finish(mut self) -> Result<Environments> {
        let waiting = Instant::now();
        while self.child.try_wait()?.is_none() {
            std::thread::sleep(Duration::from_millis(100));
        }
        let status = self.child.wait()?;
        print!("{}", fs::read_to_string(&self.log).unwrap_or_default());
        if !status.success() {
            bail!("the environments of the tests were not set up ({status}): see above");
        }
        let text = fs::read(&self.result)
            .with_context(|| format!("cannot read {}", self.result.display()))?;
        let made: Environments = serde_json::from_slice(&text)?;
        println!(
            "set up in {:.1} s, {:.1} s of them waited for",
            self.start.elapsed().as_secs_f64(),
            waiting.elapsed().as_secs_f64()
        );
        Ok(made)
    }
}

impl Drop for SettingUp {
    fn drop(&mut self) {
        // Both fail only for a process that has already ended. An interrupted set-up is repeated by
        // the next run.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a set-up in this process and writes its result.
pub fn run(extent: Extent, result: &Path) -> Result<()> {
    let made = set_up(extent)?;
    fs::write(result, serde_json::to_vec(&made)?)
        .with_context(|| format!("cannot write {}", result.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_run_has_one_pytorch_on_two_pythons() {
        let short = pairs(Extent::Short);
        assert_eq!(short.len(), 2);
        assert_eq!(short[0].torch, short[1].torch);
        assert!(
            short[0]
                .pythons
                .iter()
                .all(|minor| !short[1].pythons.contains(minor))
        );
        assert!(pairs(Extent::Everything).len() > 2);
    }

    #[test]
    fn a_missing_pytorch_is_a_skip() {
        let made = Environments {
            missing: vec![("2.0.1".to_owned(), "no Python 3.9".to_owned())],
            ..Environments::default()
        };
        let skips: Vec<Skip> = made.skips().collect();
        assert_eq!(skips[0].test, "a PyTorch::2.0.1");
        assert_eq!(skips[0].reason, "no Python 3.9");
    }
}

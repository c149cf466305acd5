//! Pythons and PyTorches of the tests, set up by another process while this one compiles.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::background::Background;
use super::outcome::{Skip, Skipped};
use super::{Extent, interpreter_of};
use crate::apt;
use crate::consumers;
use crate::process;
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
    if extent == Extent::Everything {
        let start = Instant::now();
        install_browser();
        timed("the browser", start);
    }
    let mut interpreters: Vec<(&str, PathBuf)> = Vec::new();
    let (mut missing, mut used) = (Vec::new(), Vec::new());
    let (mut notebook, mut viewers) = (None, None);
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
        if interpreters.is_empty() {
            let start = Instant::now();
            let version = &environment.python_version;
            notebook = Some(python::notebook_packages(&environment.python, version)?);
            timed("notebook", start);
            if extent == Extent::Everything {
                let start = Instant::now();
                viewers = Some(consumers::install(&environment.python, version)?);
                timed("programs that open exports", start);
            }
        }
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
        (
            python::NOTEBOOK_PACKAGES,
            notebook.unwrap_or_default().into_os_string(),
        ),
        (
            consumers::CONSUMERS,
            viewers.unwrap_or_default().into_os_string(),
        ),
    ] {
        let value = value
            .to_str()
            .context("a path of an environment is not UTF-8")?;
        made.variables.push((name.to_owned(), value.to_owned()));
    }
    Ok(made)
}

/// Installs the browser of the pages' test, if there is none and this process can. Without one the test is skipped.
fn install_browser() {
    if process::on_path("chromedriver").is_some() || !apt::can_install() {
        return;
    }
    if let Err(error) = apt::install(&["chromium", "chromium-driver"]) {
        println!("no browser: {error:#}");
    }
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

/// Starts the set-up in another process.
pub fn start(repository: &Repository, extent: Extent) -> Result<Background> {
    let result = result_file(repository);
    let _ = fs::remove_file(&result);
    let result = result
        .to_str()
        .context("the folder of outputs is not UTF-8")?;
    let mut arguments = vec!["environments", "--out", result];
    if extent == Extent::Everything {
        arguments.push("--all");
    }
    Background::start(repository, "environments", &arguments)
}

/// Waits for the set-up and returns its result.
///
/// # Errors
///
/// If it failed.
pub fn finish(repository: &Repository, setting_up: Background) -> Result<Environments> {
    setting_up.finish()?;
    let file = result_file(repository);
    let text = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(serde_json::from_slice(&text)?)
}

fn result_file(repository: &Repository) -> PathBuf {
    repository.target().join("test-environments.json")
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

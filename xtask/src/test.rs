//! `cargo xtask test`: all checks of CI, in order of cost.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::ebpf::{self, Checked};
use crate::kernels;
use crate::process;
use crate::python;
use crate::pytorch::{self, Gpus, Interpreter, PythonVersion, TestedPair};
use crate::repository::{Repository, cache_folder};
use crate::test_programs;

/// Selection of tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All tests.
    Whole,
    /// Tests that need neither PyTorch nor root.
    WithoutPyTorch,
}

/// Environment variable with the interpreter for most tests.
const DEFAULT_PYTHON: &str = "MEMPROBE_TEST_PYTHON";
/// Environment variable with the interpreters for version-dependent tests, in the format of `PATH`.
const VERSION_PYTHONS: &str = "MEMPROBE_TEST_EACH_PYTHON";

/// Package of the integration suite.
const SUITE: &str = "memprobe-tests";

/// Runs every check and prints its duration.
pub fn run(repository: &Repository, extent: Extent) -> Result<()> {
    if extent == Extent::Whole && !process::is_root() {
        bail!(
            "the integration tests attach probes, which needs root. Run\n\
             \x20 sudo -E env \"PATH=$PATH\" cargo xtask test\n\
             or, for the tests that need neither root nor PyTorch,\n\
             \x20 cargo xtask test --no-pytorch"
        );
    }
    announce(extent)?;
    let mut steps = Steps::default();
    let outcome = run_steps(repository, extent, &mut steps);
    steps.print();
    outcome
}

fn announce(extent: Extent) -> Result<()> {
    let cache = cache_folder()?;
    println!("Downloads, unless they are there from an earlier run:");
    println!("  crates of memprobe                        about 60 MB, by cargo");
    println!("  compiler and linker of the eBPF programs  up to 260 MB, by apt-get or rustup, and");
    println!(
        "                                            bpf-linker into {}",
        cache.display()
    );
    if extent == Extent::Whole {
        let mut releases = pytorch::TESTED.map(|pair| pair.torch).to_vec();
        let megabytes: u32 = releases
            .iter()
            .filter_map(|torch| Some(pytorch::release_of(torch)?.wheel_mb))
            .sum();
        releases.dedup();
        println!(
            "  {:<40}  {:.1} GB in {} wheels (with a GPU 3 GB more)",
            format!("PyTorch {}", releases.join(", ")),
            f64::from(megabytes) / 1000.0,
            pytorch::TESTED.len()
        );
        println!(
            "                                            into {}",
            cache.join("pytorch").display()
        );
        println!("  each Python from 3.9 to 3.15 that is missing here  about 30 MB, by apt-get,");
        println!(
            "                                            into {}",
            cache.join("python").display()
        );
        if kernels::can_be_quick() {
            println!("  qemu and the kernel of Debian 12            about 150 MB, by apt-get,");
            println!(
                "                                            into {}",
                cache.join("kernels").display()
            );
        }
    }
    Ok(())
}

fn run_steps(repository: &Repository, extent: Extent, steps: &mut Steps) -> Result<()> {
    let mut variables: Vec<(&str, OsString)> = Vec::new();
    steps.take("eBPF programs against their sources", || {
        if let Checked::OtherToolchain(object) = ebpf::check(repository, ebpf::Missing::Install)? {
            println!("  the tests run on the fresh object");
            variables.push(("MEMPROBE_BPF_OBJECT", object.into()));
        }
        Ok(())
    })?;
    steps.take("format", || {
        process::run(cargo(repository).args(["fmt", "--all", "--check"]))?;
        let manifest = repository.ebpf_package().join("Cargo.toml");
        process::run(
            cargo(repository)
                .args(["fmt", "--check", "--manifest-path"])
                .arg(manifest),
        )
    })?;
    steps.take("lints", || {
        let lints = [
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ];
        process::run(cargo(repository).args(lints))
    })?;
    if extent == Extent::Whole {
        steps.take("every Python", || {
            variables.push((python::TEST_PYTHONS, python::for_tests()));
            Ok(())
        })?;
        variables.extend(set_up_every(steps)?);
        steps.take("tracefs", mount_tracefs)?;
        steps.take("memprobe itself", || {
            process::run(cargo(repository).args(["build", "--release", "--package", "memprobe"]))?;
            variables.push((
                "MEMPROBE_BIN",
                repository.target().join("release/memprobe").into(),
            ));
            Ok(())
        })?;
    }
    if extent == Extent::Whole {
        steps.take("another kernel", || kernels::run_quick(repository))?;
    }
    let mut programs = Vec::new();
    steps.take("test programs", || {
        let mut tests = cargo(repository);
        tests.args(["test", "--workspace", "--lib", "--bins", "--tests"]);
        if extent == Extent::WithoutPyTorch {
            println!(
                "SKIPPED: {} tests of {SUITE}, which need PyTorch and root (--no-pytorch)",
                count_tests(repository, SUITE)?
            );
            tests.args(["--exclude", SUITE]);
        }
        programs = test_programs::build(&mut tests)?;
        Ok(())
    })?;
    steps.take("tests", || {
        for (variable, value) in &variables {
            eprintln!("  {variable}={}", Path::new(value).display());
        }
        // A run takes minutes, so it reports every failure instead of stopping at the first.
        test_programs::run(programs, &variables)
    })?;
    steps.take("examples in the documentation", || {
        process::run(cargo(repository).args(["test", "--workspace", "--doc"]))
    })
}

fn cargo(repository: &Repository) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(repository.root());
    command
}

/// Sets up every tested pair whose Python this machine can have; returns the environment variables.
/// If another pair has the first one's PyTorch, the version-dependent tests skip the first.
fn set_up_every(steps: &mut Steps) -> Result<Vec<(&'static str, OsString)>> {
    let mut interpreters = Vec::new();
    for pair in pytorch::TESTED {
        let Some(interpreter) = interpreter_of(pair) else {
            println!(
                "SKIPPED: the tests on PyTorch {}: no Python {} found or installed",
                pair.torch,
                pair.pythons
                    .iter()
                    .map(|minor| format!("3.{minor}"))
                    .collect::<Vec<_>>()
                    .join(" or ")
            );
            continue;
        };
        let mut request = pytorch::Request::new(interpreter, pair.torch);
        if !interpreters.is_empty() {
            request.gpus = Gpus::Simulated;
        }
        steps.take(&format!("PyTorch {}", pair.torch), || {
            interpreters.push((pair.torch, set_up(&request)?));
            Ok(())
        })?;
    }
    let Some(((torch, most), others)) = interpreters.split_first() else {
        bail!("no Python to test on: install Python 3.13, 3.12 or 3.11 and run this again");
    };
    let another = others.iter().any(|(other, _)| other == torch);
    let each = if another { others } else { &interpreters };
    let each = std::env::join_paths(each.iter().map(|(_, python)| python))?;
    let variables = vec![
        (DEFAULT_PYTHON, most.clone().into_os_string()),
        (VERSION_PYTHONS, each),
    ];
    Ok(variables)
}

/// Returns the first of a pair's Pythons that is present, or else the first that can be installed.
pub fn interpreter_of(pair: TestedPair) -> Option<Interpreter> {
    let version = |minor: &u8| Interpreter::Version(PythonVersion::three(*minor));
    let mut versions = pair.pythons.iter().map(version);
    versions
        .clone()
        .find(|interpreter| interpreter.present().is_some())
        .or_else(|| versions.find(|interpreter| interpreter.find().is_ok()))
}

fn set_up(request: &pytorch::Request) -> Result<PathBuf> {
    let environment = pytorch::set_up(request)?;
    println!(
        "{}: Python {}, PyTorch {}, {}",
        environment.python.display(),
        environment.python_version,
        environment.torch,
        if environment.simulated {
            "simulated CUDA"
        } else {
            "the GPU of this machine"
        }
    );
    Ok(environment.python)
}

/// Mounts tracefs, in which the suite looks for leftover probes.
fn mount_tracefs() -> Result<()> {
    let tracefs = Path::new("/sys/kernel/tracing");
    if tracefs.join("uprobe_events").exists() {
        println!("{} is mounted", tracefs.display());
        return Ok(());
    }
    process::run(
        Command::new("mount")
            .args(["-t", "tracefs", "tracefs"])
            .arg(tracefs),
    )
    .context(
        "the tests need tracefs to see that no probe is left behind; the kernel may lack it, or \
         this container may not mount it",
    )
}

fn count_tests(repository: &Repository, package: &str) -> Result<usize> {
    let mut list = cargo(repository);
    list.args(["test", "--quiet", "--package", package, "--", "--list"]);
    Ok(listed_tests(&process::answer(&mut list)?))
}

/// Counts the tests in the output of `--list`.
fn listed_tests(list: &str) -> usize {
    list.lines().filter(|line| line.ends_with(": test")).count()
}

/// Finished checks with their duration and success.
#[derive(Debug, Default)]
struct Steps {
    taken: Vec<(String, Duration, bool)>,
}

impl Steps {
    fn take(&mut self, name: &str, step: impl FnOnce() -> Result<()>) -> Result<()> {
        println!("\n== {name}");
        let start = Instant::now();
        let outcome = step();
        self.taken
            .push((name.to_owned(), start.elapsed(), outcome.is_ok()));
        outcome.with_context(|| format!("failed at: {name}"))
    }

    fn print(&self) {
        println!("\n== times");
        print!("{}", self.table());
    }

    fn table(&self) -> String {
        let mut table = String::new();
        for (name, time, passed) in &self.taken {
            let verdict = if *passed { "" } else { "  FAILED" };
            table += &format!("{:>8.1} s  {name}{verdict}\n", time.as_secs_f64());
        }
        let total: Duration = self.taken.iter().map(|(_, time, _)| *time).sum();
        table + &format!("{:>8.1} s  in all\n", total.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_fails_ends_the_run_and_is_named_with_its_time() {
        let mut steps = Steps::default();
        steps.take("first", || Ok(())).unwrap();
        let error = steps.take("second", || bail!("no such thing")).unwrap_err();
        assert_eq!(format!("{error:#}"), "failed at: second: no such thing");
        let table = steps.table();
        assert!(
            table.contains("s  first\n") && table.contains("s  second  FAILED\n"),
            "{table}"
        );
        assert!(table.ends_with("in all\n"), "{table}");
    }

    #[test]
    fn only_tests_are_counted_in_a_list() {
        let list =
            "attach::works: test\nattach::waits: test\nspeed: benchmark\n\n2 tests, 1 benchmark\n";
        assert_eq!(listed_tests(list), 2);
    }
}

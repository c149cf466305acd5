//! `cargo xtask test`: everything that CI asks of a change, in the order of what it costs.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::ebpf::{self, Checked};
use crate::kernels;
use crate::process;
use crate::pytorch::{self, Interpreter};
use crate::repository::{Repository, cache_folder};

/// What of the tests to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All of them.
    Whole,
    /// Those that need neither PyTorch nor root.
    WithoutPyTorch,
}

/// The Pythons of the integration suite, and the variable that gives it each interpreter.
const PYTHONS: [(&str, &str); 2] = [
    ("3.11", "MEMPROBE_TEST_PYTHON"),
    ("3.12", "MEMPROBE_TEST_PYTHON_312"),
];

/// The package of the integration suite.
const SUITE: &str = "memprobe-tests";

/// Runs every check and says how long each took.
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
        println!(
            "  PyTorch {} for Python 3.11 and 3.12    about 1.1 GB without a GPU (3.6 GB each with one)",
            pytorch::DEFAULT_TORCH
        );
        println!(
            "                                            into {}",
            cache.join("pytorch").display()
        );
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
        for (version, variable) in PYTHONS {
            let interpreter: Interpreter = version.parse()?;
            if let Err(missing) = interpreter.find() {
                println!("skipped: the tests on Python {version}: {missing}");
                continue;
            }
            steps.take(&format!("PyTorch on Python {version}"), || {
                variables.push((variable, set_up(interpreter)?.into()));
                Ok(())
            })?;
        }
        let tested =
            |(name, _): &(&str, OsString)| PYTHONS.iter().any(|(_, variable)| variable == name);
        if !variables.iter().any(tested) {
            bail!("no Python to test on: install Python 3.11 or 3.12 and run this again");
        }
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
        steps.take("another kernel", || kernels::run_brief(repository))?;
    }
    steps.take("tests", || {
        let mut tests = cargo(repository);
        tests
            .args(["test", "--workspace"])
            .envs(variables.iter().cloned());
        if extent == Extent::WithoutPyTorch {
            println!(
                "SKIPPED: {} tests of {SUITE}, which need PyTorch and root (--no-pytorch)",
                count_tests(repository, SUITE)?
            );
            tests.args(["--exclude", SUITE]);
        }
        for (variable, value) in &variables {
            eprintln!("  {variable}={}", Path::new(value).display());
        }
        process::run(&mut tests)
    })
}

fn cargo(repository: &Repository) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(repository.root());
    command
}

fn set_up(interpreter: Interpreter) -> Result<std::path::PathBuf> {
    let request = pytorch::Request {
        interpreter,
        torch: pytorch::DEFAULT_TORCH.to_owned(),
    };
    let environment = pytorch::set_up(&request)?;
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

/// The suite looks in tracefs for probes that were left behind.
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

/// The tests in what the test runner prints for `--list`.
fn listed_tests(list: &str) -> usize {
    list.lines().filter(|line| line.ends_with(": test")).count()
}

/// The checks that ran, each with its time.
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

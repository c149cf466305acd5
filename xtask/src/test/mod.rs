//! `cargo xtask test`: the checks of CI. While the compiler runs, other processes set up the
//! environments of the tests and rebuild the eBPF programs. Then the test programs run, three at a time.

mod background;
mod builds;
pub mod environments;
mod features;
mod fork_servers;
mod lints;
mod longest;
mod object;
mod outcome;
pub mod programs;
mod queue;
mod skips;
mod steps;
mod verdict;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::process;
use crate::pytorch::{self, Interpreter, PythonVersion, TestedPair};
use crate::repository::{Repository, cache_folder};
use crate::requirements::{self, Task};
use crate::{kernels, package};
use builds::Built;
use features::Feature;
use fork_servers::ForkServers;
use object::Rebuilt;
use outcome::{Skip, Skipped};
use programs::{Job, LongTests, Report, Settings};
use skips::Machine;
use steps::{Steps, Times};

/// Selection of tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All tests.
    Everything,
    /// Every feature once: one PyTorch on two Pythons, without the tests that are marked as long.
    Short,
    /// Tests that need neither PyTorch nor root.
    WithoutPyTorch,
}

/// Options of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Run everything, as CI does: long tests, every tested PyTorch and Python, another kernel, packages
    /// and benchmarks
    #[arg(long, conflicts_with = "no_pytorch")]
    all: bool,
    /// Leave out the integration tests, which need PyTorch and root
    #[arg(long)]
    no_pytorch: bool,
    /// Only the test program of this feature, such as `top`, without the other checks; can be given
    /// again
    #[arg(long = "only", value_name = "FEATURE")]
    only: Vec<String>,
}

impl Options {
    fn extent(&self) -> Extent {
        match (self.all, self.no_pytorch) {
            (true, _) => Extent::Everything,
            (false, true) => Extent::WithoutPyTorch,
            (false, false) => Extent::Short,
        }
    }
}

/// Package of the integration suite.
const SUITE: &str = "memprobe-tests";

/// Package of results in the types of memprobe's library, for [`SUITE`].
const SUITE_RESULTS: &str = "memprobe-test-results";

/// Folder of [`SUITE`].
const SUITE_FOLDER: &str = "tests";

/// Folder of this package. Its tests try how programs run at once.
const OWN_FOLDER: &str = "xtask";

/// Feature of memprobe that loads the object of `MEMPROBE_BPF_OBJECT` in a release build.
const OBJECT_OVERRIDE: &str = "bpf-object-override";

/// Name of the step that compares the committed object with its sources.
const OBJECT: &str = "eBPF programs against their sources";

/// Name of the step that runs the tests.
const TESTS: &str = "tests";

/// Name of the step that runs the examples of the sources.
const EXAMPLES: &str = "examples in the documentation";

/// Environment variables of the test programs.
type Variables = Vec<(String, OsString)>;

/// Runs the checks. Prints each with its time, the counts of tests and the reasons of skips.
pub fn run(repository: &Repository, options: &Options) -> Result<()> {
    let extent = options.extent();
    let features = features::chosen(repository, &options.only)?;
    if extent != Extent::WithoutPyTorch {
        let environments = environments::pairs(extent).len() as u64;
        let task = if features.is_empty() {
            Task::Tests
        } else {
            Task::Features
        };
        requirements::check(repository, task, environments)?;
    }
    announce(extent)?;
    std::fs::create_dir_all(repository.target())?;
    let times = Times::read(&repository.target().join("xtask-test-times.json"));
    let mut run = Run {
        repository,
        extent,
        features,
        steps: Steps::plan(&planned(extent, &options.only), times),
        report: Report::default(),
    };
    let finished = run.all();
    run.steps.finish();
    finished.and(verdict::judge(&run.report, &Machine::inspect(extent)))
}

/// Prints what may be downloaded.
fn announce(extent: Extent) -> Result<()> {
    let cache = cache_folder()?;
    println!("Downloads, unless they are there from an earlier run:");
    println!("  crates of memprobe                        about 60 MB, by cargo");
    if extent == Extent::Everything {
        println!(
            "  compiler and linker of the eBPF programs  up to 260 MB, by apt-get or rustup, and"
        );
        println!(
            "                                            bpf-linker into {}",
            cache.display()
        );
    }
    let pairs = environments::pairs(extent);
    if pairs.is_empty() {
        return Ok(());
    }
    let mut releases: Vec<&str> = pairs.iter().map(|pair| pair.torch).collect();
    let megabytes: u32 = releases
        .iter()
        .filter_map(|torch| Some(pytorch::release_of(torch)?.wheel_mb))
        .sum();
    releases.dedup();
    println!(
        "  {:<40}  {:.1} GB in {} wheels (with a GPU 3 GB more)",
        format!("PyTorch {}", releases.join(", ")),
        f64::from(megabytes) / 1000.0,
        pairs.len()
    );
    let into = |folder: &str| {
        let folder = cache.join(folder);
        println!(
            "                                            into {}",
            folder.display()
        );
    };
    into("pytorch");
    if extent == Extent::Everything {
        println!("  each Python from 3.9 to 3.15 that is missing here  about 30 MB, by apt-get,");
        into("python");
        println!(
            "  programs that open exports (PyArrow, DuckDB, speedscope, inferno)  about 200 MB, by"
        );
        println!("                                            pip, npm and cargo,");
        into("consumers");
        if kernels::can_be_quick() {
            println!("  qemu and the kernel of Debian 12            about 150 MB, by apt-get,");
            into("kernels");
        }
    }
    Ok(())
}

/// Returns the names of the steps.
fn planned(extent: Extent, only: &[String]) -> Vec<&'static str> {
    let mut names = Vec::new();
    if only.is_empty() {
        names.push("format");
        if extent == Extent::Everything {
            names.extend([builds::PACKAGED, builds::LINTED]);
        } else {
            names.push("lints");
        }
    }
    if extent != Extent::Everything || !only.is_empty() {
        if extent != Extent::WithoutPyTorch {
            names.push(builds::MEMPROBE);
        }
        names.push(builds::PROGRAMS);
    }
    if only.is_empty() {
        names.push(OBJECT);
    }
    if extent != Extent::WithoutPyTorch {
        names.extend(["environments", "tracefs"]);
    }
    names.push(TESTS);
    if only.is_empty() {
        names.push(EXAMPLES);
    }
    names
}

/// A run of the checks.
struct Run<'a> {
    repository: &'a Repository,
    extent: Extent,
    /// Test programs to run; empty means all.
    features: Vec<Feature>,
    steps: Steps,
    report: Report,
}

impl Run<'_> {
    fn all(&mut self) -> Result<()> {
        let mut variables = Variables::new();
        let needs_pytorch = self.extent != Extent::WithoutPyTorch;
        let environments = needs_pytorch
            .then(|| environments::start(self.repository, self.extent))
            .transpose()?;
        let mut object = None;
        if self.features.is_empty() {
            object = Some(object::start_check(self.repository, self.extent)?);
            self.check_sources()?;
        }
        let built = self.build()?;
        let memprobe = built.memprobe.clone();
        variables.extend(memprobe.map(|path| ("MEMPROBE_BIN".to_owned(), path.into())));
        let mut fresh = None;
        if let Some(object) = object {
            let rebuilt = self.steps.take(OBJECT, || {
                object::finish_check(self.repository, self.extent, object)
            })?;
            match rebuilt {
                Rebuilt::Settled => {}
                Rebuilt::Another(object) => fresh = Some(object),
                Rebuilt::NotTried(skip) => self.report.outcome.add_skips([skip]),
            }
        }
        if let Some(environments) = environments {
            let made = self.steps.take("environments", || {
                environments::finish(self.repository, environments)
            })?;
            self.report.outcome.add_skips(made.skips());
            let made = made.variables.into_iter();
            variables.extend(made.map(|(name, value)| (name, value.into())));
            self.steps.take("tracefs", mount_tracefs)?;
        }
        let servers = ForkServers::start(self.repository, &variables)?;
        variables.push(servers.variable());
        let times = longest::begin(self.repository)?;
        variables.push((longest::TEST_TIMES.to_owned(), times.clone().into()));
        self.run_tests(&built, &variables)?;
        longest::print(&times);
        if let Some(object) = fresh.filter(|_| needs_pytorch) {
            self.run_suite_on(&object, built.tests, variables)?;
        }
        servers.finish()?;
        if self.features.is_empty() {
            let mut examples = self.cargo();
            examples.arg("test").args(builds::WITHOUT_XTASK);
            if self.is_whole() {
                examples.args(["--profile", package::PROFILE]);
            }
            examples.arg("--doc");
            self.steps.take(EXAMPLES, || process::run(&mut examples))?;
        }
        Ok(())
    }

    /// True if all checks are run.
    fn is_whole(&self) -> bool {
        self.extent == Extent::Everything && self.features.is_empty()
    }

    /// Returns cargo, with the compiler of this run's builds.
    fn cargo(&self) -> Command {
        let mut cargo = cargo(self.repository);
        if self.is_whole() {
            lints::compile_with_clippy(&mut cargo);
        }
        cargo
    }

    /// Builds the programs of the run.
    fn build(&mut self) -> Result<Built> {
        let (repository, extent) = (self.repository, self.extent);
        if self.is_whole() {
            return builds::build_everything(repository, &mut self.steps);
        }
        if extent == Extent::WithoutPyTorch {
            let count = count_tests(repository)?;
            self.report.outcome.add_skips([Skip {
                test: SUITE.to_owned(),
                extent: Skipped::Whole,
                reason: format!("{count} tests that need PyTorch and root (--no-pytorch)"),
            }]);
        }
        builds::build(repository, extent, &self.features, &mut self.steps)
    }

    /// Runs the suite once more, on another object than the committed one.
    fn run_suite_on(
        &mut self,
        object: &Path,
        mut programs: Vec<programs::TestProgram>,
        mut variables: Variables,
    ) -> Result<()> {
        programs.retain(|program| program.is_of(SUITE_FOLDER));
        let target = self.repository.target().join("other-object");
        let mut build = cargo(self.repository);
        build.args(["build", "--release", "--package", "memprobe"]);
        build.args(["--features", OBJECT_OVERRIDE, "--target-dir"]);
        build.arg(&target);
        variables.retain(|(name, _)| name != "MEMPROBE_BIN");
        let memprobe = target.join("release/memprobe");
        variables.push(("MEMPROBE_BIN".to_owned(), memprobe.into()));
        variables.push(("MEMPROBE_BPF_OBJECT".to_owned(), object.into()));
        let long_tests = self.long_tests();
        let report = self.steps.take("tests on the fresh object", || {
            process::run(&mut build)?;
            let jobs = programs.into_iter().map(Job::Program).collect();
            let settings = Settings {
                variables: &variables,
                long_tests,
            };
            programs::run(jobs, settings, &mut Times::default())
        })?;
        self.report.add(report);
        Ok(())
    }

    /// Returns the treatment of long tests, which a feature that was asked for includes.
    fn long_tests(&self) -> LongTests {
        if self.extent == Extent::Everything || !self.features.is_empty() {
            LongTests::Run
        } else {
            LongTests::LeaveOut
        }
    }

    /// Checks the form of the sources, and their lints unless a build does.
    fn check_sources(&mut self) -> Result<()> {
        self.steps.take("format", || {
            process::run(cargo(self.repository).args(["fmt", "--all", "--check"]))?;
            let manifest = self.repository.ebpf_package().join("Cargo.toml");
            process::run(
                cargo(self.repository)
                    .args(["fmt", "--check", "--manifest-path"])
                    .arg(manifest),
            )
        })?;
        if self.is_whole() {
            return Ok(());
        }
        self.steps
            .take("lints", || lints::check(|| cargo(self.repository)))
    }

    /// Runs the test programs, and the other kernel as one of them. A run takes minutes, so it
    /// reports every failure instead of stopping at the first.
    fn run_tests(&mut self, built: &Built, variables: &Variables) -> Result<()> {
        let repository = self.repository;
        let tests = built.tests.iter().cloned().map(Job::Program);
        let benchmarks = built.benchmarks.iter().cloned().map(Job::Benchmark);
        let mut jobs: Vec<Job> = tests.chain(benchmarks).collect();
        if let Some(memprobe) = built.memprobe.clone().filter(|_| self.is_whole()) {
            let programs = kernels::Programs {
                memprobe,
                tests: built.tests.clone(),
            };
            jobs.push(Job::AnotherKernel(Box::new(|| {
                kernels::run_quick(repository, programs)
            })));
        }
        let mut times = self.steps.times.clone();
        let settings = Settings {
            variables,
            long_tests: self.long_tests(),
        };
        let report = self.steps.take(TESTS, || {
            for (variable, value) in variables {
                println!("  {variable}={}", Path::new(value).display());
            }
            programs::run(jobs, settings, &mut times)
        })?;
        self.steps.times.merge(times);
        self.report.add(report);
        Ok(())
    }
}

fn cargo(repository: &Repository) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(repository.root());
    command
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

/// Counts the tests in the sources of the suite: a build to list them would take minutes.
fn count_tests(repository: &Repository) -> Result<usize> {
    let sources = suite_sources(repository)?;
    Ok(sources.iter().map(|(_, text)| tests_in(text)).sum())
}

/// Returns the sources of the suite's programs, with their paths.
fn suite_sources(repository: &Repository) -> Result<Vec<(PathBuf, String)>> {
    let folder = repository.root().join(SUITE_FOLDER).join("suite");
    let mut sources = Vec::new();
    let entries = std::fs::read_dir(&folder);
    for entry in entries.with_context(|| format!("cannot list {}", folder.display()))? {
        let source = entry?.path();
        // Beside them lie the snapshots of pages.
        if source
            .extension()
            .is_some_and(|extension| extension == "rs")
        {
            let text = std::fs::read_to_string(&source)?;
            sources.push((source, text));
        }
    }
    Ok(sources)
}

/// Counts the tests in a source.
fn tests_in(source: &str) -> usize {
    source
        .lines()
        .filter(|line| line.trim() == "#[test]")
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_of_the_suite_are_counted() {
        assert_eq!(tests_in("#[test]\nfn a() {}\n    #[test]\n// #[test]\n"), 2);
        assert!(count_tests(&Repository::here()).unwrap() > 100);
    }

    #[test]
    fn every_feature_has_a_test_that_is_not_long() {
        let long = format!("#[ignore = \"{}\"]", skips::LONG);
        for (path, text) in suite_sources(&Repository::here()).unwrap() {
            let ignored = text.matches("#[ignore").count();
            assert_eq!(text.matches(&long).count(), ignored, "{}", path.display());
            assert!(tests_in(&text) > ignored, "{}", path.display());
        }
    }

    #[test]
    fn a_feature_alone_is_run_without_the_other_checks() {
        let one = planned(Extent::Short, &["top".to_owned()]);
        assert!(!one.contains(&"lints") && one.contains(&TESTS), "{one:?}");
        assert!(planned(Extent::Short, &[]).contains(&"lints"));
        assert!(planned(Extent::Everything, &[]).contains(&builds::LINTED));
    }
}

//! Builds of memprobe and of the test programs.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::features::{self, Feature};
use super::programs::{self, TestProgram};
use super::steps::Steps;
use super::{Extent, SUITE, SUITE_RESULTS, cargo, lints};
use crate::repository::Repository;
use crate::{package, process};

/// Name of the step that builds the program.
pub const MEMPROBE: &str = "memprobe itself";

/// Name of the step that builds the program from its packages.
pub const PACKAGED: &str = "memprobe from its packages";

/// Name of the step that builds the tests.
pub const PROGRAMS: &str = "test programs";

/// Name of the step that compiles all targets with their lints.
pub const LINTED: &str = "test programs and lints";

/// Selections of packages that are built one after the other: xtask gives some dependencies features that memprobe
/// alone has not, and they would be compiled twice.
const SEPARATE: [&[&str]; 2] = [WITHOUT_XTASK, &["--package", "xtask"]];

/// Selection of all packages but xtask.
pub const WITHOUT_XTASK: &[&str] = &["--workspace", "--exclude", "xtask"];

/// Programs of a run.
#[derive(Debug)]
pub struct Built {
    /// The memprobe to test; `None` if no test runs it.
    pub memprobe: Option<PathBuf>,
    pub tests: Vec<TestProgram>,
    /// Benchmarks to run once.
    pub benchmarks: Vec<TestProgram>,
}

/// Compiles the program of the packages that users install, then all targets and their lints. The workspace is compiled
/// once with optimization and once without it.
pub fn build_everything(repository: &Repository, steps: &mut Steps) -> Result<Built> {
    let memprobe = steps.take(PACKAGED, || package::build(repository))?;
    let (tests, benchmarks) = steps.take(LINTED, || {
        let (mut tests, mut benchmarks) = (Vec::new(), Vec::new());
        for packages in SEPARATE {
            let mut build = cargo(repository);
            build.args(["build", "--all-targets", "--profile", package::PROFILE]);
            let built = programs::build(lints::compile_with_clippy(build.args(packages)))?;
            lints::judge(&built, || cargo(repository))?;
            tests.extend(built.programs);
            benchmarks.extend(built.benchmarks);
        }
        Ok((tests, benchmarks))
    })?;
    Ok(Built {
        memprobe: Some(memprobe),
        tests,
        benchmarks,
    })
}

/// Builds the programs of an extent, or those of single features.
pub fn build(
    repository: &Repository,
    extent: Extent,
    features: &[Feature],
    steps: &mut Steps,
) -> Result<Built> {
    let memprobe = match extent {
        Extent::WithoutPyTorch => None,
        Extent::Everything | Extent::Short => {
            let mut build = cargo(repository);
            build.args(["build", "--release", "--package", "memprobe"]);
            steps.take(MEMPROBE, || process::run(&mut build))?;
            Some(repository.built_memprobe())
        }
    };
    let mut tests = tests_of(repository, features);
    if extent == Extent::WithoutPyTorch {
        tests.args(["--exclude", SUITE, "--exclude", SUITE_RESULTS]);
    }
    let built = steps.take(PROGRAMS, || programs::build(&mut tests))?;
    Ok(Built {
        memprobe,
        tests: features::among(features, built.programs),
        benchmarks: Vec::new(),
    })
}

/// Returns the command that builds the test programs of features, or all.
fn tests_of(repository: &Repository, features: &[Feature]) -> Command {
    let mut tests = cargo(repository);
    tests.args(["test", "--workspace", "--no-run"]);
    if features.is_empty() {
        tests.args(["--lib", "--bins", "--tests"]);
    }
    tests.args(features::selection(features));
    tests
}

//! Contents of the tests' disk: memprobe, the test programs, and the files that tests read.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::catalog::Program;
use crate::process;
use crate::repository::Repository;
use crate::test::programs::{self, TestProgram};

/// A built memprobe and built test programs.
#[derive(Debug)]
pub struct Programs {
    pub memprobe: PathBuf,
    pub tests: Vec<TestProgram>,
}

/// Builds memprobe and the wanted test programs.
pub fn build(repository: &Repository, wanted: &[Program]) -> Result<Programs> {
    let cargo = || {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(repository.root());
        command
    };
    process::run(cargo().args(["build", "--release", "--package", "memprobe"]))?;
    let mut tests = cargo();
    // As the test command builds single features, so that both use one build.
    tests.args(["test", "--workspace", "--no-run"]);
    let mut names: Vec<&str> = wanted.iter().map(|program| program.name).collect();
    names.dedup();
    for name in names {
        tests.args(["--test", name]);
    }
    Ok(Programs {
        memprobe: repository.built_memprobe(),
        tests: programs::build(&mut tests)?.programs,
    })
}

/// Returns all files of the tests' disk.
///
/// # Errors
///
/// If a wanted program was not built.
pub fn files(
    repository: &Repository,
    wanted: &[Program],
    built: &Programs,
) -> Result<Vec<(PathBuf, String)>> {
    let mut files = vec![(built.memprobe.clone(), "bin/memprobe".to_owned())];
    for program in wanted {
        let path = built
            .tests
            .iter()
            .find(|built| built.name == program.name)
            .with_context(|| format!("cargo built no test program {}", program.name))?;
        let file = (path.executable.clone(), format!("bin/{}", program.name));
        if !files.contains(&file) {
            files.push(file);
        }
    }
    // Source files that the tests read.
    for folder in ["tests/workloads", "memprobe/tests/fixtures"] {
        files.push((
            repository.root().join(folder),
            format!("repository/{folder}"),
        ));
    }
    Ok(files)
}

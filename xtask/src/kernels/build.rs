//! Contents of the tests' disk: memprobe, the test programs, and the files that tests read.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::catalog::Program;
use crate::process;
use crate::repository::Repository;
use crate::test::programs;

/// Builds memprobe and the test programs; returns all files of the tests' disk.
pub fn files(repository: &Repository, wanted: &[Program]) -> Result<Vec<(PathBuf, String)>> {
    let cargo = || {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(repository.root());
        command
    };
    process::run(cargo().args(["build", "--release", "--package", "memprobe"]))?;
    let mut tests = cargo();
    // As the test command builds them, so that both use one build.
    tests.args(["test", "--workspace"]);
    let mut names: Vec<&str> = wanted.iter().map(|program| program.name).collect();
    names.dedup();
    for name in names {
        tests.args(["--test", name]);
    }
    let built = programs::build(&mut tests)?;
    let mut files = vec![(
        repository.target().join("release/memprobe"),
        "bin/memprobe".to_owned(),
    )];
    for program in wanted {
        let path = built
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

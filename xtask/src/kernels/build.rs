//! Contents of the tests' disk: memprobe, the test programs, and the files that tests read.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::catalog::Program;
use crate::process;
use crate::repository::Repository;
use crate::test_programs;

/// Builds memprobe and the test programs; returns all files of the tests' disk.
pub fn files(repository: &Repository, programs: &[Program]) -> Result<Vec<(PathBuf, String)>> {
    let cargo = || {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(repository.root());
        command
    };
    process::run(cargo().args(["build", "--release", "--package", "memprobe"]))?;
    let mut tests = cargo();
    tests.arg("test");
    let mut packages: Vec<&str> = programs.iter().map(|program| program.package).collect();
    packages.sort_unstable();
    packages.dedup();
    for package in packages {
        tests.args(["--package", package]);
    }
    let mut names: Vec<&str> = programs.iter().map(|program| program.name).collect();
    names.dedup();
    for name in names {
        tests.args(["--test", name]);
    }
    let built = test_programs::build(&mut tests)?;
    let mut files = vec![(
        repository.target().join("release/memprobe"),
        "bin/memprobe".to_owned(),
    )];
    for program in programs {
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

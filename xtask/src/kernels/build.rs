//! What goes on the tests' disk: memprobe, the test programs, and the files that they read.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::catalog::Program;
use crate::process;
use crate::repository::Repository;

/// Builds memprobe and the test programs; gives all files of the tests' disk.
pub fn files(repository: &Repository, programs: &[Program]) -> Result<Vec<(PathBuf, String)>> {
    let cargo = || {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(repository.root());
        command
    };
    process::run(cargo().args(["build", "--release", "--package", "memprobe"]))?;
    let mut tests = cargo();
    tests.args(["test", "--no-run", "--message-format", "json"]);
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
    eprintln!("  $ {}", process::shown(&tests));
    let output = tests.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("the tests cannot be built ({})", output.status);
    }
    let built = executables(&String::from_utf8_lossy(&output.stdout));
    let mut files = vec![(
        repository.target().join("release/memprobe"),
        "bin/memprobe".to_owned(),
    )];
    for program in programs {
        let path = built
            .get(program.name)
            .with_context(|| format!("cargo built no test program {}", program.name))?;
        let file = (path.clone(), format!("bin/{}", program.name));
        if !files.contains(&file) {
            files.push(file);
        }
    }
    // What the tests read of the sources.
    for folder in ["tests/workloads", "memprobe/tests/fixtures"] {
        files.push((
            repository.root().join(folder),
            format!("repository/{folder}"),
        ));
    }
    Ok(files)
}

/// The executables in the messages of `cargo --message-format json`, by the name of their target.
fn executables(messages: &str) -> BTreeMap<String, PathBuf> {
    #[derive(Deserialize)]
    struct Message {
        target: Target,
        executable: Option<PathBuf>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
    }
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok())
        .filter_map(|message| Some((message.target.name, message.executable?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_program_is_found_among_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"serde"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"exactness"},"executable":"/t/exactness-1"}
{"reason":"build-finished","success":true}"#;
        let found = executables(messages);
        assert_eq!(found.len(), 1);
        assert_eq!(found["exactness"], PathBuf::from("/t/exactness-1"));
    }
}

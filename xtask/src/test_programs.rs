//! Builds the test programs and runs them concurrently.
//!
//! cargo runs test programs one after another. A test here mostly waits for a program to start, on
//! one core. Locks shared by all programs decide which tests may run at once.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::process;

/// Programs run at once: one for each slot of the tests (`tests/support/environment.rs`).
const AT_ONCE: usize = 2;

/// A built test program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestProgram {
    /// Name of its target, such as `exactness`.
    pub name: String,
    /// Source file of its target.
    source: PathBuf,
    pub executable: PathBuf,
    /// Folder of its package, the working directory of its tests.
    package: PathBuf,
}

/// Builds what `cargo test` would run with these arguments; returns the programs in cargo's order.
pub fn build(tests: &mut Command) -> Result<Vec<TestProgram>> {
    tests.args(["--no-run", "--message-format", "json-render-diagnostics"]);
    eprintln!("  $ {}", process::shown(tests));
    let output = tests.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("the tests cannot be built ({})", output.status);
    }
    Ok(programs(&String::from_utf8_lossy(&output.stdout)))
}

/// Returns the test programs in the messages of `cargo test --no-run --message-format json`.
fn programs(messages: &str) -> Vec<TestProgram> {
    #[derive(Deserialize)]
    struct Message {
        manifest_path: PathBuf,
        target: Target,
        profile: Profile,
        executable: Option<PathBuf>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
        src_path: PathBuf,
    }
    #[derive(Deserialize)]
    struct Profile {
        test: bool,
    }
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok())
        .filter(|message| message.profile.test)
        .filter_map(|message| {
            Some(TestProgram {
                name: message.target.name,
                source: message.target.src_path,
                executable: message.executable?,
                package: message.manifest_path.parent()?.to_owned(),
            })
        })
        .collect()
}

/// Runs all programs with these variables and prints each output when its program ends. A failure
/// does not stop the others; the error names every failed program.
pub fn run(programs: Vec<TestProgram>, variables: &[(&str, std::ffi::OsString)]) -> Result<()> {
    let left: Mutex<VecDeque<_>> = Mutex::new(programs.into());
    let failed = Mutex::new(Vec::new());
    let next = || left.lock().expect("no run panics").pop_front();
    let one_after_the_other = || -> Result<()> {
        while let Some(program) = next() {
            eprintln!("     Started {}", program.shown());
            let start = Instant::now();
            let output = program.run(variables)?;
            program.print(&output, start);
            if !output.status.success() {
                failed.lock().expect("no run panics").push(program.shown());
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..AT_ONCE)
            .map(|_| scope.spawn(one_after_the_other))
            .collect();
        runs.into_iter()
            .try_for_each(|run| run.join().expect("no run panics"))
    })?;
    let failed = failed.into_inner().expect("no run panics");
    if !failed.is_empty() {
        bail!("tests failed in {}", failed.join(", "));
    }
    Ok(())
}

impl TestProgram {
    fn run(&self, variables: &[(&str, std::ffi::OsString)]) -> Result<Output> {
        Command::new(&self.executable)
            .current_dir(&self.package)
            .env("CARGO_MANIFEST_DIR", &self.package)
            .envs(variables.iter().cloned())
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot start {}", self.executable.display()))
    }

    /// Prints a program's output in one piece.
    fn print(&self, output: &Output, start: Instant) {
        let text = String::from_utf8_lossy;
        let (said, complained) = (text(&output.stdout), text(&output.stderr));
        let mut all = format!("\n     Running {}\n{said}{complained}", self.shown());
        if output.status.code().is_none() {
            all += &format!("{}: {}\n", self.shown(), output.status);
        }
        let seconds = start.elapsed().as_secs_f64();
        println!("{all}     Ended {} after {seconds:.1} s", self.shown());
    }

    /// Returns the source file's path from its package folder.
    fn shown(&self) -> String {
        let source = self.source.strip_prefix(&self.package);
        let package = self.package.file_name().map(Path::new);
        match (package, source) {
            (Some(package), Ok(source)) => package.join(source).display().to_string(),
            _ => self.source.display().to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES: &str = r#"{"reason":"compiler-artifact","manifest_path":"/r/serde/Cargo.toml","target":{"name":"serde","src_path":"/r/serde/lib.rs"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/w/memprobe/Cargo.toml","target":{"name":"memprobe","src_path":"/w/memprobe/src/main.rs"},"profile":{"test":false},"executable":"/t/memprobe"}
{"reason":"compiler-artifact","manifest_path":"/w/tests/Cargo.toml","target":{"name":"exactness","src_path":"/w/tests/suite/exactness.rs"},"profile":{"test":true},"executable":"/t/exactness-1"}
{"reason":"build-finished","success":true}"#;

    #[test]
    fn only_test_programs_are_found_among_cargos_messages() {
        let found = programs(MESSAGES);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, "exactness");
        assert_eq!(found[0].executable, PathBuf::from("/t/exactness-1"));
        assert_eq!(found[0].shown(), "tests/suite/exactness.rs");
    }

    fn program(name: &str, executable: &str) -> TestProgram {
        TestProgram {
            name: name.to_owned(),
            source: format!("/usr/{name}.rs").into(),
            executable: executable.into(),
            package: "/usr".into(),
        }
    }

    #[test]
    fn all_programs_are_run_and_those_that_fail_are_named() {
        let good = || program("good", "/bin/true");
        let bad = program("bad", "/bin/false");
        run(vec![good(), good(), good()], &[]).expect("they pass");
        let error = run(vec![good(), bad, good()], &[]).unwrap_err();
        assert_eq!(error.to_string(), "tests failed in usr/bad.rs");
    }
}

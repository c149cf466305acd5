//! Builds the test programs and runs them concurrently.
//!
//! cargo runs test programs one after another. A test here mostly waits for a program to start, on
//! one core. Locks shared by all programs decide which tests may run at once.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead as _, BufReader, IsTerminal as _, Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use serde::Deserialize;

use super::outcome::{Outcome, SHOW_OUTPUT, Skip, Skipped, without_passing};
use super::queue::{self, Part, Queue};
use super::steps::{Times, in_words};
use super::{OWN_FOLDER, SUITE_FOLDER};
use crate::process;

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

/// Programs of a build, in cargo's order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Build {
    /// Its test programs.
    pub programs: Vec<TestProgram>,
    pub benchmarks: Vec<TestProgram>,
    /// True if the compiler warned of something in a package of this workspace.
    pub has_warnings: bool,
}

/// Runs a build of cargo, and prints what the compiler finds.
///
/// # Errors
///
/// If a package cannot be compiled.
pub fn build(build: &mut Command) -> Result<Build> {
    let is_terminal = std::io::stderr().is_terminal();
    let format = if is_terminal {
        "json-diagnostic-rendered-ansi"
    } else {
        "json"
    };
    build.args(["--message-format", format]);
    eprintln!("  $ {}", process::shown(build));
    let mut child = build.stdout(Stdio::piped()).spawn()?;
    let messages = child.stdout.take().context("cargo has an output")?;
    let mut built = Build::default();
    for message in BufReader::new(messages).lines() {
        built.add(&message?);
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("the tests cannot be built ({status})");
    }
    Ok(built)
}

/// A message of cargo (`cargo build --message-format json`), in the parts that are read here.
#[derive(Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
enum Message {
    CompilerArtifact {
        manifest_path: PathBuf,
        target: Target,
        profile: Profile,
        executable: Option<PathBuf>,
    },
    CompilerMessage {
        message: Diagnostic,
    },
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
    src_path: PathBuf,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

#[derive(Deserialize)]
struct Diagnostic {
    level: String,
    rendered: Option<String>,
}

impl Build {
    /// Adds a message of cargo; prints it if it is the compiler's.
    fn add(&mut self, line: &str) {
        match serde_json::from_str(line) {
            Ok(Message::CompilerMessage { message }) => {
                // Cargo caps the lints of other packages.
                self.has_warnings |= message.level == "warning";
                eprint!("{}", message.rendered.unwrap_or_default());
            }
            Ok(Message::CompilerArtifact {
                manifest_path,
                target,
                profile,
                executable: Some(executable),
            }) if profile.test => {
                let package = manifest_path.parent().unwrap_or(Path::new("")).to_owned();
                let program = TestProgram {
                    name: target.name,
                    source: target.src_path,
                    executable,
                    package,
                };
                match target.kind.first().map(String::as_str) {
                    Some("bench") => self.benchmarks.push(program),
                    // Compiled as a test, and has none.
                    Some("example") => {}
                    _ => self.programs.push(program),
                }
            }
            // Other messages are of no test program, or of cargo's progress.
            _ => {}
        }
    }
}

/// Treatment of the tests that are marked as long ([`super::skips::LONG`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LongTests {
    Run,
    LeaveOut,
}

impl LongTests {
    /// Returns the options of libtest.
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Run => &["--include-ignored"],
            Self::LeaveOut => &[],
        }
    }
}

/// Variables and selection of the tests of all programs.
#[derive(Debug, Clone, Copy)]
pub struct Settings<'a> {
    pub variables: &'a [(String, OsString)],
    pub long_tests: LongTests,
}

/// Work beside other work.
pub enum Job<'a> {
    Program(TestProgram),
    /// A program of criterion, which runs each of its benchmarks once: one that nobody runs may fail.
    Benchmark(TestProgram),
    /// A few tests on another kernel, in a virtual machine; `Some` says why they were not run.
    AnotherKernel(Box<dyn FnOnce() -> Result<Option<String>> + Send + 'a>),
}

/// Name of [`Job::AnotherKernel`].
pub const ANOTHER_KERNEL: &str = "another kernel";

impl Job<'_> {
    pub fn name(&self) -> String {
        match self {
            Self::Program(program) | Self::Benchmark(program) => program.shown(),
            Self::AnotherKernel(_) => ANOTHER_KERNEL.to_owned(),
        }
    }

    /// Runs the job and adds its outcome to the report.
    fn run(self, settings: Settings, report: &Mutex<Report>) -> Result<()> {
        match self {
            Self::Program(program) => {
                // Other tests of memprobe run CUDA programs too, and take no slot themselves.
                let has_turn = !program.takes_slots() && !queue::is_computation(&program.shown());
                let turn = has_turn.then(slot).transpose()?;
                let output = program.run(settings, &options(settings))?;
                drop(turn);
                program.print(&output);
                report.lock().expect(RUNS).add_program(&program, &output);
            }
            Self::Benchmark(program) => {
                let output = program.run(settings, &[])?;
                program.print(&output);
                report.lock().expect(RUNS).add_benchmark(&program, &output);
            }
            Self::AnotherKernel(run) => {
                // A guest counts as one of the tests that run at once.
                let turn = slot()?;
                let outcome = run();
                drop(turn);
                report.lock().expect(RUNS).add_kernel(outcome);
            }
        }
        Ok(())
    }
}

/// Returns the options of a test program.
fn options(settings: Settings) -> Vec<&'static str> {
    let long_tests = settings.long_tests.options();
    [&[SHOW_OUTPUT], long_tests].concat()
}

/// Waits for a slot of the tests (`tests/support/environment.rs`) and locks it.
fn slot() -> Result<File> {
    let open =
        |number| File::create(std::env::temp_dir().join(format!("memprobe-tests.{number}.lock")));
    let files = (0..queue::SLOTS)
        .map(open)
        .collect::<std::io::Result<Vec<File>>>()?;
    loop {
        for file in &files {
            if flock(file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                return Ok(file.try_clone()?);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Outcome of several programs.
#[derive(Debug, Default)]
pub struct Report {
    pub outcome: Outcome,
    /// Programs with failed tests, and those that did not end.
    pub failed: Vec<String>,
}

impl Report {
    /// Adds the outcome of other programs.
    pub fn add(&mut self, other: Self) {
        self.outcome.add(other.outcome);
        self.failed.extend(other.failed);
    }

    fn add_program(&mut self, program: &TestProgram, output: &Output) {
        let text = String::from_utf8_lossy(&output.stdout);
        let outcome = Outcome::parse(&program.name, &text);
        if outcome.is_none() || !output.status.success() {
            self.failed.push(program.shown());
        }
        self.outcome.add(outcome.unwrap_or_default());
    }

    fn add_benchmark(&mut self, program: &TestProgram, output: &Output) {
        if !output.status.success() {
            self.failed.push(program.shown());
        }
    }

    fn add_kernel(&mut self, outcome: Result<Option<String>>) {
        let one = |passed, failed| Outcome {
            passed,
            failed,
            ..Outcome::default()
        };
        match outcome {
            Ok(None) => self.outcome.add(one(1, 0)),
            Ok(Some(reason)) => self.outcome.add_skips([Skip {
                test: ANOTHER_KERNEL.to_owned(),
                extent: Skipped::Whole,
                reason,
            }]),
            Err(error) => {
                println!("{ANOTHER_KERNEL}: {error:#}");
                self.outcome.add(one(0, 1));
                self.failed.push(ANOTHER_KERNEL.to_owned());
            }
        }
    }
}

/// Message for a lock that a panicking thread would poison.
const RUNS: &str = "no run panics";

/// Runs all jobs. Prints each output when its program ends, and the work left. A failure does not stop the others.
pub fn run<'a>(jobs: Vec<Job<'a>>, settings: Settings, times: &mut Times) -> Result<Report> {
    let queue = Mutex::new(Queue::new(jobs, times));
    let report = Mutex::new(Report::default());
    let times = Mutex::new(times);
    let start = Instant::now();
    let one_after_the_other = |part: Part| -> Result<()> {
        let next = || queue.lock().expect(RUNS).next(part);
        while let Some(job) = next() {
            let (name, began) = (job.name(), Instant::now());
            job.run(settings, &report)?;
            let took = began.elapsed();
            let mut queue = queue.lock().expect(RUNS);
            queue.end(&name);
            let mut times = times.lock().expect(RUNS);
            times.put(&name, took);
            println!(
                "     Ended {name} after {:.1} s ({} so far; {}; {})",
                took.as_secs_f64(),
                in_words(start.elapsed()),
                report.lock().expect(RUNS).outcome,
                times.left(&queue.left(), queue::SLOTS)
            );
        }
        Ok(())
    };
    for parts in queue::ORDER {
        std::thread::scope(|scope| {
            let runs: Vec<_> = parts
                .iter()
                .map(|&part| scope.spawn(move || one_after_the_other(part)))
                .collect();
            runs.into_iter().try_for_each(|run| run.join().expect(RUNS))
        })?;
    }
    Ok(report.into_inner().expect(RUNS))
}

impl TestProgram {
    /// A program of a source file, such as `memprobe/src/lib.rs`, in a repository.
    #[cfg(test)]
    pub fn at(root: &Path, source: &str) -> Self {
        let (package, _) = source.split_once('/').expect("a package");
        Self {
            name: source.to_owned(),
            source: root.join(source),
            executable: PathBuf::new(),
            package: root.join(package),
        }
    }

    /// Runs it to its end. Its output goes to files: a process that a failed test leaves behind would keep a pipe open.
    fn run(&self, settings: Settings, options: &[&str]) -> Result<Output> {
        let starting = || format!("cannot start {}", self.executable.display());
        let mut printed = [tempfile::tempfile()?, tempfile::tempfile()?];
        let [stdout, stderr] = [printed[0].try_clone()?, printed[1].try_clone()?];
        let status = Command::new(&self.executable)
            .args(options)
            .current_dir(&self.package)
            .env("CARGO_MANIFEST_DIR", &self.package)
            // The committed object is tested, unless the variables name another one.
            .env_remove("MEMPROBE_BPF_OBJECT")
            .envs(settings.variables.iter().cloned())
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(stderr)
            .status()
            .with_context(starting)?;
        let [stdout, stderr] = printed.each_mut().map(|file| -> std::io::Result<Vec<u8>> {
            let mut text = Vec::new();
            file.rewind()?;
            file.read_to_end(&mut text)?;
            Ok(text)
        });
        Ok(Output {
            status,
            stdout: stdout?,
            stderr: stderr?,
        })
    }

    /// Prints a program's output in one piece.
    fn print(&self, output: &Output) {
        let said = without_passing(&String::from_utf8_lossy(&output.stdout));
        let complained = String::from_utf8_lossy(&output.stderr);
        let mut all = format!("\n     Running {}\n{said}{complained}", self.shown());
        if output.status.code().is_none() {
            all += &format!("{}: {}\n", self.shown(), output.status);
        }
        print!("{all}");
    }

    /// True if its tests wait for slots themselves. With a slot held for them they could wait for ever: for another
    /// slot, whose owner waits for all.
    fn takes_slots(&self) -> bool {
        [SUITE_FOLDER, OWN_FOLDER]
            .iter()
            .any(|folder| self.is_of(folder))
    }

    /// True if the folder of its package has this name.
    pub fn is_of(&self, folder: &str) -> bool {
        self.package.ends_with(folder)
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

    const MESSAGES: &str = r#"{"reason":"compiler-artifact","manifest_path":"/r/serde/Cargo.toml","target":{"name":"serde","kind":["lib"],"src_path":"/r/serde/lib.rs"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/w/memprobe/Cargo.toml","target":{"name":"memprobe","kind":["bin"],"src_path":"/w/memprobe/src/main.rs"},"profile":{"test":false},"executable":"/t/memprobe"}
{"reason":"compiler-artifact","manifest_path":"/w/memprobe/Cargo.toml","target":{"name":"ledger","kind":["bench"],"src_path":"/w/memprobe/benches/ledger.rs"},"profile":{"test":true},"executable":"/t/ledger-1"}
{"reason":"compiler-artifact","manifest_path":"/w/tests/Cargo.toml","target":{"name":"exactness","kind":["test"],"src_path":"/w/tests/suite/exactness.rs"},"profile":{"test":true},"executable":"/t/exactness-1"}
{"reason":"build-finished","success":true}"#;

    fn built(messages: &str) -> Build {
        let mut build = Build::default();
        messages.lines().for_each(|line| build.add(line));
        build
    }

    #[test]
    fn only_test_programs_are_found_among_cargos_messages() {
        let Build {
            programs: found,
            benchmarks,
            has_warnings,
        } = built(MESSAGES);
        assert_eq!(found.len(), 1);
        assert_eq!(benchmarks[0].shown(), "memprobe/benches/ledger.rs");
        assert_eq!(found[0].name, "exactness");
        assert_eq!(found[0].executable, PathBuf::from("/t/exactness-1"));
        assert_eq!(found[0].shown(), "tests/suite/exactness.rs");
        assert!(!has_warnings);
    }

    #[test]
    fn a_warning_is_found_and_a_note_is_none() {
        let message = |level| {
            format!(
                r#"{{"reason":"compiler-message","message":{{"level":"{level}","rendered":"{level}: x\n"}}}}"#
            )
        };
        assert!(!built(&message("note")).has_warnings);
        assert!(built(&format!("{}\n{MESSAGES}", message("warning"))).has_warnings);
    }

    #[test]
    fn no_slot_is_held_for_tests_that_wait_for_slots() {
        for (package, takes_slots) in [
            ("/w/tests", true),
            ("/w/xtask", true),
            ("/w/memprobe", false),
        ] {
            let of_package = TestProgram {
                package: package.into(),
                ..program("any", "/bin/true")
            };
            assert_eq!(of_package.takes_slots(), takes_slots, "{package}");
        }
    }

    fn program(name: &str, executable: &str) -> TestProgram {
        TestProgram {
            name: name.to_owned(),
            source: format!("/usr/{name}.rs").into(),
            executable: executable.into(),
            package: "/usr".into(),
        }
    }

    /// Makes a program one of the suite, whose package is in this folder.
    fn of_the_suite(program: TestProgram, package: &Path) -> TestProgram {
        TestProgram {
            source: package.join(format!("suite/{}.rs", program.name)),
            package: package.to_owned(),
            ..program
        }
    }

    /// Writes a program that prints what a test program would, and ends with a status.
    fn written(folder: &Path, name: &str, result: &str, status: u8) -> TestProgram {
        use std::os::unix::fs::PermissionsExt as _;
        let path = folder.join(name);
        let skip = "successes:\n\n---- cannot stdout ----\nskipped: no such machine\n";
        let script = format!("#!/bin/sh\ncat <<'EOF'\n{skip}\n{result}\nEOF\nexit {status}\n");
        std::fs::write(&path, script).expect("written");
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, executable).expect("executable");
        program(name, &path.to_string_lossy())
    }

    #[test]
    fn all_programs_are_counted_and_those_that_fail_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let of = |name, result: &str, status| written(folder.path(), name, result, status);
        let good = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured";
        let bad = "test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured";
        let suite = folder.path().join("tests");
        std::fs::create_dir(&suite).expect("a folder");
        let waits_for_the_others = of_the_suite(of("top", good, 0), &suite);
        let jobs = vec![
            Job::Program(waits_for_the_others),
            Job::Program(of("good", good, 0)),
            Job::Program(of("bad", bad, 101)),
            Job::Program(of("crashed", "running 3 tests", 1)),
            Job::Program(of("lied", good, 1)),
        ];
        let settings = Settings {
            variables: &[],
            long_tests: LongTests::LeaveOut,
        };
        let mut report = run(jobs, settings, &mut Times::default()).expect("they start");
        report.failed.sort();
        assert_eq!(report.outcome.to_string(), "4 passed, 3 failed, 4 skipped");
        assert_eq!(
            report.failed,
            ["usr/bad.rs", "usr/crashed.rs", "usr/lied.rs"]
        );
    }

    #[test]
    fn a_kernel_that_is_not_tried_is_a_skip_and_one_that_fails_a_failure() {
        let mut report = Report::default();
        report.add_kernel(Ok(None));
        report.add_kernel(Ok(Some("no KVM".to_owned())));
        report.add_kernel(Err(anyhow::anyhow!("the guest hangs")));
        assert_eq!(report.outcome.to_string(), "1 passed, 1 failed, 1 skipped");
        assert_eq!(report.failed, ["another kernel"]);
    }
}

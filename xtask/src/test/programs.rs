//! Builds the test programs and runs them concurrently.
//!
//! cargo runs test programs one after another. A test here mostly waits for a program to start, on
//! one core. Locks shared by all programs decide which tests may run at once.

use std::collections::VecDeque;
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
use super::steps::{Times, in_words};
use super::{OWN_FOLDER, SUITE_FOLDER};
use crate::process;

/// Programs run at once: one for each slot of the tests (`tests/support/environment.rs`).
const AT_ONCE: u32 = 3;

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

/// Test programs of a build, in cargo's order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Build {
    pub programs: Vec<TestProgram>,
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

/// Kinds of targets that are compiled as tests and have none.
const WITHOUT_TESTS: [&str; 2] = ["bench", "example"];

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
            }) if profile.test && !WITHOUT_TESTS.iter().any(|kind| target.kind == [*kind]) => {
                let package = manifest_path.parent().unwrap_or(Path::new("")).to_owned();
                self.programs.push(TestProgram {
                    name: target.name,
                    source: target.src_path,
                    executable,
                    package,
                });
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
    /// A few tests on another kernel, in a virtual machine; `Some` says why they were not run.
    AnotherKernel(Box<dyn FnOnce() -> Result<Option<String>> + Send + 'a>),
}

/// Name of [`Job::AnotherKernel`].
const ANOTHER_KERNEL: &str = "another kernel";

impl Job<'_> {
    fn name(&self) -> String {
        match self {
            Self::Program(program) => program.shown(),
            Self::AnotherKernel(_) => ANOTHER_KERNEL.to_owned(),
        }
    }

    /// Runs the job and adds its outcome to the report.
    fn run(self, settings: Settings, report: &Mutex<Report>) -> Result<()> {
        match self {
            Self::Program(program) => {
                // The tests of memprobe run CUDA programs too, and take no slot themselves.
                let turn = (!program.takes_slots()).then(slot).transpose()?;
                let output = program.run(settings)?;
                drop(turn);
                program.print(&output);
                report.lock().expect(RUNS).add_program(&program, &output);
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

/// Waits for a slot of the tests (`tests/support/environment.rs`) and locks it.
fn slot() -> Result<File> {
    let open =
        |number| File::create(std::env::temp_dir().join(format!("memprobe-tests.{number}.lock")));
    let files = (0..AT_ONCE)
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

/// Jobs that wait and run.
struct Queue<'a> {
    waiting: VecDeque<Job<'a>>,
    /// Jobs that wait until no other is left ([`ALONE`]).
    alone: VecDeque<Job<'a>>,
    running: Vec<String>,
}

impl<'a> Queue<'a> {
    /// Orders jobs: those first that took longest in an earlier run, or are known to take long.
    fn new(mut jobs: Vec<Job<'a>>, times: &Times) -> Self {
        jobs.sort_by_key(|job| {
            let name = job.name();
            let time = times.of(&name).unwrap_or_else(|| usual_time(&name));
            std::cmp::Reverse(time)
        });
        let is_alone = |job: &Job| ALONE.contains(&job.name().as_str());
        let (alone, waiting): (Vec<_>, Vec<_>) = jobs.into_iter().partition(is_alone);
        Self {
            waiting: waiting.into(),
            alone: alone.into(),
            running: Vec::new(),
        }
    }

    fn next(&mut self) -> Option<Job<'a>> {
        let job = self.waiting.pop_front()?;
        Some(self.begin(job))
    }

    fn next_alone(&mut self) -> Option<Job<'a>> {
        let job = self.alone.pop_front()?;
        Some(self.begin(job))
    }

    fn begin(&mut self, job: Job<'a>) -> Job<'a> {
        self.running.push(job.name());
        println!("     Started {}", job.name());
        job
    }

    /// Returns the jobs that have not ended.
    fn left(&self) -> Vec<String> {
        let waiting = self.waiting.iter().chain(&self.alone).map(Job::name);
        self.running.iter().cloned().chain(waiting).collect()
    }
}

/// Jobs that take minutes. On a fresh checkout they come first, so that none is left alone at the end.
const LONG: [&str; 17] = [
    "another kernel",
    "memprobe/src/lib.rs",
    "tests/suite/attribution.rs",
    "tests/suite/before_attach.rs",
    "tests/suite/compact_recordings.rs",
    "tests/suite/cuda_sim.rs",
    "tests/suite/estimate.rs",
    "tests/suite/exactness.rs",
    "tests/suite/export_snapshot.rs",
    "tests/suite/kv_cache.rs",
    "tests/suite/late_tables.rs",
    "tests/suite/snapshot_safety.rs",
    "tests/suite/snapshots.rs",
    "tests/suite/suspend.rs",
    "tests/suite/training_shapes.rs",
    "tests/suite/watch.rs",
    "tests/suite/waterfall.rs",
];

/// Jobs whose tests need all slots. They come last, one after the other: each test of them would wait until the slots
/// are free, and leave them empty meanwhile.
const ALONE: [&str; 6] = [
    "tests/suite/budget.rs",
    "tests/suite/diagnostics.rs",
    "tests/suite/kernel.rs",
    "tests/suite/many_processes.rs",
    "tests/suite/nvml.rs",
    "tests/suite/top.rs",
];

/// Returns the expected time of a job without an earlier one.
fn usual_time(name: &str) -> Duration {
    Duration::from_secs(if LONG.contains(&name) { 120 } else { 20 })
}

/// Message for a lock that a panicking thread would poison.
const RUNS: &str = "no run panics";

/// Runs all jobs. Prints each output when its program ends, and the work left. A failure does not stop the others.
pub fn run<'a>(jobs: Vec<Job<'a>>, settings: Settings, times: &mut Times) -> Result<Report> {
    let queue = Mutex::new(Queue::new(jobs, times));
    let report = Mutex::new(Report::default());
    let times = Mutex::new(times);
    let start = Instant::now();
    let next = || queue.lock().expect(RUNS).next();
    let next_alone = || queue.lock().expect(RUNS).next_alone();
    let one_after_the_other = |next: &dyn Fn() -> Option<Job<'a>>| -> Result<()> {
        while let Some(job) = next() {
            let (name, began) = (job.name(), Instant::now());
            job.run(settings, &report)?;
            let took = began.elapsed();
            let mut queue = queue.lock().expect(RUNS);
            queue.running.retain(|running| *running != name);
            let mut times = times.lock().expect(RUNS);
            times.put(&name, took);
            println!(
                "     Ended {name} after {:.1} s ({} so far; {}; {})",
                took.as_secs_f64(),
                in_words(start.elapsed()),
                report.lock().expect(RUNS).outcome,
                times.left(&queue.left(), AT_ONCE)
            );
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..AT_ONCE)
            .map(|_| scope.spawn(|| one_after_the_other(&next)))
            .collect();
        runs.into_iter().try_for_each(|run| run.join().expect(RUNS))
    })?;
    one_after_the_other(&next_alone)?;
    Ok(report.into_inner().expect(RUNS))
}

impl TestProgram {
    /// Runs it to its end. Its output goes to files: a process that a failed test leaves behind would keep a pipe open.
    fn run(&self, settings: Settings) -> Result<Output> {
        let starting = || format!("cannot start {}", self.executable.display());
        let mut printed = [tempfile::tempfile()?, tempfile::tempfile()?];
        let [stdout, stderr] = [printed[0].try_clone()?, printed[1].try_clone()?];
        let status = Command::new(&self.executable)
            .arg(SHOW_OUTPUT)
            .args(settings.long_tests.options())
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
            has_warnings,
        } = built(MESSAGES);
        assert_eq!(found.len(), 1);
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

    #[test]
    fn programs_whose_tests_need_all_slots_wait_for_the_others() {
        let (other, top) = (program("other", "/bin/true"), program("top", "/bin/true"));
        let top = of_the_suite(top, Path::new("/usr/tests"));
        let jobs = [top, other].map(Job::Program);
        let mut queue = Queue::new(jobs.into(), &Times::default());
        assert_eq!(queue.left(), ["usr/other.rs", "tests/suite/top.rs"]);
        assert_eq!(queue.next().map(|job| job.name()).unwrap(), "usr/other.rs");
        assert!(queue.next().is_none());
        assert_eq!(queue.next_alone().unwrap().name(), "tests/suite/top.rs");
    }

    #[test]
    fn the_longest_of_earlier_runs_come_first() {
        let mut times = Times::default();
        times.put("usr/short.rs", Duration::from_secs(1));
        times.put("usr/long.rs", Duration::from_secs(100));
        assert!(usual_time("tests/suite/snapshots.rs") > usual_time("tests/suite/names.rs"));
        let jobs = ["short", "long", "new"].map(|name| Job::Program(program(name, "/bin/true")));
        let queue = Queue::new(jobs.into(), &times);
        assert_eq!(queue.left(), ["usr/long.rs", "usr/new.rs", "usr/short.rs"]);
    }
}

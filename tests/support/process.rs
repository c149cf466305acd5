//! Background processes of tests.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use crate::fork_server::Forked;
use crate::thread_states;

/// Limit against hanging tests; no test depends on speed.
const HANGS_AFTER: Duration = Duration::from_secs(180);

/// Environment variable with a factor for [`HANGS_AFTER`], for slow machines (such as an emulated
/// one).
const PATIENCE: &str = "MEMPROBE_TEST_PATIENCE";

fn hangs_after() -> Duration {
    let patience = std::env::var(PATIENCE).map_or(1, |text| text.parse().expect("a number"));
    HANGS_AFTER * patience
}

/// Polls `done` until it returns a value.
///
/// # Panics
///
/// If that does not happen in time; the message contains `what`, and the state of the test's background processes.
pub fn wait_until<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    let in_time = is_soon(|| {
        found = done();
        found.is_some()
    });
    assert!(
        in_time,
        "waited in vain: {what}\n{}",
        thread_states::describe()
    );
    found.expect("found in time")
}

/// Polls `done` until it is true; returns false if that takes too long.
pub fn is_soon(mut done: impl FnMut() -> bool) -> bool {
    let (start, most) = (Instant::now(), hangs_after());
    while !done() {
        if start.elapsed() >= most {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// A process of a test.
enum Process {
    /// Its own child.
    Child(Child),
    /// A child of a fork server.
    Forked(Forked),
}

impl Process {
    fn id(&self) -> u32 {
        match self {
            Self::Child(child) => child.id(),
            Self::Forked(forked) => forked.id(),
        }
    }

    /// Returns its status if it has ended.
    fn status(&mut self) -> Option<ExitStatus> {
        let status = match self {
            Self::Child(child) => child.try_wait(),
            Self::Forked(forked) => forked.try_wait(),
        };
        status.unwrap_or_else(|error| panic!("no status of process {}: {error}", self.id()))
    }

    /// Kills it, unless it has ended.
    fn kill(&mut self) {
        match self {
            Self::Child(child) => {
                // Both fail only if it has ended.
                let _ = child.kill();
                let _ = child.wait();
            }
            Self::Forked(forked) => forked.kill(),
        }
    }
}

/// A background process, killed on drop with its descendants.
pub struct Background {
    process: Process,
    words: String,
    printed: TempDir,
}

/// Exit status and output of a process.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Background {
    /// Starts a command without input; a workload of PyTorch by a fork server, if one runs.
    ///
    /// # Panics
    ///
    /// If the command does not start.
    pub fn start(command: &mut Command) -> Self {
        let printed = tempfile::tempdir().expect("a folder for what is printed");
        let file = |name: &str| File::create(printed.path().join(name)).expect("a file");
        let (stdout, stderr) = (file("stdout"), file("stderr"));
        let path = |name: &str| printed.path().join(name);
        let process = match Forked::start(command, &path("stdout"), &path("stderr")) {
            Ok(Some(forked)) => Ok(Process::Forked(forked)),
            Ok(None) => {
                let command = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
                command.spawn().map(Process::Child)
            }
            Err(error) => Err(error),
        };
        let process = process.unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        let words = format!("{command:?}");
        thread_states::note(process.id(), &words, &path("stderr"));
        Self {
            process,
            words,
            printed,
        }
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Returns the standard output so far.
    pub fn stdout(&self) -> String {
        self.read("stdout")
    }

    /// Returns the standard error so far.
    pub fn stderr(&self) -> String {
        self.read("stderr")
    }

    /// Waits for a line that contains `text` on either output.
    ///
    /// # Panics
    ///
    /// If the process ends without such a line.
    pub fn wait_for(&mut self, text: &str) -> String {
        wait_until(&format!("{text:?} of {}", self.words), || {
            let ended = self.has_ended();
            let printed = self.stdout() + &self.stderr();
            // Consider whole lines only.
            let whole = &printed[..printed.rfind('\n').map_or(0, |at| at + 1)];
            let line = whole.lines().find(|line| line.contains(text));
            assert!(
                line.is_some() || !ended,
                "{} ended without {text:?}:\n{printed}",
                self.words
            );
            line.map(str::to_owned)
        })
    }

    pub fn has_ended(&mut self) -> bool {
        self.process.status().is_some()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let pid = pid.expect("the number of a process");
        rustix::process::kill_process(pid, signal).expect("the process is there");
    }

    /// Waits for the process to end.
    pub fn finish(mut self) -> Finished {
        let words = self.words.clone();
        let status = wait_until(&format!("the end of {words}"), || self.process.status());
        Finished {
            status,
            stdout: self.stdout(),
            stderr: self.stderr(),
        }
    }

    fn read(&self, name: &str) -> String {
        let path: PathBuf = self.printed.path().join(name);
        String::from_utf8_lossy(&fs::read(path).expect("printed")).into_owned()
    }
}

impl Drop for Background {
    /// Kills the process and its descendants: a program that a killed `memprobe record` started would go on, and tests
    /// that follow would find it.
    fn drop(&mut self) {
        thread_states::forget(self.pid());
        let family = descendants(self.pid());
        self.process.kill();
        for pid in family {
            // Fails only if it has ended.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

/// Returns the children of a process's threads.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let pids = lists.flat_map(|list| {
        let pids = list.split_whitespace().map(str::parse);
        pids.flatten().collect::<Vec<_>>()
    });
    pids.collect()
}

/// Returns the children of a process, their children, and so on.
fn descendants(pid: u32) -> Vec<Pid> {
    let mut family = children(pid);
    let mut at = 0;
    while let Some(parent) = family.get(at) {
        family.extend(children(*parent));
        at += 1;
    }
    let pids = family.into_iter().filter_map(|pid| i32::try_from(pid).ok());
    pids.filter_map(Pid::from_raw).collect()
}

impl Finished {
    /// Asserts success.
    ///
    /// # Panics
    ///
    /// If the exit status is not 0.
    pub fn succeeded(self) -> Self {
        assert!(
            self.status.success(),
            "{}\n{}\n{}",
            self.status,
            self.stdout,
            self.stderr
        );
        self
    }

    /// Returns the message of a process that ended with status 2 and one clear error (problem and
    /// next step): no panic, no backtrace, nothing repeated.
    ///
    /// # Panics
    ///
    /// If the process ended in another way.
    pub fn one_clear_error(self) -> String {
        let error = self.stderr;
        assert_eq!(self.status.code(), Some(2), "exit status of: {error}");
        assert!(
            !error.contains("panicked") && !error.contains("backtrace"),
            "a panic: {error}"
        );
        let lines: Vec<&str> = error.lines().collect();
        let speaks = |line: &&&str| line.starts_with("memprobe: ");
        assert!(
            lines.first().is_some_and(|line| speaks(&line)),
            "who speaks is not said: {error}"
        );
        assert_eq!(
            lines.iter().filter(speaks).count(),
            1,
            "two errors: {error}"
        );
        assert!(lines.len() <= 3, "too long: {error}");
        for part in error.split(": ").filter(|part| part.len() > 12) {
            assert_eq!(error.matches(part).count(), 1, "said twice: {error}");
        }
        error.trim_end().to_owned()
    }
}

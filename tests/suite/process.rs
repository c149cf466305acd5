//! Programs that run while a test looks on.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

/// Only against tests that would hang: nothing here depends on speed.
const HANGS_AFTER: Duration = Duration::from_secs(180);

/// How often a test waits as long as [`HANGS_AFTER`], where the machine is slower than most (an
/// emulated one).
const PATIENCE: &str = "MEMPROBE_TEST_PATIENCE";

fn hangs_after() -> Duration {
    let patience = std::env::var(PATIENCE).map_or(1, |text| text.parse().expect("a number"));
    HANGS_AFTER * patience
}

/// Waits until `done` gives something.
///
/// # Panics
///
/// Where that never happens, saying what was waited for.
pub fn wait_until<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let (start, most) = (Instant::now(), hangs_after());
    loop {
        if let Some(found) = done() {
            return found;
        }
        assert!(start.elapsed() < most, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A program in the background. It is killed where the test ends before it.
pub struct Background {
    child: Child,
    words: String,
    printed: TempDir,
}

/// How a program ended, and what it printed.
#[derive(Debug)]
pub struct Finished {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Background {
    /// Starts a command without input.
    ///
    /// # Panics
    ///
    /// Where it does not start.
    pub fn start(command: &mut Command) -> Self {
        let printed = tempfile::tempdir().expect("a folder for what is printed");
        let file = |name: &str| File::create(printed.path().join(name)).expect("a file");
        let child = command
            .stdin(Stdio::null())
            .stdout(file("stdout"))
            .stderr(file("stderr"))
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        Self {
            child,
            words: format!("{command:?}"),
            printed,
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it printed so far.
    pub fn stdout(&self) -> String {
        self.read("stdout")
    }

    /// What it complained of so far.
    pub fn stderr(&self) -> String {
        self.read("stderr")
    }

    /// Waits for a line that holds `text` on either output.
    ///
    /// # Panics
    ///
    /// Where the program ends without it.
    pub fn wait_for(&mut self, text: &str) -> String {
        wait_until(&format!("{text:?} of {}", self.words), || {
            let ended = self.has_ended();
            let printed = self.stdout() + &self.stderr();
            // Only whole lines.
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

    /// Whether it is over.
    pub fn has_ended(&mut self) -> bool {
        self.child
            .try_wait()
            .expect("a child can be asked")
            .is_some()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the process is there");
    }

    /// Waits for its end.
    pub fn finish(mut self) -> Finished {
        let words = self.words.clone();
        let status = wait_until(&format!("the end of {words}"), || {
            self.child.try_wait().expect("a child can be asked")
        });
        Finished {
            status,
            stdout: self.stdout(),
            stderr: self.stderr(),
        }
    }

    fn read(&self, name: &str) -> String {
        let path: PathBuf = self.printed.path().join(name);
        String::from_utf8_lossy(&std::fs::read(path).expect("printed")).into_owned()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // It may be over, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Finished {
    /// What it printed, once it succeeded.
    ///
    /// # Panics
    ///
    /// Where it did not.
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

    /// The error of a program that ended with status 2 and one clear error (what is wrong, and
    /// what to do next): no panic, no trace, nothing said twice.
    ///
    /// # Panics
    ///
    /// Where it was otherwise.
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

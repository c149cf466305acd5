//! Safety of snapshots: the process always keeps running, whatever happens to memprobe.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use memprobe_tests::environment::{On, TestEnvironment};
use memprobe_tests::process::{Background, wait_until};
use memprobe_tests::pytorch::PyTorch;
use memprobe_tests::snapshot::Snapshot;
use rustix::process::Signal;
use tempfile::TempDir;

/// Number of times that memprobe is killed.
const KILLED: u32 = 20;

/// Snapshots taken of a running process.
const TAKEN: usize = 20;

/// A process that constantly allocates, collects garbage and counts.
struct Churn {
    target: Background,
    folder: TempDir,
}

impl Churn {
    fn start(pytorch: &PyTorch, objects: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = pytorch.command();
        command.args(["-W", "ignore", "tensor_churn.py", "--folder"]);
        command.arg(folder.path());
        command.args(["--objects", &objects.to_string()]);
        let mut target = Background::start(&mut command);
        target.wait_for("churning");
        Self { target, folder }
    }

    fn pid(&self) -> u32 {
        self.target.pid()
    }

    /// Returns its counter.
    fn progress(&self) -> u64 {
        let count = std::fs::read(self.folder.path().join("progress")).expect("a count");
        u64::from_ne_bytes(count.try_into().expect("eight bytes"))
    }

    /// Waits until no thread is stopped and the counter advances.
    fn runs_on(&self) {
        wait_until("all threads are let go", || {
            let held = self.held();
            (!held).then_some(())
        });
        let before = self.progress();
        wait_until("the process runs on", || {
            (self.progress() > before + 1).then_some(())
        });
    }

    /// Stops the process by SIGSTOP.
    fn stop(&self) {
        self.target.signal(Signal::STOP);
        wait_until("it has stopped", || {
            let threads = threads(self.pid());
            let stopped = threads.iter().all(|thread| state(thread).starts_with('T'));
            stopped.then_some(())
        });
    }

    /// True if any thread is stopped or traced.
    fn held(&self) -> bool {
        let threads = threads(self.pid());
        assert!(!threads.is_empty(), "the process is over");
        threads.iter().any(|thread| is_held(thread))
    }

    fn end(self) {
        std::fs::write(self.folder.path().join("until"), "").expect("written");
        self.target.finish().succeeded();
    }
}

/// Returns `/proc/PID/task/TID` of each thread.
fn threads(pid: u32) -> Vec<PathBuf> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten();
    tasks.filter_map(|task| Some(task.ok()?.path())).collect()
}

/// Returns a field of `/proc/PID/task/TID/status` (proc_pid_status(5)); `None` once the thread has
/// ended.
fn field(thread: &Path, name: &str) -> Option<String> {
    let status = std::fs::read_to_string(thread.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().to_owned())
}

fn state(thread: &Path) -> String {
    field(thread, "State:").unwrap_or_default()
}

/// True if a thread has a tracer or is stopped.
fn is_held(thread: &Path) -> bool {
    let traced = field(thread, "TracerPid:").is_some_and(|tracer| tracer != "0");
    traced || state(thread).starts_with(['T', 't'])
}

/// Uniformly distributed numbers (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        limit.mul_f64((self.0 >> 11) as f64 / (1u64 << 53) as f64)
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn killed_in_the_middle_of_a_snapshot_memprobe_leaves_the_process_running() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let churn = Churn::start(environment.pytorch(), 300_000);
    let pid = churn.pid().to_string();
    let start = Instant::now();
    environment.snapshot(churn.pid(), &[]);
    // On a busy machine a snapshot waits for most of its time.
    let whole = start.elapsed().min(Duration::from_secs(3));
    let mut random = Random(0x6d65_6d70_726f_6265);
    let (mut midway, mut in_the_pause) = (0, 0);
    for at in 0..KILLED {
        let mut command = environment.memprobe();
        command.args(["snapshot", "--format", "json", "--pid", &pid]);
        let mut memprobe = Background::start(&mut command);
        // Two of three kills follow the first sight of the pause, which is over in milliseconds.
        let aimed = at % 3 > 0;
        let moment = Instant::now() + random.below(whole);
        let mut held = false;
        while !held && !memprobe.has_ended() && (aimed || Instant::now() < moment) {
            std::thread::sleep(Duration::from_millis(1));
            held = aimed && churn.held();
        }
        in_the_pause += u32::from(held);
        midway += u32::from(!memprobe.has_ended());
        // Dropping sends SIGKILL, unless the process has ended.
        drop(memprobe);
        churn.runs_on();
    }
    println!(
        "killed {KILLED} times within {whole:?}, {midway} times before its end, {in_the_pause} times in the pause"
    );
    assert!(midway >= KILLED / 2, "it was over too often: {midway}");
    assert!(
        in_the_pause >= 5,
        "hardly ever in the pause: {in_the_pause}"
    );
    environment.snapshot(churn.pid(), &[]);
    churn.end();
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn snapshots_of_a_process_that_does_not_stand_still_agree_with_its_allocator() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let churn = Churn::start(environment.pytorch(), 0);
    let mut sums = BTreeSet::new();
    for at in 0..TAKEN {
        let snapshot = environment.snapshot(churn.pid(), &[]);
        let allocated = allocated(&snapshot);
        assert_eq!(
            snapshot.holds("cuda:0"),
            allocated,
            "at the {at}. time: {:?}",
            snapshot.totals
        );
        let named = snapshot.tensors.iter().filter(|row| row.name.is_some());
        assert!(named.count() >= 24, "names are missing at the {at}. time");
        sums.insert(allocated);
    }
    assert!(sums.len() > TAKEN / 2, "it did stand still: {sums:?}");
    println!("{TAKEN} snapshots, {} different sums", sums.len());
    churn.runs_on();
    churn.end();
}

/// Returns the allocator's own total in a snapshot.
fn allocated(snapshot: &Snapshot) -> u64 {
    snapshot.totals_of("cuda:0").allocated.expect("a total")
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn without_blocking_no_thread_is_ever_stopped() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let churn = Churn::start(environment.pytorch(), 300_000);
    let pid = churn.pid().to_string();
    let before = churn.progress();
    let mut command = environment.memprobe();
    command.args([
        "snapshot",
        "--nonblocking",
        "--format",
        "json",
        "--pid",
        &pid,
    ]);
    let mut memprobe = Background::start(&mut command);
    let mut looks = 0;
    while !memprobe.has_ended() {
        assert!(!churn.held(), "a thread was stopped");
        looks += 1;
    }
    let printed = memprobe.finish().succeeded();
    let snapshot = Snapshot::parse(&printed.stdout);
    assert!(looks > 20, "looked only {looks} times");
    assert!(!snapshot.tensors.is_empty());
    assert!(churn.progress() > before, "it stood still");
    // The rows must add up, or the snapshot must report the remainder.
    let totals = snapshot.totals_of("cuda:0");
    let sum = i64::try_from(snapshot.holds("cuda:0")).expect("less than there is");
    let remainder = totals.remainder.expect("a remainder");
    assert_eq!(
        totals.allocated.map(|bytes| bytes as i64),
        Some(sum + remainder)
    );
    assert!(remainder == 0 || totals.reason.is_some(), "{totals:?}");
    assert_eq!(snapshot.pause_ms, None);
    churn.end();
}

#[test]
fn a_process_that_was_stopped_stays_stopped_and_is_read_all_the_same() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let churn = Churn::start(environment.pytorch(), 0);
    // If the process stops during garbage collection, the snapshot fails with that reason; if it stops within the
    // allocator, its tables do not agree yet. Retrying the same stop would not help.
    wait_until("it is stopped where it can be read", || {
        churn.stop();
        let printed = environment.try_snapshot(churn.pid(), &["--format", "json"]);
        if printed.status.success() {
            let snapshot = Snapshot::parse(&printed.stdout);
            if snapshot.holds("cuda:0") == allocated(&snapshot) {
                return Some(());
            }
            // Never without a word.
            let mut unread = snapshot.unread.iter();
            let says_so =
                unread.any(|words| words.contains("within an operation of PyTorch's allocator"));
            assert!(says_so, "{:?}", snapshot.unread);
        } else {
            let error = printed.one_clear_error();
            assert_says(&error, &["SIGSTOP", "kill -CONT", "--nonblocking"]);
        }
        churn.target.signal(Signal::CONT);
        churn.runs_on();
        None
    });
    let before = churn.progress();
    std::thread::sleep(Duration::from_millis(200));
    for thread in threads(churn.pid()) {
        assert!(state(&thread).starts_with('T'), "{}", state(&thread));
        assert_eq!(field(&thread, "TracerPid:").as_deref(), Some("0"));
    }
    assert_eq!(churn.progress(), before, "it ran on");
    churn.target.signal(Signal::CONT);
    churn.runs_on();
    churn.end();
}

#[test]
fn a_process_with_a_debugger_is_an_error_unless_it_runs_on() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let churn = Churn::start(environment.pytorch(), 0);
    let debugger = Debugger::attach(churn.pid());
    let error = environment.try_snapshot(churn.pid(), &[]).one_clear_error();
    assert_says(&error, &["debugger", "--nonblocking"]);
    read_running(&environment, churn.pid());
    drop(debugger);
    churn.runs_on();
    churn.end();
}

/// Reads a process that changes all the time while it runs on; again where memprobe says so.
fn read_running(environment: &TestEnvironment, pid: u32) {
    for _ in 0..5 {
        let read = environment.try_snapshot(pid, &["--nonblocking"]);
        if read.status.success() {
            return;
        }
        assert_says(&read.one_clear_error(), &["ran on", "Try again"]);
    }
    panic!("each of five readings of the running process was torn");
}

/// A Python that traces a process without stopping it.
struct Debugger {
    _process: Background,
}

impl Debugger {
    fn attach(pid: u32) -> Self {
        // PTRACE_SEIZE (linux/ptrace.h).
        let script = format!(
            "import ctypes, time\n\
             libc = ctypes.CDLL(None, use_errno=True)\n\
             assert libc.ptrace(0x4206, {pid}, 0, 0) == 0, ctypes.get_errno()\n\
             print('attached', flush=True)\n\
             time.sleep(600)\n"
        );
        let mut process = Background::start(Command::new("python3").args(["-c", &script]));
        process.wait_for("attached");
        Self { _process: process }
    }
}

#[test]
fn a_damaged_list_of_objects_is_given_up_after_a_few_stops() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let mut command = environment.pytorch().command();
    command.args(["-W", "ignore", "many_objects.py", "--damage"]);
    command.args(["--modules", "0", "--objects", "1000", "--then", "rest"]);
    let mut target = Background::start(&mut command);
    target.wait_for("READY");
    let error = environment
        .try_snapshot(target.pid(), &[])
        .one_clear_error();
    let stops = ["it was stopped 6 times", "the same place could not be read"];
    assert_says(
        &error,
        &[&stops[..], &["damaged", "--nonblocking"]].concat(),
    );
    // What lies before the damage is read.
    let snapshot = environment.snapshot(target.pid(), &["--nonblocking"]);
    let unread = snapshot.unread.join("\n");
    assert!(unread.contains("not all objects"), "{unread}");
}

#[test]
fn a_process_that_does_not_exist_is_an_error() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let mut over = Command::new("true").spawn().expect("true starts");
    over.wait().expect("it ends");
    let error = environment.try_snapshot(over.id(), &[]).one_clear_error();
    assert_says(&error, &[&over.id().to_string(), "no process"]);
}

#[test]
fn a_process_that_is_not_python_is_an_error() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let sleep = Background::start(Command::new("sleep").arg("600"));
    let error = environment.try_snapshot(sleep.pid(), &[]).one_clear_error();
    assert_says(&error, &[&sleep.pid().to_string(), "Python"]);
}

#[test]
fn a_python_without_pytorch_is_an_error() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let script = "import time; print('up', flush=True); time.sleep(600)";
    let mut python = Background::start(environment.pytorch().command().args(["-c", script]));
    python.wait_for("up");
    let error = environment
        .try_snapshot(python.pid(), &[])
        .one_clear_error();
    assert_says(&error, &[&python.pid().to_string(), "PyTorch"]);
}

#[test]
fn a_pytorch_that_does_not_use_cuda_has_tensors_on_the_cpu() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in environment.pytorches_on(On::Newest) {
        let script = "import time, torch; weights = torch.zeros(123, 45); print('up', flush=True); time.sleep(600)";
        let mut python = Background::start(pytorch.command().args(["-c", script]));
        python.wait_for("up");
        let snapshot = environment.snapshot(python.pid(), &["--cpu"]);
        let row = snapshot
            .tensors
            .iter()
            .find(|row| row.shape == Some(vec![123, 45]));
        let row = row.expect("the tensor");
        assert_eq!(
            (row.name.as_deref(), row.device.as_str(), row.bytes),
            (Some("weights"), "cpu", Some(123 * 45 * 4))
        );
        // Without CPU tensors the snapshot is empty, which is no error.
        let empty = environment.snapshot(python.pid(), &[]);
        assert_eq!(empty.tensors.len(), 0, "{:?}", empty.tensors);
    }
}

fn assert_says(error: &str, words: &[&str]) {
    for word in words {
        assert!(error.contains(word), "{word:?} is not said: {error}");
    }
}

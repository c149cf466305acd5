//! Pauses processes whose threads sleep in system calls, and compares what these return.

mod pythons;

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use memprobe::event::Tgid;
use memprobe::process::pause::{Sleepers, while_paused};
use pythons::{started, supported};
use rustix::process::{Pid, Signal, kill_process};

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/sleepers.py");

/// Pauses of a process.
const PAUSES: usize = 1_000;

/// Pauses that wait for each sleeper to leave its call.
const CATCHING: usize = 10;

struct Target(Child);

impl Target {
    /// Starts the fixture; all its threads but one are asleep in a call.
    fn start() -> Self {
        let python = supported().pop().expect("a Python");
        let (child, _) = started(Command::new(python).arg(FIXTURE));
        thread::sleep(Duration::from_millis(200));
        Self(child)
    }

    fn tgid(&self) -> Tgid {
        Tgid(self.0.id())
    }

    /// Ends the fixture, and returns the errors of each call.
    fn finish(mut self) -> BTreeMap<String, Vec<String>> {
        drop(self.0.stdin.take());
        serde_json::from_reader(self.0.stdout.take().unwrap()).unwrap()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Closing standard input ends the fixture.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn no_system_call_of_a_paused_process_returns_early() {
    let target = Target::start();
    let mut ran = 0;
    for number in 0..PAUSES + CATCHING {
        let sleepers = if number < PAUSES {
            Sleepers::Left
        } else {
            Sleepers::Caught
        };
        let paused = while_paused(target.tgid(), sleepers, || ());
        ran += u32::from(paused.unwrap_or_else(|error| panic!("{error}")).has_run);
        // So that the next pause finds them asleep again.
        thread::sleep(Duration::from_micros(500));
    }
    assert_eq!(ran, 0, "sleepers that have run in {PAUSES} pauses");
    let errors = target.finish();
    assert_eq!(errors.len(), 11, "{errors:?}");
    for (call, errors) in errors {
        assert_eq!(errors, [""; 0], "{call}");
    }
}

/// Set for a copy of this test that pauses a process, and is stopped meanwhile.
const PAUSED: &str = "MEMPROBE_PAUSED_BY_TEST";

#[test]
fn stopped_in_the_middle_of_a_pause() {
    let Ok(number) = std::env::var(PAUSED) else {
        return;
    };
    let tgid = Tgid(number.parse().expect("a number"));
    // To this thread: a signal to the process may stop it only after another thread has taken it.
    // SAFETY: raise(3) sends a signal to the calling thread, and touches no memory of ours.
    let work = || unsafe { libc::raise(libc::SIGSTOP) };
    // The watchdog wakes this process. Either the work ends first then, or the pause.
    match while_paused(tgid, Sleepers::Left, work) {
        Ok(paused) => assert!(paused.duration > Duration::from_millis(900), "{paused:?}"),
        Err(error) => assert!(error.to_string().contains("--max-pause"), "{error}"),
    }
}

/// A process that is killed when this is dropped: one that stays stopped would keep the output of the tests open.
struct Killed(Child);

impl Killed {
    /// Starts a process that never sleeps, since a pause leaves sleepers asleep.
    fn running() -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", "while :; do :; done"]);
        shell.stdin(Stdio::null()).stdout(Stdio::null());
        Self(shell.stderr(Stdio::null()).spawn().expect("started"))
    }

    /// Starts a copy of this test that pauses a process, and is stopped meanwhile.
    fn stopped_pause(tgid: Tgid) -> Self {
        let mut this = Command::new(std::env::current_exe().expect("a path"));
        this.args(["--exact", "stopped_in_the_middle_of_a_pause"]);
        let copy = this.env(PAUSED, tgid.0.to_string()).spawn();
        Self(copy.expect("started"))
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !is_there() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "waited in vain: {what}"
        );
        thread::sleep(Duration::from_millis(2));
    }
    start.elapsed()
}

fn state(pid: u32) -> Option<char> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let (_, state) = status.split_once("State:\t")?;
    state.chars().next()
}

#[test]
fn a_target_runs_on_if_memprobe_is_stopped_in_a_pause() {
    let running = Killed::running();
    let target = running.0.id();
    let mut stopper = Killed::stopped_pause(Tgid(target));
    wait_for("the pause", || state(target) == Some('t'));
    let paused = wait_for("the end of the pause", || state(target) != Some('t'));
    assert!(paused < Duration::from_secs(2), "{paused:?}");
    // Whoever stopped memprobe finds it stopped.
    wait_for("the stop", || state(stopper.0.id()) == Some('T'));
    kill_process(Pid::from_child(&stopper.0), Signal::CONT).expect("it is there");
    assert!(stopper.0.wait().expect("it ends").success());
}

#[test]
fn a_target_runs_on_if_somebody_stops_memprobe_again_and_again() {
    let running = Killed::running();
    let target = running.0.id();
    let mut stopper = Killed::stopped_pause(Tgid(target));
    wait_for("the pause", || state(target) == Some('t'));
    let paused = wait_for("the end of the pause", || {
        let _ = kill_process(Pid::from_child(&stopper.0), Signal::STOP);
        state(target) != Some('t')
    });
    assert!(paused < Duration::from_secs(15), "{paused:?}");
    let _ = kill_process(Pid::from_child(&stopper.0), Signal::KILL);
    stopper.0.wait().expect("it ends");
}

#[test]
fn a_thread_that_wakes_up_during_a_pause_is_noticed() {
    let mut target = Target::start();
    let input = target.0.stdin.take();
    let paused = while_paused(target.tgid(), Sleepers::Left, || {
        // The main thread reads its input, a call in which it is left asleep.
        drop(input);
        thread::sleep(Duration::from_millis(100));
    });
    assert!(paused.unwrap_or_else(|error| panic!("{error}")).has_run);
}

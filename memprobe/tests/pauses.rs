//! Pauses processes whose threads sleep in system calls, and compares what these return.

mod pythons;

use std::collections::BTreeMap;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use memprobe::event::Tgid;
use memprobe::process::pause::{Sleepers, while_paused};
use pythons::{started, supported};

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

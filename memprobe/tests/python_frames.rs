//! Unwinds the stacks of real Python interpreters from outside and compares every frame with
//! `sys._current_frames`.

mod pythons;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command};

use memprobe::event::{Frame, Tgid};
use memprobe::python::{CodeCache, DetectError, PythonProcess, Resolved};
use pythons::{interpreters, started, supported};

const FIXTURE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/fixtures/blocked_threads.py"
);

/// Versions that memprobe must refuse, with their minor numbers.
const UNSUPPORTED: [(&str, u8); 1] = [("3.8", 8)];

/// A running fixture, ended on drop.
struct Target {
    child: Child,
    first_line: serde_json::Value,
}

impl Target {
    fn start(python: &Path, options: &[&str], arguments: &[&str]) -> Self {
        let mut command = Command::new(python);
        let (child, line) = started(command.args(options).arg(FIXTURE).args(arguments));
        let first_line = serde_json::from_str(&line).unwrap();
        Self { child, first_line }
    }

    fn tgid(&self) -> Tgid {
        Tgid(self.child.id())
    }

    /// Returns the frames that Python itself reports, by `thread_id`.
    fn truth(&self) -> BTreeMap<u64, Vec<Frame>> {
        let frame = |frame: &serde_json::Value| Frame {
            file: frame[0].as_str().unwrap().into(),
            line: frame[1].as_u64().unwrap().try_into().unwrap(),
            function: frame[2].as_str().unwrap().into(),
            library: None,
        };
        self.first_line["stacks"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(thread, frames)| {
                let frames = frames.as_array().unwrap().iter().map(frame).collect();
                (thread.parse().unwrap(), frames)
            })
            .collect()
    }

    fn native_id(&self, thread_id: u64) -> u64 {
        self.first_line["native"][thread_id.to_string()]
            .as_u64()
            .unwrap()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Closing standard input ends the fixture and any child that it forked.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn detect(tgid: Tgid) -> PythonProcess {
    PythonProcess::detect(tgid).unwrap_or_else(|error| panic!("{error}"))
}

/// Compares every thread that Python reported and returns the number of frames compared.
fn compare(target: &Target, process: &PythonProcess, cache: &mut CodeCache) -> usize {
    let truth = target.truth();
    let states = process.thread_states().unwrap();
    let mut compared = 0;
    for (&thread_id, expected) in &truth {
        let of_thread: Vec<_> = states
            .iter()
            .filter(|state| state.thread_id == thread_id)
            .collect();
        let [state] = of_thread[..] else {
            panic!("thread {thread_id:#x}: {of_thread:?}")
        };
        assert_eq!(state.native_thread_id, target.native_id(thread_id));
        let memory = process.memory();
        assert_eq!(
            process.way.value(&memory, thread_id).unwrap(),
            state.address
        );
        let chain = process.frames(state).unwrap();
        let frames: Vec<_> = chain
            .frames
            .iter()
            .filter_map(|frame| {
                match cache.resolve(&memory, frame.code, frame.instr, frame.owner) {
                    Resolved::Frame(resolved) => Some(resolved),
                    Resolved::Skip => None,
                    Resolved::Unreadable => panic!("unreadable: {frame:?}"),
                }
            })
            .collect();
        assert_eq!(
            &frames,
            expected,
            "{} {thread_id:#x}",
            process.library.path.display()
        );
        compared += frames.len();
    }
    compared
}

fn check_every_frame(options: &[&str]) {
    for python in supported() {
        let target = Target::start(&python, options, &[]);
        let process = detect(target.tgid());
        let mut cache = CodeCache::new(&process);
        let compared = compare(&target, &process, &mut cache);
        assert!(compared > 1_000, "only {compared} frames");
        // Compare again, now from the cache.
        let read = cache.counters.read;
        assert_eq!(compare(&target, &process, &mut cache), compared);
        assert_eq!(cache.counters.read, read);
        assert_eq!(cache.counters.replaced + cache.counters.unreadable, 0);
        println!(
            "{} {}: {compared} frames are equal",
            python.display(),
            process.version
        );
    }
}

#[test]
fn every_frame_of_every_thread_is_what_python_says() {
    check_every_frame(&[]);
}

#[test]
fn lines_do_not_depend_on_columns() {
    check_every_frame(&["-X", "no_debug_ranges"]);
}

#[test]
fn frames_that_were_read_outlive_their_process() {
    let python = supported().remove(0);
    let target = Target::start(&python, &[], &[]);
    let process = detect(target.tgid());
    let memory = process.memory();
    let mut cache = CodeCache::new(&process);
    compare(&target, &process, &mut cache);
    let state = process.thread_states().unwrap().pop().unwrap();
    let frame = process.frames(&state).unwrap().frames[0];
    let before = cache.resolve(&memory, frame.code, frame.instr, frame.owner);
    assert!(matches!(before, Resolved::Frame(_)));
    drop(target);
    assert_eq!(
        cache.resolve(&memory, frame.code, frame.instr, frame.owner),
        before
    );
    cache.forget(frame.code);
    let after = cache.resolve(&memory, frame.code, frame.instr, frame.owner);
    assert_eq!(after, Resolved::Unreadable);
}

#[test]
fn a_process_whose_threads_run_all_the_time_is_detected() {
    for python in supported() {
        let target = Target::start(&python, &[], &["busy"]);
        for _ in 0..20 {
            detect(target.tgid());
        }
    }
}

#[test]
fn a_forked_process_is_detected_by_itself() {
    for python in supported() {
        let target = Target::start(&python, &[], &["fork"]);
        let children =
            fs::read_to_string(format!("/proc/{0}/task/{0}/children", target.child.id())).unwrap();
        let child = Tgid(children.trim().parse().unwrap());
        let process = detect(child);
        let mut cache = CodeCache::new(&process);
        compare(&target, &process, &mut cache);
    }
}

#[test]
fn a_python_of_unknown_layout_is_named() {
    for (version, minor) in UNSUPPORTED {
        let pythons = interpreters(version);
        if pythons.is_empty() {
            println!("skipped: no Python {version} is here");
        }
        for python in pythons {
            let code = "import sys, time; print(flush=True); sys.stdin.read()";
            let (mut child, _) = started(Command::new(&python).args(["-c", code]));
            let error = PythonProcess::detect(Tgid(child.id())).unwrap_err();
            assert!(
                matches!(error, DetectError::UnsupportedVersion(found) if found.minor == minor),
                "{}: {error}",
                python.display()
            );
            drop(child.stdin.take());
            child.wait().unwrap();
        }
    }
}

#[test]
fn a_process_without_python_is_not_python() {
    let error = PythonProcess::detect(Tgid(std::process::id())).unwrap_err();
    assert!(matches!(error, DetectError::NotPython), "{error}");
    let error = PythonProcess::detect(Tgid(u32::MAX)).unwrap_err();
    assert!(matches!(error, DetectError::Gone), "{error}");
}

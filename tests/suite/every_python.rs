//! Stacks of allocations on every Python, without a PyTorch for each: a stand-in for its allocator
//! is called from every kind of Python stack.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::events::Event;
use memprobe_tests::memprobe::lost;
use memprobe_tests::process::Background;
use memprobe_tests::pythons::{self, Python};
use memprobe_tests::pytorch::{succeed, workloads};
use memprobe_tests::reference::TraceFrame;
use tempfile::TempDir;

/// Maximum frames that memprobe reports (`memprobe_common::MAX_FRAMES`).
const MAX_FRAMES: usize = 128;

/// Maximum frames that it unwinds, including the interpreter's own in some versions.
const MAX_WALKED: usize = 192;

/// Bytes of block 1; block N has N times as many.
const UNIT: u64 = 512;

#[test]
fn every_stack_of_every_python_is_what_python_says() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    let libraries = stand_ins();
    for python in pythons::of_this_run() {
        let (truth, events) = record(&environment, &python, libraries.path());
        let frames = compare(&truth, &events)
            .unwrap_or_else(|difference| panic!("Python {}: {difference}", python.version));
        println!(
            "Python {:<8} {:<60} {} stacks, {frames} frames",
            python.version,
            python.program.display(),
            truth.len()
        );
    }
}

/// Stacks by block number, innermost frame first; `None` if the thread runs no Python.
type Truth = BTreeMap<u64, Option<Vec<(String, u32, String)>>>;

/// Builds a folder with stand-ins for the libraries of PyTorch and CUDA.
fn stand_ins() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("stand-in/c10.c");
    let empty = folder.path().join("empty.c");
    fs::write(&empty, "int stand_in;\n").expect("written");
    for (name, source) in [
        ("libc10.so", source.as_path()),
        ("libcudart.so.13", &empty),
        ("libtorch_cpu.so", &empty),
    ] {
        let mut compile = Command::new("cc");
        compile.args(["-O1", "-shared", "-fPIC", "-pthread", "-o"]);
        succeed(compile.arg(folder.path().join(name)).arg(source));
    }
    folder
}

/// Records the workload from its first block to its end.
fn record(environment: &TestEnvironment, python: &Python, libraries: &Path) -> (Truth, Vec<Event>) {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let mut command = Command::new(&python.program);
    command.current_dir(workloads()).arg("python_stacks.py");
    command.arg("--libraries").arg(libraries);
    command.arg("--go").arg(at("go"));
    command.arg("--truth").arg(at("truth.json"));
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    let mut target = Background::start(&mut command);
    target.wait_for("PID ");
    let recording = environment.record(target.pid(), &at("trace.json"), &[]);
    fs::write(at("go"), "").expect("written");
    let printed = recording.finish();
    target.finish().succeeded();
    assert_eq!(lost(&printed.stderr), 0, "losses: {}", printed.stderr);
    let truth = fs::read(at("truth.json")).expect("the truth");
    let truth = serde_json::from_slice(&truth).expect("stacks by number");
    (truth, environment.events(&at("trace.json")))
}

/// Compares every block; returns the number of equal frames.
fn compare(truth: &Truth, events: &[Event]) -> Result<usize, String> {
    let mut by_number: BTreeMap<u64, &Event> = BTreeMap::new();
    for event in events.iter().filter(|event| event.action == "alloc") {
        let number = event.size.unwrap_or_default() / UNIT;
        if by_number.insert(number, event).is_some() {
            return Err(format!("block {number} is reported twice"));
        }
    }
    if by_number.len() != truth.len() {
        return Err(format!("{} of {} blocks", by_number.len(), truth.len()));
    }
    let mut compared = 0;
    for (number, expected) in truth {
        let event = by_number
            .get(number)
            .ok_or_else(|| format!("block {number} is missing"))?;
        compared += compare_stack(expected.as_deref(), event)
            .map_err(|difference| format!("block {number}: {difference}"))?;
    }
    Ok(compared)
}

fn compare_stack(
    expected: Option<&[(String, u32, String)]>,
    event: &Event,
) -> Result<usize, String> {
    let Some(expected) = expected else {
        return if event.stack.is_empty() && event.no_stack.is_some() {
            Ok(0)
        } else {
            Err(format!("no Python runs, and memprobe says {event:?}"))
        };
    };
    let expected: Vec<TraceFrame> = expected
        .iter()
        .map(|(file, line, function)| TraceFrame {
            file: file.clone(),
            line: *line,
            function: function.clone(),
        })
        .collect();
    let ours = &event.stack;
    // Below each call from C, the interpreter may push a frame of its own, which counts against the
    // limit.
    let is_cut = event.stack_truncated == Some(true);
    let is_long_enough = if is_cut {
        ours.len() == MAX_FRAMES || (ours.len() >= MAX_WALKED / 2 && ours.len() < expected.len())
    } else {
        ours.len() == expected.len()
    };
    if is_long_enough && expected.starts_with(ours) {
        return Ok(ours.len());
    }
    let both = ours.iter().zip(&expected);
    let differing: Vec<_> = both.filter(|(ours, theirs)| ours != theirs).collect();
    Err(format!(
        "{} frames by Python, {} by memprobe, cut: {is_cut}, of thread {:?}; differences: {differing:#?}",
        expected.len(),
        ours.len(),
        event.tid
    ))
}

//! Backward passes lead back to the forward pass: compares memprobe's node for each block with
//! PyTorch's hooks and anomaly detection. Compares the numbers of steps and batches with PyTorch's.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::memprobe::lost;
use memprobe_tests::process::Background;
use memprobe_tests::pytorch::PyTorch;
use memprobe_tests::reference::TraceFrame;
use serde::Deserialize;
use serde_json::Value;

/// Line of the log of `workloads/graph_nodes.py`.
#[derive(Debug, Deserialize)]
struct Note {
    tid: u32,
    time_ns: u64,
    step: String,
    name: Option<String>,
    line: Option<u32>,
}

/// A node as reported by a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    name: String,
    line: Option<u32>,
}

/// An event as printed by `report --by event`.
#[derive(Debug, Deserialize)]
struct Event {
    time_ns: u64,
    tid: Option<u32>,
    action: String,
    stack: Vec<Value>,
    waiting: Option<Vec<Value>>,
    node: Option<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    name: String,
    forward: Option<Vec<TraceFrame>>,
}

impl Node {
    /// Returns the workload's line that created the node.
    fn line(&self) -> Option<u32> {
        let frames = self.forward.as_ref()?;
        let is_own = |frame: &&TraceFrame| frame.file.ends_with("graph_nodes.py");
        Some(frames.iter().find(is_own)?.line)
    }
}

/// State of a thread according to the hooks: the active nodes, outermost first, and the last one
/// left.
#[derive(Default)]
struct Thread {
    inside: Vec<Known>,
    left: Option<Known>,
}

impl Thread {
    fn apply(&mut self, note: &Note) {
        let known = || Known {
            name: note.name.clone().expect("a name"),
            line: note.line,
        };
        match note.step.as_str() {
            "begin" => {
                self.inside.push(known());
                self.left = None;
            }
            "end" => {
                assert_eq!(
                    self.inside.pop(),
                    Some(known()),
                    "a node ends that began last"
                );
                self.left = Some(known());
            }
            _ => *self = Self::default(),
        }
    }

    /// Returns the nodes that the thread may be evaluating. The engine sums gradients after a
    /// node's last hook.
    fn candidates(&self) -> impl Iterator<Item = &Known> {
        self.left.iter().chain(self.inside.last())
    }
}

/// Numbers of compared items.
#[derive(Debug, Default)]
struct Compared {
    names: BTreeMap<String, usize>,
    lines: usize,
    outside: usize,
}

fn read<T: for<'a> Deserialize<'a>>(text: &str) -> Vec<T> {
    let rows = text.lines().map(serde_json::from_str);
    rows.map(|row| row.expect("a line of JSON")).collect()
}

/// Compares every allocation with the hooks.
fn compare(events: &[Event], notes: &[Note]) -> Compared {
    let mut compared = Compared::default();
    let mut threads: HashMap<u32, Thread> = HashMap::new();
    let mut notes = notes.iter().peekable();
    for event in events.iter().filter(|event| event.action == "alloc") {
        while let Some(note) = notes.next_if(|note| note.time_ns < event.time_ns) {
            threads.entry(note.tid).or_default().apply(note);
        }
        let thread = threads.entry(event.tid.expect("a thread")).or_default();
        let candidates: Vec<_> = thread.candidates().collect();
        let Some(node) = &event.node else {
            assert!(
                candidates.is_empty(),
                "no node instead of {candidates:?}: {event:?}"
            );
            compared.outside += 1;
            continue;
        };
        let agrees = |known: &&&Known| {
            let line = match node.name.as_str() {
                "torch::autograd::AccumulateGrad" => node.line().is_none(),
                _ => known.line.is_none() || node.line() == known.line,
            };
            known.name == node.name && line
        };
        let known = candidates.iter().find(agrees);
        let known = known.unwrap_or_else(|| panic!("not {candidates:?}: {event:?}"));
        *compared.names.entry(node.name.clone()).or_default() += 1;
        compared.lines += usize::from(known.line.is_some() && node.line() == known.line);
    }
    compared
}

/// Runs the workload under memprobe and compares.
fn record(
    environment: &TestEnvironment,
    pytorch: &PyTorch,
    device: &str,
    folder: &Path,
) -> Compared {
    let (file, log) = (folder.join("trace.json"), folder.join("notes.jsonl"));
    let mut command = environment.memprobe();
    pytorch.settle(&mut command);
    command
        .args(["record", "--buffer-size", "64MiB", "-o"])
        .arg(&file);
    if device == "cpu" {
        command.arg("--cpu");
    }
    command
        .arg("--")
        .arg(pytorch.python())
        .arg("graph_nodes.py");
    command.args(["--device", device, "--notes"]).arg(&log);
    let recorded = Background::start(&mut command).finish().succeeded();
    assert_eq!(lost(&recorded.stderr), 0, "losses: {}", recorded.stderr);
    let path = file.to_str().expect("UTF-8");
    let report = environment.run(&["report", path, "--by", "event", "--format", "jsonl"]);
    let notes = std::fs::read_to_string(&log).expect("the notes");
    compare(&read(&report.succeeded().stdout), &read(&notes))
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn every_block_of_a_backward_pass_is_of_the_node_and_the_line_that_pytorch_says() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in &environment.pytorches {
        for device in ["cuda", "cpu"] {
            let folder = tempfile::tempdir().expect("a folder");
            let compared = record(&environment, pytorch, device, folder.path());
            println!("{} on {device}: {compared:?}", pytorch.python().display());
            assert!(compared.lines > 60, "few lines");
            for name in [
                "AddmmBackward0",
                "CubeBackward",
                "ExpBackward0",
                "TanhBackward0",
            ] {
                assert!(compared.names.contains_key(name), "no {name}");
            }
        }
    }
}

#[test]
fn without_the_graph_nothing_is_said_of_nodes() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.json");
    let mut command = environment.memprobe();
    environment.pytorch().settle(&mut command);
    command.args(["record", "--no-graph", "-o"]).arg(&file);
    command
        .arg("--")
        .arg(environment.pytorch().python())
        .arg("graph_nodes.py");
    command
        .arg("--notes")
        .arg(folder.path().join("notes.jsonl"));
    Background::start(&mut command).finish().succeeded();
    let path = file.to_str().expect("UTF-8");
    let report = environment.run(&["report", path, "--by", "event", "--format", "jsonl"]);
    let events: Vec<Event> = read(&report.succeeded().stdout);
    assert!(
        events.iter().any(|event| event.waiting.is_some()),
        "no backward pass"
    );
    assert!(events.iter().any(|event| !event.stack.is_empty()));
    assert!(events.iter().all(|event| event.node.is_none()));
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn steps_and_batches_are_marked_as_often_as_they_are_begun() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in &environment.pytorches {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("trace.json");
        let mut command = environment.memprobe();
        pytorch.settle(&mut command);
        command.args(["record", "-o"]).arg(&file);
        command.arg("--").arg(pytorch.python()).arg("marks.py");
        let recorded = Background::start(&mut command).finish().succeeded();
        let begun: BTreeMap<String, usize> =
            serde_json::from_str(recorded.stdout.trim()).expect("counts");
        let trace = std::fs::read(&file).expect("a recording");
        let trace: Vec<Value> = serde_json::from_slice(&trace).expect("JSON");
        let mut marked: BTreeMap<String, usize> = BTreeMap::new();
        for row in trace.iter().filter(|row| row["cat"] == "mark") {
            let (class, begins) = (&row["args"]["class"], &row["args"]["begins"]);
            let word = |value: &Value| value.as_str().expect("a word").to_owned();
            *marked
                .entry(format!("{}.{}", word(class), word(begins)))
                .or_default() += 1;
        }
        assert_eq!(marked, begun, "{}", pytorch.python().display());
    }
}

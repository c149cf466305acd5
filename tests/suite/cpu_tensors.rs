//! Compares the memory of CPU tensors with PyTorch's own profiler.

use std::path::Path;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::memprobe::lost;
use memprobe_tests::process::{Background, Finished};
use memprobe_tests::pytorch::PyTorch;
use serde::Deserialize;
use serde_json::Value;

/// Output of `workloads/cpu_tensors.py`.
#[derive(Debug, Deserialize)]
struct Profiled {
    begin_ns: u64,
    end_ns: u64,
    events: Vec<Step>,
    tensors: Vec<Tensor>,
}

/// A block allocated (positive) or freed (negative).
#[derive(Debug, Deserialize, PartialEq, Eq, Clone, Copy)]
struct Step {
    addr: u64,
    bytes: i64,
}

/// A tensor that is live at the end.
#[derive(Debug, Deserialize)]
struct Tensor {
    addr: u64,
    shape: Vec<u64>,
    dtype: String,
    bytes: u64,
}

/// An event of the CPU allocator, as printed by `report --by event`.
#[derive(Debug, Deserialize)]
struct Event {
    time_ns: u64,
    action: String,
    addr: u64,
    size: Option<u64>,
    device: Value,
    shape: Option<Vec<u64>>,
    dtype: Option<String>,
    requested: Option<u64>,
    stack: Vec<Value>,
}

impl Event {
    fn step(&self) -> Step {
        let size = i64::try_from(self.size.unwrap_or(0)).expect("a size");
        Step {
            addr: self.addr,
            bytes: match self.action.as_str() {
                "alloc" => size,
                _ => -size,
            },
        }
    }
}

fn events(environment: &TestEnvironment, file: &Path) -> Vec<Event> {
    let file = file.to_str().expect("UTF-8");
    let report = environment.run(&["report", file, "--by", "event", "--format", "jsonl"]);
    let lines = report.succeeded().stdout;
    let rows = lines.lines().map(serde_json::from_str::<Value>);
    let rows = rows.map(|row| row.expect("JSON"));
    let of_cpu = rows.filter(|row| row["device"] == "cpu");
    of_cpu
        .map(|row| serde_json::from_value(row).expect("an event"))
        .collect()
}

/// Compares the events within the profiled interval one by one, and the tensors live at the end.
fn agree(environment: &TestEnvironment, file: &Path, log: &Path, printed: &Finished) -> Vec<Event> {
    assert_eq!(lost(&printed.stderr), 0, "losses: {}", printed.stderr);
    let log = std::fs::read(log).expect("the log");
    let profiled: Profiled = serde_json::from_slice(&log).expect("the log is JSON");
    let events = events(environment, file);
    let seen: Vec<Step> = events
        .iter()
        .filter(|event| (profiled.begin_ns..profiled.end_ns).contains(&event.time_ns))
        .map(Event::step)
        .collect();
    assert!(seen.len() >= 200, "only {} events", seen.len());
    assert!(seen == profiled.events, "the events differ");
    for tensor in &profiled.tensors {
        let mut of_it = events
            .iter()
            .filter(|event| event.addr == tensor.addr && event.time_ns < profiled.end_ns);
        let event = of_it.next_back().expect("its block");
        assert_eq!(event.device, "cpu");
        assert_eq!(event.action, "alloc", "it is live: {tensor:?}");
        assert_eq!(event.shape.as_ref(), Some(&tensor.shape), "{tensor:?}");
        assert_eq!(event.dtype.as_ref(), Some(&tensor.dtype), "{tensor:?}");
        assert_eq!(event.requested, Some(tensor.bytes), "{tensor:?}");
        assert_eq!(event.size, Some(tensor.bytes), "{tensor:?}");
        assert!(!event.stack.is_empty(), "{event:?}");
    }
    events
}

fn workload(pytorch: &PyTorch, log: &Path) -> std::process::Command {
    let mut command = pytorch.command();
    command.arg("cpu_tensors.py").arg("--out").arg(log);
    command
}

#[test]
fn every_block_of_the_cpu_agrees_with_pytorchs_own_profiler() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in &environment.pytorches {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, log) = (folder.path().join("trace.json"), folder.path().join("log"));
        let mut command = environment.memprobe();
        command.args(["record", "--cpu", "-o"]).arg(&file).arg("--");
        let driver = workload(pytorch, &log);
        command.arg(driver.get_program()).args(driver.get_args());
        pytorch.settle(&mut command);
        let printed = Background::start(&mut command).finish().succeeded();
        agree(&environment, &file, &log, &printed);
        let report = environment.report(&file);
        let device = &report["devices"][0];
        assert_eq!(device["device"], "cpu", "{report:#}");
        assert_eq!(device["unseen_frees"], 0, "nothing came before: {device:#}");
        let lines = device["lines"].as_array().expect("lines");
        let live: i64 = lines.iter().filter_map(|line| line["live"].as_i64()).sum();
        assert_eq!(Some(live), device["allocated"].as_i64());
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn cpu_blocks_from_before_attach_are_unknown_and_said_so() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in &environment.pytorches {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, log) = (folder.path().join("trace.json"), folder.path().join("log"));
        let go = folder.path().join("go");
        let mut target = Background::start(workload(pytorch, &log).arg("--wait-file").arg(&go));
        target.wait_for("READY");
        let recording = environment.record(target.pid(), &file, &["--cpu"]);
        std::fs::write(&go, "").expect("written");
        target.finish().succeeded();
        let printed = recording.finish();
        let events = agree(&environment, &file, &log, &printed);
        assert!(
            events
                .iter()
                .any(|it| it.action == "free" && it.size.is_none())
        );
        let device = &environment.report(&file)["devices"][0];
        assert!(device["unseen_frees"].as_u64() >= Some(1), "{device:#}");
        assert!(device["before_attach_unread"].is_string(), "{device:#}");
        assert!(device["allocated"].as_i64() >= Some(0), "{device:#}");
        assert_eq!(device["unaccounted"], 0, "{device:#}");
        let text = environment
            .run(&["report", file.to_str().expect("UTF-8")])
            .succeeded();
        assert!(
            text.stdout.contains("before attach unknown"),
            "{}",
            text.stdout
        );
    }
}

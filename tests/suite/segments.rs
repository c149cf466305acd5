//! The map of segments and pools equals what the allocator itself reports at the same moment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memprobe_tests::environment::{On, TestEnvironment};
use memprobe_tests::process::Background;
use memprobe_tests::pytorch::PyTorch;
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

/// A block as both sides describe it: address, size, state.
type Block = (u64, u64, &'static str);

/// A segment as both sides describe it.
#[derive(Debug, PartialEq, Eq)]
struct Segment {
    size: u64,
    stream: u64,
    pool: String,
    /// `None` where PyTorch does not report it.
    pool_id: Option<(u64, u64)>,
    expandable: Option<bool>,
    blocks: Vec<Block>,
}

type Segments = BTreeMap<(u64, u64), Segment>;

#[derive(Deserialize)]
struct Truth {
    devices: BTreeMap<String, DeviceTruth>,
    segments: Vec<Value>,
}

#[derive(Deserialize)]
struct DeviceTruth {
    allocated: u64,
    reserved: u64,
    inactive_split: u64,
    requested: Option<u64>,
}

/// A program with its folder.
struct Program {
    target: Background,
    folder: TempDir,
}

impl Program {
    fn start(pytorch: &PyTorch, case: &str, settings: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = pytorch.command();
        command.args(["-W", "ignore", "segments.py", "--case", case]);
        command.arg("--folder").arg(folder.path());
        command.envs(settings.iter().copied());
        let mut target = Background::start(&mut command);
        target.wait_for("READY");
        Self { target, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Lets the program go on, until it prints `until`.
    fn go_on(&mut self, file: &str, until: &str) {
        std::fs::write(self.path(file), "").expect("written");
        self.target.wait_for(until);
    }

    fn json<T: for<'de> Deserialize<'de>>(&self, name: &str) -> T {
        let text = std::fs::read_to_string(self.path(name)).expect("an account");
        serde_json::from_str(&text).expect("JSON")
    }

    fn end(self) {
        std::fs::write(self.path("end"), "").expect("written");
        self.target.finish().succeeded();
    }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn number(value: &Value, key: &str) -> u64 {
    value[key]
        .as_u64()
        .unwrap_or_else(|| panic!("no number `{key}` in {value}"))
}

fn pair(value: &Value) -> Option<(u64, u64)> {
    Some((value[0].as_u64()?, value[1].as_u64()?))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The segments of `torch.cuda.memory_snapshot()`.
fn theirs(truth: &Truth) -> Segments {
    let segments = truth.segments.iter().map(|segment| {
        let block = |block: &Value| {
            let state = match text(block, "state") {
                "active_allocated" => "live",
                "inactive" => "free",
                _ => "awaiting_event",
            };
            (number(block, "address"), number(block, "size"), state)
        };
        let key = (number(segment, "device"), number(segment, "address"));
        let segment = Segment {
            size: number(segment, "total_size"),
            stream: number(segment, "stream"),
            pool: text(segment, "segment_type").to_owned(),
            pool_id: pair(&segment["segment_pool_id"]),
            expandable: segment["is_expandable"].as_bool(),
            blocks: list(&segment["blocks"]).iter().map(block).collect(),
        };
        (key, segment)
    });
    segments.collect()
}

/// The segments of a report, with nothing that PyTorch does not report.
fn ours(report: &Value, theirs: &Segments) -> Segments {
    let mut all = Segments::new();
    for device in list(&report["devices"]) {
        for row in list(&device["rows"]) {
            assert_eq!(row["kind"], "segment", "{row}");
            let block = |block: &Value| {
                let state = match text(block, "state") {
                    "live" => "live",
                    "awaiting_event" => "awaiting_event",
                    _ => "free",
                };
                (number(block, "address"), number(block, "size"), state)
            };
            let key = (number(device, "device"), number(row, "address"));
            let known = theirs.get(&key);
            let id = pair(&row["pool_id"]).unwrap_or((0, 0));
            let segment = Segment {
                size: number(row, "size"),
                stream: number(row, "stream"),
                pool: text(row, "pool").to_owned(),
                pool_id: known
                    .is_none_or(|known| known.pool_id.is_some())
                    .then_some(id),
                expandable: row["expandable"]
                    .as_bool()
                    .filter(|_| known.is_none_or(|known| known.expandable.is_some())),
                blocks: list(&row["blocks"]).iter().map(block).collect(),
            };
            all.insert(key, segment);
        }
    }
    all
}

fn report(environment: &TestEnvironment, file: &Path) -> Value {
    let file = file.to_str().expect("a path");
    let arguments = [
        "report", file, "--by", "segment", "--at", "end", "--format", "json",
    ];
    let printed = environment.run(&arguments).succeeded();
    serde_json::from_str(&printed.stdout).expect("JSON")
}

/// Compares a report with the program's account, segment by segment.
fn agrees(report: &Value, truth: &Truth, name: &str) {
    let theirs = theirs(truth);
    let ours = ours(report, &theirs);
    assert!(!theirs.is_empty(), "{name}: nothing to compare");
    for (key, segment) in &theirs {
        assert_eq!(
            ours.get(key),
            Some(segment),
            "{name}: segment {:#x} of cuda:{}",
            key.1,
            key.0
        );
    }
    assert_eq!(ours.len(), theirs.len(), "{name}");
    for device in list(&report["devices"]) {
        let known = &truth.devices[&number(device, "device").to_string()];
        let sum = |key: &str| -> u64 {
            let rows = list(&device["rows"]).iter();
            rows.map(|row| number(row, key)).sum()
        };
        assert_eq!(sum("size"), known.reserved, "{name}");
        assert_eq!(sum("live"), known.allocated, "{name}");
        assert_eq!(sum("inactive_split"), known.inactive_split, "{name}");
        if let Some(requested) = known.requested {
            assert_eq!(number(device, "requested"), requested, "{name}");
        }
    }
}

/// Compares the prediction for `empty_cache()` with the bytes that it returned.
fn returns(report: &Value, program: &Program, name: &str) {
    let returned: BTreeMap<String, u64> = program.json("returned.json");
    for device in list(&report["devices"]) {
        let index = number(device, "device").to_string();
        assert_eq!(
            number(device, "empty_cache"),
            returned[&index],
            "{name}: empty_cache() on cuda:{index}"
        );
    }
}

/// Attaches before the first allocation, and again once the pools are filled.
fn compare(
    environment: &TestEnvironment,
    pytorch: &PyTorch,
    case: &str,
    settings: &[(&str, &str)],
) {
    let mut program = Program::start(pytorch, case, settings);
    let [early, late] = ["early.json", "late.json"].map(|name| program.path(name));
    let recording = environment.record(program.target.pid(), &early, &[]);
    program.go_on("begin", "CHECKPOINT");
    recording.interrupt();
    let truth: Truth = program.json("truth.json");
    agrees(
        &report(environment, &early),
        &truth,
        &format!("{case}, from the start"),
    );
    let recording = environment.record(program.target.pid(), &late, &[]);
    std::thread::sleep(Duration::from_millis(100));
    recording.interrupt();
    let late = report(environment, &late);
    agrees(&late, &truth, &format!("{case}, attached late"));
    program.go_on("empty", "EMPTIED");
    returns(&late, &program, case);
    program.end();
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn fragmented_pools_agree_with_pytorch() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in environment.pytorches_on(On::Each) {
        compare(&environment, pytorch, "fragments", &[]);
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn pools_of_streams_and_blocks_that_await_an_event_agree_with_pytorch() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in environment.pytorches_on(On::Each) {
        compare(&environment, pytorch, "streams", &[]);
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn private_pools_of_graphs_agree_with_pytorch() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in environment.pytorches_on(On::Each) {
        compare(&environment, pytorch, "graphs", &[]);
    }
}

#[test]
fn pools_of_the_program_agree_with_pytorch() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in environment.pytorches_on(On::Newest) {
        compare(&environment, pytorch, "private", &[]);
    }
}

#[test]
fn ranges_of_expandable_segments_agree_with_pytorch() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let settings = [("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")];
    for pytorch in environment.pytorches_on(On::Newest) {
        compare(&environment, pytorch, "expandable", &settings);
    }
}

#[test]
fn segments_of_two_devices_agree_with_pytorch() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in environment.pytorches_on(On::Newest) {
        compare(
            &environment,
            pytorch,
            "devices",
            &[("CUDASIM_DEVICES", "2")],
        );
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn segments_of_many_blocks_that_change_while_they_are_read_agree_with_pytorch() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in environment.pytorches_on(On::Newest) {
        compare(&environment, pytorch, "many", &[]);
    }
}

//! Compares estimates made on the CPU with PyTorch's figures of the same script on a GPU. Compares
//! the simulated allocator with the real one, event by event.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::Command;

use memprobe::estimate::{CachingAllocator, Ties, WORKSPACE};
use memprobe::event::{Action, BlockPurposes, Bytes, DeviceIndex, Event, MemoryEvent};
use memprobe::recording::Reader;
use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::memprobe::PATIENT;
use memprobe_tests::process::{Background, Finished};
use memprobe_tests::pytorch::PyTorch;
use rustix::process::Signal;
use serde::Deserialize;
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// Last line that `workloads/estimated.py` prints on a GPU.
#[derive(Debug, Deserialize)]
struct Truth {
    allocated: u64,
    reserved: u64,
    live: u64,
}

/// Returns the command `memprobe ARGUMENTS -- python SCRIPT...`.
fn under_memprobe(
    environment: &TestEnvironment,
    pytorch: &PyTorch,
    arguments: &[&str],
    script: &[&str],
) -> Command {
    let mut command = environment.memprobe();
    command.args(arguments).arg("--").arg(pytorch.python());
    command.args(script);
    pytorch.settle(&mut command);
    command
}

/// Estimates a script on the CPU.
fn estimate(
    environment: &TestEnvironment,
    pytorch: &PyTorch,
    options: &[&str],
    script: &[&str],
) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("estimate.json");
    let file = file.to_str().expect("UTF-8");
    let arguments = [&["estimate", "--format", "json", "-o", file], options].concat();
    let mut command = under_memprobe(environment, pytorch, &arguments, script);
    Background::start(&mut command).finish().succeeded();
    read_json(Path::new(file))
}

fn read_json(file: &Path) -> Value {
    let text = std::fs::read(file).expect("the estimate was written");
    let value: Value = serde_json::from_slice(&text).expect("the estimate is JSON");
    let sum = |rows: &Value, of: &str| -> i64 {
        let rows = rows.as_array().expect("rows").iter();
        rows.map(|row| row[of].as_i64().expect("bytes")).sum()
    };
    let allocated = value["peak"]["allocated"].as_i64();
    let explained = value["cpu_at_peak"].as_i64().expect("bytes");
    let explained = explained + sum(&value["differences"], "bytes");
    assert_eq!(Some(explained), allocated, "{value:#}");
    assert_eq!(Some(sum(&value["lines"], "at_peak")), allocated);
    assert_eq!(Some(sum(&value["made_in"], "bytes")), allocated);
    value
}

/// Runs a script on the GPU while memprobe records it to `file`.
fn record(
    environment: &TestEnvironment,
    pytorch: &PyTorch,
    file: &Path,
    script: &[&str],
) -> Finished {
    let file = file.to_str().expect("UTF-8");
    let arguments = ["record", "-q", "-o", file];
    let mut command = under_memprobe(environment, pytorch, &arguments, script);
    Background::start(&mut command).finish().succeeded()
}

/// Returns the caching allocator's events on `cuda:0`. Each has the requested bytes, and true if a
/// tensor requested them.
fn events_of_gpu(file: &Path) -> Vec<(MemoryEvent, Bytes, bool)> {
    let mut uses = BlockPurposes::default();
    let mut events = Vec::new();
    for event in Reader::open(file).expect("a recording") {
        match event.expect("whole") {
            Event::BlockPurpose(id, is) => uses.define(id, &is),
            Event::Memory(event) if event.device == Some(DeviceIndex(0)) => {
                let shape = uses.get(event.shape).and_then(|it| it.tensor());
                let asked = shape.and_then(|shape| shape.requested);
                events.push((event, asked.unwrap_or(event.size), asked.is_some()));
            }
            _ => {}
        }
    }
    events
}

/// Returns the peak of bytes allocated for tensors.
fn peak_of_tensors(events: &[(MemoryEvent, Bytes, bool)]) -> u64 {
    let (mut live, mut now, mut peak) = (HashMap::new(), 0_u64, 0);
    for (event, _, is_tensor) in events {
        match event.action {
            Action::Alloc if *is_tensor => {
                live.insert(event.addr, event.size.0);
                now += event.size.0;
            }
            Action::Free => now -= live.remove(&event.addr).unwrap_or(0),
            _ => {}
        }
        peak = peak.max(now);
    }
    peak
}

fn percent(estimated: u64, truth: u64) -> f64 {
    100.0 * (estimated as f64 - truth as f64) / truth as f64
}

/// Estimates a script on the CPU, runs it on the GPU, and compares. The run's events are also replayed on the simulated
/// allocator, and its recording, which has no memory of the CPU, cannot be estimated.
fn compare(environment: &TestEnvironment, pytorch: &PyTorch, script: &[&str]) {
    let name = script[1..].join(" ");
    let estimated = estimate(environment, pytorch, &[], script);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("gpu.json");
    let on_gpu = [script, &["--device", "cuda"]].concat();
    let printed = record(environment, pytorch, &file, &on_gpu);
    let last = printed.stdout.lines().last().expect("figures");
    let truth: Truth = serde_json::from_str(last).expect("figures as JSON");
    let events = events_of_gpu(&file);
    let of_tensors = peak_of_tensors(&events);
    let compared = replay(ties_of(&file), &events);
    assert!(compared >= 300, "only {compared} events");
    let recorded = ["estimate", file.to_str().expect("UTF-8")];
    let error = environment.run(&recorded).one_clear_error();
    assert!(error.contains("no memory of the CPU"), "{error}");

    let bytes = |of: &str, what: &str| estimated[of][what].as_u64().expect("bytes");
    let (allocated, reserved) = (bytes("peak", "allocated"), bytes("peak", "reserved"));
    let most = bytes("peak_with_workspace", "allocated");
    let most_reserved = bytes("peak_with_workspace", "reserved");
    let persistent = bytes("live_between_iterations", "allocated");
    let off = percent(allocated, of_tensors);
    println!(
        "{name}: tensors estimated {allocated}, are {of_tensors} ({off:+.2} %); allocated estimated {allocated} to {most}, is \
         {}; reserved estimated {reserved} to {most_reserved}, is {}; kept estimated {persistent}, is {}",
        truth.allocated, truth.reserved, truth.live
    );
    assert!(off.abs() < 3.0, "{name}: {off} % off");
    let least = allocated - allocated * 3 / 100;
    assert!(
        (least..=most + most * 3 / 100).contains(&truth.allocated),
        "{name}: {estimated:#}"
    );
    assert!(percent(persistent, truth.live).abs() < 1.0, "{name}");
    // The workspace's position determines the usable rest of a 20 MiB segment.
    let nearest = truth
        .reserved
        .clamp(reserved.min(most_reserved), reserved.max(most_reserved));
    assert!(
        truth.reserved.abs_diff(nearest) <= 20 * MIB,
        "{name}: {estimated:#}"
    );
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn training_steps_are_estimated_within_three_percent_and_replayed_without_a_difference() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for model in ["perceptron", "convnet", "transformer"] {
        compare(
            &environment,
            environment.pytorch(),
            &["estimated.py", model],
        );
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn steps_of_other_optimizers_are_estimated_within_three_percent() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for options in [
        &["adam", "--weight-decay", "0.1"][..],
        &["sgd", "--weight-decay", "0.1"],
        &["adam", "--one-by-one"],
    ] {
        let script = ["estimated.py", "perceptron", "--optimizer"];
        let script = [&script[..], options].concat();
        compare(&environment, environment.pytorch(), &script);
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn the_simulated_allocator_agrees_with_that_of_other_pytorches_at_every_event() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    // Versions differ only in the allocator: each runs one model. `compare` does it for the newest, with all models.
    for (number, pytorch) in environment.pytorches.iter().enumerate().skip(1) {
        let model = if number == 1 {
            "transformer"
        } else {
            "convnet"
        };
        let file = folder.path().join(format!("{number}-{model}.json"));
        record(
            &environment,
            pytorch,
            &file,
            &["estimated.py", model, "--device", "cuda"],
        );
        let compared = replay(ties_of(&file), &events_of_gpu(&file));
        println!(
            "{model} on {}: {compared} events",
            pytorch.python().display()
        );
        assert!(compared >= 300, "only {compared} events");
    }
}

/// Returns the rule by which the recording's PyTorch chooses among equal blocks.
fn ties_of(file: &Path) -> Ties {
    let mut reader = Reader::open(file).expect("a recording");
    // The version is often known only later than the start.
    reader.by_ref().for_each(drop);
    let version = reader.header().target.torch.clone().expect("a version");
    match version.split('.').take(2).collect::<Vec<_>>().as_slice() {
        ["2", "15"] => Ties::OldestSegment,
        _ => Ties::LowestAddress,
    }
}

/// Replays the requests on the simulated allocator; sizes, addresses and totals must match the real
/// ones after each event.
fn replay(ties: Ties, events: &[(MemoryEvent, Bytes, bool)]) -> usize {
    let mut allocator = CachingAllocator::with_ties(ties);
    let (mut live, mut compared) = (HashMap::new(), 0);
    for (at, (event, asked, _)) in events.iter().enumerate() {
        match event.action {
            Action::SegmentAlloc => allocator.place_next_segment(event.addr),
            Action::Alloc => {
                let block = allocator.malloc(*asked).expect("there is room");
                assert_eq!(allocator.size(block), event.size, "event {at}: {event:?}");
                assert_eq!(allocator.addr(block), event.addr, "event {at}: {event:?}");
                live.insert(event.addr, block);
            }
            Action::Free => allocator.free(live.remove(&event.addr).expect("it is live")),
            _ => continue,
        }
        if let Some(totals) = event.totals {
            assert_eq!(allocator.totals, totals, "event {at}: {event:?}");
            compared += 1;
        }
    }
    compared
}

/// Checks the parameters and buffers of each module against the model's own; no other module may
/// have any.
fn check_model_size(rows: &Value, sizes: &Path) {
    let text = std::fs::read(sizes).expect("what the model says");
    let truth: BTreeMap<String, BTreeMap<String, u64>> =
        serde_json::from_slice(&text).expect("JSON");
    let rows = rows.as_array().expect("rows");
    let modules = rows.iter().filter_map(|row| {
        let bytes = |key: &str| row[key].as_u64().expect("bytes");
        let columns = [
            ("parameters", bytes("own_parameters")),
            ("buffers", bytes("own_buffers")),
        ];
        let columns = columns.map(|(key, bytes)| (key.to_owned(), bytes));
        let path = row["path"].as_str().unwrap_or("(no module)").to_owned();
        let is_any = columns.iter().any(|(_, bytes)| *bytes > 0);
        is_any.then(|| (path, BTreeMap::from(columns)))
    });
    assert_eq!(modules.collect::<BTreeMap<_, _>>(), truth);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_recording_gives_the_same_estimate_as_the_run() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("cpu.json");
    let name = file.to_str().expect("UTF-8");
    let sizes = folder.path().join("sizes.json");
    let script = ["estimated.py", "convnet", "--steps", "24", "--sizes"];
    let script = [&script[..], &[sizes.to_str().expect("UTF-8")]].concat();
    let arguments = [
        &["record", "-q", "--cpu", "--names", "-o", name],
        &PATIENT[..],
    ]
    .concat();
    let mut command = under_memprobe(&environment, environment.pytorch(), &arguments, &script);
    Background::start(&mut command).finish().succeeded();
    let again = folder.path().join("again.json");
    let to = ["--format", "json", "-o", again.to_str().expect("UTF-8")];
    let arguments = [&["estimate", name], &to[..]].concat();
    environment.run(&arguments).succeeded();
    let run = estimate(&environment, environment.pytorch(), &[], &script);
    let recorded = read_json(&again);
    for figure in [
        "peak",
        "peak_with_workspace",
        "differences",
        "saved_for_backward",
        "lines",
    ] {
        assert_eq!(run[figure], recorded[figure], "{figure}");
    }
    for estimate in [&run, &recorded] {
        check_model_size(&estimate["model_size"], &sizes);
    }
    let text = environment.run(&["estimate", name]).succeeded().stdout;
    assert!(text.contains("EXPECTED ON A GPU"), "{text}");
    let to = ["--format", "json", "-o", again.to_str().expect("UTF-8")];
    let arguments = [&["estimate", name, "--device-memory", "24GiB"], &to[..]].concat();
    environment.run(&arguments).succeeded();
    assert_eq!(read_json(&again)["fits"], "yes");
}

#[test]
fn examples_of_a_data_set_stay_with_the_host_and_batches_are_counted() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let code = "import torch\n\
        from torch.utils.data import DataLoader, TensorDataset\n\
        data = TensorDataset(torch.zeros(64, 1 << 16).clone())\n\
        for batch, in DataLoader(data, batch_size=16):\n    y = batch * 2\n    del y\n";
    let script = ["-c", code];
    let options = ["--on-host", "<string>:3"];
    let estimated = estimate(&environment, environment.pytorch(), &options, &script);
    // One batch, and the result computed from it.
    let allocated = estimated["peak"]["allocated"].as_u64().expect("bytes");
    assert_eq!(allocated / MIB, 2 * 4, "{estimated:#}");
    let made = estimated["made_in"].as_array().expect("rows");
    let loaded = made.iter().find(|row| row["phase"] == "data_loading");
    let loaded = loaded.and_then(|row| row["bytes"].as_u64());
    assert_eq!(loaded.map(|bytes| bytes / MIB), Some(4), "{estimated:#}");
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn an_estimate_says_that_the_run_does_not_fit() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let script = ["estimated.py", "perceptron"];
    let options = ["--device-memory", "100MiB"];
    let no = estimate(&environment, environment.pytorch(), &options, &script);
    assert_eq!(no["fits"], "no", "{no:#}");
    assert!(no["refused"]["requested"].as_u64() > Some(WORKSPACE.0));
    assert!(no["refused"]["line"].is_u64(), "{no:#}");
}

#[test]
fn a_command_that_fails_passes_its_status_on_with_advice() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let run = |code: &str| {
        let mut command = under_memprobe(
            &environment,
            environment.pytorch(),
            &["estimate"],
            &["-c", code],
        );
        Background::start(command.env("CUDA_VISIBLE_DEVICES", "")).finish()
    };
    let late = run("import torch, sys\nx = torch.zeros(1 << 20).clone()\nsys.exit(7)");
    assert_eq!(late.status.code(), Some(7), "{late:?}");
    assert!(
        late.stdout.contains("the command ended with status 7"),
        "{late:?}"
    );
    assert!(late.stdout.contains("8.00 MiB"), "{late:?}");
    let early = run("import torch\nx = torch.empty(100, device='cuda')");
    assert_eq!(early.status.code(), Some(1), "{early:?}");
    assert!(
        early.stderr.contains("make the device a parameter"),
        "{early:?}"
    );
}

#[test]
fn an_interrupt_ends_it_with_what_was_seen_so_far() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let script = ["estimated.py", "convnet", "--steps", "40"];
    let mut command = under_memprobe(&environment, environment.pytorch(), &["estimate"], &script);
    let mut run = Background::start(&mut command);
    run.wait_for("step 1");
    run.signal(Signal::INT);
    let printed = run.finish();
    assert!(printed.stdout.contains("it was interrupted"), "{printed:?}");
    assert!(printed.stdout.contains("EXPECTED ON A GPU"), "{printed:?}");
}

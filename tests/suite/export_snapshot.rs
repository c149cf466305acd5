//! Recordings exported as PyTorch's own memory snapshots, against PyTorch's tools and its account of the same run.

use std::path::Path;

use memprobe_tests::environment::{On, TestEnvironment};
use memprobe_tests::process::Background;
use memprobe_tests::pytorch::PyTorch;
use memprobe_tests::workloads::Workload;
use serde_json::Value;

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Lets PyTorch's tools read an export, and compares it; returns the counts of what was compared.
fn checked(pytorch: &PyTorch, export: &Path, against: &[&str]) -> Value {
    let mut command = pytorch.command();
    command
        .arg("exported_snapshot.py")
        .arg(export)
        .args(against);
    let finished = Background::start(&mut command).finish().succeeded();
    serde_json::from_str(&finished.stdout).expect("counts")
}

fn export(environment: &TestEnvironment, from: &Path, to: &Path) -> String {
    let arguments = ["export", text(from), "-o", text(to)];
    let finished = environment.run(&arguments).succeeded();
    assert!(
        finished.stderr.contains("pytorch.org/memory_viz"),
        "{}",
        finished.stderr
    );
    finished.stderr
}

/// Settings of the allocator that change no size of the workload.
const SETTINGS: &str = "max_split_size_mb:64,roundup_power2_divisions:[256:1,512:2,1024:4],garbage_collection_threshold:0.7";

#[test]
#[ignore = "long: cargo xtask test --all"]
fn an_exported_history_is_pytorchs_own_of_the_same_run() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in environment.pytorches_on(On::Each) {
        for (name, compared) in [
            ("perceptron", 100),
            ("two devices", 20),
            ("out of memory", 5),
        ] {
            let workload = Workload::named(name).expect("a workload");
            let folder = tempfile::tempdir().expect("a folder");
            let path = |name: &str| folder.path().join(name);
            let mut command = environment.memprobe();
            command.args(["record", "-q", "--detail", "tensors", "-o"]);
            command
                .arg(path("trace.json"))
                .arg("--")
                .arg(pytorch.python());
            command
                .args(["reference.py", "--out"])
                .arg(path("ref.json"));
            command
                .arg("--pickle")
                .arg(path("theirs.pickle"))
                .args(workload.command);
            pytorch.settle(&mut command);
            command.envs(workload.settings.iter().copied());
            if name == "perceptron" {
                command.env("PYTORCH_CUDA_ALLOC_CONF", SETTINGS);
            }
            Background::start(&mut command).finish().succeeded();
            let printed = export(&environment, &path("trace.json"), &path("ours.pickle"));
            let theirs = path("theirs.pickle");
            let counts = checked(pytorch, &path("ours.pickle"), &["--history", text(&theirs)]);
            println!("{name}: {counts} {printed}");
            let settings = counts["settings"].as_u64().unwrap_or(0);
            let has_own = counts["settings of PyTorch"].as_u64() > Some(0);
            assert_eq!(settings >= 4, has_own && name == "perceptron", "{counts}");
            let stacks = counts["stacks"].as_u64().unwrap_or(0);
            assert!(
                stacks >= compared,
                "{name}: too little was compared: {counts}"
            );
        }
    }
}

/// A case of segments.py, and its environment variables.
type Case = (&'static str, &'static [(&'static str, &'static str)]);

/// Records segments.py from before its first allocation to its account of the pools, and once more from then on.
fn compare_segments(environment: &TestEnvironment, pytorch: &PyTorch, (case, settings): Case) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let mut command = pytorch.command();
    command.args(["-W", "ignore", "segments.py", "--case", case]);
    command.arg("--folder").arg(folder.path());
    command.envs(settings.iter().copied());
    let mut target = Background::start(&mut command);
    target.wait_for("READY");
    let recording = environment.record(target.pid(), &path("early.json"), &["--detail", "tensors"]);
    std::fs::write(path("begin"), "").expect("written");
    target.wait_for("CHECKPOINT");
    recording.interrupt();
    let recording = environment.record(target.pid(), &path("late.json"), &[]);
    std::thread::sleep(std::time::Duration::from_millis(100));
    recording.interrupt();
    for (go, until) in [("empty", "EMPTIED"), ("end", "")] {
        std::fs::write(path(go), "").expect("written");
        target.wait_for(until);
    }
    target.finish().succeeded();
    let truth = path("truth.json");
    for recording in ["early", "late"] {
        let pickle = path(&format!("{recording}.pickle"));
        export(environment, &path(&format!("{recording}.json")), &pickle);
        let counts = checked(pytorch, &pickle, &["--segments", text(&truth)]);
        println!("{case}, {recording}: {counts}");
        assert!(counts["blocks"].as_u64() >= Some(2), "{counts}");
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn exported_segments_and_blocks_are_those_of_pytorch() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in environment.pytorches_on(On::Each) {
        let cases: [Case; 3] = [
            ("fragments", &[]),
            ("streams", &[]),
            ("devices", &[("CUDASIM_DEVICES", "2")]),
        ];
        for case in cases {
            compare_segments(&environment, pytorch, case);
        }
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn exported_segments_of_private_pools_and_expandable_ones_are_those_of_pytorch() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let expandable = &[("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")];
    let cases: [Case; 3] = [
        ("graphs", &[]),
        ("private", &[]),
        ("expandable", expandable),
    ];
    for case in cases {
        compare_segments(&environment, environment.pytorch(), case);
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_pickle_of_pytorch_is_exported_unchanged_in_a_protocol_that_its_page_opens() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in environment.pytorches_on(On::Each) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let mut command = pytorch.command();
        command
            .args(["reference.py", "--out"])
            .arg(path("ref.json"));
        command
            .arg("--pickle")
            .arg(path("theirs.pickle"))
            .arg("kept_lines.py");
        Background::start(&mut command).finish().succeeded();
        export(&environment, &path("theirs.pickle"), &path("copy.pickle"));
        let theirs = path("theirs.pickle");
        checked(pytorch, &path("copy.pickle"), &["--same-as", text(&theirs)]);
        // Both give the same report.
        let report = |name: &str| environment.report(&path(name))["devices"].clone();
        assert_eq!(report("copy.pickle"), report("theirs.pickle"));
    }
}

#[test]
fn an_exported_snapshot_read_again_reports_what_the_recording_reports() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let pytorch = environment.pytorch();
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let mut command = environment.memprobe();
    command.args(["record", "-q", "-o"]).arg(path("trace.json"));
    command.arg("--").arg(pytorch.python()).arg("kept_lines.py");
    pytorch.settle(&mut command);
    Background::start(&mut command).finish().succeeded();
    export(&environment, &path("trace.json"), &path("ours.pickle"));
    let figures = |name: &str| {
        let report = environment.report(&path(name));
        let lines = report["devices"][0]["lines"]
            .as_array()
            .expect("lines")
            .clone();
        let figures = lines.iter().map(|line| {
            ["file", "line", "function", "peak", "live", "allocs"].map(|key| line[key].to_string())
        });
        let mut figures: Vec<_> = figures.collect();
        figures.sort();
        (report["devices"][0]["peak_allocated"].clone(), figures)
    };
    let recording = figures("trace.json");
    assert!(recording.1.len() >= 3, "{recording:?}");
    assert_eq!(figures("ours.pickle"), recording);
}

/// Trains a net of two layers, keeps the output of each iteration, and waits for a file.
const TRAINING: &str = "\
import os
import sys
import time
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(256, 512)
        self.second = torch.nn.Linear(512, 8)

    def forward(self, batch):
        return self.second(torch.relu(self.first(batch)))

def train(kept):
    model = Net().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(60):
        output = model(torch.randn(64, 256, device='cuda'))
        output.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(output.detach())
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)

train([])
";

/// Removes names of files, and what a pickle carries not at all or in microseconds: times, events of other kinds, and
/// the callers of a backward pass's operation.
fn remove_what_a_pickle_lacks(report: &mut Value) {
    match report {
        Value::Object(fields) => {
            let lacks = ["events", "end", "callers", "operations", "file", "next"];
            fields.retain(|key, _| !key.ends_with("_ns") && !lacks.contains(&&**key));
            fields.values_mut().for_each(remove_what_a_pickle_lacks);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_what_a_pickle_lacks),
        _ => {}
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn an_exported_snapshot_read_again_has_names_modules_categories_and_threads() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let pytorch = environment.pytorch();
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("train.py"), TRAINING).expect("written");
    environment.record_named(pytorch, &[text(&path("train.py"))], folder.path(), 1);
    export(&environment, &path("trace.json"), &path("ours.pickle"));
    // PyTorch's own tools read it, with all that memprobe adds.
    checked(pytorch, &path("ours.pickle"), &[]);
    let report = |name: &str, arguments: &[&str]| {
        let file = path(name);
        let arguments = [arguments, &[text(&file), "--format", "json"]].concat();
        let printed = environment.run(&arguments).succeeded().stdout;
        let mut report: Value = serde_json::from_str(&printed).expect("JSON");
        remove_what_a_pickle_lacks(&mut report);
        report
    };
    for by in [
        "line",
        "tensor",
        "module",
        "category",
        "phase",
        "thread",
        "growth",
        "iteration",
        "layer",
        "saved",
        "size",
        "peak",
    ] {
        let recording = report("trace.json", &["report", "--by", by]);
        assert!(!recording["devices"][0].is_null(), "{by}: {recording}");
        let again = report("ours.pickle", &["report", "--by", by]);
        assert_eq!(again, recording, "{by}");
    }
    let recording = report("trace.json", &["explain"]);
    assert_eq!(report("ours.pickle", &["explain"]), recording);
    let categories = report("ours.pickle", &["report", "--by", "category"]).to_string();
    assert!(categories.contains("parameter of a module"), "{categories}");
    let growth = report("ours.pickle", &["report", "--by", "growth"]).to_string();
    assert!(growth.contains("kept"), "{growth}");
    let difference = [
        "diff",
        text(&path("trace.json")),
        text(&path("ours.pickle")),
        "--by",
        "tensor",
    ]
    .map(str::to_owned);
    let difference = difference.iter().map(|it| &**it).collect::<Vec<_>>();
    let printed = environment.run(&difference).succeeded().stdout;
    assert!(printed.contains("unchanged row"), "{printed}");
}

//! A replay of the recorded requests under other settings, against the same program run again with them.

use std::path::Path;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::Background;
use memprobe_tests::pytorch::PyTorch;
use serde_json::Value;

/// Settings that the program is run again with.
const SETTINGS: [&str; 6] = [
    "expandable_segments:True",
    "max_split_size_mb:32",
    "roundup_power2_divisions:[1:4,8:2,>:8]",
    "max_split_size_mb:40,max_non_split_rounding_mb:60",
    "large_segment_size_mb:36,max_split_size_mb:64",
    "large_segment_size_mb:48,expandable_segments:True",
];

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Records a case of `allocator_settings.py` with default settings; returns what it printed.
fn record(environment: &TestEnvironment, case: &str, file: &Path) -> Vec<Value> {
    let pytorch = environment.pytorch();
    let mut command = environment.memprobe();
    command.args(["record", "-q", "--detail", "tensors", "-o", text(file)]);
    command.arg("--").arg(pytorch.python());
    command.args(["-W", "ignore", "allocator_settings.py", "--case", case]);
    pytorch.settle(&mut command);
    let finished = Background::start(&mut command).finish().succeeded();
    lines(&finished.stdout)
}

/// Runs a case with each of several settings; returns what all runs printed.
fn run_with(pytorch: &PyTorch, case: &str, settings: &[&str]) -> Vec<Value> {
    let mut command = pytorch.command();
    command.args(["-W", "ignore", "allocator_settings.py", "--case", case]);
    command.arg("--each").args(settings);
    let finished = Background::start(&mut command).finish().succeeded();
    lines(&finished.stdout)
}

fn lines(stdout: &str) -> Vec<Value> {
    let lines = stdout.lines().filter(|line| line.starts_with('{'));
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

fn peak_reserved(line: &Value) -> u64 {
    line["peak_reserved"].as_u64().expect("bytes")
}

/// The device of a replay under these settings.
fn replay(environment: &TestEnvironment, file: &Path, settings: &str) -> Value {
    let arguments = [
        "report",
        text(file),
        "--what-if",
        settings,
        "--format",
        "json",
    ];
    let report = environment.run(&arguments).succeeded();
    let mut report: Value = serde_json::from_str(&report.stdout).expect("JSON");
    report["devices"][0].take()
}

fn row(device: &Value, run: &str) -> u64 {
    let rows = device["rows"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["run"] == run);
    row.expect("a row")["peak_reserved"]
        .as_u64()
        .expect("bytes")
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_replay_reserves_what_the_program_reserves_with_the_settings() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let mut inexact = Vec::new();
    for case in [
        "fragments",
        "growing",
        "streams",
        "borrowed",
        "emptied",
        "training",
    ] {
        let file = folder.path().join(format!("{case}.mprb"));
        let recorded = peak_reserved(&record(&environment, case, &file)[0]);
        let real = run_with(environment.pytorch(), case, &SETTINGS);
        assert_eq!(real.len(), SETTINGS.len(), "{real:?}");
        for (settings, real) in SETTINGS.iter().zip(&real) {
            let device = replay(&environment, &file, settings);
            assert_eq!(row(&device, "recorded"), recorded, "{case}");
            let is_reproduced = row(&device, "reproduced") == recorded;
            if device["reproduced"] != true || !is_reproduced {
                assert_eq!(device["exact"], false, "{case}: {device}");
                let notes = device["notes"].as_array().expect("notes");
                assert!(!notes.is_empty(), "{case}: {device}");
                inexact.push(case);
                continue;
            }
            assert_eq!(
                row(&device, "what_if"),
                peak_reserved(real),
                "{case} with {settings}: {device}"
            );
        }
    }
    // Segments that live only between two readings of the tables have no known stream. A busy machine has more of them.
    let may_be = ["fragments", "streams", "borrowed"];
    assert!(
        inexact.iter().all(|case| may_be.contains(case)),
        "{inexact:?}"
    );
}

#[test]
fn the_recorded_run_is_replayed_with_the_settings_of_its_environment() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("set.mprb");
    let own = "max_split_size_mb:32";
    let pytorch = environment.pytorch();
    let mut command = environment.memprobe();
    command
        .args(["record", "-q", "-o", text(&file), "--"])
        .arg(pytorch.python());
    command.args(["-W", "ignore", "allocator_settings.py", "--case", "growing"]);
    command.env("PYTORCH_CUDA_ALLOC_CONF", own);
    pytorch.settle(&mut command);
    let finished = Background::start(&mut command).finish().succeeded();
    let recorded = peak_reserved(&lines(&finished.stdout)[0]);
    let device = replay(&environment, &file, "max_split_size_mb:64");
    assert_eq!(row(&device, "recorded"), recorded);
    let rows = device["rows"].as_array().expect("rows");
    let reproduced = rows.iter().find(|row| row["run"] == "reproduced");
    assert_eq!(reproduced.expect("a row")["settings"], own, "{device}");
    assert_eq!(row(&device, "reproduced"), recorded, "{device}");
    // The replay of a pickle begins from the settings in it.
    let pickle = folder.path().join("set.pickle");
    environment
        .run(&["export", text(&file), "-o", text(&pickle)])
        .succeeded();
    let device = replay(&environment, &pickle, "max_split_size_mb:64");
    let rows = device["rows"].as_array().expect("rows");
    let reproduced = rows.iter().find(|row| row["run"] == "reproduced");
    assert_eq!(reproduced.expect("a row")["settings"], own, "{device}");
}

#[test]
fn a_failed_request_would_have_fitted_with_expandable_segments() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("gaps.mprb");
    let recorded = record(&environment, "gaps", &file);
    assert_eq!(recorded[0]["fits"], false, "{recorded:?}");
    let settings = "expandable_segments:True";
    let device = replay(&environment, &file, settings);
    assert_eq!(device["failed"]["outcome"], "fits", "{device}");
    let real = run_with(environment.pytorch(), "gaps", &[settings]);
    assert_eq!(real[0]["fits"], true, "{real:?}");
    let device = replay(&environment, &file, "max_non_split_rounding_mb:40");
    assert_ne!(device["failed"]["outcome"], "fits", "{device}");
}

//! `--max-overhead` on a program that does little but allocate.

use std::path::Path;
use std::time::Duration;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::memprobe::{Recording, lost};
use memprobe_tests::process::{Background, wait_until};
use memprobe_tests::terminal::Terminal;
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

/// Budget, in parts per million: 1 %.
const BUDGET: u64 = 10_000;

/// A program's own account of what it holds (`workloads/rush_checkpoints.py`).
#[derive(Debug, Deserialize)]
struct Checkpoint {
    allocated: u64,
    reserved: u64,
    peak_allocated: u64,
    blocks: u64,
    /// Allocations so far.
    allocations: u64,
}

/// A program that rushes from checkpoint to checkpoint.
struct Rush {
    target: Background,
    folder: TempDir,
}

impl Rush {
    fn start(environment: &TestEnvironment, checkpoints: u32) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = environment.pytorch().command();
        command.args([
            "rush_checkpoints.py",
            "--checkpoints",
            &checkpoints.to_string(),
        ]);
        command.arg("--folder").arg(folder.path());
        let mut target = Background::start(&mut command);
        target.wait_for("ready");
        Self { target, folder }
    }

    /// Lets the program run to its next checkpoint.
    fn go(&self, number: u32) -> Option<Checkpoint> {
        std::fs::write(self.folder.path().join(format!("go-{number}")), "").expect("written");
        let next = format!("checkpoint-{}.json", number + 1);
        let path = self.folder.path().join(next);
        Some(wait_until("the next checkpoint", || {
            let text = std::fs::read(&path).ok()?;
            Some(serde_json::from_slice(&text).expect("a checkpoint"))
        }))
    }
}

/// Returns the report of a recording in progress.
fn report(environment: &TestEnvironment, file: &Path) -> Value {
    std::thread::sleep(Duration::from_millis(300));
    environment.report(file)
}

fn bytes(row: &Value, name: &str) -> i64 {
    row[name]
        .as_i64()
        .unwrap_or_else(|| panic!("{name} of {row}"))
}

/// True if the recording agrees with a program that waits: in totals, blocks, and the sum of all rows.
fn agrees(report: &Value, truth: &Checkpoint) -> bool {
    let device = &report["devices"][0];
    let Some(lines) = device["lines"].as_array() else {
        return false;
    };
    let live: i64 = lines.iter().map(|line| bytes(line, "live")).sum();
    let rows = live + bytes(device, "before_attach") + bytes(device, "unaccounted");
    device["allocated"] == truth.allocated
        && device["reserved"] == truth.reserved
        && device["live_blocks"] == truth.blocks
        && bytes(device, "unaccounted") == 0
        && u64::try_from(rows) == Ok(truth.allocated)
}

/// Bytes in the row of blocks that were allocated while the probes were off.
fn without_probes(report: &Value) -> i64 {
    let lines = report["devices"][0]["lines"].as_array().expect("lines");
    let rows = lines.iter();
    let rows = rows.filter(|line| line.to_string().contains("probes were off"));
    rows.map(|line| bytes(line, "live")).sum()
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_rush_is_recorded_within_the_budget_and_its_totals_are_right_whenever_it_waits() {
    // Beside another rush, memprobe has no processor for as long as the probes take to cost the whole budget.
    let Some(environment) = TestEnvironment::take_alone() else {
        return;
    };
    let rush = Rush::start(&environment, 3);
    let file = rush.folder.path().join("trace.json");
    let options = ["--max-overhead", "1%", "--detail", "tensors"];
    let recording: Recording = environment.record(rush.target.pid(), &file, &options);
    let mut unknown = 0;
    let mut allocations = 0;
    let mut peak = 0;
    for number in 0..3 {
        let truth = rush.go(number).expect("a checkpoint");
        // Probes that are off come back once the debt is paid.
        let report = wait_until("memprobe catches up", || {
            let report = report(&environment, &file);
            agrees(&report, &truth).then_some(report)
        });
        assert_eq!(report["devices"][0]["peak_allocated"], truth.peak_allocated);
        let budget = &report["budget"];
        assert_eq!(budget["budget_ppm"], BUDGET, "{budget}");
        let overhead = budget["overhead_ppm"].as_u64().expect("an estimate");
        assert!(overhead <= BUDGET * 3 / 2, "{budget}");
        assert!(budget["pauses"].as_u64() > Some(0), "{budget}");
        unknown = unknown.max(without_probes(&report));
        allocations = truth.allocations;
        peak = truth.peak_allocated;
    }
    assert!(
        unknown > 0,
        "blocks that were allocated without probes have a row"
    );
    std::fs::write(rush.folder.path().join("go-3"), "").expect("written");
    let printed = recording.finish();
    assert_eq!(lost(&printed.stderr), 0, "losses: {}", printed.stderr);
    rush.target.finish().succeeded();
    let events = environment.events(&file);
    let seen = events
        .iter()
        .filter(|event| event.action == "alloc")
        .count() as u64;
    assert!(
        seen * 4 < allocations,
        "{seen} of {allocations} were seen: the probes were off mostly"
    );
    let text = environment.run(&["report", file.to_str().expect("UTF-8")]);
    let text = text.succeeded().stdout;
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("for --max-overhead 1 %"), "{text}");
    assert!(words.contains("(probes were off)"), "{text}");
    assert!(!words.contains("without a loss"), "{text}");
    println!("{seen} of {allocations} allocations seen, peak {peak}");
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_recording_that_ends_while_the_probes_are_off_ends_with_the_allocators_state() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let rush = Rush::start(&environment, 1);
    let file = rush.folder.path().join("trace.json");
    let recording = environment.record(rush.target.pid(), &file, &["--max-overhead", "0.1%"]);
    let truth = rush.go(0).expect("a checkpoint");
    // A debt of up to thirty seconds: the probes are hardly back by now.
    recording.memprobe.signal(rustix::process::Signal::INT);
    let printed = recording.finish();
    let report = environment.report(&file);
    assert!(
        agrees(&report, &truth),
        "{truth:?} {report} {}",
        printed.stderr
    );
    std::fs::write(rush.folder.path().join("go-1"), "").expect("written");
    rush.target.finish().succeeded();
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn top_keeps_to_one_percent_unless_its_budget_is_off() {
    let Some(environment) = TestEnvironment::take_alone() else {
        return;
    };
    let rush = Rush::start(&environment, 1);
    let bounded = Terminal::start_sized(environment.memprobe().arg("top"), (160, 40));
    let unbounded = ["top", "--max-overhead", "off"];
    let unbounded = Terminal::start_sized(environment.memprobe().args(unbounded), (160, 40));
    let pid = rush.target.pid().to_string();
    bounded.wait_for(&pid);
    unbounded.wait_for(&pid);
    rush.go(0).expect("a checkpoint");
    bounded.wait_for("of 1 %");
    assert!(
        !unbounded.text().contains("overhead"),
        "{}",
        unbounded.text()
    );
    std::fs::write(rush.folder.path().join("go-1"), "").expect("written");
    rush.target.finish().succeeded();
}

#[test]
fn a_program_within_the_budget_keeps_its_detail() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.json");
    let until = folder.path().join("until");
    let script = "import os, sys, time, torch\nprint('ready', flush=True)\nwhile not os.path.exists(sys.argv[1]):\n    \
                  x = [torch.empty(1000, device='cuda') for _ in range(4)]\n    time.sleep(0.01)\n";
    let mut command = environment.pytorch().command();
    let mut target = Background::start(command.args(["-c", script]).arg(&until));
    target.wait_for("ready");
    // A third of the budget. If all hits counted as single-stepped, the budget would not be enough.
    let options = ["--max-overhead", "1%", "--detail", "tensors"];
    let recording = environment.record(target.pid(), &file, &options);
    wait_until("more happened than the budget allows beforehand", || {
        let report = report(&environment, &file);
        (report["events"].as_u64() > Some(4_000)).then_some(())
    });
    std::fs::write(&until, "").expect("written");
    recording.finish();
    target.finish().succeeded();
    let budget = &environment.report(&file)["budget"];
    assert_eq!(budget["pauses"], 0, "{budget}");
    assert_eq!(budget["level"], "full", "{budget}");
    let overhead = budget["overhead_ppm"].as_u64().expect("an estimate");
    assert!((1..BUDGET).contains(&overhead), "{budget}");
}

#[test]
fn a_budget_and_the_cpu_allocator_exclude_each_other() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let arguments = [
        "record",
        "--cpu",
        "--max-overhead",
        "1%",
        "-o",
        "x.json",
        "1",
    ];
    let printed = environment.run(&arguments);
    assert_eq!(printed.status.code(), Some(2), "{}", printed.stderr);
    let refusal = "'--cpu' cannot be used with '--max-overhead";
    assert!(printed.stderr.contains(refusal), "{}", printed.stderr);
}

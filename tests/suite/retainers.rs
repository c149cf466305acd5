//! Retainers of a leak, found from outside: the list of losses in `workloads/leak.py`. Each loss
//! retains its graph, and through it the attributes of a custom Function's `ctx`.

use std::path::Path;

use memprobe_tests::environment::{On, TestEnvironment};
use memprobe_tests::events::Event;
use memprobe_tests::paused_workload::PausedWorkload;
use memprobe_tests::process::Background;
use memprobe_tests::pytorch::PyTorch;
use serde_json::Value;
use tempfile::TempDir;

/// Returns the bytes that the list retains per iteration, which the program measures by emptying
/// it.
fn bytes_per_iteration(stdout: &str) -> u64 {
    let line = stdout.lines().find_map(|line| line.strip_prefix("kept "));
    let line = line.expect("what was kept");
    let (bytes, rest) = line.split_once(" in ").expect("bytes and iterations");
    let iterations = rest.trim_end_matches(" iterations").parse::<u64>();
    let bytes: u64 = bytes.parse().expect("bytes");
    bytes / iterations.expect("a number")
}

/// Records until the process's objects were read twice; returns the program's output.
fn record(environment: &TestEnvironment, pytorch: &PyTorch, folder: &Path) -> String {
    let leak = ["leak.py", "--function", "--iterations", "16"];
    environment.record_named(pytorch, &leak, folder, 2).stdout
}

fn growth(environment: &TestEnvironment, trace: &Path, format: &str) -> String {
    let arguments = ["--by", "growth", "--limit", "all", "--format", format];
    let mut command = environment.memprobe();
    command.arg("report").arg(trace).args(arguments);
    Background::start(&mut command).finish().succeeded().stdout
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no number: {value}"))
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn the_list_that_keeps_the_losses_is_named_with_the_bytes_that_emptying_it_gives_back() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in environment.pytorches_on(On::Newest) {
        let folder = tempfile::tempdir().expect("a folder");
        let trace = folder.path().join("trace.json");
        let each = bytes_per_iteration(&record(&environment, pytorch, folder.path()));
        let report: Value =
            serde_json::from_str(&growth(&environment, &trace, "json")).expect("JSON");
        let retained = &report["devices"][0]["retainers"];
        let retainers = retained["named"].as_array().expect("keepers");
        let of_losses = |retainer: &&Value| {
            let by = retainer["root"].as_str().unwrap_or_default();
            by.starts_with("leak.py:") && by.ends_with(" main() -> losses[*]")
        };
        let losses: Vec<&Value> = retainers.iter().filter(of_losses).collect();
        let sum = |field: &str| losses.iter().map(|it| number(&it[field])).sum::<u64>();
        let own = losses.iter().find(|it| it["through"].is_null());
        let iterations = number(&own.expect("the losses themselves")["blocks"]);
        assert!(iterations >= 10, "{iterations} losses: {retained:#}");
        assert_eq!(sum("exclusive_bytes"), iterations * each, "{retained:#}");
        for it in &losses {
            assert_eq!(it["class"], "list", "{it:#}");
        }
        let through = |words: &str| {
            let found = losses.iter().find(|it| it["through"] == words);
            found.unwrap_or_else(|| panic!("nothing through {words}: {retained:#}"))
        };
        let graph = through("grad_fn EnergyBackward");
        assert!(number(&graph["blocks"]) >= 5 * iterations, "{graph:#}");
        // The input of each loss is an attribute of `ctx`, not a saved tensor.
        let attribute = through("grad_fn EnergyBackward.ctx.x");
        assert_eq!(number(&attribute["blocks"]), iterations, "{attribute:#}");
        assert_eq!(number(&attribute["exclusive_bytes"]), 512 * iterations);
        let text = growth(&environment, &trace, "text");
        assert!(text.contains("list `losses` in leak.py:"), "{text}");
        let named: u64 = retainers.iter().map(|it| number(&it["bytes"])).sum();
        let rest = number(&retained["others_bytes"]) + number(&retained["unknown_bytes"]);
        assert_eq!(named + rest, number(&retained["live_bytes"]));
    }
}

/// Text that is expected, and text that was found.
type Compared = (String, String);

/// Returns the expected and the found name of each tensor, and the expected name with the found retainer.
fn at_point(
    environment: &TestEnvironment,
    pytorch: &PyTorch,
    workload: &str,
) -> (Vec<Compared>, Vec<Compared>) {
    let mut paused = PausedWorkload::start(pytorch, &[workload], &[]);
    paused.next_point().expect("a point");
    let snapshot = environment.snapshot(paused.pid(), &[]);
    let expected = paused.truth().expected;
    paused.go_on();
    paused.end();
    let without_line = |text: &str| match text.split_once(".py:") {
        Some((file, rest)) => {
            let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            format!("{file}.py:*{rest}")
        }
        None => text.to_owned(),
    };
    let rows = expected.iter().map(|(name, shape)| {
        let row = snapshot.tensors.iter();
        let row = row.clone().find(|row| row.shape.as_ref() == Some(shape));
        let row = row.unwrap_or_else(|| panic!("no tensor of shape {shape:?}, which is {name}"));
        let found = without_line(row.name.as_deref().unwrap_or_default());
        let retainer = row.retained_by.as_ref().map(|by| without_line(&by.root));
        (
            (name.clone(), found),
            (name.clone(), retainer.unwrap_or_default()),
        )
    });
    rows.unzip()
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn globals_and_outer_frames_name_and_retain_before_the_calls_in_progress() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in environment.pytorches_on(On::Each) {
        let (names, retainers) = at_point(&environment, pytorch, "calls_in_progress.py");
        for (expected, found) in names {
            assert_eq!(found, expected);
        }
        for (expected, found) in retainers {
            assert_eq!(found, expected.replace("[0]", "[*]"));
        }
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn cells_and_results_of_a_notebook_are_named_by_their_numbers() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in environment.pytorches_on(On::Each) {
        let (names, _) = at_point(&environment, pytorch, "notebook.py");
        for (expected, found) in names {
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn lines_of_a_recorded_notebook_are_named_by_their_cells() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("trace.json");
    let mut command = environment.memprobe();
    command.args(["record", "-q", "-o"]).arg(&file).arg("--");
    environment.pytorch().settle(&mut command);
    command
        .arg(environment.pytorch().python())
        .arg("notebook.py");
    Background::start(&mut command).finish().succeeded();
    let mut allocations = environment.events(&file);
    allocations.retain(|event| event.action == "alloc");
    let cells = |event: &Event| -> Vec<String> {
        let frames = event.stack.iter();
        let frames = frames.filter(|frame| frame.file.starts_with("In["));
        let lines = frames.map(|frame| format!("{}:{}", frame.file, frame.line));
        lines.collect()
    };
    let mut found: Vec<_> = allocations.iter().map(cells).collect();
    found.retain(|cells| !cells.is_empty());
    assert_eq!(
        found,
        [vec!["In[7]:1"], vec!["In[3]:2"], vec!["In[4]:2", "In[3]:3"]]
    );
}

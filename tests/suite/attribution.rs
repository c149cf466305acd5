//! Compares memprobe's attribution with the process's own account: the category of each block, live
//! bytes per category, iterations, and growth.

use std::path::Path;

use memprobe::attribution::category::Category;
use memprobe_test_results::purpose_runs::PurposeRun;
use memprobe_test_results::purposes::Purposes;
use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::Background;
use serde_json::Value;

fn compiled(
    environment: &TestEnvironment,
    backend: &str,
    device: &str,
    options: &[&str],
) -> Option<PurposeRun> {
    let script = ["compiled.py", "--backend", backend, "--device", device];
    let script = [&script, options].concat();
    PurposeRun::compiled(environment, environment.pytorch(), &script)
}

/// Returns a recording's table rows, which must be of one device.
fn rows(environment: &TestEnvironment, trace: &Path, options: &[&str]) -> Vec<Value> {
    let mut arguments = vec!["report", trace.to_str().expect("UTF-8"), "--format", "json"];
    arguments.extend(options);
    let report = environment.run(&arguments).succeeded().stdout;
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let devices = report["devices"].as_array().expect("devices");
    assert_eq!(devices.len(), 1, "{report:#}");
    devices[0]["rows"].as_array().expect("rows").clone()
}

/// Returns the table of lines of a recording.
fn lines(environment: &TestEnvironment, trace: &Path) -> Vec<Value> {
    let trace = trace.to_str().expect("UTF-8");
    let report = environment.run(&["report", trace, "--format", "jsonl"]);
    let lines = report.succeeded().stdout;
    let rows = lines.lines().map(serde_json::from_str);
    rows.map(|row| row.expect("JSON")).collect()
}

fn bytes(value: &Value, what: &str) -> u64 {
    value[what]
        .as_u64()
        .unwrap_or_else(|| panic!("{what} in {value:#}"))
}

/// Checks the number of iterations, each peak, and each category's live bytes at the end against
/// the script's own figures.
fn check_iterations(environment: &TestEnvironment, run: &PurposeRun, purposes: &Purposes) {
    let accounts = run.own_accounts();
    let rows = rows(
        environment,
        &run.trace(),
        &["--by", "iteration", "--limit", "1000"],
    );
    let iterations = rows.iter().filter(|row| row["kind"] == "iteration");
    let whole: Vec<_> = iterations.collect();
    assert_eq!(whole.len(), accounts.len(), "{rows:#?}");
    for (row, truth) in whole.into_iter().zip(&accounts) {
        assert_eq!(
            bytes(row, "peak_allocated"),
            bytes(truth, "peak"),
            "{truth}"
        );
        let live = |category| {
            let (handed_out, taken_back) = (bytes(truth, "handed_out"), bytes(truth, "taken_back"));
            purposes.live(handed_out, taken_back, category)
        };
        assert_eq!(
            live(Category::Parameter),
            bytes(truth, "parameters"),
            "{truth}"
        );
        assert_eq!(
            live(Category::Gradient),
            bytes(truth, "gradients"),
            "{truth}"
        );
        assert_eq!(
            live(Category::OptimizerState),
            bytes(truth, "optimizer_state"),
            "{truth}"
        );
    }
}

/// Checks, for the bytes of tensors, the minimum correct and the maximum wrong percentage.
fn check_share(purposes: &Purposes, right: f64, wrong: f64) {
    let share = purposes.of_tensors();
    let [is_right, _, is_wrong] = share.percent();
    assert!(is_right >= right && is_wrong <= wrong, "{share:?}");
}

/// Returns kind and bytes per iteration of each growth suspect; empty if there is none.
fn growth(environment: &TestEnvironment, run: &PurposeRun, options: &[&str]) -> Vec<(String, f64)> {
    let trace = run.trace();
    let mut arguments = vec!["report", trace.to_str().expect("UTF-8"), "--format", "json"];
    arguments.extend(["--by", "growth"]);
    arguments.extend(options);
    let report: Value =
        serde_json::from_str(&environment.run(&arguments).succeeded().stdout).expect("JSON");
    let suspects = report["devices"][0]["suspects"]
        .as_array()
        .expect("suspects")
        .iter();
    suspects
        .map(|it| {
            let by = it["by"].as_str().expect("what it is by").to_owned();
            (by, it["bytes"].as_f64().expect("bytes"))
        })
        .collect()
}

/// Sums the bytes per iteration of all suspects of a kind.
fn sum(suspects: &[(String, f64)], by: &str) -> f64 {
    let of = suspects.iter().filter(|(kind, _)| kind == by);
    of.map(|(_, bytes)| bytes).sum()
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_training_is_explained_as_the_process_and_its_profiler_do() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let workload = ["--profile", "phases.py", "--iterations", "3"];
    let run = PurposeRun::of(
        &environment,
        environment.pytorch(),
        &["--detail", "tensors"],
        &workload,
    );
    let purposes = run.purposes("training with checkpoints, accumulated gradients and evaluation");
    check_iterations(&environment, &run, &purposes);
    check_share(&purposes, 99.0, 0.1);
    let rows = rows(
        &environment,
        &run.trace(),
        &["--by", "iteration", "--limit", "1000"],
    );
    let passes = rows.iter().filter(|row| row["kind"] == "iteration");
    assert!(
        passes
            .clone()
            .all(|row| row["backward_passes"] == 2 && row["batches"] == 2)
    );
}

#[test]
fn two_networks_that_train_in_turn_are_explained_without_tensors_too() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let workload = ["phases.py", "--part", "gan", "--iterations", "12"];
    let run = PurposeRun::of(
        &environment,
        environment.pytorch(),
        &["--detail", "lines"],
        &workload,
    );
    let purposes = run.purposes("two networks with an optimizer each, --detail lines");
    check_iterations(&environment, &run, &purposes);
    check_share(&purposes, 98.0, 0.1);
    assert_eq!(growth(&environment, &run, &[]), [], "nothing grows");
}

#[test]
fn the_output_of_an_embedding_is_no_workspace() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let workload = [
        "estimated.py",
        "transformer",
        "--device",
        "cuda",
        "--steps",
        "2",
    ];
    let run = PurposeRun::of(
        &environment,
        environment.pytorch(),
        &["--detail", "tensors"],
        &workload,
    );
    check_share(&run.purposes("transformer with dropout"), 99.0, 0.1);
}

/// Checks each category's live bytes at each mark against the script's own figures. No row may
/// attribute memory to a line of a generated file.
fn check_compiled(environment: &TestEnvironment, run: &PurposeRun, purposes: &Purposes) {
    let live = |account: &Value, category| {
        let number = bytes(account, "handed_out");
        match account["device"] == "cpu" {
            true => purposes.live_at_mark(number, category),
            false => purposes.live(number, bytes(account, "taken_back"), category),
        }
    };
    for account in run.own_accounts() {
        for (category, key) in [
            (Category::Parameter, "parameters"),
            (Category::Gradient, "gradients"),
            (Category::OptimizerState, "optimizer_state"),
        ] {
            assert_eq!(
                live(&account, category),
                bytes(&account, key),
                "{key} of {account}"
            );
        }
    }
    let lines = lines(environment, &run.trace());
    let generated = |row: &Value| {
        row["file"]
            .as_str()
            .is_some_and(|file| file.contains("inductor/"))
    };
    assert!(!lines.iter().any(generated), "{lines:#?}");
    let backward = lines
        .iter()
        .filter(|row| row["node"] == "CompiledFunctionBackward");
    let of_user = |row: &Value| {
        row["file"]
            .as_str()
            .is_some_and(|file| file.ends_with("compiled.py"))
    };
    assert!(
        backward.clone().count() > 0 && backward.clone().all(of_user),
        "{lines:#?}"
    );
    check_share(purposes, 99.0, 0.1);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_training_that_inductor_compiled_is_explained() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let Some(run) = compiled(&environment, "inductor", "cpu", &[]) else {
        return;
    };
    check_compiled(
        &environment,
        &run,
        &run.purposes("compiled by inductor, on the CPU"),
    );
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_training_whose_graph_is_compiled_to_operators_is_explained() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let options = ["--whole", "--iterations", "6"];
    let Some(run) = compiled(&environment, "aot_eager", "cuda", &options) else {
        return;
    };
    check_compiled(
        &environment,
        &run,
        &run.purposes("compiled to operators (aot_eager)"),
    );
}

#[test]
fn a_list_of_losses_grows_by_what_emptying_it_gives_back() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let run = PurposeRun::of(
        &environment,
        environment.pytorch(),
        &["--detail", "tensors"],
        &["leak.py", "--iterations", "20"],
    );
    let an_iteration = run.number("kept ") as f64 / 20.0;
    let suspects = growth(&environment, &run, &[]);
    println!("leak.py keeps {an_iteration} bytes an iteration: {suspects:?}");
    for by in ["total", "line", "module", "tensor"] {
        assert_eq!(sum(&suspects, by), an_iteration, "{suspects:?}");
    }
    check_share(
        &run.purposes("recurrent net with a list of losses"),
        94.0,
        0.1,
    );
}

#[test]
fn a_server_has_an_iteration_for_each_request_by_its_line() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let run = PurposeRun::of(
        &environment,
        environment.pytorch(),
        &["--detail", "tensors"],
        &["serve.py", "--requests", "60", "--keep"],
    );
    let line = ["--iteration-start", "serve.py:43"];
    let options = [&["--by", "iteration", "--limit", "1000"], &line[..]].concat();
    let rows = rows(&environment, &run.trace(), &options);
    let numbered = rows.iter().filter_map(|row| row["iteration"].as_u64());
    assert_eq!(numbered.max(), Some(60), "{rows:#?}");
    let an_iteration = run.number("kept ") as f64 / 60.0;
    let suspects = growth(&environment, &run, &line);
    println!("serve.py keeps {an_iteration} bytes a request: {suspects:?}");
    assert_eq!(sum(&suspects, "line"), an_iteration, "{suspects:?}");
    check_share(&run.purposes("server that keeps its answers"), 98.0, 0.1);
}

#[test]
fn requests_on_a_pool_of_threads_are_iterations_by_the_only_line_that_allocates() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("trace.json");
    let mut command = environment.memprobe();
    command.args(["record", "-q", "-o"]).arg(&trace);
    command.arg("--").arg(environment.pytorch().python());
    command.arg("pool_server.py");
    environment.pytorch().settle(&mut command);
    let printed = Background::start(&mut command).finish().succeeded().stdout;
    assert!(printed.contains("requests 24"), "{printed}");
    let options = ["--by", "iteration", "--limit", "1000"];
    let options = [&options[..], &["--iteration-start", "pool_server.py:25"]].concat();
    let numbered = rows(&environment, &trace, &options);
    let numbered = numbered.iter().filter_map(|row| row["iteration"].as_u64());
    assert_eq!(numbered.max(), Some(24));
    let trace = trace.to_str().expect("UTF-8");
    let text = environment.run(&[&["report", trace], &options[..]].concat());
    let text = text.succeeded().stdout;
    // Each of two threads came to the line once for certain.
    assert!(text.contains("22 starts inferred"), "{text}");
}

#[test]
fn tensors_saved_by_resnet_50_agree_with_a_walk_of_its_graph() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("trace.json");
    let mut command = environment.memprobe();
    command.args(["record", "-q", "--cpu", "-o"]).arg(&trace);
    command.arg("--").arg(environment.pytorch().python());
    command.args(["resnet50.py", "--size", "64", "--batch", "4"]);
    environment.pytorch().settle(&mut command);
    let printed = Background::start(&mut command).finish().succeeded().stdout;
    let truth: Value = serde_json::from_str(printed.trim()).expect("figures");
    let expected = bytes(&truth, "saved") - bytes(&truth, "input");
    let rows = rows(&environment, &trace, &["--by", "saved"]);
    let saved: u64 = rows.iter().map(|row| bytes(row, "live")).sum();
    println!("ResNet-50 of 4 images of 64x64 saves {expected} bytes; memprobe says {saved}");
    assert!(
        saved.abs_diff(expected) * 100 <= expected,
        "{saved} for {expected}"
    );
}

#[test]
fn keys_and_values_of_generated_words_are_a_cache() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let pytorch = environment.pytorch();
    let run = PurposeRun::of(&environment, pytorch, &[], &["generate.py"]);
    let purposes = run.purposes("server that generates words with a cache");
    let [right, _, wrong] = purposes.shares["Cached"].percent();
    // Nothing tells the first words of the first request.
    assert!(right >= 97.0 && wrong == 0.0, "{:?}", purposes.shares);
    check_share(&purposes, 99.0, 0.1);
}

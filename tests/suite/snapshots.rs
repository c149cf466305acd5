//! Compares `memprobe snapshot` with the process's own account, row by row.

use std::path::PathBuf;

use memprobe_tests::environment::{On, TestEnvironment};
use memprobe_tests::paused_workload::{PausedWorkload, Truth};
use memprobe_tests::process::Background;
use memprobe_tests::programs;
use memprobe_tests::snapshot::Snapshot;
use memprobe_tests::tensor_agreement::{Devices, compare};
use rustix::process::Signal;
use serde_json::Value;

/// Differences to print; the rest are only counted.
const SHOWN: usize = 25;

/// Minimum numbers of compared items, over all points.
struct Least {
    tensors: usize,
    names: usize,
    saved: usize,
}

/// Compares at every point of a workload.
fn agree(workload: &[&str], devices: Devices, on: On, least: &Least) {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let mut wrong = Vec::new();
    for pytorch in environment.pytorches_on(on) {
        let paused = PausedWorkload::start(pytorch, workload, &[]);
        wrong.extend(agree_with(
            &environment,
            paused,
            workload[0],
            devices,
            least,
        ));
    }
    assert_none(&wrong);
}

fn assert_none(wrong: &[String]) {
    let shown = wrong.iter().take(SHOWN).cloned().collect::<Vec<_>>();
    assert!(
        wrong.is_empty(),
        "{} differences, such as\n{}",
        wrong.len(),
        shown.join("\n")
    );
}

fn agree_with(
    environment: &TestEnvironment,
    mut paused: PausedWorkload,
    workload: &str,
    devices: Devices,
    least: &Least,
) -> Vec<String> {
    let options: &[&str] = match devices {
        Devices::Cuda => &[],
        Devices::WithCpu => &["--cpu"],
    };
    let (mut wrong, mut sums) = (Vec::new(), [0; 4]);
    let mut versions = String::new();
    while let Some(point) = paused.next_point() {
        let snapshot = environment.snapshot(paused.pid(), options);
        let truth = paused.truth();
        let found = compare(&truth, &snapshot, devices);
        versions = format!("python {} torch {}", truth.python, truth.torch);
        let place = |difference| format!("{versions} at {point}: {difference}");
        wrong.extend(found.differences.into_iter().map(place));
        for name in wrongly_named(&truth, &snapshot) {
            wrong.push(format!("{versions} at {point}: {name}"));
        }
        let counted = [found.tensors, found.names, found.saved, found.blocks];
        for (sum, count) in sums.iter_mut().zip(counted) {
            *sum += count;
        }
        paused.go_on();
    }
    paused.end();
    let [tensors, names, saved, blocks] = sums;
    println!(
        "{workload}  {versions}  {tensors} tensors  {names} names  {saved} saved  {blocks} blocks  {} differences",
        wrong.len()
    );
    assert!(
        tensors >= least.tensors && names >= least.names && saved >= least.saved,
        "too little was compared"
    );
    wrong
}

/// Returns the tensors that lack the name the workload expects.
fn wrongly_named(truth: &Truth, snapshot: &Snapshot) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, shape) in &truth.expected {
        let row = snapshot
            .tensors
            .iter()
            .find(|row| row.shape.as_ref() == Some(shape));
        let Some(row) = row else {
            wrong.push(format!("no row of shape {shape:?}, which is {name}"));
            continue;
        };
        if !row.texts().iter().any(|text| is_called(text, name)) {
            wrong.push(format!("not called {name}: {:?}", row.texts()));
        }
    }
    wrong
}

/// True if `text` ends with `name`; `*` stands for a line number.
fn is_called(text: &str, name: &str) -> bool {
    let Some((before, after)) = name.split_once('*') else {
        return text == name
            || text
                .strip_suffix(name)
                .is_some_and(|root| root.ends_with(['.', ' ', '/']));
    };
    let head = text.strip_suffix(after).unwrap_or_default();
    let head = head.trim_end_matches(|c: char| c.is_ascii_digit());
    head == before || head.ends_with(&format!("/{before}"))
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_small_perceptron_is_known_from_its_data_to_its_optimizer() {
    let least = Least {
        tensors: 50,
        names: 36,
        saved: 0,
    };
    agree(&["detector_mlp.py"], Devices::Cuda, On::Each, &least);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn shared_weights_flat_buffers_and_products_that_nobody_holds_are_known() {
    // Without LSTM in cuDNN, a third of these numbers is left.
    let least = Least {
        tensors: 30,
        names: 20,
        saved: 1,
    };
    agree(&["reporter_cases.py"], Devices::Cuda, On::Newest, &least);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn large_tensors_that_come_and_go_are_known() {
    let least = Least {
        tensors: 32 + 35 + 37 + 35,
        names: 4 * 32,
        saved: 0,
    };
    agree(&["tracked_vgg.py"], Devices::Cuda, On::Newest, &least);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn gradients_buffers_and_the_state_of_optimizers_are_known_by_name() {
    let least = Least {
        tensors: 350,
        names: 250,
        saved: 0,
    };
    agree(&["training_state.py"], Devices::Cuda, On::Newest, &least);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn modules_optimizers_and_tensors_are_known_behind_mixins() {
    let least = Least {
        tensors: 120,
        names: 110,
        saved: 0,
    };
    agree(&["mixins.py"], Devices::Cuda, On::Each, &least);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn tensors_are_named_after_where_python_keeps_them() {
    let least = Least {
        tensors: 30,
        names: 2,
        saved: 0,
    };
    agree(&["tensor_names.py"], Devices::Cuda, On::Each, &least);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn tensors_of_every_kind_are_listed_or_said_to_be_unknown() {
    let least = Least {
        tensors: 100,
        names: 0,
        saved: 0,
    };
    agree(&["tensor_kinds.py"], Devices::Cuda, On::Newest, &least);
}

#[test]
fn tensors_of_the_cpu_are_listed_where_they_are_asked_for() {
    let least = Least {
        tensors: 100,
        names: 0,
        saved: 0,
    };
    agree(&["tensor_kinds.py"], Devices::WithCpu, On::Newest, &least);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn tensors_saved_for_backward_name_their_operation() {
    let least = Least {
        tensors: 300,
        names: 50,
        saved: 10,
    };
    agree(&["saved_tensors.py"], Devices::Cuda, On::Each, &least);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn tensors_saved_for_backward_name_their_operation_under_another_malloc() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let malloc = programs::malloc(folder.path());
    let malloc = malloc.to_str().expect("UTF-8");
    let workload = "saved_tensors.py";
    let least = Least {
        tensors: 300,
        names: 50,
        saved: 10,
    };
    let paused = PausedWorkload::start(
        environment.pytorch(),
        &[workload],
        &[("LD_PRELOAD", malloc)],
    );
    assert_none(&agree_with(
        &environment,
        paused,
        workload,
        Devices::Cuda,
        &least,
    ));
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_model_of_two_thousand_modules_is_known_by_name() {
    let least = Least {
        tensors: 12_000,
        names: 12_000,
        saved: 0,
    };
    let workload = ["many_objects.py", "--objects", "10000"];
    agree(&workload, Devices::Cuda, On::Newest, &least);
}

/// Returns the changes between two snapshots as lines of `sign`, count and shape, the format of
/// comparable tools.
fn changes(
    before: &str,
    after: &str,
    environment: &TestEnvironment,
    files: [&PathBuf; 2],
) -> Vec<String> {
    let file = |path: &PathBuf| path.to_str().expect("UTF-8").to_owned();
    let printed = environment
        .run(&["diff", &file(files[0]), &file(files[1]), "--format", "json"])
        .succeeded();
    let diff: Value = serde_json::from_str(&printed.stdout)
        .unwrap_or_else(|error| panic!("from {before} to {after}: {error}: {}", printed.stdout));
    let mut lines = Vec::new();
    let devices = diff["devices"].as_array().expect("devices").iter();
    for device in devices.filter(|device| device["device"] == "cuda:0") {
        for (sign, key) in [('+', "added"), ('-', "removed")] {
            for row in device[key].as_array().expect("rows") {
                let shape = row["shape"].to_string();
                let shape = shape.trim_matches(['[', ']']).replace(',', "x");
                let name = row["name"].as_str().unwrap_or_default();
                lines.push(format!("{sign} ({shape}) {name}"));
            }
        }
    }
    lines.sort();
    lines
}

/// Takes a snapshot at each point; returns the changes from each to the next.
fn changes_of(workload: &str) -> Option<Vec<(String, Vec<String>)>> {
    let environment = TestEnvironment::take()?;
    let mut paused = PausedWorkload::start(environment.pytorch(), &[workload], &[]);
    let mut found = Vec::new();
    let mut last: Option<(String, PathBuf)> = None;
    while let Some(point) = paused.next_point() {
        let file = paused.path(&format!("{point}.json"));
        environment.keep_snapshot(paused.pid(), &file);
        if let Some((before, old)) = &last {
            let lines = changes(before, &point, &environment, [old, &file]);
            found.push((point.clone(), lines));
        }
        last = Some((point, file));
        paused.go_on();
    }
    paused.end();
    Some(found)
}

/// Asserts that the changes at a point are exactly `wanted`.
fn assert_changes(found: &[(String, Vec<String>)], point: &str, wanted: &[&str]) {
    let (_, lines) = found
        .iter()
        .find(|(name, _)| name == point)
        .unwrap_or_else(|| panic!("there is no point {point}"));
    let mut wanted: Vec<String> = wanted.iter().map(|&line| line.to_owned()).collect();
    wanted.sort();
    assert_eq!(*lines, wanted, "at {point}");
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_diff_of_two_snapshots_agrees_with_the_older_tools() {
    let Some(found) = changes_of("tracked_vgg.py") else {
        return;
    };
    // The current line differs between two points, and with it the name of a local.
    let without_place = |line: &String| match line.split_once(" tracked_vgg.py:") {
        Some((shape, name)) => {
            let name = name.rsplit_once(" -> ").map_or(name, |(_, name)| name);
            format!("{shape} {name}")
        }
        None => line.clone(),
    };
    let found: Vec<(String, Vec<String>)> = found
        .iter()
        .map(|(point, lines)| (point.clone(), lines.iter().map(without_place).collect()))
        .collect();
    let model = &found[0].1;
    assert_eq!(model.len(), 32, "{model:?}");
    assert!(model.iter().all(|line| line.starts_with("+ ")), "{model:?}");
    assert!(model.iter().any(|line| line == "+ (64x3x3x3) 0.weight"));
    let came = |count: u32, number: u32| format!("+ ({count}x3x512x512) dummy_{number}");
    let three = [came(30, 1), came(40, 2), came(60, 3)];
    assert_changes(&found, "three", &three.each_ref().map(String::as_str));
    let two = [came(120, 4), came(80, 5)];
    assert_changes(&found, "five", &two.each_ref().map(String::as_str));
    let gone = ["- (120x3x512x512) dummy_4", "- (40x3x512x512) dummy_2"];
    assert_changes(&found, "two back", &gone);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn compare_shows_additions_and_removals_of_a_training_step() {
    let Some(found) = changes_of("detector_mlp.py") else {
        return;
    };
    let lines = |point: &str| -> Vec<String> {
        let found = found.iter().find(|(name, _)| name == point);
        let lines = found.map(|(_, lines)| lines.iter());
        let shape = |line: &String| line.split_once(") ").map(|(shape, _)| format!("{shape})"));
        lines.into_iter().flatten().filter_map(shape).collect()
    };
    // Changes visible from inside the process: activation and output; loss; gradients; two moments
    // per parameter.
    let has = |point: &str, wanted: &[&str]| {
        let mut left = lines(point);
        for line in wanted {
            let at = left.iter().position(|found| found == line);
            let at = at.unwrap_or_else(|| panic!("no {line} at {point}: {:?}", lines(point)));
            left.remove(at);
        }
    };
    has("forward", &["+ (8)", "+ (32)"]);
    has("loss", &["+ ()"]);
    let gradients = ["+ (64)", "+ (8x64)", "+ (8)", "+ (32x8)", "+ (32)", "- (8)"];
    has("backward", &gradients);
    let moments = ["+ (8x64)", "+ (8)", "+ (32x8)", "+ (32)"];
    has("optimizer", &[moments, moments].concat());
}

#[test]
fn mazes_of_cycles_depths_and_strange_keys_do_not_lead_astray() {
    let least = Least {
        tensors: 3000,
        names: 3,
        saved: 0,
    };
    agree(&["tensor_mazes.py"], Devices::Cuda, On::Newest, &least);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_product_that_only_the_graph_holds_is_listed_with_the_operation_that_keeps_it() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in &environment.pytorches {
        let mut paused = PausedWorkload::start(pytorch, &["reporter_cases.py"], &[]);
        paused.go_to("product");
        let snapshot = environment.snapshot(paused.pid(), &[]);
        let saved = snapshot.tensors.iter().filter(|row| row.kind == "saved");
        let large: Vec<_> = saved
            .filter(|row| row.shape == Some(vec![512, 1024]))
            // PyTorch 2.0 also saves the input of the mean.
            .filter(|row| row.saved_by.as_deref() != Some("MeanBackward0"))
            .collect();
        let [product] = large[..] else {
            panic!("one product is kept: {large:?}");
        };
        assert_eq!(product.allocated, 2 << 20);
        assert_eq!(product.saved_by.as_deref(), Some("AddmmBackward0"));
        paused.go_on();
        paused.end();
    }
}

#[test]
fn a_block_that_no_tensor_reaches_is_named_by_its_call_site() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let when = folder.path().join("when");
    let mut command = environment.pytorch().command();
    command.arg("kept_blocks.py").arg("--when").arg(&when);
    let mut target = Background::start(&mut command);
    target.wait_for("READY");
    let pid = target.pid().to_string();
    let mut memprobe = environment.memprobe();
    memprobe.args([
        "snapshot", "--watch", "300ms", "--detail", "full", "--pid", &pid,
    ]);
    let mut watching = Background::start(&mut memprobe);
    watching.wait_for("allocated by the allocator");
    // The target requests blocks repeatedly: in the first second after attach, memprobe cannot
    // exclude a tensor requested before its probes.
    std::fs::write(&when, "").expect("the file");
    let line = watching.wait_for("(torch.cuda.caching_allocator_alloc");
    assert!(
        line.starts_with("+  ") && line.contains("KiB  block  "),
        "{line}"
    );
    watching.signal(Signal::INT);
    watching.finish().succeeded();
    std::fs::remove_file(&when).expect("the file");
    target.finish().succeeded();
}

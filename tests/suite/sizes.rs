//! Compares model size, epochs, and the memory of layers per iteration with hooks inside the
//! process.

use std::collections::BTreeMap;
use std::path::Path;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::Background;
use serde::Deserialize;
use serde_json::Value;

/// Output of `workloads/sizes.py`. Bytes, by module path.
#[derive(Deserialize)]
struct Truth {
    parameters: BTreeMap<String, u64>,
    buffers: BTreeMap<String, u64>,
    /// Output of leaf modules in a forward pass; 0 for in-place modules.
    outputs: BTreeMap<String, u64>,
    /// Blocks of parameters and buffers, with the allocator's rounding.
    blocks: BTreeMap<String, u64>,
    iterations: Vec<Iteration>,
    /// Examples per batch.
    batch: u64,
}

#[derive(Deserialize)]
struct Iteration {
    epoch: u64,
    /// Examples in its batch.
    batch: u64,
    /// `torch.cuda.max_memory_allocated()` of the iteration; `None` on the CPU.
    peak: Option<u64>,
    /// Like `outputs` above, for its own forward pass.
    outputs: BTreeMap<String, u64>,
}

impl Iteration {
    /// Returns the activations of the first block's modules at the peak. Backward reaches this
    /// block last, so all of them are live. The last module's output goes into a sum, which does
    /// not save it.
    fn activations_of_first_block(&self) -> [(&'static str, u64); 4] {
        let put_out = |path: &str| self.outputs[path].next_multiple_of(512);
        let statistics = 2 * (4 * self.batch).next_multiple_of(512);
        let norm = "Net.blocks.0.norm";
        let [up, act] = ["Net.blocks.0.up", "Net.blocks.0.act"].map(|part| (part, put_out(part)));
        [
            (norm, put_out(norm) + statistics),
            up,
            act,
            ("Net.blocks.0.down", 0),
        ]
    }
}

impl Truth {
    /// Returns the bytes that a leaf's forward pass allocates besides its output. A norm saves mean
    /// and deviation for backward: per example (`native_layer_norm`) or per feature
    /// (`native_batch_norm`).
    fn allocated_besides_output(&self, path: &str) -> u64 {
        match path.rsplit('.').next() {
            Some("norm") => 2 * 4 * self.batch,
            Some("even") => self.parameters[path],
            _ => 0,
        }
    }
}

fn record(environment: &TestEnvironment, folder: &Path) -> Truth {
    let truth = folder.join("truth.json");
    let out = truth.to_str().expect("UTF-8");
    environment.record_named(
        environment.pytorch(),
        &["sizes.py", "--out", out],
        folder,
        1,
    );
    let truth = std::fs::read(truth).expect("the truth");
    serde_json::from_slice(&truth).expect("JSON")
}

/// Estimates the workload's modules on a GPU by running it on the CPU.
fn estimate(environment: &TestEnvironment, folder: &Path) -> (Truth, Vec<Value>) {
    let (file, out) = (folder.join("estimate.json"), folder.join("truth.json"));
    let mut command = environment.memprobe();
    command
        .args(["estimate", "--format", "json", "-o"])
        .arg(&file);
    command.arg("--").arg(environment.pytorch().python());
    command
        .args(["sizes.py", "--device", "cpu", "--out"])
        .arg(&out);
    // The workload waits for its own output file.
    command.arg("--until").arg(&out);
    environment.pytorch().settle(&mut command);
    Background::start(&mut command).finish().succeeded();
    let read = |file| std::fs::read(file).expect("it was written");
    let estimate: Value = serde_json::from_slice(&read(&file)).expect("JSON");
    let rows = estimate["model_size"].as_array().expect("rows").clone();
    (serde_json::from_slice(&read(&out)).expect("JSON"), rows)
}

fn rows(environment: &TestEnvironment, folder: &Path, by: &[&str]) -> Vec<Value> {
    let trace = folder.join("trace.json");
    let file = trace.to_str().expect("UTF-8");
    let options = [&["report", file, "--format", "jsonl", "--by"], by].concat();
    let report = environment.run(&options);
    let lines = report.succeeded().stdout;
    lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// Checks the memory of modules at each iteration's peak.
fn check_layers(truth: &Truth, layers: &[Value]) {
    for (number, iteration) in (1_u64..).zip(&truth.iterations) {
        let of_iteration =
            |row: &&Value| row["iteration_kind"] == "iteration" && row["iteration"] == number;
        let rows: Vec<&Value> = layers.iter().filter(of_iteration).collect();
        let held: u64 = rows
            .iter()
            .filter_map(|row| row["own_total"].as_u64())
            .sum();
        assert_eq!(Some(held), iteration.peak, "iteration {number}");
        let own = |path: &str, what: &str| {
            let row = rows.iter().find(|row| row["path"] == path);
            row.map_or(0, |row| row[what].as_u64().expect("bytes"))
        };
        for (path, bytes) in &truth.blocks {
            let at = format!("{path} in iteration {number}");
            assert_eq!(own(path, "own_parameter"), *bytes, "weights of {at}");
            if number > 1 && !truth.buffers.contains_key(path) {
                assert_eq!(own(path, "own_optimizer_state"), 2 * bytes, "state of {at}");
            }
        }
        // memprobe identifies modules only after the first module call.
        if number == 1 {
            continue;
        }
        for (path, bytes) in iteration.activations_of_first_block() {
            let at = format!("{path} in iteration {number}");
            assert_eq!(own(path, "own_activation"), bytes, "feature maps of {at}");
        }
    }
}

/// Checks the parameters and buffers of each module; no other module may have any.
fn check_parameters(truth: &Truth, sizes: &[Value]) {
    for (key, expected) in [
        ("own_parameters", &truth.parameters),
        ("own_buffers", &truth.buffers),
    ] {
        for (path, bytes) in expected {
            let row = sizes.iter().find(|row| row["path"] == path.as_str());
            let row = row.unwrap_or_else(|| panic!("{path} is missing"));
            assert_eq!(row[key], *bytes, "{key} of {path}");
        }
        let all: u64 = sizes.iter().filter_map(|row| row[key].as_u64()).sum();
        assert_eq!(all, expected.values().sum::<u64>(), "{key}");
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn the_size_of_a_model_its_epochs_and_its_layers_are_what_hooks_say() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let truth = record(&environment, folder.path());
    let sizes = rows(&environment, folder.path(), &["size"]);
    let module = |path: &str| {
        let found = sizes.iter().find(|row| row["path"] == path);
        found.unwrap_or_else(|| panic!("{path} is missing"))
    };
    check_parameters(&truth, &sizes);
    for (path, bytes) in truth.outputs.iter().filter(|(_, bytes)| **bytes > 0) {
        let made = bytes + truth.allocated_besides_output(path);
        assert_eq!(module(path)["own_forward"], made, "outputs of {path}");
    }
    let iterations = rows(&environment, folder.path(), &["iteration"]);
    let epochs: Vec<u64> = iterations
        .iter()
        .filter(|row| row["kind"] == "iteration")
        .map(|row| row["epoch"].as_u64().expect("an epoch"))
        .collect();
    let expected: Vec<u64> = truth.iterations.iter().map(|it| it.epoch).collect();
    assert_eq!(epochs, expected);
    let layers = rows(
        &environment,
        folder.path(),
        &["layer", "--iteration", "all"],
    );
    check_layers(&truth, &layers);
    let made: u64 = sizes
        .iter()
        .filter_map(|row| row["own_rounded"].as_u64())
        .sum();
    let handed_out = iterations.iter().map(|row| row["alloc_bytes"].as_u64());
    assert!(
        handed_out.flatten().any(|bytes| bytes == made),
        "{made} bytes were made"
    );
}

#[test]
fn the_size_of_a_model_on_a_gpu_is_estimated_on_the_cpu() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (truth, sizes) = estimate(&environment, folder.path());
    let module = |path: &str| {
        let found = sizes.iter().find(|row| row["path"] == path);
        found.unwrap_or_else(|| panic!("{path} is missing: {sizes:#?}"))
    };
    // On the CPU, the batch norm kernel allocates more than on a GPU.
    let is_alike = |(path, bytes): &(&String, &u64)| **bytes > 0 && !path.ends_with("even");
    for (path, bytes) in truth.outputs.iter().filter(is_alike) {
        let made = bytes + truth.allocated_besides_output(path);
        assert_eq!(module(path)["own_forward"], made, "outputs of {path}");
    }
    for (path, bytes) in &truth.parameters {
        assert_eq!(module(path)["own_gradients"], *bytes, "gradients of {path}");
    }
    check_parameters(&truth, &sizes);
}

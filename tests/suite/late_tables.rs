//! Tables of programs that memprobe attaches to late: the same bytes as recorded from the start, and those that follow
//! from the shapes of the program's tensors (`workloads/late_steps.py`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::memprobe::PATIENT;
use memprobe_tests::process::{Background, wait_until};
use serde_json::Value;
use tempfile::TempDir;

const FLOAT: u64 = 4;
const BATCH: u64 = 256;
/// Widths of the perceptron: input, hidden layer, output.
const IN: u64 = 1000;
const HIDDEN: u64 = 2000;
const OUT: u64 = 500;

/// Simulated GPUs. All programs but one use the first.
const DEVICES: u32 = 2;

/// Time in which several iterations end.
const TRAINING: Duration = Duration::from_secs(2);

/// Bytes of one iteration, as `report --by size` adds them up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sizes {
    forward: u64,
    saved: u64,
    recomputed: u64,
    backward: u64,
    gradients: u64,
}

impl Sizes {
    /// One forward and one backward pass of the perceptron.
    fn of_pass() -> Self {
        let [hidden, out] = [HIDDEN, OUT].map(|width| BATCH * width * FLOAT);
        // The loss and its total weight.
        let scalar = FLOAT;
        Self {
            // Linear, ReLU, Linear, log_softmax.
            forward: 2 * hidden + 2 * out + 2 * scalar,
            saved: hidden + out + scalar,
            recomputed: 0,
            // Of the loss itself, and for each of those four.
            backward: scalar + 2 * out + 2 * hidden,
            gradients: FLOAT * (IN * HIDDEN + HIDDEN + HIDDEN * OUT + OUT),
        }
    }

    /// Sums of a device's rows. `options` say where iterations begin.
    fn reported(
        environment: &TestEnvironment,
        recording: &Path,
        device: u64,
        options: &[&str],
    ) -> Self {
        let file = recording.to_str().expect("UTF-8");
        let arguments = ["report", file, "--by", "size", "--format", "jsonl"];
        let report = environment.run(&[&arguments, options].concat());
        let mut sizes = Self::default();
        for line in report.succeeded().stdout.lines() {
            let row: Value = serde_json::from_str(line).expect("JSON");
            // Deeper rows are part of these.
            if row["device"] != device || row["depth"].as_u64().is_some_and(|depth| depth > 0) {
                continue;
            }
            let bytes = |name: &str| row[name].as_u64().unwrap_or(0);
            sizes.forward += bytes("forward");
            sizes.saved += bytes("saved");
            sizes.recomputed += bytes("recomputed");
            sizes.backward += bytes("backward");
            sizes.gradients += bytes("gradients");
        }
        sizes
    }
}

/// A program recorded from its start.
struct FromStart {
    folder: TempDir,
    recording: Background,
    pid: u32,
}

impl FromStart {
    fn new(environment: &TestEnvironment, program: &str, option: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let mut command = environment.memprobe();
        command
            .args(["record", option])
            .args(PATIENT)
            .arg("-o")
            .arg(path("start.json"));
        command.arg("--").arg(environment.pytorch().python());
        command.args(["-W", "ignore", "late_steps.py", program]);
        command.arg(path("until"));
        environment.pytorch().settle(&mut command);
        command.env("CUDASIM_DEVICES", DEVICES.to_string());
        let mut recording = Background::start(&mut command);
        let ready = recording.wait_for("ready ");
        let pid = ready.split_whitespace().last().map(str::parse);
        let pid = pid.expect("a PID").expect("a number");
        Self {
            folder,
            recording,
            pid,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn end(self) -> TempDir {
        std::fs::write(self.path("until"), "").expect("written");
        self.recording.finish().succeeded();
        self.folder
    }
}

/// Records a program from its start, and late with each of these options. Returns the files, the first from the start.
fn record(environment: &TestEnvironment, program: &str, late: &[&str]) -> (TempDir, Vec<PathBuf>) {
    let from_start = FromStart::new(environment, program, "--no-names");
    let mut files = vec![from_start.path("start.json")];
    let mut recordings = Vec::new();
    for option in late {
        let file = from_start.path(&format!("late{option}.json"));
        recordings.push(environment.record(from_start.pid, &file, &[option]));
        files.push(file);
    }
    std::thread::sleep(TRAINING);
    let folder = from_start.end();
    for recording in recordings {
        recording.finish();
    }
    (folder, files)
}

/// Records a program from its start, and late with each of these options; asserts that all report these sizes.
fn check(environment: &TestEnvironment, program: &str, late: &[&str], expected: Sizes) {
    let (_folder, files) = record(environment, program, late);
    check_sizes(environment, &files, &[], expected);
}

/// Asserts that all recordings report these sizes for the first GPU.
fn check_sizes(
    environment: &TestEnvironment,
    files: &[PathBuf],
    options: &[&str],
    expected: Sizes,
) {
    for file in files {
        let sizes = Sizes::reported(environment, file, 0, options);
        assert_eq!(sizes, expected, "{}", file.display());
    }
}

/// Records a program late with names, and from its start with or without.
fn record_named(
    environment: &TestEnvironment,
    program: &str,
    option: &str,
) -> (TempDir, [PathBuf; 2]) {
    let from_start = FromStart::new(environment, program, option);
    let files = ["start.json", "late.json"].map(|name| from_start.path(name));
    let late = environment.record(from_start.pid, &files[1], &["--names"]);
    std::thread::sleep(TRAINING);
    if option == "--names" {
        wait_until("the objects are read", || {
            let said = from_start.recording.stderr();
            said.contains("blocks named").then_some(())
        });
    }
    // A recording that ends reads a process that goes on.
    late.interrupt();
    (from_start.end(), files)
}

/// Rows of modules in a report.
fn modules(environment: &TestEnvironment, recording: &Path, by: &str) -> BTreeMap<String, Value> {
    let file = recording.to_str().expect("UTF-8");
    let report = environment.run(&["report", file, "--by", by, "--format", "jsonl"]);
    let lines = report.succeeded().stdout;
    let rows = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    let rows = rows.filter_map(|row: Value| Some((row["path"].as_str()?.to_owned(), row)));
    rows.collect()
}

/// Bytes of the blocks of these tensors in the allocator's small pool.
fn blocks<const N: usize>(elements: [u64; N]) -> u64 {
    elements
        .map(|elements| (FLOAT * elements).next_multiple_of(512))
        .iter()
        .sum()
}

/// Bytes of the peak in a table: by category, or by module and pass.
fn at_peak(environment: &TestEnvironment, recording: &Path, by: &str) -> BTreeMap<String, u64> {
    let file = recording.to_str().expect("UTF-8");
    let report = environment.run(&["report", file, "--by", "peak", "--format", "jsonl"]);
    let mut sums = BTreeMap::new();
    for line in report.succeeded().stdout.lines() {
        let row: Value = serde_json::from_str(line).expect("JSON");
        if row["device"] != 0 || row["by"] != by {
            continue;
        }
        let text = |key: &str| row[key].as_str().unwrap_or("").to_owned();
        let key = match (by, row["kind"].as_str()) {
            ("category", Some("category")) => text("category"),
            ("module", Some("module")) => format!("{} {}", text("module"), text("pass")),
            (_, Some(kind)) => kind.to_owned(),
            _ => panic!("{row:#}"),
        };
        *sums.entry(key).or_default() += row["bytes"].as_u64().expect("bytes");
    }
    sums
}

/// Asserts the bytes of categories, and the modules that PyTorch called, at the peak of the small perceptron.
fn check_peak(environment: &TestEnvironment, recording: &Path, has_names: bool) {
    /// cuBLAS allocates it for the product whose result is the last gradient before the peak.
    const WORKSPACE: u64 = 8_519_680;
    let [features, width, classes] = [100, 200, 50];
    let weights = blocks([features * width, width, width * classes, classes]);
    let hidden = blocks([BATCH * width]);
    let scalar = blocks([1]);
    let mut categories = BTreeMap::from([
        // Features and labels: the latter have eight bytes.
        ("input", blocks([BATCH * features]) + 8 * BATCH),
        ("activation", hidden),
        ("gradient", blocks([width * classes])),
        // Of the loss, the output and the hidden layer.
        (
            "intermediate_gradient",
            scalar + blocks([BATCH * classes]) + hidden,
        ),
        ("workspace", WORKSPACE),
        // The loss, which the program frees after the pass.
        ("unknown", scalar),
    ]);
    if has_names {
        categories.insert("parameter", weights);
        categories.insert("optimizer_state", 2 * weights);
    } else {
        categories.insert("before_attach", 3 * weights);
    }
    let categories = categories.into_iter();
    let categories: BTreeMap<String, u64> = categories
        .map(|(key, bytes)| (key.to_owned(), bytes))
        .collect();
    let file = recording.display();
    let mut found = at_peak(environment, recording, "category");
    found.retain(|_, bytes| *bytes > 0);
    assert_eq!(found, categories, "{file}");
    let mut modules = at_peak(environment, recording, "module");
    modules.retain(|path, _| path.starts_with("Sequential"));
    let of_last = blocks([width * classes]) + hidden + WORKSPACE;
    let called = [
        ("Sequential.1 forward", hidden),
        ("Sequential.2 backward", of_last),
    ];
    assert_eq!(
        modules,
        called.map(|(path, bytes)| (path.to_owned(), bytes)).into(),
        "{file}"
    );
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn the_peak_is_the_same_however_late_memprobe_attaches() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let (_named, [start, late]) = record_named(&environment, "small", "--names");
    for file in [start, late] {
        check_peak(&environment, &file, true);
    }
    let from_start = FromStart::new(&environment, "small", "--no-names");
    let [start, late] = ["start.json", "late.json"].map(|name| from_start.path(name));
    let recording = environment.record(from_start.pid, &late, &["--no-names"]);
    std::thread::sleep(TRAINING);
    recording.interrupt();
    let _unnamed = from_start.end();
    // It saw them made.
    check_peak(&environment, &start, true);
    check_peak(&environment, &late, false);
}

#[test]
fn calls_and_weights_of_one_of_two_equal_models_are_one_row() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let (_folder, files) = record_named(&environment, "evaluation", "--names");
    let weights = [
        blocks([100 * 200, 200]),
        // The rectifier.
        0,
        blocks([200 * 50, 50]),
    ];
    for file in files {
        let rows = modules(&environment, &file, "layer");
        let own = |path: String, key: &str| {
            rows.get(&path)
                .map_or(0, |row| row[key].as_u64().unwrap_or(0))
        };
        let of_model =
            |model: &str, key: &str| [0, 1, 2].map(|at| own(format!("{model}.{at}"), key));
        for model in ["Sequential", "average"] {
            let found = of_model(model, "own_parameter");
            assert_eq!(found, weights, "{model} {}: {rows:#?}", file.display());
        }
        assert_eq!(
            of_model("average", "own_total"),
            weights,
            "{}",
            file.display()
        );
        let outermost = rows.values().filter(|row| row["depth"] == 0);
        assert_eq!(outermost.count(), 2, "{}: {rows:#?}", file.display());
        let called = modules(&environment, &file, "module");
        assert!(called.contains_key("Sequential.1"), "{called:#?}");
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn sizes_of_modules_are_the_same_however_late_memprobe_attaches() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let pass = Sizes::of_pass();
    check(&environment, "plain", &["--names", "--no-names"], pass);
    // The copy of the weights takes part in no pass.
    check(&environment, "average", &["--names"], pass);
}

#[test]
fn passes_of_one_step_add_up_however_late_memprobe_attaches() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let pass = Sizes::of_pass();
    let three = Sizes {
        forward: 3 * pass.forward,
        saved: 3 * pass.saved,
        // The second and third gradients are added to the first.
        backward: 3 * pass.backward + 2 * pass.gradients,
        ..pass
    };
    check(&environment, "accumulation", &["--names"], three);
}

#[test]
fn what_a_checkpoint_computes_again_is_known_however_late_memprobe_attaches() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let pass = Sizes::of_pass();
    let hidden = BATCH * HIDDEN * FLOAT;
    let checkpointed = Sizes {
        saved: pass.saved - hidden,
        // Up to what is saved last.
        recomputed: 2 * hidden,
        ..pass
    };
    check(&environment, "checkpointed", &["--names"], checkpointed);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn models_of_one_class_have_their_own_sizes_however_late_memprobe_attaches() {
    /// Width of the discriminator's hidden layer.
    const NARROW: u64 = 100;
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let pass = Sizes::of_pass();
    let [hidden, out, narrow, verdict] =
        [HIDDEN, OUT, NARROW, 1].map(|width| BATCH * width * FLOAT);
    let discriminator = FLOAT * (OUT * NARROW + NARROW + NARROW + 1);
    let passes = 3;
    let expected = Sizes {
        // The generator once; a mean of each verdict, a difference and a negation.
        forward: 2 * hidden + out + passes * (2 * narrow + verdict + FLOAT) + 2 * FLOAT,
        saved: hidden + passes * narrow,
        recomputed: 0,
        // Two losses, the negations of both, the verdicts and what they go through; in the generator its input of the
        // discriminator and its own layers. The discriminator's gradients of a step come twice and are summed, those
        // of the generator's step are added to them.
        backward: 4 * FLOAT
            + passes * (verdict + 2 * narrow)
            + out
            + 2 * hidden
            + 3 * discriminator,
        gradients: pass.gradients + discriminator,
    };
    let (_folder, files) = record_named(&environment, "gan", "--no-names");
    check_sizes(&environment, &files, &[], expected);
    // Classes do not tell them apart, variables do.
    for by in ["module", "layer", "size"] {
        let rows = modules(&environment, &files[1], by);
        let outermost = rows.iter().filter(|(_, row)| row["depth"] == 0);
        let outermost: Vec<_> = outermost.map(|(path, _)| &**path).collect();
        assert_eq!(outermost, ["discriminator", "generator"], "{by}");
    }
    let events = environment.events(&files[1]);
    let called = events.iter().filter_map(|event| event.module.as_deref());
    let models: BTreeSet<&str> = called.filter_map(|path| path.split('.').next()).collect();
    let variables = ["discriminator", "generator"];
    assert!(
        variables.iter().all(|variable| models.contains(variable)),
        "{models:?}"
    );
    let late = std::fs::read_to_string(&files[1]).expect("a recording");
    for name in [
        "for_generator.exp_avg[generator.0.weight]",
        "for_discriminator.exp_avg[discriminator.0.weight]",
    ] {
        assert!(late.contains(name), "{name}");
    }
}

/// Bytes by which a device's memory grows an iteration, by each line and tensor that grows.
fn growth(environment: &TestEnvironment, recording: &Path, options: &[&str]) -> Vec<(String, f64)> {
    let file = recording.to_str().expect("UTF-8");
    let arguments = ["report", file, "--by", "growth", "--format", "json"];
    let report = environment.run(&[&arguments, options].concat());
    let report: Value = serde_json::from_str(&report.succeeded().stdout).expect("JSON");
    let devices = report["devices"].as_array().expect("devices");
    let suspects = devices
        .iter()
        .filter_map(|device| device["suspects"].as_array());
    let growing = suspects.flatten().map(|suspect| {
        let by = suspect["by"].as_str().expect("what grows").to_owned();
        (by, suspect["bytes"].as_f64().expect("bytes"))
    });
    growing.collect()
}

#[test]
fn what_a_server_keeps_and_computes_is_the_same_however_late_memprobe_attaches() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let program = include_str!("../workloads/late_steps.py");
    let line = program
        .lines()
        .position(|line| line.contains("request = random"));
    let line = format!("late_steps.py:{}", line.expect("the server's line") + 1);
    let options = ["--iteration-start", &line];
    let (_folder, files) = record(&environment, "served", &["--names", "--no-names"]);
    let [hidden, out] = [HIDDEN, OUT].map(|width| BATCH * width * FLOAT);
    let expected = Sizes {
        // Linear, ReLU, Linear.
        forward: 2 * hidden + out,
        ..Sizes::default()
    };
    check_sizes(&environment, &files, &options, expected);
    for file in &files {
        let growing = growth(&environment, file, &options);
        for what in ["total", "line", "module", "tensor"] {
            let of = growing.iter().filter(|(by, _)| by == what);
            let of: f64 = of.map(|(_, bytes)| bytes).sum();
            assert_eq!(of, out as f64, "{what} {}: {growing:?}", file.display());
        }
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn models_in_a_list_have_their_own_sizes_and_names_however_late_memprobe_attaches() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let (_folder, files) = record_named(&environment, "listed", "--names");
    check_sizes(&environment, &files, &[], Sizes::of_pass());
    let weights = [IN * HIDDEN + HIDDEN, 0, HIDDEN * OUT + OUT];
    for file in files {
        for by in ["layer", "module", "size"] {
            let rows = modules(&environment, &file, by);
            let outermost = rows.iter().filter(|(_, row)| row["depth"] == 0);
            let outermost: Vec<_> = outermost.map(|(path, _)| &**path).collect();
            assert_eq!(
                outermost,
                ["models[0]", "models[1]"],
                "{by} {}",
                file.display()
            );
        }
        let rows = modules(&environment, &file, "layer");
        for model in ["models[0]", "models[1]"] {
            let own = [0, 1, 2].map(|at| {
                let row = rows.get(&format!("{model}.{at}"));
                row.map_or(0, |row| row["own_parameter"].as_u64().unwrap_or(0))
            });
            // As blocks of the allocator.
            for (own, weights) in own.into_iter().zip(weights) {
                assert!(own >= FLOAT * weights, "{model}: {rows:#?}");
            }
        }
        let text = std::fs::read_to_string(&file).expect("a recording");
        for at in 0..2 {
            let name = format!("optimizers[{at}].exp_avg[models[{at}].0.weight]");
            assert!(text.contains(&name), "{name} {}", file.display());
        }
        assert_eq!(growth(&environment, &file, &[]), [], "nothing grows");
    }
}

#[test]
fn a_distributed_model_adds_a_copy_of_its_output_however_late_memprobe_attaches() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let (_folder, files) = record(&environment, "distributed", &["--names", "--no-names"]);
    let pass = Sizes::of_pass();
    let expected = Sizes {
        // `_DDPSink`, since `find_unused_parameters` is set.
        forward: pass.forward + BATCH * OUT * FLOAT,
        ..pass
    };
    check_sizes(&environment, &files, &[], expected);
    for file in &files {
        let rows = modules(&environment, file, "size");
        let gradients = ["0", "2"].map(|at| {
            let row = rows.get(&format!("DistributedDataParallel.module.{at}"));
            row.map(|row| row["own_gradients"].as_u64().expect("bytes"))
        });
        let weights = [IN * HIDDEN + HIDDEN, HIDDEN * OUT + OUT].map(|count| Some(FLOAT * count));
        assert_eq!(gradients, weights, "{}: {rows:#?}", file.display());
        assert_eq!(growth(&environment, file, &[]), [], "nothing grows");
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn replicas_on_two_devices_have_the_sizes_of_their_halves_however_late_memprobe_attaches() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    if !environment.pytorch().has_devices(DEVICES) {
        return;
    }
    let (_folder, files) = record(&environment, "replicated", &["--names", "--no-names"]);
    let pass = Sizes::of_pass();
    let [hidden, out] = [HIDDEN, OUT].map(|width| BATCH / 2 * width * FLOAT);
    let half = 2 * hidden + out;
    let weights = pass.gradients;
    let last_bias = OUT * FLOAT;
    let scalar = FLOAT;
    let on = [
        Sizes {
            // Weights in one piece up to the last bias, which is a piece by itself; the half batch; all outputs; the
            // loss and its total weight.
            forward: weights - last_bias + half + 2 * out + 2 * out + 2 * scalar,
            saved: hidden + 2 * out + scalar,
            recomputed: 0,
            // Of the loss; of the half batch and its weights; the latter in pieces.
            backward: scalar + 4 * out + 2 * hidden + 2 * weights,
            gradients: weights,
        },
        Sizes {
            // Weights and the half of the batch that come from the first device.
            forward: weights + BATCH / 2 * IN * FLOAT + half,
            saved: hidden,
            recomputed: 0,
            // The half of the output's gradient comes from there too.
            backward: out + 2 * hidden + 2 * weights,
            gradients: 0,
        },
    ];
    for file in &files {
        for (device, expected) in (0..u64::from(DEVICES)).zip(on) {
            let sizes = Sizes::reported(&environment, file, device, &[]);
            assert_eq!(sizes, expected, "cuda:{device} {}", file.display());
        }
        // A replica lives for one pass: its modules have no names, and never wrong ones.
        let rows = modules(&environment, file, "module");
        let known = ["DataParallel", "DataParallel.module"];
        let is_known = |path: &String| known.iter().any(|known| path.starts_with(known));
        assert!(rows.keys().all(is_known), "{:?}", rows.keys());
        assert_eq!(growth(&environment, file, &[]), [], "nothing grows");
    }
}

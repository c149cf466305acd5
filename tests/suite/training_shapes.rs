//! Compares categories, iterations and model size with bytes computed by hand from the shapes of a program, for
//! recordings from the start and attached late, with and without names.

use std::path::{Path, PathBuf};

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::{Background, wait_until};
use serde_json::Value;
use tempfile::TempDir;

const FLOAT: u64 = 4;
const BATCH: u64 = 256;
/// Features of the input, the hidden layer and the output.
const SIZES: [u64; 3] = [1000, 2000, 500];

const INPUT: u64 = BATCH * SIZES[0] * FLOAT;
const HIDDEN: u64 = BATCH * SIZES[1] * FLOAT;
const OUTPUT: u64 = BATCH * SIZES[2] * FLOAT;
const SCALAR: u64 = FLOAT;

/// Iterations recorded at least. A late attach is settled after a second.
const ITERATIONS: u64 = 60;
/// Iterations at the end that are compared.
const COMPARED: usize = 20;

#[derive(Clone, Copy, Debug)]
struct Manner {
    is_late: bool,
    is_named: bool,
}

const MANNERS: [Manner; 4] = [
    Manner {
        is_late: false,
        is_named: false,
    },
    Manner {
        is_late: false,
        is_named: true,
    },
    Manner {
        is_late: true,
        is_named: false,
    },
    Manner {
        is_late: true,
        is_named: true,
    },
];

struct Recorded<'a> {
    environment: &'a TestEnvironment,
    _folder: TempDir,
    trace: PathBuf,
    manner: Manner,
    iterations: u64,
}

impl<'a> Recorded<'a> {
    fn new(environment: &'a TestEnvironment, options: &[&str], manner: Manner) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let [trace, until] = ["trace.json", "until"].map(|name| folder.path().join(name));
        let names: &[&str] = if manner.is_named { &["--names"] } else { &[] };
        let tensors: &[&str] = if options.contains(&"cpu") {
            &["--cpu"]
        } else {
            &[]
        };
        let recorded = [names, tensors].concat();
        let pytorch = environment.pytorch();
        let program = [
            "training_shapes.py",
            "--until",
            until.to_str().expect("UTF-8"),
        ];
        let workload = [&program, options].concat();
        let printed = if manner.is_late {
            let mut command = pytorch.command();
            let target = Background::start(command.args(&workload));
            wait_for_iteration(&target, 10);
            let recording = environment.record(target.pid(), &trace, &recorded);
            let first = iteration(&target);
            wait_for_iteration(&target, first + ITERATIONS);
            std::fs::write(&until, "").expect("a file");
            let printed = target.finish().succeeded().stdout;
            recording.finish();
            printed
        } else {
            let mut command = environment.memprobe();
            command.arg("record").args(&recorded).arg("-o").arg(&trace);
            command.arg("--").arg(pytorch.python()).args(&workload);
            pytorch.settle(&mut command);
            let recording = Background::start(&mut command);
            wait_for_iteration(&recording, ITERATIONS);
            std::fs::write(&until, "").expect("a file");
            recording.finish().succeeded().stdout
        };
        let iterations = printed.lines().find_map(|line| line.strip_prefix("done "));
        Self {
            environment,
            _folder: folder,
            trace,
            manner,
            iterations: iterations.expect("a number").parse().expect("a number"),
        }
    }

    fn rows(&self, by: &str) -> Vec<Value> {
        rows(self.environment, &self.trace, by)
    }

    /// The last whole iterations.
    fn last_iterations(&self) -> Vec<Value> {
        let mut rows = self.rows("iteration");
        rows.retain(|row| row["kind"] == "iteration");
        assert!(rows.len() > COMPARED, "{:?}: {rows:#?}", self.manner);
        rows.split_off(rows.len() - COMPARED)
    }

    /// Sum over the rows of the model size.
    fn size(&self, key: &str) -> u64 {
        let rows = self.rows("size");
        rows.iter().filter_map(|row| row[key].as_u64()).sum()
    }

    /// Live bytes of a category at the end.
    fn live(&self, category: &str) -> u64 {
        let rows = self.rows("category");
        let of = rows.iter().filter(|row| row["category"] == category);
        of.filter_map(|row| row["live"].as_u64()).sum()
    }
}

fn iteration(program: &Background) -> u64 {
    let printed = program.stdout();
    let last = printed
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("iteration ")?.parse().ok());
    last.unwrap_or(0)
}

fn wait_for_iteration(program: &Background, wanted: u64) {
    wait_until("enough iterations", || {
        (iteration(program) >= wanted).then_some(())
    });
}

fn rows(environment: &TestEnvironment, trace: &Path, by: &str) -> Vec<Value> {
    let file = trace.to_str().expect("UTF-8");
    let mut options = vec!["report", file, "--format", "jsonl", "--by", by];
    if by != "category" {
        options.extend(["--limit", "100000"]);
    }
    let report = environment.run(&options);
    let lines = report.succeeded().stdout;
    let parse = |line| serde_json::from_str(line).expect("JSON");
    lines.lines().map(parse).collect()
}

fn check_leak(environment: &TestEnvironment, keep: &str, kept: u64, manners: &[Manner]) {
    for &manner in manners {
        let run = Recorded::new(environment, &["--keep", keep], manner);
        let iterations = run.last_iterations();
        for row in &iterations {
            assert_eq!(row["input"], INPUT, "{keep} {manner:?}: {row:#}");
        }
        assert_eq!(run.live("input"), INPUT, "{keep} {manner:?}");
        let unknown = |row: &Value| row["unknown"].as_u64().expect("bytes");
        // The last two outputs may still be activations.
        let settled = COMPARED - 2;
        let (first, last) = (unknown(&iterations[0]), unknown(&iterations[settled - 1]));
        let grown = kept * (settled as u64 - 1);
        assert_eq!(last - first, grown, "{keep} {manner:?}");
        println!(
            "{keep} {manner:?}: {} iterations, input {INPUT}, unknown grew by {grown}",
            run.iterations
        );
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_leak_after_each_step_is_no_input() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    check_leak(&environment, "made", OUTPUT, &MANNERS);
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn outputs_and_losses_that_leak_are_no_inputs() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let unnamed = MANNERS.map(|manner| Manner {
        is_named: false,
        ..manner
    });
    check_leak(&environment, "output", OUTPUT, &unnamed[1..3]);
    // A block has at least 512 bytes.
    check_leak(&environment, "loss", 512, &unnamed[1..3]);
}

/// Records a program that is between its passes when the recording ends, and its objects are read. Returns the live
/// bytes of inputs.
fn inputs_while_held(environment: &TestEnvironment, options: &[&str], is_late: bool) -> u64 {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let write = |name: &str| std::fs::write(path(name), "").expect("a file");
    let mut command = environment.pytorch().command();
    command.arg("training_shapes.py").args(options);
    for option in ["wait", "hold", "until"] {
        command.arg(format!("--{option}")).arg(path(option));
    }
    let mut target = Background::start(&mut command);
    if is_late {
        write("wait");
        wait_for_iteration(&target, 10);
    } else {
        target.wait_for("waiting");
    }
    let trace = path("trace.json");
    let recording = environment.record(target.pid(), &trace, &["--names"]);
    write("wait");
    wait_for_iteration(&target, iteration(&target) + 20);
    write("hold");
    wait_until("it holds", || {
        target.stdout().contains("holding").then_some(())
    });
    recording.interrupt();
    write("until");
    target.finish().succeeded();
    let rows = rows(environment, &trace, "category");
    let inputs = rows.iter().filter(|row| row["category"] == "input");
    inputs.filter_map(|row| row["live"].as_u64()).sum()
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn data_that_a_variable_holds_from_before_the_loop_is_input() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for is_late in [false, true] {
        let inputs = inputs_while_held(&environment, &["--once"], is_late);
        // The targets are in a list, as leaks are.
        assert_eq!(inputs, INPUT, "late: {is_late}");
        let leaked = inputs_while_held(&environment, &["--keep", "input"], is_late);
        assert_eq!(leaked, 0, "late: {is_late}");
    }
}

#[test]
fn separates_buffers_from_parameters_without_names() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let manner = Manner {
        is_late: false,
        is_named: false,
    };
    let run = Recorded::new(&environment, &[], manner);
    // Mean, variance, and the number of batches, in blocks of the allocator.
    let buffers = 2 * (SIZES[1] * FLOAT).next_multiple_of(512) + 512;
    assert_eq!(run.size("own_buffers"), buffers);
    let parameters = run.size("own_parameters");
    assert_eq!(parameters + buffers, run.live("parameter"));
}

/// Gradients of both layers.
const GRADIENTS: u64 = ((SIZES[0] + 1) * SIZES[1] + (SIZES[1] + 1) * SIZES[2]) * FLOAT;
/// Both layers, the rectifier, the product with the target, and its sum.
const FORWARD: u64 = 2 * HIDDEN + 2 * OUTPUT + SCALAR;
/// Gradients of the sum, the output and both hidden tensors.
const BACKWARD: u64 = SCALAR + OUTPUT + 2 * HIDDEN;

/// The end of a backward pass on the CPU shows in no event.
#[test]
#[ignore = "long: cargo xtask test --all"]
fn gradients_on_the_cpu_are_known_by_the_sizes_of_the_parameters_or_unknown() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for is_late in [false, true] {
        let manner = Manner {
            is_late,
            is_named: false,
        };
        let options = ["--own-optimizer", "--device", "cpu"];
        let run = Recorded::new(&environment, &options, manner);
        for row in run.last_iterations() {
            assert_eq!(row["backward_passes"], 1, "{manner:?}: {row:#}");
            // All gradients are live at the peak: those of the first layer come last.
            let [gradients, unknown] = ["gradient", "unknown"].map(|key| &row[key]);
            if is_late {
                assert_eq!(*gradients, 0, "{row:#}");
                assert!(unknown.as_u64() >= Some(GRADIENTS), "{row:#}");
                assert_eq!(row["intermediate_gradient"], 0, "{row:#}");
            } else {
                assert!(
                    gradients.as_u64() >= Some(GRADIENTS - SIZES[1] * FLOAT),
                    "{row:#}"
                );
                assert!(gradients.as_u64() <= Some(GRADIENTS), "{row:#}");
            }
        }
        let (gradients, others) = if is_late {
            (0, GRADIENTS)
        } else {
            (GRADIENTS, 0)
        };
        for (key, expected) in [
            ("own_gradients", gradients),
            ("own_forward", FORWARD),
            ("own_backward", BACKWARD + others),
        ] {
            assert_eq!(run.size(key), expected, "{key} {manner:?}");
        }
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn an_optimizer_of_the_program_leaves_gradients_and_iterations_known() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for manner in MANNERS {
        let run = Recorded::new(&environment, &["--own-optimizer"], manner);
        let last = run.last_iterations();
        for row in &last {
            assert_eq!(row["backward_passes"], 1, "{manner:?}: {row:#}");
        }
        let numbers = last.last().and_then(|row| row["iteration"].as_u64());
        // The last one is open: no forward pass followed it.
        if !manner.is_late {
            assert_eq!(numbers, Some(run.iterations - 1), "{manner:?}");
        }
        for (key, expected) in [
            ("own_gradients", GRADIENTS),
            ("own_forward", FORWARD),
            ("own_backward", BACKWARD),
        ] {
            assert_eq!(run.size(key), expected, "{key} {manner:?}");
        }
        println!("{manner:?}: gradients {GRADIENTS}, forward {FORWARD}, backward {BACKWARD}");
    }
}

//! Compares the categories of each workload with the process's own account, recorded from its start
//! and attached to late, and prints the shares, a JSON object a line. `cargo xtask categories` runs this program.

use std::process::ExitCode;

use memprobe_test_results::purpose_runs::PurposeRun;
use memprobe_test_results::purposes::{Purposes, Share};
use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::pytorch::PyTorch;
use serde_json::{Map, Value, json};

struct Workload {
    name: &'static str,
    /// Arguments of `purposes.py`, or `compiled.py` with its own.
    script: &'static [&'static str],
    /// Options of `record`.
    options: &'static [&'static str],
    /// Release of PyTorch; `None` for the one of most tests.
    torch: Option<&'static str>,
    /// Calls of the model before memprobe attaches late; `None` if it does not.
    late: Option<u32>,
}

const PHASES: &[&str] = &["--profile", "phases.py"];
const LINES: &[&str] = &["--detail", "lines"];

const fn workload(
    name: &'static str,
    script: &'static [&'static str],
    options: &'static [&'static str],
    late: u32,
) -> Workload {
    Workload {
        name,
        script,
        options,
        torch: None,
        late: Some(late),
    }
}

const fn on_torch_2_6(workload: Workload) -> Workload {
    Workload {
        torch: Some("2.6.0"),
        ..workload
    }
}

const WORKLOADS: &[Workload] = &[
    workload(
        "batches, a checkpoint, accumulated gradients, evaluation",
        PHASES,
        &[],
        5,
    ),
    workload("the same", PHASES, LINES, 5),
    on_torch_2_6(workload("the same", PHASES, &[], 5)),
    workload(
        "two networks with an optimizer each",
        &["--profile", "phases.py", "--part", "gan"],
        &[],
        6,
    ),
    workload(
        "the same",
        &["--profile", "phases.py", "--part", "gan"],
        LINES,
        6,
    ),
    on_torch_2_6(workload(
        "the same",
        &["--profile", "phases.py", "--part", "gan"],
        LINES,
        6,
    )),
    workload(
        "convolutional network with momentum",
        &["convnet.py"],
        &[],
        3,
    ),
    workload("the same", &["convnet.py"], LINES, 3),
    workload(
        "transformer in bfloat16, with clipped gradients",
        &["--profile", "transformer.py"],
        &[],
        2,
    ),
    workload(
        "transformer with dropout",
        &[
            "estimated.py",
            "transformer",
            "--device",
            "cuda",
            "--steps",
            "6",
        ],
        &[],
        2,
    ),
    workload(
        "small GPT that leaks a graph now and then",
        &["demo_train.py", "--steps", "60"],
        &[],
        20,
    ),
    workload("recurrent net that keeps its losses", &["leak.py"], &[], 10),
    workload(
        "the same without the leak",
        &["leak.py", "--detach"],
        &[],
        10,
    ),
    workload("server without an optimizer", &["serve.py"], &[], 50),
    workload(
        "server that generates words with a cache",
        &["generate.py"],
        &[],
        40,
    ),
    Workload {
        late: None,
        ..workload(
            "compiled by inductor, on the CPU",
            &["compiled.py", "--backend", "inductor", "--device", "cpu"],
            &[],
            0,
        )
    },
    Workload {
        late: None,
        ..workload(
            "the loss compiled too, to operators on the GPU",
            &[
                "compiled.py",
                "--backend",
                "aot_eager",
                "--device",
                "cuda",
                "--whole",
            ],
            &[],
            0,
        )
    },
];

fn main() -> ExitCode {
    let Some(environment) = TestEnvironment::take() else {
        return ExitCode::FAILURE;
    };
    for workload in WORKLOADS {
        match row(&environment, workload) {
            Some(row) => println!("{row}"),
            None => eprintln!("SKIPPED: {}", workload.name),
        }
    }
    ExitCode::SUCCESS
}

/// Returns the shares of a workload; `None` if it cannot run here.
fn row(environment: &TestEnvironment, workload: &Workload) -> Option<Value> {
    let pytorch = match workload.torch {
        None => environment.pytorch(),
        Some(release) => {
            let mut each = environment.pytorches.iter();
            each.find(|pytorch| pytorch.release() == release)?
        }
    };
    let from_start = from_start(environment, pytorch, workload)?;
    let late = workload.late.map(|calls| {
        let Workload {
            script, options, ..
        } = workload;
        PurposeRun::late(environment, pytorch, options, calls, script)
    });
    let shares = |run: &PurposeRun| shares(&run.compare());
    eprintln!("compared: {}", workload.name);
    Some(json!({
        "workload": workload.name,
        "script": workload.script.join(" "),
        "options": workload.options.join(" "),
        "torch": pytorch.release(),
        "from_start": shares(&from_start),
        "late": late.as_ref().map(shares),
    }))
}

fn from_start(
    environment: &TestEnvironment,
    pytorch: &PyTorch,
    workload: &Workload,
) -> Option<PurposeRun> {
    let Workload {
        script, options, ..
    } = workload;
    match script.first() {
        Some(&"compiled.py") => PurposeRun::compiled(environment, pytorch, script),
        _ => Some(PurposeRun::of(environment, pytorch, options, script)),
    }
}

/// Right, unknown and wrong bytes by true purpose, and of all tensors.
fn shares(purposes: &Purposes) -> Value {
    let bytes = |share: &Share| json!([share.right, share.unknown, share.wrong]);
    let each = purposes.shares.iter();
    let mut shares: Map<_, _> = each
        .map(|(truth, share)| (truth.clone(), bytes(share)))
        .collect();
    shares.insert("Tensors".to_owned(), bytes(&purposes.of_tensors()));
    shares.into()
}

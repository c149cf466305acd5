//! Runs one cell of the matrix: records a workload on one PyTorch from both sides and compares.
//!
//! `MEMPROBE_TEST_PYTHON` names the PyTorch, `MEMPROBE_BIN` the memprobe, the argument the
//! workload. `--list` prints the names of the workloads. After `--frameworks` both are of the programs
//! of frameworks. `cargo xtask matrix` runs this program.

use std::process::ExitCode;

use serde_json::json;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::frameworks::{FRAMEWORKS, Framework};
use memprobe_tests::gated_workload::BothSides;
use memprobe_tests::partial_recordings::PartialRecordings;
use memprobe_tests::queryable_target::attach_repeatedly;
use memprobe_tests::workloads::{WORKLOADS, Workload};

/// Workload that memprobe attaches to while it runs, unlike the recordings from the first
/// allocation.
const LATE_ATTACH: &str = "late attach";

/// Attaches per target: a training loop whose every event is compared, and threads whose every
/// block is.
const ATTACHED: usize = 5;

fn main() -> ExitCode {
    let asked = std::env::args().nth(1).unwrap_or_default();
    if asked == "--frameworks" {
        return framework(&std::env::args().nth(2).unwrap_or_default());
    }
    if asked == "--list" {
        for workload in WORKLOADS {
            println!("{}", workload.name);
        }
        println!("{LATE_ATTACH}");
        return ExitCode::SUCCESS;
    }
    let workload = Workload::named(&asked);
    if workload.is_none() && asked != LATE_ATTACH {
        eprintln!("there is no workload {asked:?}: --list names them");
        return ExitCode::FAILURE;
    }
    let Some(environment) = TestEnvironment::take() else {
        return ExitCode::FAILURE;
    };
    let outcome = match workload {
        Some(workload) => outcome(&environment, workload),
        None => late_attach(&environment),
    };
    println!("{outcome}");
    ExitCode::SUCCESS
}

/// Prints the outcome of a framework's program: `ran` with the comparison, or `failed`.
fn framework(asked: &str) -> ExitCode {
    if asked == "--list" {
        for framework in FRAMEWORKS {
            println!("{}", framework.name);
        }
        return ExitCode::SUCCESS;
    }
    let Some(framework) = Framework::named(asked) else {
        eprintln!("there is no framework {asked:?}: --frameworks --list names them");
        return ExitCode::FAILURE;
    };
    let Some(environment) = TestEnvironment::take() else {
        return ExitCode::FAILURE;
    };
    let outcome = match framework.compare(&environment, environment.pytorch()) {
        Ok(comparison) => {
            let mut outcome = json!(comparison);
            outcome["outcome"] = json!("ran");
            outcome
        }
        Err(words) => json!({ "outcome": "failed", "words": words }),
    };
    println!("{outcome}");
    ExitCode::SUCCESS
}

/// Returns the outcome of late attach, in the form of [`outcome`]. Of the threads on two devices the
/// blocks of one moment are compared; their events lead there and are `counted` apart.
fn late_attach(environment: &TestEnvironment) -> serde_json::Value {
    let pytorch = environment.pytorch();
    let recordings = match PartialRecordings::take(environment, pytorch, ATTACHED) {
        Ok(recordings) => recordings,
        Err(words) => return json!({ "outcome": "refused", "words": words }),
    };
    let python = &recordings.reference.python;
    let settings = [("CUDASIM_DEVICES", "2"), ("CUDASIM_EVENT_US", "500")];
    let compared = recordings.compare().and_then(|compared| {
        if compared.checkpoints == 0 {
            return Err("no checkpoint fell into any of the recordings".to_owned());
        }
        let (_, events) = attach_repeatedly(environment, pytorch, ATTACHED, &settings)?;
        Ok((compared, events))
    });
    match compared {
        Ok((compared, events)) => json!({
            "outcome": "exact",
            "events": compared.events,
            "counted": events,
            "stacks": compared.stacks,
            "backward": compared.backward,
            "checkpoints": compared.checkpoints + ATTACHED,
            "python": python,
        }),
        Err(words) => json!({ "outcome": "differs", "words": words, "python": python }),
    }
}

/// Returns the outcome as a JSON object whose `outcome` is `exact`, `refused` or `differs`.
fn outcome(environment: &TestEnvironment, workload: &Workload) -> serde_json::Value {
    let pytorch = environment.pytorch();
    let both = match BothSides::attempt(environment, pytorch, workload.command, workload.settings) {
        Ok(both) => both,
        Err(words) => return json!({ "outcome": "refused", "words": words }),
    };
    let mut agreement = both.compare();
    if agreement.differences.is_empty() {
        let missing = workload
            .least
            .missing(&both, agreement.stacks, agreement.backward);
        agreement.differences.extend(missing);
    }
    match agreement.differences.first() {
        Some(first) => json!({
            "outcome": "differs",
            "words": first,
            "python": both.reference.python,
        }),
        None => json!({
            "outcome": "exact",
            "events": agreement.events,
            "stacks": agreement.stacks,
            "backward": agreement.backward,
            "checkpoints": both.reference.checkpoints.len(),
            "python": both.reference.python,
        }),
    }
}

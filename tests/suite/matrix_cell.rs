//! One cell of the matrix: a workload on one PyTorch, recorded from both sides and compared.
//!
//! `MEMPROBE_TEST_PYTHON` names the PyTorch, `MEMPROBE_BIN` the memprobe, the argument the workload;
//! with `--list` the names of the workloads are printed. `cargo xtask matrix` runs it.

use std::process::ExitCode;

use serde_json::json;

use memprobe_tests::ground::Ground;
use memprobe_tests::rehearsal::BothSides;
use memprobe_tests::workloads::{WORKLOADS, Workload};

fn main() -> ExitCode {
    let asked = std::env::args().nth(1).unwrap_or_default();
    if asked == "--list" {
        for workload in WORKLOADS {
            println!("{}", workload.name);
        }
        return ExitCode::SUCCESS;
    }
    let Some(workload) = Workload::named(&asked) else {
        eprintln!("there is no workload {asked:?}: --list names them");
        return ExitCode::FAILURE;
    };
    let Some(ground) = Ground::take() else {
        return ExitCode::FAILURE;
    };
    println!("{}", outcome(&ground, workload));
    ExitCode::SUCCESS
}

/// What came of it, as an object of JSON whose `outcome` is `exact`, `refused` or `differs`.
fn outcome(ground: &Ground, workload: &Workload) -> serde_json::Value {
    let pytorch = ground.pytorch();
    let both = match BothSides::attempt(ground, pytorch, workload.command, workload.settings) {
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

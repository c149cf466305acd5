//! Reports of PyTorch's own memory snapshots, against PyTorch's figures and memprobe's recording of the same run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use memprobe_tests::agreement::{Agreement, history};
use memprobe_tests::environment::{On, TestEnvironment};
use memprobe_tests::ledger::Ledger;
use memprobe_tests::process::Background;
use memprobe_tests::pytorch::PyTorch;
use memprobe_tests::reference::Reference;
use memprobe_tests::workloads::Workload;
use serde_json::Value;
use tempfile::TempDir;

/// A workload that PyTorch has recorded.
struct Recorded {
    folder: TempDir,
    reference: Reference,
}

impl Recorded {
    fn run(pytorch: &PyTorch, workload: &Workload) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let mut command = pytorch.command();
        command
            .args(["reference.py", "--out"])
            .arg(path("ref.json"));
        command.arg("--pickle").arg(path("snapshot.pickle"));
        command.envs(workload.settings.iter().copied());
        command.args(workload.command);
        Background::start(&mut command).finish().succeeded();
        let reference = Reference::read(&path("ref.json")).expect("the reference");
        Self { folder, reference }
    }

    fn pickle(&self) -> PathBuf {
        self.folder.path().join("snapshot.pickle")
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn every_event_of_a_pickled_history_is_pytorchs_own() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in environment.pytorches_on(On::Each) {
        for name in ["perceptron", "out of memory", "two devices"] {
            let workload = Workload::named(name).expect("a workload");
            let recorded = Recorded::run(pytorch, workload);
            let events = environment.events(&recorded.pickle());
            let reference = &recorded.reference;
            let mut agreement = Agreement::on(&reference.torch);
            let mut compared = 0;
            for device in &reference.devices {
                let of_device = events
                    .iter()
                    .filter(|event| event.device == Some(device.device));
                let ours: Vec<_> = of_device.collect();
                // PyTorch's recorder has no name of a thread, so stacks of threads without Python are left out.
                let theirs = history(device);
                assert_eq!(theirs.len(), ours.len(), "{name} on {}", reference.torch);
                for (theirs, ours) in theirs.iter().zip(&ours) {
                    if theirs.frames.is_empty() && ours.no_stack.is_some() {
                        assert!(ours.stack.is_empty(), "{ours:?}");
                        continue;
                    }
                    agreement.compare(&[*theirs], &[*ours]);
                    compared += 1;
                }
            }
            assert_eq!(agreement.differences, Vec::<String>::new(), "{name}");
            assert!(compared > 20, "too little was compared: {compared}");
            let ledger = Ledger::of(&events).expect("sums that follow from the events");
            for end in &reference.r#final {
                let Some(last) = ledger.last(end.device) else {
                    assert_eq!(end.allocated, 0, "no event on device {}", end.device);
                    continue;
                };
                assert_eq!(
                    (last.allocated, last.reserved),
                    (end.allocated, end.reserved)
                );
            }
            println!("{name} on {}: {compared} events compared", reference.torch);
        }
    }
}

#[test]
fn the_history_and_a_recording_of_the_same_run_name_the_same_lines() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let pytorch = environment.pytorch();
    let folder = tempfile::tempdir().expect("a folder");
    let (recording, pickle) = (
        folder.path().join("trace.json"),
        folder.path().join("snapshot.pickle"),
    );
    let mut command = environment.memprobe();
    command
        .args(["record", "-q", "-o"])
        .arg(&recording)
        .arg("--");
    command
        .arg(pytorch.python())
        .args(["reference.py", "--out"]);
    command.arg(folder.path().join("ref.json"));
    command.arg("--pickle").arg(&pickle);
    command.args(["kept_lines.py"]);
    pytorch.settle(&mut command);
    Background::start(&mut command).finish().succeeded();
    let ours = allocations(&environment.report(&recording));
    let theirs = allocations(&environment.report(&pickle));
    assert!(ours.len() >= 3, "{ours:?}");
    assert_eq!(ours, theirs);
}

/// Returns allocations and peak bytes of each line of the workload. What is live at the end differs: the recording goes
/// on until Python has freed everything.
fn allocations(report: &Value) -> BTreeMap<(String, u64), [u64; 2]> {
    let devices = report["devices"].as_array().expect("devices").iter();
    let lines = devices.flat_map(|device| device["lines"].as_array().expect("lines"));
    let of_workload = lines.filter_map(|line| {
        let file = Path::new(line["file"].as_str()?).file_name()?.to_str()?;
        let figure = |key: &str| line[key].as_u64();
        let key = (file.to_owned(), figure("line")?);
        Some((key, [figure("allocs")?, figure("peak")?]))
    });
    of_workload.collect()
}

#[test]
fn a_pickle_of_something_else_and_a_cut_one_are_refused_with_advice() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("x.pickle");
    for (bytes, expected) in [
        (&b"\x80\x04\x95\x01"[..], "ends at byte"),
        (b"\x80\x04K\x01.", "not of PyTorch's memory"),
        (b"\x80\x02cposix\nsystem\n.", "executes nothing from a file"),
    ] {
        std::fs::write(&file, bytes).expect("written");
        let report = environment.run(&["report", file.to_str().expect("UTF-8")]);
        assert!(!report.status.success());
        assert!(report.stderr.contains(expected), "{}", report.stderr);
        assert!(
            report.stderr.contains("_dump_snapshot"),
            "{}",
            report.stderr
        );
    }
}

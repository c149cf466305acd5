//! Compares the module and the grad mode of every block with the process's own account.

use std::fs;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::events::Event;
use memprobe_tests::memprobe::lost;
use memprobe_tests::module_agreement::{ModuleAgreement, ModuleTruth};
use memprobe_tests::process::Background;
use memprobe_tests::pytorch::PyTorch;

/// True if a module lives for one step only, so that a later read may miss it.
fn is_made_and_dropped(path: &str) -> bool {
    path == "ReLU" || path.starts_with("Rebuilt")
}

#[test]
fn every_block_has_the_module_and_the_grad_mode_that_it_was_allocated_in() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in &environment.pytorches {
        let (truth, events) = record(&environment, pytorch);
        let agreement = ModuleAgreement::of(&truth, &events, is_made_and_dropped);
        println!(
            "modules.py  {}  {} blocks in modules, {} outside, {} without grad, {} unknown, and of modules that were \
             dropped at once {} unknown; {} differences",
            pytorch.python().display(),
            agreement.in_a_module,
            agreement.outside,
            agreement.without_grad,
            agreement.unknown,
            agreement.unknown_for_a_moment,
            agreement.differences.len()
        );
        let first = agreement.differences.first();
        assert!(
            first.is_none(),
            "{} differences, the first: {}",
            agreement.differences.len(),
            first.map_or("", |first| first)
        );
        assert!(agreement.in_a_module > 3_000, "{agreement:?}");
        assert!(agreement.outside > 300, "{agreement:?}");
        assert!(agreement.without_grad > 1_500, "{agreement:?}");
        // The first calls reveal the code object that calls modules; a few reads may coincide with
        // changes.
        let all = agreement.in_a_module + agreement.unknown;
        assert!(agreement.unknown * 100 <= all, "{agreement:?}");
    }
}

/// Records the workload from its first block to its end.
fn record(environment: &TestEnvironment, pytorch: &PyTorch) -> (ModuleTruth, Vec<Event>) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name| folder.path().join(name);
    let (go, out, file) = (path("go"), path("marks.json"), path("trace.json"));
    let mut command = pytorch.command();
    command.arg("modules.py").arg("--go").arg(&go);
    command.arg("--out").arg(&out);
    let mut target = Background::start(&mut command);
    target.wait_for("PID ");
    let recording = environment.record(target.pid(), &file, &[]);
    fs::write(&go, "").expect("written");
    let printed = recording.finish();
    assert_eq!(lost(&printed.stderr), 0, "losses: {}", printed.stderr);
    target.finish().succeeded();
    let marks = fs::read_to_string(&out).expect("the workload has written it");
    let truth = serde_json::from_str(&marks).expect("marks");
    (truth, environment.events(&file))
}

//! Compares the module and the grad mode of every block with the process's own account.

use std::fs;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::events::Event;
use memprobe_tests::memprobe::lost;
use memprobe_tests::process::Background;
use memprobe_tests::pytorch::PyTorch;
use serde::Deserialize;

/// Output of `modules.py`.
#[derive(Deserialize)]
struct Reference {
    /// Marks: number of blocks allocated before, then the innermost module and the grad mode from
    /// there on.
    marks: Vec<(u64, Option<String>, String)>,
    /// Thread that calls modules.
    thread: u32,
}

impl Reference {
    /// Returns module and grad mode at the allocation of this block, counted from 1.
    fn at(&self, number: u64) -> (Option<&str>, &str) {
        let behind = self.marks.partition_point(|(blocks, ..)| *blocks < number);
        let (_, path, grad) = &self.marks[behind - 1];
        (path.as_deref(), grad)
    }
}

/// Result of the comparison.
#[derive(Debug, Default)]
struct Agreement {
    in_a_module: usize,
    outside: usize,
    /// Compared blocks with grad disabled or in inference mode.
    without_grad: usize,
    /// Blocks whose module memprobe reports as unknown: in permanent modules, and in modules that
    /// live for one step. memprobe must never report a wrong module.
    unknown: usize,
    unknown_for_a_moment: usize,
    differences: Vec<String>,
}

impl Agreement {
    fn of(reference: &Reference, events: &[Event]) -> Self {
        let mut agreement = Self::default();
        let allocated = events.iter().filter(|event| event.action == "alloc");
        for (number, event) in (1..).zip(allocated) {
            if event.tid == Some(reference.thread) && !event.stack.is_empty() {
                agreement.compare(number, event, reference.at(number));
            }
        }
        agreement
    }

    fn compare(&mut self, number: u64, event: &Event, (path, grad): (Option<&str>, &str)) {
        if event.grad.as_deref() != Some(grad) {
            let ours = &event.grad;
            self.differ(number, event, &format!("grad is {ours:?}, not {grad}"));
        }
        self.without_grad += usize::from(grad != "enabled");
        match path {
            _ if event.module_unknown == Some(true) && path.is_some() => {
                if is_made_and_dropped(path) {
                    self.unknown_for_a_moment += 1;
                } else {
                    self.unknown += 1;
                }
            }
            _ if event.module_unknown.is_some() || event.module.as_deref() != path => {
                let ours = &event.module;
                self.differ(number, event, &format!("in {ours:?}, not in {path:?}"));
            }
            Some(_) => self.in_a_module += 1,
            None => self.outside += 1,
        }
    }

    fn differ(&mut self, number: u64, event: &Event, what: &str) {
        self.differences
            .push(format!("block {number}: {what}: {:?}", event.stack));
    }
}

/// True if a module lives for one step only, so that a later read may miss it.
fn is_made_and_dropped(path: Option<&str>) -> bool {
    path.is_some_and(|path| path == "ReLU" || path.starts_with("Rebuilt"))
}

#[test]
fn every_block_has_the_module_and_the_grad_mode_that_it_was_allocated_in() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for pytorch in &environment.pytorches {
        let (reference, events) = record(&environment, pytorch);
        let agreement = Agreement::of(&reference, &events);
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
fn record(environment: &TestEnvironment, pytorch: &PyTorch) -> (Reference, Vec<Event>) {
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
    let reference = serde_json::from_str(&marks).expect("marks");
    (reference, environment.events(&file))
}

//! memprobe killed, run twice on one target, short of buffer space, or interrupted.

use std::collections::HashSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use memprobe_tests::bpf;
use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::events::Event;
use memprobe_tests::gated_workload::GatedWorkload;
use memprobe_tests::memprobe::lost;
use memprobe_tests::process::{Background, wait_until};
use memprobe_tests::pytorch::PyTorch;
use rustix::process::Signal;
use serde_json::Value;

/// Library whose code is probed for every block.
const ALLOCATOR: &str = "/libc10.so";

#[test]
fn memprobe_killed_while_it_records_leaves_the_target_running_and_no_probe_behind() {
    let Some(environment) = TestEnvironment::take_alone() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.json");
    let target = training(environment.pytorch());
    assert_eq!(
        bpf::patched_bytes(target.pid(), ALLOCATOR),
        0,
        "another program probes it"
    );

    let recording = environment.record(target.pid(), &file, &[]);
    let held = bpf::held_by(recording.memprobe.pid());
    assert!(held.iter().any(|(kind, _)| *kind == "prog_id"), "{held:?}");
    assert!(held.iter().any(|(kind, _)| *kind == "map_id"), "{held:?}");
    assert!(
        held.is_subset(&bpf::held_by_the_kernel()),
        "{held:?} are not listed"
    );
    assert!(
        bpf::patched_bytes(target.pid(), ALLOCATOR) > 0,
        "no breakpoint was found"
    );
    wait_until("events in the file", || {
        fs::metadata(&file)
            .is_ok_and(|there| there.len() > 1 << 20)
            .then_some(())
    });
    recording.memprobe.signal(Signal::KILL);
    recording.memprobe.finish();

    wait_until("the kernel lets go of all", || {
        held.is_disjoint(&bpf::held_by_the_kernel()).then_some(())
    });
    wait_until("the code is as it was", || {
        (bpf::patched_bytes(target.pid(), ALLOCATOR) == 0).then_some(())
    });
    let report = environment.report(&file);
    assert_eq!(report["truncated"], true);
    let events = environment.events(&file);
    // Blocks found at attach are listed, but are not events.
    let happened = events
        .iter()
        .filter(|event| event.action != "live_at_attach");
    assert_eq!(
        report["events"].as_u64(),
        u64::try_from(happened.count()).ok()
    );
    assert!(report["events"].as_u64() > Some(100), "too little was kept");
    assert_goes_on(&environment, target);
}

/// Asserts that the target still trains, and can be recorded again.
fn assert_goes_on(environment: &TestEnvironment, mut target: Background) {
    assert!(!target.has_ended());
    let folder = tempfile::tempdir().expect("a folder");
    let again = folder.path().join("again.json");
    environment
        .record(target.pid(), &again, &["--duration", "500ms"])
        .finish();
    assert!(
        !environment.events(&again).is_empty(),
        "the target allocates no more"
    );
    assert!(!target.has_ended());
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn two_memprobes_on_one_target_agree() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let pytorch = environment.pytorch();
    let folder = tempfile::tempdir().expect("a folder");
    let (first, second) = (folder.path().join("1.json"), folder.path().join("2.json"));
    let until = folder.path().join("until");
    let words = [
        "steady.py",
        "--layers",
        "3",
        "--pause",
        "0.02",
        "--seconds",
        "600",
        "--until",
    ];
    let mut target = Background::start(pytorch.command().args(words).arg(&until));
    target.wait_for("PID ");
    let earlier = environment.record(target.pid(), &first, &[]);
    let later = environment.record(target.pid(), &second, &[]);
    std::thread::sleep(Duration::from_secs(1));
    fs::write(&until, "").expect("written");
    for recording in [earlier, later] {
        assert_eq!(lost(&recording.finish().stderr), 0);
    }
    let (earlier, later) = (environment.events(&first), environment.events(&second));
    assert!(later.len() > 100, "too little was seen by both");
    assert!(later.len() < earlier.len(), "the second came too early");
    // The second memprobe does not know of a backward() that started before it attached.
    let known = later
        .iter()
        .position(|event| !event.stack.is_empty())
        .expect("a stack");
    let overlap = &earlier[earlier.len() - later.len()..];
    let mut threads_seen = HashSet::new();
    for (at, (theirs, ours)) in overlap.iter().zip(&later).enumerate() {
        let is_first = ours.action == "alloc" && threads_seen.insert(ours.tid);
        if at < known {
            continue;
        }
        let mut theirs = timeless(theirs);
        // Right after attach, the tensor of a thread's first block is in doubt, and that there is none is of all blocks.
        if ours.tensor.is_none() {
            (theirs.tensor, theirs.inferred) = (None, None);
        }
        if is_first && ours.shape.is_none() {
            forget_shape(&mut theirs);
        }
        forget_what_is_unknown(&mut theirs, ours);
        assert_eq!(theirs, timeless(ours), "event {at} of {}", later.len());
    }
    println!("two memprobes agree on {} events", later.len() - known);
}

/// Ignores the tensor of a block.
fn forget_shape(event: &mut Event) {
    *event = Event {
        shape: None,
        more_dimensions: None,
        dtype: None,
        requested: None,
        ..event.clone()
    };
}

/// Ignores differences due to state that one memprobe cannot know right after attach.
fn forget_what_is_unknown(theirs: &mut Event, ours: &Event) {
    if ours.grad.is_none() {
        theirs.grad = None;
    }
    if ours.module_unknown == Some(true) {
        (theirs.module, theirs.module_unknown) = (None, Some(true));
    }
    match (&ours.node, &mut theirs.node) {
        (None, node) => *node = None,
        (Some(ours), Some(node)) if ours.forward.is_none() => node.forward = None,
        _ => {}
    }
}

/// Returns the event without its time, which differs between the probes of two memprobes.
fn timeless(event: &Event) -> Event {
    Event {
        time_ns: 0,
        ..event.clone()
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn losses_are_counted_and_shown_and_the_totals_are_right_again() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let workload = ["mlp_adam.py", "--steps", "200", "--hidden", "256"];
    let workload_run = GatedWorkload::prepare(environment.pytorch(), &workload, &[]);
    let file = workload_run.path("trace.json");
    let recording =
        environment.record(workload_run.target.pid(), &file, &["--buffer-size", "4096"]);
    workload_run.go();
    let printed = recording.finish();
    let (report, events) = (environment.report(&file), environment.events(&file));
    let text = environment
        .run(&["report", file.to_str().expect("UTF-8")])
        .succeeded();
    let reference = workload_run.finish();

    let number = |key: &str| {
        report[key]
            .as_u64()
            .unwrap_or_else(|| panic!("{key}: {report}"))
    };
    assert!(
        number("lost_events") > 0,
        "4 KiB were enough; the load is too small"
    );
    let all = number("lost_events") + number("lost_stacks") + number("malformed");
    assert_eq!(lost(&printed.stderr), all, "{}", printed.stderr);
    assert!(
        text.stdout.contains("lost"),
        "the report hides losses: {}",
        text.stdout
    );

    let happened: usize = [
        "alloc",
        "free_requested",
        "segment_alloc",
        "segment_free",
        "oom",
    ]
    .into_iter()
    .map(|action| reference.count(action))
    .sum();
    let seen = events.len() - late_segment_events(&events);
    let seen_and_lost = seen as u64 + number("lost_events");
    // The final `loss.item()` may request a pinned page from CUDA, which PyTorch does not record.
    let outside = seen_and_lost.checked_sub(happened as u64);
    assert!(
        matches!(outside, Some(0 | 1)),
        "seen and lost together are all that happened: {seen_and_lost} of {happened}"
    );
    let device = &report["devices"][0];
    assert_eq!(device["allocated"], reference.r#final[0].allocated);
    assert_eq!(device["reserved"], reference.r#final[0].reserved);
    println!("{} of {happened} events were lost", number("lost_events"));
}

/// Counts the events by which a CUDA allocation becomes a segment later, because the record of its first block was
/// lost: it ends, and the segment begins in its place. PyTorch records the segment once.
fn late_segment_events(events: &[Event]) -> usize {
    let becomes_segment = |pair: &&[Event]| {
        let [end, beginning] = pair else {
            return false;
        };
        (end.action.as_str(), beginning.action.as_str()) == ("cuda_free", "segment_alloc")
            && (end.time_ns, end.addr, end.size)
                == (beginning.time_ns, beginning.addr, beginning.size)
    };
    2 * events.windows(2).filter(becomes_segment).count()
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn control_c_and_a_polite_kill_end_a_recording_cleanly() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let mut target = training(environment.pytorch());
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let file = folder.path().join("trace.json");
        let recording = environment.record(target.pid(), &file, &[]);
        std::thread::sleep(Duration::from_millis(300));
        recording.memprobe.signal(signal);
        let printed = recording.finish();
        assert_eq!(lost(&printed.stderr), 0);
        assert!(
            printed.stderr.contains("memprobe report"),
            "the next step: {}",
            printed.stderr
        );
        assert_well_formed(&fs::read(&file).expect("the file"));
        assert_eq!(environment.report(&file)["truncated"], false);
        assert!(!target.has_ended(), "the target ended with memprobe");
    }
}

#[test]
fn a_recording_ends_after_its_duration() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.json");
    let mut target = training(environment.pytorch());
    environment
        .record(target.pid(), &file, &["--duration", "300ms"])
        .finish();
    assert_well_formed(&fs::read(&file).expect("the file"));
    let report = environment.report(&file);
    assert_eq!(report["end"], "duration over");
    assert!(
        report["duration_ns"].as_u64() >= Some(200_000_000),
        "{report}"
    );
    assert!(!target.has_ended());
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_recording_goes_to_standard_output_for_a_pipe() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let target = training(environment.pytorch());
    let pid = target.pid().to_string();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("recording");
    for format in ["json", "mprb"] {
        let memprobe = environment.memprobe();
        let mut command = Command::new("sh");
        // Not redirected into the file: the recording has to go through a pipe.
        command.args(["-c", "out=$1; shift; \"$@\" | cat > \"$out\"", "sh"]);
        command.arg(&file).arg(memprobe.get_program());
        command.args(["record", "-q", "-o", "-", "--format", format]);
        command.args(["--duration", "300ms", "--pid", &pid]);
        let printed = Background::start(&mut command).finish().succeeded();
        assert_eq!(printed.stderr, "");
        let recorded = fs::read(&file).expect("the file");
        match format {
            "json" => assert_well_formed(&recorded),
            _ => assert!(recorded.starts_with(b"\x89MPRB"), "{format}"),
        }
        let report = environment.report(&file);
        assert!(report["events"].as_u64() > Some(0), "{format}: {report}");
    }
}

#[test]
fn a_command_that_memprobe_started_gives_its_exit_status() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.json");
    let script = "import torch, sys; kept = torch.zeros(1000, device='cuda'); sys.exit(7)";
    let mut command = environment.memprobe();
    command.arg("record").arg("-o").arg(&file).arg("--");
    command
        .arg(environment.pytorch().python())
        .args(["-c", script]);
    let printed = Background::start(&mut command).finish();
    assert_eq!(printed.status.code(), Some(7), "{}", printed.stderr);
    assert_well_formed(&fs::read(&file).expect("the file"));
    let report = environment.report(&file);
    assert_eq!(report["end"], "target exited");
    assert_eq!(
        environment
            .events(&file)
            .iter()
            .filter(|event| event.action == "alloc")
            .count(),
        1
    );
}

#[test]
fn a_command_that_cannot_be_started_is_an_error() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let missing = ["record", "-o", "/dev/null", "--", "no-such-program"];
    let error = environment.run(&missing).one_clear_error();
    assert!(error.contains("no-such-program"), "{error}");
}

#[test]
fn a_command_that_never_uses_pytorch_is_an_error() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let python = environment.pytorch().python().to_str().expect("UTF-8");
    let finished = environment.run(&[
        "record",
        "-q",
        "-o",
        "/dev/null",
        "--",
        python,
        "-c",
        "pass",
    ]);
    let error = finished.one_clear_error();
    assert!(error.contains("PyTorch"), "{error}");
}

/// Asserts that the whole file is one JSON document, readable by Perfetto and Chrome.
fn assert_well_formed(trace: &[u8]) {
    let document: Value = serde_json::from_slice(trace).expect("well-formed JSON");
    let events = document.as_array().expect("a list of trace events");
    assert!(
        events.iter().all(|event| event["ph"].is_string()),
        "an event without a phase"
    );
}

/// Starts a training loop.
fn training(pytorch: &PyTorch) -> Background {
    let mut command: Command = pytorch.command();
    command.args(["steady.py", "--seconds", "600", "--layers", "4"]);
    let mut target = Background::start(&mut command);
    target.wait_for("PID ");
    target
}

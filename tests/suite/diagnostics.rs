//! Diagnostics of the kernel programs: `--log debug` and `doctor --verbose`.

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::gated_workload::GatedWorkload;
use memprobe_tests::process::{Background, Finished};
use serde_json::Value;

/// Allocates below a frame whose caller seems to be at an address that cannot be read: below `vm.mmap_min_addr`. The heap
/// of a Python that is no position-independent executable may have any other.
const CUT_STACK: &str = "\
import ctypes, sys, torch
torch.empty(1024, device='cuda')
def allocate():
    # PyFrameObject.f_frame, then _PyInterpreterFrame.previous (CPython 3.12 and later; 3.11).
    frame = ctypes.c_uint64.from_address(id(sys._getframe()) + 24).value
    previous = ctypes.c_uint64.from_address(frame + (8 if sys.version_info >= (3, 12) else 48))
    caller, previous.value = previous.value, 0x8000
    block = torch.empty(1 << 22, device='cuda')
    previous.value = caller
    return block
allocate()
";

/// Records a script of Python to its end.
fn record_script(environment: &TestEnvironment, options: &[&str], script: &str) -> Finished {
    let pytorch = environment.pytorch();
    let mut command = environment.memprobe();
    command.args(["record", "-o", "/dev/null"]).args(options);
    command.arg("--").arg(pytorch.python()).args(["-c", script]);
    pytorch.settle(&mut command);
    Background::start(&mut command).finish().succeeded()
}

#[test]
fn an_unreadable_frame_gives_a_line() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let line = "cannot read the frame at 8000";
    let printed = record_script(&environment, &["--log", "debug"], CUT_STACK).stderr;
    assert!(printed.contains(line), "{printed}");
    let silent = record_script(&environment, &[], CUT_STACK).stderr;
    assert!(!silent.contains(line), "{silent}");
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn dropped_records_give_lines_at_a_limited_rate() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let workload = ["mlp_adam.py", "--steps", "200", "--hidden", "256"];
    let run = GatedWorkload::prepare(environment.pytorch(), &workload, &[]);
    let pid = run.target.pid();
    let file = run.path("trace.json");
    let options = ["--buffer-size", "4096", "--log", "debug"];
    let recording = environment.record(pid, &file, &options);
    run.go();
    let printed = recording.finish().stderr;
    let report = environment.report(&file);
    run.finish();
    let lost = report["lost_events"].as_u64().expect("a number");
    let line = format!("dropped a memory record of process {pid}: the ring buffer is full");
    let lines = printed.matches(&line).count() as u64;
    assert!(0 < lines, "{lost} were lost: {printed}");
    assert!(lines < lost, "{lines} lines, {lost} were lost: {printed}");
}

#[test]
fn programs_without_diagnostics_are_shorter_for_the_verifier() {
    let Some(environment) = TestEnvironment::take_alone() else {
        return;
    };
    let doctor = |options: &[&str]| {
        let finished = environment.run(&[&["doctor", "--format", "json"], options].concat());
        let found: Value = serde_json::from_str(&finished.stdout).expect("JSON");
        let checks = found["machine"].as_array().expect("checks").clone();
        let programs = checks
            .into_iter()
            .find(|check| check["check"] == "programs");
        let followed = programs.expect("programs")["followed"].as_u64();
        (followed, finished.stderr)
    };
    let (silent, nothing) = doctor(&[]);
    let (verbose, lines) = doctor(&["--verbose"]);
    assert_eq!(nothing, "");
    assert!(lines.contains("its Python is unknown"), "{lines}");
    // Linux before 5.16 does not count them.
    if let (Some(silent), Some(verbose)) = (silent, verbose) {
        assert!(silent < verbose, "{silent} and {verbose}");
    }
}

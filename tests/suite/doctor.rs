//! Tests `memprobe doctor`, and the same messages from other subcommands that cannot work.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use memprobe_tests::confinement::NOBODY;
use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::{Background, Finished};
use serde_json::Value;

/// Runs its remaining arguments under a seccomp filter that refuses `bpf` and `perf_event_open` on
/// x86-64, as Docker's default does: `BPF_LD`, two `BPF_JEQ`, two `BPF_RET` (seccomp(2)).
const FILTERED: &str = "
import ctypes, os, struct, sys
code = [(0x20, 0, 0, 0), (0x15, 2, 0, 321), (0x15, 1, 0, 298), (0x06, 0, 0, 0x7fff0000),
        (0x06, 0, 0, 0x00050001)]
code = b''.join(struct.pack('HBBI', *one) for one in code)
filter = ctypes.create_string_buffer(code)
program = struct.pack('HxxxxxxQ', len(code) // 8, ctypes.addressof(filter))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
";

/// Parses the JSON output of `doctor`.
fn examination(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout)
        .unwrap_or_else(|error| panic!("{error}: {} {}", finished.stdout, finished.stderr))
}

/// Returns the machine finding of this check.
fn found<'a>(examination: &'a Value, check: &str) -> &'a Value {
    let findings = examination["machine"].as_array().expect("findings");
    let finding = findings.iter().find(|finding| finding["check"] == check);
    finding.unwrap_or_else(|| panic!("no finding {check}: {examination}"))
}

/// Runs a `doctor` command in an environment where memprobe cannot work; every failure must have a
/// remedy.
fn unfit(command: &mut Command) -> Value {
    let finished = Background::start(command).finish();
    assert_eq!(finished.status.code(), Some(2), "{}", finished.stderr);
    let examination = examination(&finished);
    assert_eq!(examination["fit"], false);
    for finding in examination["machine"].as_array().expect("findings") {
        let failed = finding["level"] == "fail";
        assert!(!failed || finding["remedy"].is_string(), "{finding}");
    }
    examination
}

#[test]
fn doctor_tries_a_probe_on_a_machine_that_can_run_it() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let finished = environment.run(&["doctor", "--format", "json"]).succeeded();
    let examination = examination(&finished);
    assert_eq!(examination["fit"], true);
    assert_eq!(examination["process"], Value::Null);
    let programs = &found(&examination, "programs")["facts"]["programs"];
    assert!(programs.as_u64() > Some(0), "{programs}");
    assert_eq!(found(&examination, "probe")["level"], "ok");
    let text = environment.run(&["doctor"]).succeeded().stdout;
    assert!(text.contains("memprobe can work here"), "{text}");
    assert!(!text.contains('\x1b'), "colours in a pipe: {text}");
}

#[test]
fn doctor_reports_a_process_that_does_not_exist() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let finished = environment.run(&["doctor", "--pid", "4194304"]);
    assert_eq!(finished.status.code(), Some(2));
    assert!(
        finished.stdout.contains("there is no process 4194304"),
        "{}",
        finished.stdout
    );
}

#[test]
fn doctor_names_the_libraries_that_a_process_has_not_loaded_yet() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let mut command = environment.pytorch().command();
    let wait = "print('up', flush=True); import time; time.sleep(600)";
    let mut target = Background::start(command.args(["-c", wait]));
    target.wait_for("up");
    let pid = target.pid().to_string();
    let text = environment
        .run(&["doctor", "--pid", &pid])
        .succeeded()
        .stdout;
    for words in ["not imported yet", "is not mapped yet", "can attach to"] {
        assert!(text.contains(words), "{words:?} is missing in: {text}");
    }
}

#[test]
fn without_root_every_verb_says_so() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let readable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), readable).expect("opened");
    let copy = folder.path().join("memprobe");
    std::fs::copy(&environment.memprobe, &copy).expect("copied");
    let nobody = |arguments: &[&str]| {
        let mut command = Command::new(&copy);
        command.args(arguments).uid(NOBODY).gid(NOBODY);
        command
    };
    let examination = unfit(&mut nobody(&["doctor", "--format", "json"]));
    assert_eq!(found(&examination, "capabilities")["level"], "fail");
    assert_eq!(found(&examination, "programs")["facts"]["errno"], 1);
    let mut attach = nobody(&["attach", "--pid", "1"]);
    let error = Background::start(&mut attach).finish().one_clear_error();
    assert!(
        error.contains("CAP_SYS_ADMIN") && error.contains("sudo"),
        "{error}"
    );
}

#[test]
fn in_a_pid_namespace_of_its_own_memprobe_says_where_to_run_it() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let within = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount", "--mount-proc"]);
        command.arg(&environment.memprobe).args(arguments);
        command
    };
    let examination = unfit(&mut within(&["doctor", "--format", "json"]));
    assert_eq!(found(&examination, "pid_namespace")["level"], "fail");
    let mut record = within(&["record", "-o", "/dev/null", "--pid", "1"]);
    let error = Background::start(&mut record).finish().one_clear_error();
    assert!(error.contains("--pid=host"), "{error}");
}

#[test]
fn in_a_user_namespace_of_its_own_memprobe_says_that_root_there_is_none() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user"])
        .arg(&environment.memprobe);
    let examination = unfit(command.args(["doctor", "--format", "json"]));
    assert_eq!(found(&examination, "user_namespace")["level"], "fail");
}

#[test]
fn under_a_filter_of_system_calls_memprobe_says_what_to_let_through() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let within = |arguments: &[&str]| {
        let mut command = Command::new(environment.pytorch().python());
        command.args(["-c", FILTERED]).arg(&environment.memprobe);
        command.args(arguments);
        command
    };
    let examination = unfit(&mut within(&["doctor", "--format", "json"]));
    assert_eq!(found(&examination, "seccomp")["facts"]["mode"], 2);
    let programs = found(&examination, "programs");
    assert_eq!(programs["facts"]["refused"], "map");
    let remedy = programs["remedy"].as_str().unwrap_or_default();
    assert!(remedy.contains("perf_event_open"), "{programs}");
    let pid = std::process::id().to_string();
    let mut record = within(&["record", "-o", "/dev/null", "--pid", &pid]);
    let error = Background::start(&mut record).finish().one_clear_error();
    assert!(error.contains("perf_event_open"), "{error}");
}

//! A program that the kernel's verifier refuses. Only debug builds load another object than their own, so this runs the
//! memprobe that cargo built with the test.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// BPF calls of the helper `bpf_get_current_pid_tgid` and of a helper that no kernel has.
const CALL: [u8; 8] = [0x85, 0, 0, 0, 14, 0, 0, 0];
const CALL_OF_NOTHING: [u8; 8] = [0x85, 0, 0, 0, 0xff, 0xff, 0, 0];

fn run(object: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memprobe"));
    command.env("MEMPROBE_BPF_OBJECT", object).args(arguments);
    command.output().expect("memprobe starts")
}

#[test]
fn a_program_that_the_verifier_refuses_is_named_and_its_log_goes_to_a_file() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: loading programs needs root");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let object = folder.path().join("broken.o");
    std::fs::write(&object, broken_object()).expect("written");
    let log = folder.path().join("verifier.log");
    let file = log.to_str().expect("UTF-8");
    let options = ["doctor", "--format", "json", "--verifier-log", file];
    let printed = run(&object, &options);
    assert_eq!(printed.status.code(), Some(2));
    let examination: Value = serde_json::from_slice(&printed.stdout).expect("JSON");
    assert_eq!(examination["fit"], false);
    let findings = examination["machine"].as_array().expect("findings");
    let programs = findings
        .iter()
        .find(|finding| finding["check"] == "programs");
    let programs = programs.expect("a finding");
    assert_eq!(programs["facts"]["refused"], "program");
    let log = std::fs::read_to_string(&log).expect("the log");
    assert!(log.contains("func"), "no log of the verifier: {log}");
    let last = log.lines().rev().find(|line| line.contains("func"));
    let last = last.expect("just found");
    assert!(!examination.to_string().contains(last), "{programs}");
    let pid = std::process::id().to_string();
    let record = run(&object, &["record", "-o", "/dev/null", "--pid", &pid]);
    let error = String::from_utf8(record.stderr).expect("UTF-8");
    assert_eq!(record.status.code(), Some(2), "{error}");
    assert!(error.contains("--verifier-log"), "{error}");
    assert!(!error.contains(last), "{error}");
}

/// Returns memprobe's object with each call of `bpf_get_current_pid_tgid` replaced by an unknown helper. The
/// first alone may be in diagnostics, which the verifier removes.
fn broken_object() -> Vec<u8> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("object/memprobe.bpf.o");
    let mut object = std::fs::read(built).expect("the built programs");
    let calls = object
        .chunks_exact_mut(8)
        .filter(|instruction| **instruction == CALL);
    let mut replaced = 0;
    for call in calls {
        call.copy_from_slice(&CALL_OF_NOTHING);
        replaced += 1;
    }
    assert!(replaced > 0, "no program asks who runs it");
    object
}

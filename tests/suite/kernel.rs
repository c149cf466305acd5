//! Tests memprobe on the running kernel.

use std::fs;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::Background;
use serde_json::Value;

/// Oldest supported kernel, as documented in the README.
const OLDEST: (u32, u32) = (5, 15);

#[test]
fn a_kernel_that_is_too_old_is_refused_with_words() {
    let Some(environment) = TestEnvironment::take_alone() else {
        return;
    };
    let release = release();
    if !is_too_old(&release) {
        println!("skipped: {release} is not too old");
        return;
    }
    let mut command = environment.pytorch().command();
    let waits = "import time; print('up', flush=True); time.sleep(600)";
    let mut target = Background::start(command.args(["-c", waits]));
    target.wait_for("up");
    let pid = target.pid().to_string();
    for verb in [&["record", "-o", "/dev/null"][..], &["attach"]] {
        let error = environment
            .run(&[verb, &["--pid", &pid]].concat())
            .one_clear_error();
        for words in [release.as_str(), "needs Linux 5.15 or newer"] {
            assert!(error.contains(words), "{words:?} is not in: {error}");
        }
        println!("{}: {}", verb[0], error.replace('\n', " "));
    }
    assert!(!target.has_ended());
    let (doctor, status) = doctor(&environment);
    assert_eq!(status, Some(2), "{doctor}");
    assert_eq!(check(&doctor, "kernel")["level"], "fail", "{doctor}");
}

#[test]
fn every_program_passes_the_verifier_and_a_probe_fires() {
    let Some(environment) = TestEnvironment::take_alone() else {
        return;
    };
    let release = release();
    if is_too_old(&release) {
        println!("skipped: {release} is too old");
        return;
    }
    let (doctor, status) = doctor(&environment);
    assert_eq!(
        status,
        Some(0),
        "{doctor}\n{}",
        end_of_verifiers_log(&environment)
    );
    for name in ["programs", "modules", "probe"] {
        let check = check(&doctor, name);
        assert_eq!(check["level"], "ok", "{check}");
        println!(
            "Linux {release}: {name}: {}",
            check["found"].as_str().expect("words")
        );
    }
}

/// Returns the output of `doctor` and its exit status.
fn doctor(environment: &TestEnvironment) -> (Value, Option<i32>) {
    let finished = environment.run(&["doctor", "--format", "json"]);
    let found = serde_json::from_str(&finished.stdout);
    let found = found.unwrap_or_else(|error| panic!("{error}: {finished:?}"));
    (found, finished.status.code())
}

/// Returns a machine check of `doctor`.
fn check<'a>(doctor: &'a Value, name: &str) -> &'a Value {
    let checks = doctor["machine"].as_array().expect("checks");
    let found = checks.iter().find(|check| check["check"] == name);
    found.unwrap_or_else(|| panic!("no {name}: {doctor}"))
}

/// Returns the kernel's release name.
fn release() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    release.trim().to_owned()
}

fn is_too_old(release: &str) -> bool {
    let mut numbers = release.split(['.', '-']).map(|part| part.parse().ok());
    let version = (numbers.next().flatten(), numbers.next().flatten());
    version < (Some(OLDEST.0), Some(OLDEST.1))
}

/// Returns the end of the verifier's log for a rejected program.
fn end_of_verifiers_log(environment: &TestEnvironment) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("log");
    environment.run(&["doctor", "--verifier-log", &file.to_string_lossy()]);
    let log = std::fs::read_to_string(&file).unwrap_or_default();
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}

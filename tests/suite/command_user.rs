//! Commands that memprobe starts run as the user who called sudo.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Command;

use memprobe_tests::confinement::{NOBODY, readable_by_all, with_sudo};
use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::events::Event;
use memprobe_tests::memprobe::PATIENT;
use memprobe_tests::process::{Background, Finished};

/// Prints the identity of a program and its environment, and ends with status 7.
const IDENTITY: &str =
    "grep -E '^(Uid|Gid|Groups|CapEff|CapPrm|CapAmb):' /proc/self/status; env; exit 7";

/// Runs a command with each verb that starts one, as `nobody` does with sudo.
fn run(environment: &TestEnvironment, options: &[&str], script: &str) -> [Finished; 2] {
    [&["record", "-o", "/dev/null"][..], &["estimate"]].map(|verb| {
        let mut command = with_sudo(environment);
        command.args(verb).args(options);
        command.args(["--", "sh", "-c", script]);
        command.env("HOME", "/root").env("KEPT", "by sudo");
        Background::start(&mut command).finish()
    })
}

#[test]
fn a_command_has_the_user_and_groups_and_home_of_the_caller() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    let [recorded, estimated] = run(&environment, &[], IDENTITY);
    assert_eq!(estimated.status.code(), Some(7), "{}", estimated.stderr);
    for printed in [recorded.stdout, estimated.stdout] {
        let ids = format!("{NOBODY}\t{NOBODY}\t{NOBODY}\t{NOBODY}");
        for line in [
            format!("Uid:\t{ids}"),
            format!("Gid:\t{ids}"),
            format!("Groups:\t{NOBODY} "),
            "CapEff:\t0000000000000000".to_owned(),
            "CapPrm:\t0000000000000000".to_owned(),
            "CapAmb:\t0000000000000000".to_owned(),
            "HOME=/nonexistent".to_owned(),
            "USER=nobody".to_owned(),
            "LOGNAME=nobody".to_owned(),
            "KEPT=by sudo".to_owned(),
        ] {
            let found = printed.lines().any(|printed| printed == line);
            assert!(found, "{line:?} is missing in:\n{printed}");
        }
        assert!(!printed.contains("SUDO_"), "{printed}");
    }
}

#[test]
fn a_command_runs_as_root_if_asked_for() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    for finished in run(&environment, &["--as-root"], IDENTITY) {
        assert!(finished.stdout.contains("Uid:\t0\t0\t0\t0"), "{finished:?}");
    }
}

#[test]
fn a_caller_who_does_not_exist_starts_nothing() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("opened");
    let started = folder.path().join("started");
    for (variable, value) in [
        ("SUDO_UID", "4294967295"),
        ("SUDO_UID", "-1"),
        ("SUDO_UID", "65534x"),
        ("SUDO_GID", "0"),
        ("SUDO_USER", "root"),
        ("SUDO_USER", "nobody of this name"),
    ] {
        for verb in [&["record", "-o", "-"][..], &["estimate"]] {
            let mut command = with_sudo(&environment);
            command.env(variable, value).args(verb);
            command.arg("--").arg("touch").arg(&started);
            let error = Background::start(&mut command).finish().one_clear_error();
            assert!(
                error.contains(variable) || error.contains("SUDO_UID"),
                "{error}"
            );
            assert!(error.contains("env -u SUDO_UID"), "{error}");
        }
    }
    assert!(!started.exists(), "the command was started");
}

#[test]
fn a_program_that_the_caller_may_not_run_is_an_error_with_what_to_do() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("program");
    fs::copy("/bin/true", &program).expect("copied");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).expect("closed");
    let mut command = with_sudo(&environment);
    command
        .args(["record", "-o", "/dev/null", "--"])
        .arg(program);
    let error = Background::start(&mut command).finish().one_clear_error();
    assert!(
        error.contains("as nobody") && error.contains("--as-root"),
        "{error}"
    );
}

/// A training step that ends with status 3, on the simulated CUDA. It sleeps until its blocks have names even where
/// both processors are busy.
const SCRIPT: &str = "
import os, sys, time, torch
assert os.getuid() == 65534, os.getuid()
model = torch.nn.Linear(256, 256, device='cuda')
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    model(torch.ones(64, 256, device='cuda')).sum().backward()
    optimizer.step()
kept = torch.zeros(1 << 20, device='cuda')
time.sleep(6)
sys.exit(3)
";

#[test]
fn a_pytorch_program_of_the_caller_is_recorded_from_its_first_allocation() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let pytorch = environment.pytorch();
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).expect("opened");
    let file = folder.path().join("trace.json");
    let mut command = with_sudo(&environment);
    command
        .args(["record", "--names"])
        .args(PATIENT)
        .arg("-o")
        .arg(&file)
        .arg("--");
    command.arg(pytorch.python()).args(["-c", SCRIPT]);
    let mut command: Command = readable_by_all(pytorch, &command);
    pytorch.settle(&mut command);
    let finished = Background::start(&mut command).finish();
    assert_eq!(finished.status.code(), Some(3), "{}", finished.stderr);
    assert_eq!(memprobe_tests::memprobe::lost(&finished.stderr), 0);
    assert!(
        finished.stderr.contains("blocks named"),
        "{}",
        finished.stderr
    );
    assert_eq!(fs::metadata(&file).expect("written").uid(), NOBODY);
    let events = environment.events(&file);
    let allocated = events.iter().filter(|event| event.action == "alloc");
    let lines: std::collections::BTreeSet<_> = allocated
        .filter_map(|event| event.stack.first().map(|frame| frame.line))
        .collect();
    assert!(lines.contains(&9), "the last line is missing: {lines:?}");
    let is_the_tensor = |event: &&_| matches!(event, Event { action, size: Some(0x40_0000), .. } if action == "alloc");
    let tensor = events.iter().find(is_the_tensor);
    assert_eq!(tensor.expect("it was allocated").stack[0].file, "<string>");
}

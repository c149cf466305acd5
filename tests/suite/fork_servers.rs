//! Workloads that `fork_server.py` starts are the programs that were asked for.

use std::process::Command;

use memprobe_tests::environment::{On, TestEnvironment};
use memprobe_tests::fork_server;
use memprobe_tests::process::{Background, wait_until};
use memprobe_tests::pytorch::PyTorch;
use rustix::process::Signal;
use serde_json::Value;

/// Returns the environment of a test of the servers; without them, prints why it is skipped.
fn with_servers() -> Option<TestEnvironment> {
    if !fork_server::are_here() {
        println!("skipped: no fork server runs; run `cargo xtask test --only fork_servers`");
        return None;
    }
    TestEnvironment::take()
}

/// A program that prints what it sees of its start.
fn program(pytorch: &PyTorch, status: &str) -> Command {
    let mut command = pytorch.command();
    command.args(["-W", "ignore", "start_facts.py", status]);
    command.args(["--an-option", "ünïcode"]);
    command.env("CUDASIM_MEMORY", "3g");
    command
}

/// Starts a program by the server of its Python.
fn start(pytorch: &PyTorch, command: &mut Command) -> Background {
    wait_until("the server of this Python", || {
        fork_server::has_server(pytorch.python()).then_some(())
    });
    Background::start(command)
}

fn forked(pytorch: &PyTorch, status: &str) -> Background {
    start(pytorch, &mut program(pytorch, status))
}

/// Starts a program that runs until it is ended.
fn held(pytorch: &PyTorch) -> Background {
    start(pytorch, pytorch.command().args(["hold.py", "--mib", "1"]))
}

fn json(stdout: &[u8]) -> Value {
    serde_json::from_slice(stdout).expect("JSON")
}

#[test]
fn a_forked_program_sees_the_start_that_it_would_have_had_alone() {
    let Some(environment) = with_servers() else {
        return;
    };
    for pytorch in environment.pytorches_on(On::Each) {
        let alone = program(pytorch, "0").output().expect("it starts");
        let alone = json(&alone.stdout);
        let printed = forked(pytorch, "0").finish().succeeded();
        let forked = json(printed.stdout.as_bytes());
        assert_eq!(forked["facts"], alone["facts"]);
        assert_eq!(printed.stderr, "the end\n");
        let own = std::process::id();
        assert_eq!(alone["parent"], own);
        assert_ne!(forked["parent"], own, "it was not forked by a server");
    }
}

#[test]
fn the_end_of_a_forked_program_is_reported_as_its_parent_sees_it() {
    let Some(environment) = with_servers() else {
        return;
    };
    let pytorch = environment.pytorch();
    assert_eq!(forked(pytorch, "7").finish().status.code(), Some(7));
    let mut held = held(pytorch);
    held.wait_for("READY");
    assert!(!held.has_ended());
    held.signal(Signal::TERM);
    let status = held.finish().status;
    assert!(!status.success() && status.code().is_none(), "{status}");
}

#[test]
fn a_forked_program_ends_with_its_test() {
    let Some(environment) = with_servers() else {
        return;
    };
    let mut held = held(environment.pytorch());
    held.wait_for("READY");
    let process = std::path::PathBuf::from(format!("/proc/{}", held.pid()));
    assert!(process.exists());
    drop(held);
    assert!(!process.exists());
}

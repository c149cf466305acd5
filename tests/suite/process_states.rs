//! Processes that run no code: stopped by a signal, ending, or waiting for their parent.

use std::fs;
use std::process::Command;

use memprobe_tests::environment::{On, TestEnvironment};
use memprobe_tests::process::{Background, wait_until};
use memprobe_tests::pytorch::PyTorch;
use memprobe_tests::terminal::Terminal;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// Number of `pause(2)`, in which an ending process waits.
const PAUSE: &str = "34 ";

fn holding(pytorch: &PyTorch) -> Background {
    let mut target = Background::start(pytorch.command().arg("hold.py"));
    target.wait_for("READY");
    target
}

fn stop(target: &Background) {
    target.signal(Signal::STOP);
    let status = format!("/proc/{}/status", target.pid());
    wait_until("it has stopped", || {
        let status = fs::read_to_string(&status).expect("a process");
        status.contains("State:\tT").then_some(())
    });
}

/// Text that says that a process is stopped, and how it goes on.
fn how_to_continue(target: &Background) -> String {
    format!("`kill -CONT {}`", target.pid())
}

#[test]
fn says_of_a_stopped_process_that_it_is_and_how_it_goes_on() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let target = holding(environment.pytorch());
    stop(&target);
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("trace.json");
    let mut recording = environment.record(target.pid(), &file, &[]);
    let said = recording.memprobe.wait_for(&how_to_continue(&target));
    assert!(
        said.contains("a signal (SIGSTOP, Ctrl-Z) has stopped PID"),
        "{said}"
    );
    assert!(
        !recording.memprobe.stderr().contains("runs on"),
        "it was never continued"
    );
    target.signal(Signal::CONT);
    recording
        .memprobe
        .wait_for(&format!("PID {} runs on", target.pid()));
    stop(&target);
    wait_until("it is said again", || {
        let said = recording.memprobe.stderr();
        (said.matches(&how_to_continue(&target)).count() == 2).then_some(())
    });
    let printed = recording.interrupt();
    assert!(!environment.events(&file).is_empty(), "{}", printed.stderr);
    let status = fs::read_to_string(format!("/proc/{}/status", target.pid()));
    assert!(
        status.expect("a process").contains("State:\tT"),
        "memprobe continued it"
    );
}

#[test]
fn shows_a_stopped_process_on_the_screens() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let target = holding(environment.pytorch());
    let pid = target.pid().to_string();
    stop(&target);
    let printed = environment
        .run(&["top", "--once", "--format", "json"])
        .succeeded();
    let document: Value = serde_json::from_str(&printed.stdout).expect("it is JSON");
    let rows = document["processes"].as_array().expect("rows");
    let row = rows
        .iter()
        .find(|row| row["pid"] == target.pid())
        .expect("its row");
    assert_eq!(row["state"], "stopped", "{row}");
    let reason = row["reason"].as_str().expect("a reason");
    assert!(reason.contains(&how_to_continue(&target)), "{reason}");
    let mut command = environment.memprobe();
    let mut terminal = Terminal::start(command.args(["attach", "--pid", &pid]));
    terminal.wait_for("STOPPED");
    terminal.wait_for(&format!("kill -CONT {pid}"));
    target.signal(Signal::CONT);
    terminal.wait_for("LIVE");
    terminal.press("q");
    terminal.finish_restored();
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn says_of_an_ending_process_that_it_ends() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("trace.json");
    for pytorch in environment.pytorches_on(On::Each) {
        for end in ["python", "exit"] {
            let target = ["-W", "ignore", "ending.py", "--at", end];
            let target = Background::start(pytorch.command().args(target));
            let syscall = format!("/proc/{}/syscall", target.pid());
            wait_until("it waits at its end", || {
                let call = fs::read_to_string(&syscall).unwrap_or_default();
                call.starts_with(PAUSE).then_some(())
            });
            let pid = target.pid().to_string();
            let file = file.to_str().expect("UTF-8");
            for arguments in [
                ["snapshot", "--pid", &pid].as_slice(),
                &["snapshot", "--nonblocking", "--pid", &pid],
                &["record", "-o", file, "--pid", &pid],
            ] {
                let error = environment.run(arguments).one_clear_error();
                assert!(
                    error.contains("it is ending"),
                    "{arguments:?} {end}: {error}"
                );
            }
        }
    }
}

#[test]
fn says_of_a_process_that_waits_for_its_parent_that_it_has_ended() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    let program = "import os, time\n\
                   child = os.fork()\n\
                   child or os._exit(0)\n\
                   print('CHILD', child, flush=True)\n\
                   time.sleep(600)";
    let mut parent = Background::start(Command::new("python3").args(["-c", program]));
    let said = parent.wait_for("CHILD");
    let pid = said.rsplit(' ').next().expect("a number");
    let stat = format!("/proc/{pid}/stat");
    wait_until("it has ended", || {
        let stat = fs::read_to_string(&stat).expect("its parent has not collected it");
        stat.contains(") Z ").then_some(())
    });
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("trace.json");
    let file = file.to_str().expect("UTF-8");
    for arguments in [
        ["snapshot", "--pid", pid].as_slice(),
        &["record", "-o", file, "--pid", pid],
        &["record", "--children", "-o", file, "--pid", pid],
    ] {
        let error = environment.run(arguments).one_clear_error();
        let parent = format!("waits for its parent (PID {})", parent.pid());
        assert!(error.contains(&parent), "{arguments:?}: {error}");
    }
    let mut attach = environment.memprobe();
    let terminal = Terminal::start(attach.args(["attach", "--pid", pid]));
    terminal.wait_for("waits for its parent");
    assert_eq!(terminal.finish_restored().code(), Some(2));
}

//! Invalid input: memprobe reports one clear error with the next step, and loses no data.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::Command;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::{Background, Finished, wait_until};
use memprobe_tests::pytorch::PyTorch;
use rustix::process::Signal;
use tempfile::TempDir;

/// UID of the user `nobody`.
const NOBODY: u32 = 65534;

/// Start of a Python script that waits for a file and then uses PyTorch.
const LATE: &str = "
import os, sys, time
print('up', flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
import torch
kept = torch.zeros(1 << 20, device='cuda')
time.sleep(0.2)
";

#[test]
fn a_process_that_does_not_exist_is_an_error() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let mut over = Command::new("true").spawn().expect("true starts");
    over.wait().expect("it ends");
    let pid = over.id().to_string();
    for verb in [&["record", "-o", "/dev/null"][..], &["attach"]] {
        let error = environment
            .run(&[verb, &["--pid", &pid]].concat())
            .one_clear_error();
        assert_says(&error, &[&pid, "no process"]);
    }
}

#[test]
fn a_command_that_fails_without_gpu_memory_keeps_its_exit_status() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.json");
    let name = file.to_str().expect("UTF-8");
    for (script, status) in [("exit 7", 7), ("kill -TERM $$", 143), ("exit 0", 2)] {
        let finished = environment.run(&["record", "-o", name, "--", "sh", "-c", script]);
        assert_eq!(
            finished.status.code(),
            Some(status),
            "{script}: {}",
            finished.stderr
        );
        assert!(
            finished.stderr.contains("ended before"),
            "{}",
            finished.stderr
        );
        assert!(!file.exists());
    }
}

#[test]
fn help_that_cannot_be_written_is_an_error() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    for arguments in [&["--help"][..], &["attach", "--help"], &["--version"]] {
        let full = fs::File::options()
            .write(true)
            .open("/dev/full")
            .expect("it is there");
        let output = environment.memprobe().args(arguments).stdout(full).output();
        let output = output.expect("memprobe starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("standard output"), "{error}");
    }
}

#[test]
fn waiting_for_the_reader_of_a_fifo_can_be_interrupted() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let fifo = folder.path().join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status();
    assert!(made.expect("mkfifo starts").success());
    let name = fifo.to_str().expect("UTF-8");
    let touched = folder.path().join("started");
    let mut memprobe = environment.memprobe();
    memprobe
        .args(["record", "-o", name, "--", "touch"])
        .arg(&touched);
    let waiting = Background::start(&mut memprobe);
    let wchan = format!("/proc/{}/wchan", waiting.pid());
    wait_until("memprobe to wait for a reader", || {
        let place = fs::read_to_string(&wchan).unwrap_or_default();
        (place.contains("fifo") || place.contains("partner")).then_some(())
    });
    // A shell starts tests in its background with SIGINT ignored.
    waiting.signal(Signal::TERM);
    let status = waiting.finish().status;
    assert_eq!(status.signal(), Some(Signal::TERM.as_raw()), "{status:?}");
    assert!(
        !touched.exists(),
        "the command was started without a reader"
    );
}

#[test]
fn a_process_that_is_not_python_is_an_error() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let sleep = Background::start(Command::new("sleep").arg("600"));
    let pid = sleep.pid().to_string();
    let error = environment
        .run(&["record", "-o", "/dev/null", "--pid", &pid])
        .one_clear_error();
    assert_says(&error, &[&pid, "Python"]);
}

#[test]
fn a_python_without_pytorch_is_waited_for_until_it_imports_it() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let pytorch = environment.pytorch();
    let folder = tempfile::tempdir().expect("a folder");
    let go = folder.path().join("go");
    let mut target = Background::start(pytorch.command().arg("-c").arg(LATE).arg(&go));
    target.wait_for("up");
    let file = folder.path().join("trace.json");
    let mut recording = environment.record_unready(target.pid(), &file, &[]);
    let said = recording.memprobe.wait_for("wait");
    assert!(
        said.contains("PyTorch"),
        "what is waited for is not said: {said}"
    );
    fs::write(&go, "").expect("written");
    recording.finish();
    let events = environment.events(&file);
    let first = events
        .iter()
        .find(|event| event.action == "alloc")
        .expect("an allocation");
    assert_eq!(
        (first.stack[0].file.as_str(), first.stack[0].line),
        ("<string>", 7)
    );
    assert_eq!(first.size, Some(4 << 20));
}

#[test]
fn another_users_process_needs_root() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("opened");
    let copy = folder.path().join("memprobe");
    fs::copy(&environment.memprobe, &copy).expect("copied");
    let sleep = Background::start(Command::new("sleep").arg("600"));
    let mut command = Command::new(copy);
    command.args([
        "record",
        "-o",
        "/dev/null",
        "--pid",
        &sleep.pid().to_string(),
    ]);
    let error = Background::start(command.uid(NOBODY).gid(NOBODY))
        .finish()
        .one_clear_error();
    assert_says(&error, &["root", "sudo"]);
}

#[test]
fn an_output_that_cannot_be_written_is_an_error_with_what_to_do() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (target, pid) = training(environment.pytorch());
    let read_only = Mounted::tmpfs(folder.path(), "ro");
    let cases = [
        (folder.path().join("missing/trace.json"), "mkdir"),
        (folder.path().join("missing/run/"), "mkdir"),
        (
            read_only.path.path().join("trace.json"),
            "name another file",
        ),
        ("/dev/full".into(), "No space left"),
    ];
    for (output, words) in cases {
        let output = output.to_str().expect("UTF-8");
        let finished = environment.run(&["record", "-q", "-o", output, "--pid", &pid]);
        let error = finished.one_clear_error();
        assert_says(&error, &[output, words]);
    }
    drop(target);
}

#[test]
fn a_recording_cut_by_a_full_disk_can_be_read() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (target, pid) = training(environment.pytorch());
    // A compact recording takes longer to fill the disk.
    for (name, size) in [("trace.json", "size=128k"), ("trace.mprb", "size=32k")] {
        let small = Mounted::tmpfs(folder.path(), size);
        let file = small.path.path().join(name);
        let name = file.to_str().expect("UTF-8");
        let error = environment
            .run(&["record", "-q", "-o", name, "--pid", &pid])
            .one_clear_error();
        assert_says(&error, &[name, "No space left"]);
        let report = environment.report(&file);
        assert_eq!(report["truncated"], true);
        assert!(
            report["events"].as_u64() > Some(0),
            "nothing was kept: {report}"
        );
        assert!(!environment.events(&file).is_empty());
    }
    drop(target);
}

#[test]
fn a_file_that_was_there_keeps_its_content_when_there_is_nothing_to_record() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.json");
    fs::write(&file, "precious").expect("written");
    let sleep = Background::start(Command::new("sleep").arg("600"));
    let name = file.to_str().expect("UTF-8");
    environment
        .run(&["record", "-o", name, "--pid", &sleep.pid().to_string()])
        .one_clear_error();
    assert_eq!(fs::read_to_string(&file).expect("it is there"), "precious");
    assert_eq!(
        fs::read_dir(folder.path()).expect("a folder").count(),
        1,
        "something was left"
    );
}

#[test]
fn a_report_on_something_that_is_no_recording_is_an_error() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let cases: [(&str, &[u8], &str); 4] = [
        ("empty.json", b"", "record again"),
        (
            "foreign.json",
            b"{\"traceEvents\": []}\n",
            "memprobe record",
        ),
        (
            "binary.json",
            &[0xff, 0xfe, 0, 1, 2, 3, b'\n', 0x80],
            "memprobe record",
        ),
        ("short.json", b"[\n{\"ph\":\"M\",\"na", "memprobe record"),
    ];
    for (name, content, words) in cases {
        let file = folder.path().join(name);
        fs::write(&file, content).expect("written");
        let error = report(&environment, &file).one_clear_error();
        assert_says(&error, &[name, words]);
    }
    let missing = folder.path().join("missing.json");
    assert_says(
        &report(&environment, &missing).one_clear_error(),
        &["missing.json", "No such file"],
    );
    assert_says(
        &report(&environment, folder.path()).one_clear_error(),
        &["directory"],
    );
}

#[test]
fn a_damaged_recording_is_read_up_to_the_damage() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let whole = recorded(&environment, &folder);
    let lines = fs::read_to_string(&whole).expect("a recording");
    let lines: Vec<&str> = lines.lines().collect();
    let damaged = folder.path().join("damaged.json");
    let mut broken = lines.clone();
    let middle = lines.len() / 2;
    broken[middle] = "{\"ph\":\"b\",\"oops";
    fs::write(&damaged, broken.join("\n")).expect("written");
    let name = damaged.to_str().expect("UTF-8");
    let error = report(&environment, &damaged).one_clear_error();
    assert_says(&error, &[name, &format!("line {}", middle + 1), "head -n"]);
    let cut = folder.path().join("cut.json");
    fs::write(&cut, lines[..middle].join("\n")).expect("written");
    assert_eq!(environment.report(&cut)["truncated"], true);
    let (all, some) = (environment.events(&whole), environment.events(&cut));
    assert!(!some.is_empty() && some.len() < all.len());
    assert_eq!(some, all[..some.len()]);
}

#[test]
fn the_reader_of_a_report_may_leave_early() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let whole = recorded(&environment, &folder);
    let pipe = "set -o pipefail; \"$0\" report \"$1\" --by event --format jsonl | head -n 1";
    let mut bash = Command::new("bash");
    bash.args(["-c", pipe])
        .arg(&environment.memprobe)
        .arg(&whole);
    let printed = Background::start(&mut bash).finish();
    assert_eq!(printed.stdout.lines().count(), 1);
    assert_eq!(printed.stderr, "", "a pipe that closes is no error");
    assert!(printed.status.success(), "{}", printed.status);
}

fn assert_says(error: &str, words: &[&str]) {
    for word in words {
        assert!(error.contains(word), "{word:?} is missing in: {error}");
    }
}

fn report(environment: &TestEnvironment, file: &Path) -> Finished {
    environment.run(&["report", file.to_str().expect("UTF-8")])
}

/// Starts a training loop; returns it with its PID.
fn training(pytorch: &PyTorch) -> (Background, String) {
    let mut command = pytorch.command();
    command.args(["steady.py", "--seconds", "600", "--layers", "4"]);
    let mut target = Background::start(&mut command);
    target.wait_for("PID ");
    let pid = target.pid().to_string();
    (target, pid)
}

/// Records a training loop to a file.
fn recorded(environment: &TestEnvironment, folder: &TempDir) -> std::path::PathBuf {
    let (target, _) = training(environment.pytorch());
    let file = folder.path().join("trace.json");
    let recording = environment.record(target.pid(), &file, &[]);
    wait_until("a megabyte of events", || {
        fs::metadata(&file)
            .is_ok_and(|there| there.len() > 1 << 20)
            .then_some(())
    });
    recording.memprobe.signal(Signal::INT);
    recording.finish();
    file
}

/// A file system, unmounted on drop.
struct Mounted {
    path: TempDir,
}

impl Mounted {
    fn tmpfs(beside: &Path, options: &str) -> Self {
        let path = tempfile::tempdir_in(beside).expect("a folder");
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", options, "memprobe-tests"])
            .arg(path.path());
        Background::start(&mut mount).finish().succeeded();
        Self { path }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // If unmounting fails, the folder cannot be removed either, and stays.
        let _ = Command::new("umount").arg(self.path.path()).status();
    }
}

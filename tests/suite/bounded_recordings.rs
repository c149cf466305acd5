//! Recordings that keep their newest part (`--max-size`), and source text that travels with a recording.

use std::fs;
use std::path::Path;
use std::process::Command;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::{Background, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const LIMIT: u64 = 1 << 20;

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A training loop that runs until the test ends it.
fn training(command: &mut Command) -> &mut Command {
    command.args(["steady.py", "--seconds", "3600"]);
    command.args(["--layers", "4", "--pause", "0"])
}

/// Bytes of all files in a folder. A file that is renamed meanwhile may count twice or not at all.
fn bytes_in(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).expect("a folder").flatten();
    let sizes = files.map(|file| file.metadata().map_or(0, |data| data.len()));
    sizes.sum()
}

/// Waits until the oldest part of a file was dropped so many times.
fn wait_for_drops(folder: &Path, file: &Path, drops: u32) {
    let (mut last, mut seen) = (0, 0);
    wait_until("the oldest part is dropped", || {
        assert!(bytes_in(folder) <= LIMIT, "{} bytes", bytes_in(folder));
        let size = fs::metadata(file).map_or(last, |data| data.len());
        if size < last {
            seen += 1;
        }
        last = size;
        (seen >= drops).then_some(())
    });
}

/// Checks that the rows of the first device add up to the allocator's total.
fn check_sum(report: &Value) {
    assert_eq!(report["disagreements"], 0, "{report}");
    let device = &report["devices"][0];
    assert_eq!(device["unaccounted"], 0, "{device}");
    let rows = device["lines"].as_array().expect("lines");
    let live: u64 = rows.iter().filter_map(|row| row["live"].as_u64()).sum();
    let before = device["before_attach"].as_u64().unwrap_or(0);
    assert_eq!(
        Some(live + before),
        device["allocated"].as_u64(),
        "{device}"
    );
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_long_recording_stays_within_its_size_and_is_whole_when_memprobe_is_killed() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.mprb");
    let mut target = Background::start(training(&mut environment.pytorch().command()));
    target.wait_for("PID ");
    let recording = environment.record(target.pid(), &file, &["--max-size", "1MiB"]);
    wait_for_drops(folder.path(), &file, 3);
    recording.memprobe.signal(Signal::KILL);
    drop(recording.memprobe.finish());
    target.signal(Signal::KILL);
    drop(target.finish());
    let printed = environment.run(&["report", text(&file)]).succeeded().stdout;
    for words in ["--max-size dropped", "the end of the recording is missing"] {
        assert!(printed.contains(words), "{printed}");
    }
    assert!(!printed.contains("damaged"), "{printed}");
    assert!(printed.contains("steady.py:"), "{printed}");
    check_sum(&environment.report(&file));
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn each_process_of_a_directory_keeps_to_the_size() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("run");
    let mut command = environment.memprobe();
    command.args(["record", "--max-size", "1MiB", "-o"]);
    command.arg(format!("{}/", text(&run)));
    command.arg("--").arg(environment.pytorch().python());
    environment.pytorch().settle(training(&mut command));
    let recording = Background::start(&mut command);
    let file = wait_until("a file of the process", || {
        let files = fs::read_dir(&run).ok()?.flatten();
        let mut paths = files.map(|file| file.path());
        paths.find(|path| path.extension().is_some_and(|it| it == "mprb"))
    });
    // The index lies there too.
    wait_for_drops(&run, &file, 1);
    recording.signal(Signal::INT);
    let printed = recording.finish().succeeded().stderr;
    assert!(printed.contains("--max-size:"), "{printed}");
    let report = environment.report(&file);
    // The command runs on after its recording.
    let pid = report["pid"].as_i64().expect("a PID");
    let pid = Pid::from_raw(i32::try_from(pid).expect("a PID")).expect("a PID");
    kill_process(pid, Signal::KILL).expect("the command is there");
    assert_eq!(report["truncated"], false, "{report}");
    check_sum(&report);
}

#[test]
fn a_size_needs_a_file_and_the_compact_format() {
    let Some(environment) = TestEnvironment::without_pytorch() else {
        return;
    };
    for (arguments, words) in [
        (
            &["-o", "a.json", "--max-size", "9MiB"][..],
            "needs a compact recording",
        ),
        (&["-o", "/dev/null", "--max-size", "9MiB"], "name a file"),
    ] {
        let arguments = [&["record"][..], arguments, &["--", "true"]].concat();
        let finished = environment.run(&arguments);
        assert!(finished.one_clear_error().contains(words), "{arguments:?}");
    }
    let small = ["record", "-o", "a.mprb", "--max-size", "9kB", "--", "true"];
    let refused = environment.run(&small).stderr;
    assert!(refused.contains("give at least 1MiB"), "{refused}");
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn the_source_text_is_there_after_the_script_is_gone() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("gone.py");
    let source = "import torch\n\n\ndef hold():\n    # Half of a mebibyte.\n    return torch.empty(1 << 19, \
                  dtype=torch.uint8, device='cuda')\n\n\nkept = hold()\n";
    for (option, is_there) in [("-q", true), ("--no-source", false)] {
        fs::write(&script, source).expect("written");
        let file = folder.path().join("trace.mprb");
        let mut command = environment.memprobe();
        command.args(["record", option, "-o", text(&file), "--"]);
        command.arg(environment.pytorch().python()).arg(&script);
        environment.pytorch().settle(&mut command);
        Background::start(&mut command).finish().succeeded();
        fs::remove_file(&script).expect("removed");
        let arguments = ["report", text(&file), "--annotate", "gone.py"];
        let printed = environment.run(&arguments).succeeded().stdout;
        assert_eq!(
            printed.contains("# Half of a mebibyte."),
            is_there,
            "{printed}"
        );
        let is_missed = printed.contains("there is no source text");
        assert_eq!(is_missed, !is_there, "{printed}");
        let page = folder.path().join("page.html");
        let arguments = ["report", text(&file), "--html", text(&page)];
        environment.run(&arguments).succeeded();
    }
}

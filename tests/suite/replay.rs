//! `replay`: a recording on the live screen, at any moment.

use std::path::Path;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::Background;
use memprobe_tests::terminal::Terminal;

/// Records a program that runs out of memory, in a format by the name of the file.
fn record(environment: &TestEnvironment, file: &Path) {
    record_program(environment, file, &["oom.py", "--steps", "5"]);
}

fn record_program(environment: &TestEnvironment, file: &Path, program: &[&str]) {
    let mut command = environment.memprobe();
    command.args(["record", "-o", text(file), "--"]);
    command.arg(environment.pytorch().python());
    command.args(program);
    environment.pytorch().settle(&mut command);
    let recorded = Background::start(&mut command).finish();
    assert!(file.exists(), "{}", recorded.stderr);
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn replay(environment: &TestEnvironment, file: &Path, options: &[&str]) -> Terminal {
    let mut command = environment.memprobe();
    command.args(["replay", text(file)]).args(options);
    Terminal::start(&mut command)
}

/// Bytes that the screen shows as allocated, such as `64.00 MiB`.
fn allocated(screen: &str) -> String {
    let line = screen
        .lines()
        .find(|line| line.trim_start().starts_with("allocated"));
    let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    words.get(1..3).unwrap_or_default().join(" ")
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_recording_is_shown_at_its_peak_its_failure_and_any_event() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["trace.mprb", "trace.json"] {
        let file = folder.path().join(name);
        record(&environment, &file);
        let report = environment.report(&file);
        let events = report["events"].as_u64().expect("a count");

        let mut screen = replay(&environment, &file, &["--at", "oom"]);
        screen.wait_until("the failure", |shown| {
            let wanted = ["OUT OF MEMORY 1x", "REPLAY", "oom.py:"];
            wanted.iter().all(|text| shown.contains(text))
        });
        screen.press("O");
        screen.wait_for("OUT OF MEMORY 2x");
        screen.press("P");
        let peak = screen.wait_until("the peak", is_at_peak);
        assert_ne!(allocated(&peak), "", "{peak}");
        // B is the peak; at the begin nothing is live.
        screen.press("b");
        screen.wait_for("CHANGE");
        screen.press("\x1b[H");
        let start = screen.wait_for("REPLAY   0.000 s of");
        assert!(start.contains("B at"), "{start}");
        screen.press("b");
        screen.press("\x1b[F");
        screen.wait_for(&format!("event {0} of {0}", with_commas(events)));
        // Back by one event.
        screen.press("u");
        screen.press("u");
        screen.wait_for("steps by");
        screen.press(":event 100\r");
        screen.wait_for("event 100 of");
        screen.press("q");
        assert_eq!(screen.finish_restored().code(), Some(0));
    }
}

#[test]
fn an_exported_pickle_is_shown_as_its_recording_is() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let [recording, pickle] = ["trace.mprb", "trace.pickle"].map(|name| folder.path().join(name));
    record(&environment, &recording);
    environment
        .run(&["export", text(&recording), "-o", text(&pickle)])
        .succeeded();
    let shown = [recording, pickle].map(|file| {
        let mut screen = replay(&environment, &file, &["--at", "peak"]);
        let peak = screen.wait_until("the peak", |shown| is_at_peak(shown) && is_whole(shown));
        screen.press("q");
        assert_eq!(screen.finish_restored().code(), Some(0));
        let lines = peak.lines().filter(|line| line.contains("oom.py:"));
        let lines: Vec<String> = lines.map(str::to_owned).collect();
        (allocated(&peak), lines)
    });
    assert!(!shown[0].1.is_empty(), "{shown:?}");
    assert_eq!(shown[1], shown[0]);
}

/// Returns true if the screen shows its peak: as much is allocated as at most.
fn is_at_peak(shown: &str) -> bool {
    let peak = shown.find("peak ").map(|at| &shown[at + 5..]);
    let peak: Vec<&str> = peak
        .unwrap_or_default()
        .split_whitespace()
        .take(2)
        .collect();
    peak.len() == 2 && allocated(shown) == peak.join(" ")
}

/// Returns true if the last line of the screen is drawn.
fn is_whole(shown: &str) -> bool {
    shown.contains("q quit")
}

/// Iterations of the long loop: more events than a group of a recording holds.
const ITERATIONS: u64 = 180;

#[test]
#[ignore = "long: cargo xtask test --all"]
fn a_long_recording_is_shown_before_it_is_read() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.mprb");
    let iterations = ITERATIONS.to_string();
    record_program(&environment, &file, &["long_loop.py", &iterations]);
    let report = environment.report(&file);
    let events = report["events"].as_u64().expect("a count");
    assert!(events > 300_000, "{events}");

    let mut screen = replay(&environment, &file, &["--at", "peak"]);
    // The status line says what is missing yet: "iterations, categories: 0 % read".
    screen.wait_for_bytes("categories:");
    // The same moment, from a keyframe and from everything.
    let early = screen.wait_until("the peak", |shown| is_at_peak(shown) && is_whole(shown));
    assert!(early.contains("long_loop.py:"), "{early}");
    let all = format!("of {iterations}");
    let late = screen.wait_until("the iterations", |shown| {
        shown.contains(&all) && is_whole(shown) && !shown.contains("% read")
    });
    assert!(late.contains("iteration 20 of"), "{late}");
    assert!(is_at_peak(&late), "{late}");
    assert_eq!(allocated(&early), allocated(&late));
    let moment = |shown: &str| {
        let at = shown.find("REPLAY ").map(|at| &shown[at..]);
        at.and_then(|at| at.split(" of ").next().map(str::to_owned))
    };
    assert!(moment(&early).is_some(), "{early}");
    assert_eq!(moment(&early), moment(&late), "{late}");
    screen.press("q");
    assert_eq!(screen.finish_restored().code(), Some(0));

    // What needs the whole recording waits for it.
    let mut screen = replay(&environment, &file, &[]);
    screen.wait_for("REPLAY");
    screen.press(":iteration 140\r");
    screen.wait_for("iteration 140 of");
    screen.press("c");
    screen.wait_for("CATEGORY");
    screen.press("q");
    assert_eq!(screen.finish_restored().code(), Some(0));
}

/// Formats a count as the screen does.
fn with_commas(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).expect("digits"))
        .collect();
    groups.join(",")
}

#[test]
fn keys_and_places_without_meaning_give_the_reason() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.mprb");
    record(&environment, &file);
    let mut screen = replay(&environment, &file, &[]);
    screen.wait_for("REPLAY");
    for (key, reason) in [
        (" ", "stands still"),
        ("w", "a recording already"),
        ("z", "from the begin of the recording"),
        (":soon\r", "no place in a recording"),
    ] {
        screen.press(key);
        screen.wait_for(reason);
    }
    // An escape that is read with the next key would be another key.
    screen.press("\x1b");
    screen.wait_for("steps by");
    screen.press("t");
    screen.wait_for("memprobe snapshot");
    screen.press("q");
    assert_eq!(screen.finish_restored().code(), Some(0));

    let refused = environment.run(&["replay", text(&file), "--at", "soon"]);
    assert!(
        refused.stderr.contains("iteration 40"),
        "{}",
        refused.stderr
    );
    let piped = environment.run(&["replay", text(&file)]);
    assert!(
        piped.stderr.contains("needs a terminal"),
        "{}",
        piped.stderr
    );
    let screen = replay(&environment, &file, &["--at", "iteration 4000"]);
    let (status, printed) = screen.finish_showing("no iteration 4000");
    assert_eq!(status.code(), Some(2), "{printed}");
}

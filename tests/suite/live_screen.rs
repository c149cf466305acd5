//! Live screen on a terminal: its contents, and restoring the terminal.

use std::fs;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::Background;
use memprobe_tests::pytorch::{PyTorch, workloads};
use memprobe_tests::terminal::Terminal;
use rustix::process::Signal;
use tempfile::TempDir;

/// A training loop, and memprobe's screen of it.
struct Stage {
    screen: Terminal,
    target: Background,
    folder: TempDir,
}

impl Stage {
    fn set(environment: &TestEnvironment, pytorch: &PyTorch) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = pytorch.command();
        command.args(["steady.py", "--seconds", "600", "--layers", "4", "--until"]);
        let mut target = Background::start(command.arg(folder.path().join("until")));
        target.wait_for("PID ");
        let mut memprobe = environment.memprobe();
        memprobe.args(["attach", "--pid", &target.pid().to_string()]);
        let screen = Terminal::start(&mut memprobe);
        Self {
            screen,
            target,
            folder,
        }
    }

    fn end_training(&self) {
        fs::write(self.folder.path().join("until"), "").expect("written");
    }
}

#[test]
fn the_screen_shows_the_line_that_allocates_and_q_gives_the_terminal_back() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let pytorch = environment.pytorch();
    let mut stage = Stage::set(&environment, pytorch);
    let line = format!("steady.py:{}", line_of("x = torch.randn("));
    let shown = stage.screen.wait_for(&line);
    assert!(stage.screen.is_taken());
    assert!(
        shown.contains("allocated") && shown.contains("reserved"),
        "{shown}"
    );
    assert!(shown.contains(&stage.target.pid().to_string()), "{shown}");
    stage.screen.press("q");
    assert_eq!(stage.screen.finish_restored().code(), Some(0));
    assert!(
        !stage.target.has_ended(),
        "the target ended with the screen"
    );
}

#[test]
fn escape_never_quits_and_leaving_prints_a_summary() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let mut stage = Stage::set(&environment, environment.pytorch());
    let line = format!("steady.py:{}", line_of("x = torch.randn("));
    stage.screen.wait_for(&line);
    stage.screen.press("\x1b");
    stage.screen.wait_for("q quits");
    stage.screen.press("q");
    let (status, left) = stage.screen.finish_showing(&line);
    assert_eq!(status.code(), Some(0));
    let pid = format!("PID {}", stage.target.pid());
    for text in ["steady.py --seconds 600", &pid, "none lost", "peak", &line] {
        assert!(
            left.contains(text),
            "{text:?} is not in the summary: {left}"
        );
    }
}

#[test]
fn the_theme_chooses_the_colours_and_a_small_terminal_says_what_it_needs() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let mut stage = Stage::set(&environment, environment.pytorch());
    stage.screen.wait_for("steady.py:");
    stage.screen.press("xy");
    stage.screen.wait_for("10 s ago");
    stage.screen.press("q");
    stage.screen.finish_restored();
    let pid = stage.target.pid().to_string();
    let start = |theme, size| {
        let mut memprobe = environment.memprobe();
        memprobe.args(["attach", "--theme", theme, "--pid", &pid]);
        memprobe
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR");
        Terminal::start_sized(&mut memprobe, size)
    };
    // Colours of allocated bytes for a light and for a dark background.
    for (theme, [light, dark]) in [("light", [true, false]), ("dark", [false, true])] {
        let mut screen = start(theme, (80, 24));
        screen.wait_for("steady.py:");
        assert_eq!(
            [screen.has_colour(26), screen.has_colour(87)],
            [light, dark]
        );
        screen.press("q");
        screen.finish_restored();
    }
    let mut small = start("none", (24, 4));
    small.wait_for("needs 40x6, q quits");
    small.press("q");
    assert_eq!(small.finish_restored().code(), Some(0));
}

#[test]
fn control_c_gives_the_terminal_back() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let mut stage = Stage::set(&environment, environment.pytorch());
    stage.screen.wait_for("steady.py:");
    stage.screen.press("\x03");
    stage.screen.finish_restored();
    assert!(!stage.target.has_ended());
}

#[test]
fn a_window_that_is_closed_ends_the_screen_and_not_the_training() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let mut stage = Stage::set(&environment, environment.pytorch());
    stage.screen.wait_for("steady.py:");
    assert_eq!(stage.screen.close().code(), Some(2));
    assert!(!stage.target.has_ended());
}

#[test]
fn signals_give_the_terminal_back() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for signal in [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT] {
        let mut stage = Stage::set(&environment, environment.pytorch());
        stage.screen.wait_for("steady.py:");
        stage.screen.signal(signal);
        let status = stage.screen.finish_restored();
        assert_eq!(status.code(), Some(128 + signal.as_raw()), "{signal:?}");
        assert!(!stage.target.has_ended());
    }
}

#[test]
fn when_the_target_ends_the_screen_stays_and_says_so() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let mut stage = Stage::set(&environment, environment.pytorch());
    stage.screen.wait_for("steady.py:");
    stage.end_training();
    let shown = stage.screen.wait_for("TARGET GONE");
    assert!(
        shown.contains("steady.py:"),
        "the lines can still be read: {shown}"
    );
    stage.screen.press("q");
    assert_eq!(stage.screen.finish_restored().code(), Some(0));
}

#[test]
fn an_error_on_a_terminal_leaves_it_as_it_was() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let sleep = Background::start(std::process::Command::new("sleep").arg("600"));
    let mut memprobe = environment.memprobe();
    memprobe.args(["attach", "--pid", &sleep.pid().to_string()]);
    let screen = Terminal::start(&mut memprobe);
    screen.wait_for("not a Python process");
    assert_eq!(screen.finish_restored().code(), Some(2));
}

#[test]
fn without_a_terminal_the_screen_is_an_error_with_what_to_do() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let mut stage = Stage::set(&environment, environment.pytorch());
    stage.screen.press("q");
    stage.screen.finish_restored();
    let pid = stage.target.pid().to_string();
    let error = environment
        .run(&["attach", "--pid", &pid])
        .one_clear_error();
    assert!(
        error.contains("terminal") && error.contains("record"),
        "{error}"
    );
}

/// Returns the number of the line in `steady.py` that starts with this text.
fn line_of(text: &str) -> usize {
    let source = fs::read_to_string(workloads().join("steady.py")).expect("the workload");
    let at = source
        .lines()
        .position(|line| line.trim_start().starts_with(text));
    at.expect("the line is there") + 1
}

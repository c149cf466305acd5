//! Live screen on a terminal: its contents, and restoring the terminal.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::{Background, wait_until};
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
        memprobe.current_dir(folder.path());
        let screen = Terminal::start(&mut memprobe);
        Self {
            screen,
            target,
            folder,
        }
    }

    /// Shows the training on another screen of memprobe.
    fn show(&mut self, environment: &TestEnvironment, change: impl FnOnce(&Self, &mut Command)) {
        let mut memprobe = environment.memprobe();
        memprobe.current_dir(self.folder.path());
        change(self, &mut memprobe);
        self.screen = Terminal::start(&mut memprobe);
    }

    /// A part of the command line that no other process has.
    fn name(&self) -> String {
        let name = self.folder.path().file_name().expect("a name");
        name.to_string_lossy().into_owned()
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
fn the_answer_of_the_terminal_chooses_the_colours_and_is_no_key() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let mut stage = Stage::set(&environment, environment.pytorch());
    stage.screen.press("q");
    stage.screen.finish_restored();
    let pid = stage.target.pid().to_string();
    // Colours of allocated bytes for a light and for a dark background. Letters and digits of an answer are keys too.
    for (answer, colour, other) in [
        ("\x1b]11;rgb:ffff/ffff/ffff\x1b\\", 26, 87),
        ("\x1b]11;rgb:1f1f/1f1f/1f1f\x07", 87, 26),
    ] {
        let mut memprobe = environment.memprobe();
        memprobe.args(["attach", "--pid", &pid]);
        memprobe.env_remove("NO_COLOR").env_remove("COLORFGBG");
        let mut screen = Terminal::start_sized(&mut memprobe, (110, 30));
        screen.wait_for_bytes("\x1b]11;?\x1b\\");
        // A terminal that has not answered yet is no obstacle.
        screen.wait_for("steady.py:");
        assert!(!screen.has_colour(colour) && !screen.has_colour(other));
        for piece in answer.split_inclusive(';') {
            screen.press(piece);
        }
        screen.wait_until("another colour", |_| screen.has_colour(colour));
        screen.press("y");
        let shown = screen.wait_for("lowest");
        assert!(
            shown.contains("↓PEAK") && !shown.contains("frozen"),
            "{shown}"
        );
        assert!(!screen.has_colour(other));
        screen.press("q");
        assert_eq!(screen.finish_restored().code(), Some(0));
    }
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
#[ignore = "long: cargo xtask test --all"]
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

#[test]
fn a_process_is_attached_to_by_a_part_of_its_command_line() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let mut stage = Stage::set(&environment, environment.pytorch());
    stage.show(&environment, |stage, memprobe| {
        memprobe.args(["attach", &stage.name()]);
    });
    let shown = stage.screen.wait_for("steady.py:");
    assert!(shown.contains(&stage.target.pid().to_string()), "{shown}");
    stage.screen.press("q");
    assert_eq!(stage.screen.finish_restored().code(), Some(0));
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn several_processes_of_a_name_are_listed_with_their_numbers() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let pytorch = environment.pytorch();
    let stages = [(); 2].map(|()| Stage::set(&environment, pytorch));
    let finished = environment.run(&["snapshot", "steady.py"]);
    let error = finished.stderr;
    assert_eq!(finished.status.code(), Some(2), "{error}");
    for stage in &stages {
        let pid = stage.target.pid().to_string();
        assert!(error.contains(&pid), "{pid} is not in {error}");
    }
    assert!(error.contains("give the PID of one"), "{error}");
}

#[test]
fn without_a_process_the_user_chooses_one_on_the_screen() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let mut stage = Stage::set(&environment, environment.pytorch());
    stage.show(&environment, |_, memprobe| {
        memprobe.arg("attach");
    });
    stage.screen.wait_for("choose a process");
    let (name, pid) = (stage.name(), stage.target.pid().to_string());
    stage.screen.press(&format!("/{name}\r"));
    stage.screen.wait_for("1 of");
    stage.screen.wait_for(&pid);
    stage.screen.press("\r");
    let shown = stage.screen.wait_for("steady.py:");
    assert!(shown.contains(&pid), "{shown}");
    stage.screen.press("q");
    assert_eq!(stage.screen.finish_restored().code(), Some(0));
}

#[test]
fn a_choice_that_is_left_ends_memprobe() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let mut memprobe = environment.memprobe();
    let mut screen = Terminal::start(memprobe.arg("snapshot"));
    screen.wait_for("choose a process");
    screen.press("q");
    let (status, left) = screen.finish_showing("no process was chosen");
    assert_eq!(status.code(), Some(130), "{left}");
}

#[test]
fn without_a_process_and_a_terminal_the_error_names_the_next_step() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    for verb in [
        &["attach"][..],
        &["snapshot"],
        &["record", "-o", "/dev/null"],
    ] {
        // It lists processes of the machine, one a line.
        let finished = environment.run(verb);
        let error = finished.stderr;
        assert_eq!(finished.status.code(), Some(2), "{error}");
        assert!(error.contains("train.py"), "{verb:?}: {error}");
    }
}

#[test]
fn w_saves_a_recording_that_the_report_opens() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let mut stage = Stage::set(&environment, environment.pytorch());
    stage.screen.wait_for("steady.py:");
    stage.screen.press("w");
    stage.screen.wait_for("saving to memprobe-");
    stage.screen.wait_for("KiB");
    stage.screen.press("w");
    stage.screen.wait_for("saved memprobe-");
    stage.screen.press("q");
    let (status, left) = stage.screen.finish_showing("saved: memprobe-");
    assert_eq!(status.code(), Some(0), "{left}");
    let files = fs::read_dir(stage.folder.path()).expect("the folder");
    let names = files.map(|file| file.expect("a file").path());
    let file = names
        .into_iter()
        .find(|path| path.extension().is_some_and(|ending| ending == "mprb"))
        .expect("a recording");
    let mode = fs::metadata(&file).expect("it is there").permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    let report = environment.run(&["report", file.to_str().expect("UTF-8")]);
    let text = report.succeeded().stdout;
    assert!(text.contains("steady.py:"), "{text}");
    assert!(text.contains("Saved from the live screen"), "{text}");
}

#[test]
fn c_copies_the_line_to_the_clipboard_of_the_terminal() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let mut stage = Stage::set(&environment, environment.pytorch());
    stage.screen.wait_for("steady.py:");
    stage.screen.press("n");
    stage.screen.wait_for("search:");
    stage.screen.press("steady.py\r");
    stage.screen.press("C");
    stage.screen.wait_for("copied /");
    stage.screen.wait_for_bytes("\x1b]52;c;");
}

#[test]
fn the_editor_opens_as_the_caller_and_the_screen_comes_back() {
    let Some(environment) = TestEnvironment::take() else {
        return;
    };
    let mut stage = Stage::set(&environment, environment.pytorch());
    stage.screen.press("q");
    let folder = stage.folder.path().to_owned();
    let editor = folder.join("editor");
    let script = "#!/bin/sh\n{ id -u; echo \"$@\"; grep CapEff /proc/self/status; } > \"$0.ran\"\n";
    fs::write(&editor, script).expect("written");
    for (path, mode) in [(&folder, 0o777), (&editor, 0o755)] {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(path, mode).expect("changed");
    }
    stage.show(&environment, |stage, memprobe| {
        memprobe.args(["attach", "--pid", &stage.target.pid().to_string()]);
        memprobe.current_dir("/");
        memprobe.env("EDITOR", &editor);
        memprobe.envs([
            ("SUDO_UID", "65534"),
            ("SUDO_GID", "65534"),
            ("SUDO_USER", "nobody"),
        ]);
    });
    stage.screen.wait_for("steady.py:");
    stage.screen.press("n");
    stage.screen.wait_for("search:");
    stage.screen.press("steady.py\r");
    stage.screen.press("e");
    let ran = editor.with_extension("ran");
    let text = wait_until("the editor", || {
        let text = fs::read_to_string(&ran).ok()?;
        text.contains("CapEff").then_some(text)
    });
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "65534", "{text}");
    assert!(lines[1].ends_with("steady.py"), "{text}");
    assert!(lines[2].ends_with("0000000000000000"), "{text}");
    stage.screen.wait_for("steady.py:");
    assert!(stage.screen.is_taken());
    stage.screen.press("q");
    assert_eq!(stage.screen.finish_restored().code(), Some(0));
}

/// Returns the number of the line in `steady.py` that starts with this text.
fn line_of(text: &str) -> usize {
    let source = fs::read_to_string(workloads().join("steady.py")).expect("the workload");
    let at = source
        .lines()
        .position(|line| line.trim_start().starts_with(text));
    at.expect("the line is there") + 1
}

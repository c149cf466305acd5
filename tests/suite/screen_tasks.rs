//! Ten questions to the live screens, with the keys that the guide gives for each.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::memprobe::PATIENT;
use memprobe_tests::process::{Background, wait_until};
use memprobe_tests::terminal::Terminal;
use tempfile::TempDir;

/// A question as the guide asks it, its keys as the guide writes them, and a text that appears after each key.
struct Task {
    question: &'static str,
    keys: &'static str,
    shows: &'static [&'static str],
}

/// Text of a row that grows steadily, up to its line.
const GROWS: &str = "↑ ▸ leak.py:";

const LEAKS: Task = Task {
    question: "Who leaks?",
    keys: "`6`",
    shows: &["↓GROWTH"],
};
const TENSOR: Task = Task {
    question: "What is this tensor, and who keeps it?",
    keys: "`t`, Enter",
    shows: &["SNAPSHOT", " Tensor "],
};
const ITERATION: Task = Task {
    question: "What did the last iteration hold?",
    keys: "`L`",
    shows: &["at its end"],
};
const COMPARED: Task = Task {
    question: "What has changed between two moments?",
    keys: "`t`, `w`, `R`, `w`",
    // A snapshot is shown before and after the second `R`: only its file tells them apart.
    shows: &["SNAPSHOT", "saved memprobe-", "", ""],
};
const MODULE: Task = Task {
    question: "Which module?",
    keys: "`m`",
    shows: &["by modules"],
};
const OTHERS: Task = Task {
    question: "Who else is on the GPU?",
    keys: "none, in `top`",
    shows: &[],
};
const CACHED: Task = Task {
    question: "What is cached?",
    keys: "none",
    shows: &[],
};
const PEAK: Task = Task {
    question: "Where is the peak?",
    keys: "none",
    shows: &[],
};
const RESET: Task = Task {
    question: "What has grown since a moment?",
    keys: "`z`, `6`",
    shows: &["PEAK and GROWTH count from now on", "↓GROWTH"],
};
const COPIED: Task = Task {
    question: "Where is this line in my editor?",
    keys: "`C`",
    shows: &["copied /"],
};

const TASKS: [Task; 10] = [
    LEAKS, TENSOR, ITERATION, COMPARED, MODULE, OTHERS, CACHED, PEAK, RESET, COPIED,
];

impl Task {
    /// Returns what each key sends to the terminal.
    fn presses(&self) -> Vec<&'static str> {
        let keys = self.keys.split(", ");
        let keys = keys.filter(|key| !key.starts_with("none") && !key.starts_with("in "));
        let press = |key: &'static str| match key {
            "Enter" => "\r",
            key => key.trim_matches('`'),
        };
        keys.map(press).collect()
    }

    /// Presses the keys, and waits for the answer to each.
    fn answer(&self, screen: &mut Terminal) -> String {
        let presses = self.presses();
        assert_eq!(presses.len(), self.shows.len(), "{}", self.question);
        let mut shown = screen.text();
        for (key, text) in presses.into_iter().zip(self.shows) {
            screen.press(key);
            shown = screen.wait_for(text);
        }
        shown
    }
}

/// A program that leaks in each iteration, on a simulated driver that others use too.
struct Stage {
    environment: TestEnvironment,
    folder: TempDir,
    leak: Background,
}

impl Stage {
    fn set() -> Option<Self> {
        let environment = TestEnvironment::take()?;
        let folder = tempfile::tempdir().expect("a folder");
        let mut leak = start(&environment, &folder, &["leak.py", "--until"]);
        leak.wait_for("iteration 40 ");
        Some(Self {
            environment,
            folder,
            leak,
        })
    }

    fn show(&self, arguments: &[&str]) -> Terminal {
        let mut memprobe = self.environment.memprobe();
        memprobe.args(arguments).current_dir(self.folder.path());
        on_driver(&mut memprobe, &self.folder);
        if let Some(folder) = self.environment.pytorch().simulated_libraries() {
            memprobe.env("LD_LIBRARY_PATH", folder);
        }
        Terminal::start_sized(&mut memprobe, (110, 40))
    }

    fn attach(&self) -> Terminal {
        let pid = self.leak.pid().to_string();
        let screen = self.show(&[&["attach", &pid], &PATIENT[..]].concat());
        screen.wait_for("leak.py:");
        screen
    }

    /// Waits until the program has printed so many more iterations.
    fn wait_for_iterations(&self, more: usize) {
        let count = || self.leak.stdout().matches("iteration ").count();
        let enough = count() + more;
        wait_until("iterations", || (count() >= enough).then_some(()));
    }

    /// Files that the screen saved.
    fn saved(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.folder.path()).expect("the folder");
        let files = files.map(|file| file.expect("a file").path());
        let is_saved = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "json");
        let mut saved: Vec<PathBuf> = files.filter(is_saved).collect();
        saved.sort();
        saved
    }
}

fn on_driver(command: &mut Command, folder: &TempDir) {
    let shared = folder.path().join("driver");
    fs::create_dir_all(&shared).expect("a folder");
    command
        .env("CUDASIM_SHARED", shared)
        .env("CUDASIM_DEVICES", "1");
}

/// Returns the row below the heads of columns.
fn first_row(shown: &str) -> &str {
    let mut lines = shown.lines().skip_while(|line| !line.contains("GROWTH"));
    lines.nth(1).unwrap_or_default()
}

/// Starts a workload whose last option is a file that ends it.
fn start(environment: &TestEnvironment, folder: &TempDir, arguments: &[&str]) -> Background {
    let mut command = environment.pytorch().command();
    on_driver(&mut command, folder);
    command.args(arguments).arg(folder.path().join("until"));
    Background::start(&mut command)
}

#[test]
fn the_guide_has_every_question_with_its_keys() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = root.join("docs/guide/src/attach.md");
    let text = fs::read_to_string(page).expect("the guide");
    for task in &TASKS {
        let row = format!("| {} | {} |", task.question, task.keys);
        assert!(text.contains(&row), "{row:?} is not in the guide");
        assert!(task.presses().len() <= 4, "{row}");
    }
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn the_screen_of_lines_answers_with_few_keys() {
    let Some(stage) = Stage::set() else {
        return;
    };
    let mut screen = stage.attach();
    let shown = screen.wait_for("↓PEAK");
    assert_eq!([PEAK.presses().len(), CACHED.presses().len()], [0, 0]);
    assert!(shown.contains("of reserved)"), "{shown}");
    LEAKS.answer(&mut screen);
    let is_answered = |shown: &str| first_row(shown).contains(GROWS) && shown.contains("MiB/it");
    screen.wait_until("a growing row at the top", is_answered);
    COPIED.answer(&mut screen);
    screen.wait_for_bytes("\x1b]52;c;");
    // By peak again, as at the start.
    screen.press("2");
    screen.wait_for("↓PEAK");
    RESET.answer(&mut screen);
    screen.wait_until("no growth yet", |shown| !shown.contains(GROWS));
    screen.wait_until("growth since the reset", is_answered);
    screen.press("q");
    assert_eq!(screen.finish_restored().code(), Some(0));
}

#[test]
fn the_other_screens_answer_with_few_keys() {
    let Some(stage) = Stage::set() else {
        return;
    };
    let mut screen = stage.attach();
    MODULE.answer(&mut screen);
    ITERATION.answer(&mut screen);
    TENSOR.answer(&mut screen);
    screen.press("q");
    assert_eq!(screen.finish_restored().code(), Some(0));
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn two_moments_are_saved_and_compared() {
    let Some(stage) = Stage::set() else {
        return;
    };
    let mut screen = stage.attach();
    let [read, save, again, save_again] = COMPARED.presses()[..] else {
        panic!("{}", COMPARED.keys);
    };
    let [shown, saved, ..] = COMPARED.shows else {
        panic!("{:?}", COMPARED.shows);
    };
    screen.press(read);
    screen.wait_for(shown);
    screen.press(save);
    screen.wait_for(saved);
    stage.wait_for_iterations(3);
    // A user need not wait for the reading.
    screen.press(&format!("{again}{save_again}"));
    let files = wait_until("two files", || {
        let saved = stage.saved();
        (saved.len() == 2).then_some(saved)
    });
    screen.press("q");
    screen.finish_restored();
    let files: Vec<&str> = files
        .iter()
        .map(|file| file.to_str().expect("UTF-8"))
        .collect();
    let compared = stage
        .environment
        .run(&["diff", files[0], files[1]])
        .succeeded();
    assert!(compared.stdout.contains("losses"), "{}", compared.stdout);
}

#[test]
fn the_screen_of_all_processes_shows_who_else_is_on_the_gpu() {
    let Some(stage) = Stage::set() else {
        return;
    };
    let mut other = start(
        &stage.environment,
        &stage.folder,
        &["hold.py", "--mib", "96", "--until"],
    );
    other.wait_for("READY");
    assert!(OTHERS.presses().is_empty());
    let mut screen = stage.show(&["top"]);
    for process in [&stage.leak, &other] {
        screen.wait_for(&process.pid().to_string());
    }
    let shown = screen.wait_for("GPU 0 ");
    assert!(
        shown.contains("leak.py") && shown.contains("hold.py"),
        "{shown}"
    );
    screen.press("q");
    assert_eq!(screen.finish_restored().code(), Some(0));
}

#[test]
#[ignore = "long: cargo xtask test --all"]
fn the_graph_has_the_memory_of_the_gpu_and_marks_of_steps_and_readings() {
    let Some(stage) = Stage::set() else {
        return;
    };
    // 12 of the 16 GiB of the simulated GPU.
    let mut full = start(
        &stage.environment,
        &stage.folder,
        &["hold.py", "--mib", "12288", "--until"],
    );
    full.wait_for("READY");
    let pid = full.pid().to_string();
    let mut screen = stage.show(&[&["attach", &pid], &PATIENT[..]].concat());
    let shown = screen.wait_for("╌╌ GPU 16.0 GiB");
    let top = shown.lines().find(|line| line.contains("16.00 GiB│"));
    assert!(top.is_some_and(|line| line.contains("╌╌╌╌╌╌")), "{shown}");
    screen.press("t");
    screen.wait_for("SNAPSHOT");
    screen.press("\x1b");
    screen.wait_for("tensors read");
    screen.press("q");
    assert_eq!(screen.finish_restored().code(), Some(0));
    let mut command = stage.environment.pytorch().command();
    on_driver(&mut command, &stage.folder);
    command.args([
        "steady.py",
        "--pause",
        "1",
        "--layers",
        "2",
        "--seconds",
        "600",
    ]);
    let mut slow = Background::start(&mut command);
    slow.wait_for("PID ");
    let mut screen = stage.show(&["attach", &slow.pid().to_string()]);
    screen.wait_for("steady.py:");
    screen.press("xy");
    screen.wait_for("┊ step");
    screen.press("q");
    assert_eq!(screen.finish_restored().code(), Some(0));
}

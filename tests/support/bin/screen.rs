//! Prints a live screen of memprobe, as the documents show it: `attach` or `top`, while the training
//! script of `cargo xtask demo` runs.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::time::Duration;

use memprobe_tests::environment::TestEnvironment;
use memprobe_tests::process::Background;
use memprobe_tests::pytorch::PyTorch;
use memprobe_tests::terminal::Terminal;

/// Columns of a screen that fits a page.
const COLUMNS: u16 = 112;

/// Time for which memprobe watches before the screen is taken.
const WATCHED: Duration = Duration::from_secs(8);

fn main() -> ExitCode {
    let verb = std::env::args().nth(1).unwrap_or_default();
    if !matches!(verb.as_str(), "attach" | "top") {
        eprintln!("there is no screen {verb:?}: there are attach and top");
        return ExitCode::FAILURE;
    }
    let Some(environment) = TestEnvironment::take_alone() else {
        return ExitCode::FAILURE;
    };
    let shared = tempfile::tempdir().expect("a folder");
    let on_simulated_driver = |mut command: Command| {
        command
            .env("CUDASIM_SHARED", shared.path())
            .env("CUDASIM_DEVICES", "2");
        command
    };
    let start = |arguments: &[&str], rank: Option<&str>| {
        let mut command = on_simulated_driver(python(environment.pytorch()));
        command.args(arguments);
        if let Some(rank) = rank {
            command.env("RANK", rank).env("WORLD_SIZE", "2");
        }
        Background::start(&mut command)
    };
    let mut training = start(&["demo_train.py", "--seconds", "600"], None);
    training.wait_for("PID ");
    let pid = training.pid().to_string();
    let mut others = Vec::new();
    let mut memprobe = on_simulated_driver(environment.memprobe());
    if let Some(folder) = environment.pytorch().simulated_libraries() {
        memprobe.env("LD_LIBRARY_PATH", folder);
    }
    let rows = if verb == "attach" {
        memprobe.args(["attach", "--pid", &pid]);
        24
    } else {
        memprobe.arg("top");
        for (rank, mib) in [("0", "512"), ("1", "768")] {
            let mut holding = start(&["hold.py", "--mib", mib], Some(rank));
            holding.wait_for("READY");
            others.push(holding);
        }
        12
    };
    let mut screen = Terminal::start_sized(&mut memprobe, (COLUMNS, rows));
    screen.wait_for("lost 0");
    std::thread::sleep(WATCHED);
    let text = screen.text();
    screen.press("q");
    screen.finish_restored();
    for line in text.trim_end().lines() {
        println!("{}", line.trim_end());
    }
    ExitCode::SUCCESS
}

/// Returns a command that runs the interpreter by the name `python`, as people do.
fn python(pytorch: &PyTorch) -> Command {
    let folder = pytorch
        .python()
        .parent()
        .expect("an interpreter lies in bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&path));
    let mut command = pytorch.command();
    command
        .arg0("python")
        .env("PATH", std::env::join_paths(folders).expect("a PATH"));
    command
}

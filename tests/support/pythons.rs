//! Pythons that the suite tests without a PyTorch.

use std::path::PathBuf;
use std::process::Command;

/// Environment variable with the interpreters, in the format of `PATH`. `cargo xtask test` sets it.
pub const TEST_PYTHONS: &str = "MEMPROBE_TEST_PYTHONS";

/// Minor versions that memprobe supports.
const MINORS: std::ops::RangeInclusive<u8> = 9..=15;

#[derive(Debug, Clone)]
pub struct Python {
    /// Full version, such as `3.14.10`.
    pub version: String,
    /// Path of the interpreter.
    pub program: PathBuf,
}

/// Returns the interpreters in the environment, oldest first. Prints a line for each missing
/// version.
pub fn of_this_run() -> Vec<Python> {
    let named = std::env::var_os(TEST_PYTHONS).unwrap_or_default();
    let mut found: Vec<((u8, u8), Python)> = std::env::split_paths(&named)
        .filter(|program| !program.as_os_str().is_empty())
        .map(asked)
        .collect();
    found.sort_by_key(|(numbers, _)| *numbers);
    for minor in MINORS {
        if !found.iter().any(|((known, _), _)| *known == minor) {
            println!(
                "skipped in part: no Python 3.{minor} is among {TEST_PYTHONS}; `cargo xtask test \
                 --all` installs it where it can"
            );
        }
    }
    found.into_iter().map(|(_, python)| python).collect()
}

/// Asks an interpreter for its minor and micro version.
///
/// # Panics
///
/// If it does not run: a listed interpreter must be tested.
fn asked(program: PathBuf) -> ((u8, u8), Python) {
    let question = "import sys; print(*sys.version_info[1:3])";
    let answer = Command::new(&program).args(["-I", "-c", question]).output();
    let answer = answer.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    let text = String::from_utf8_lossy(&answer.stdout).into_owned();
    let numbers = text
        .trim()
        .split_once(' ')
        .and_then(|(minor, micro)| Some((minor.parse().ok()?, micro.parse().ok()?)));
    let Some((minor, micro)) = numbers else {
        panic!(
            "{} does not answer like Python: {answer:?}",
            program.display()
        );
    };
    let version = format!("3.{minor}.{micro}");
    ((minor, micro), Python { version, program })
}

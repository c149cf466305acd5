//! Script that a guest runs, and the parser for its output.

use std::path::Path;

use super::catalog::Program;
use super::disk;

/// Part of the script that is common to all guests.
const COMMON: &str = include_str!("run.sh");

/// Returns a guest's script: its environment, and the programs to run.
pub fn script(
    repository: &Path,
    python: &Path,
    pythons: &Path,
    patience: u32,
    programs: &[Program],
) -> String {
    let variables = [
        ("PATH", format!("/bin:{}", pythons.display())),
        ("HOME", "/root".to_owned()),
        ("TMPDIR", "/tmp".to_owned()),
        ("RUST_BACKTRACE", "0".to_owned()),
        ("REPOSITORY", repository.display().to_string()),
        ("MEMPROBE_BIN", format!("{}/bin/memprobe", disk::TESTS)),
        ("MEMPROBE_TEST_PYTHON", python.display().to_string()),
        ("MEMPROBE_TEST_PATIENCE", patience.to_string()),
    ];
    let mut text = String::new();
    for (name, value) in variables {
        text += &format!("export {name}='{value}'\n");
    }
    text += COMMON;
    for program in programs {
        text += &format!("run {} {}\n", program.name, program.tests.join(" "));
    }
    // The serial line needs a moment to flush its last output.
    text + "echo @over\nsleep 1\npoweroff -f\n"
}

/// Parsed output of a guest.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct GuestOutput {
    /// Output of `uname -r`.
    pub release: String,
    /// Results of the programs.
    pub programs: Vec<Ran>,
    /// True if the script reached its end.
    pub over: bool,
}

/// Result of a test program.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Ran {
    pub name: String,
    /// Exit status; `None` until the program has ended.
    pub status: Option<i32>,
    pub passed: usize,
    pub failed: usize,
    /// Reasons of skipped tests.
    pub skipped: Vec<String>,
    /// Events, and their stacks, that matched PyTorch's own recorder.
    pub events: u64,
    pub stacks: u64,
    /// Output of `doctor` about loading the eBPF programs.
    pub programs: Option<String>,
    /// Instructions that the verifier processed for the longest program, if the kernel reports it.
    pub followed: Option<u32>,
    /// Names of the tests that passed.
    pub tests: Vec<String>,
}

impl GuestOutput {
    /// Parses a guest's output.
    pub fn read(lines: &[String]) -> Self {
        let mut output = Self::default();
        for line in lines {
            if let Some(release) = line.strip_prefix("@kernel ") {
                output.release = release.to_owned();
            } else if let Some(name) = line.strip_prefix("@start ") {
                output.programs.push(Ran {
                    name: name.to_owned(),
                    ..Ran::default()
                });
            } else if line == "@over" {
                output.over = true;
            } else if let Some(program) = output.programs.last_mut() {
                program.read(line);
            }
        }
        output
    }
}

impl Ran {
    fn read(&mut self, line: &str) {
        if let Some(end) = line.strip_prefix("@end ") {
            self.status = end.split_whitespace().last().and_then(|it| it.parse().ok());
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.passed = number_before(result, "passed").unwrap_or(0) as usize;
            self.failed = number_before(result, "failed").unwrap_or(0) as usize;
        } else if line.starts_with("skipped: ") {
            // One Python is enough here, so other missing ones are no skip.
            if !line.contains("names no PyTorch") || line.contains("MEMPROBE_TEST_PYTHON names") {
                self.skipped.push(line.to_owned());
            }
        } else if let Some(name) = passed_test(line) {
            self.tests.push(name.to_owned());
        } else if let Some((_, programs)) = line.split_once(": programs: ") {
            let (loaded, followed) = programs.split_once("; ").unwrap_or((programs, ""));
            self.programs = Some(loaded.to_owned());
            let numbers = followed.replace(',', "");
            let mut numbers = numbers.split_whitespace().filter_map(|it| it.parse().ok());
            self.followed = numbers.next();
        } else if number_before(line, "differing") == Some(0) {
            self.events += number_before(line, "events").unwrap_or(0);
            self.stacks += number_before(line, "stacks").unwrap_or(0);
        }
    }

    /// Returns the deviation from a clean run, if any.
    pub fn complaint(&self) -> Option<String> {
        let name = &self.name;
        match self.status {
            None => Some(format!("{name} did not end")),
            Some(_) if self.failed > 0 => Some(format!("{} tests of {name} failed", self.failed)),
            Some(0) if self.passed == 0 => Some(format!("{name} ran no test")),
            Some(0) => self
                .skipped
                .first()
                .map(|reason| format!("{name} {reason}")),
            Some(status) => Some(format!("{name} ended with status {status}")),
        }
    }
}

/// Returns the name in `test name ... ok`.
fn passed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... ok")
}

/// Returns the number before a word: 12 in `… 12 passed; …`.
fn number_before(line: &str, word: &str) -> Option<u64> {
    let words: Vec<&str> = line
        .split(|c: char| c.is_whitespace() || c == ';')
        .filter(|part| !part.is_empty())
        .collect();
    words
        .windows(2)
        .find(|pair| pair[1] == word)
        .and_then(|pair| pair[0].parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(text: &str) -> GuestOutput {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        GuestOutput::read(&lines)
    }

    const GOOD: &str = "\
@kernel 6.1.0-56-amd64
@start exactness
Linux 6.1.0-56-amd64: programs: 18 programs load in 1.0 s; of the longest the verifier follows 113,866 of 1,000,000 instructions
test every_event ... ok
skipped: MEMPROBE_TEST_PYTHON_312 names no PyTorch; run `cargo xtask test`
mlp_adam.py  python 3.11.7    4000 events   1500 stacks  700 backward   12 checkpoints    0 differing
threads.py   python 3.11.7     100 events     50 stacks    0 backward    2 checkpoints    0 differing
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out; finished in 40.1s
@end exactness 0
@over
";

    #[test]
    fn the_output_of_a_guest_is_counted() {
        let output = output(GOOD);
        assert_eq!(output.release, "6.1.0-56-amd64");
        assert!(output.over);
        let ran = &output.programs[0];
        assert_eq!((ran.passed, ran.events, ran.stacks), (2, 4100, 1550));
        assert_eq!(ran.tests, ["every_event"]);
        assert_eq!(ran.programs.as_deref(), Some("18 programs load in 1.0 s"));
        assert_eq!(ran.followed, Some(113_866));
        assert_eq!(ran.complaint(), None);
    }

    #[test]
    fn a_failed_test_a_crash_and_a_test_that_did_nothing_are_complaints() {
        let bad = |from: &str, to: &str| output(&GOOD.replace(from, to)).programs[0].complaint();
        assert_eq!(
            bad("2 passed; 0 failed", "1 passed; 1 failed").as_deref(),
            Some("1 tests of exactness failed")
        );
        assert_eq!(
            bad("2 passed", "0 passed").as_deref(),
            Some("exactness ran no test")
        );
        assert_eq!(
            bad("exactness 0", "exactness 139").as_deref(),
            Some("exactness ended with status 139")
        );
        assert_eq!(
            bad("@end exactness 0\n", "").as_deref(),
            Some("exactness did not end")
        );
        assert!(bad("PYTHON_312", "PYTHON").is_some());
    }

    #[test]
    fn a_script_runs_the_chosen_tests_and_ends() {
        let program = Program {
            tests: &["threads", "killed"],
            ..super::super::catalog::PROGRAMS[0]
        };
        let text = script(
            Path::new("/src/memprobe"),
            Path::new("/venv/bin/python"),
            Path::new("/opt/bin"),
            6,
            &[program],
        );
        assert!(text.contains("export REPOSITORY='/src/memprobe'\n"));
        assert!(text.ends_with("\nrun kernel threads killed\necho @over\nsleep 1\npoweroff -f\n"));
    }
}

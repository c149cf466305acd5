//! Tests that take longest, of those that run memprobe.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::repository::Repository;

/// Environment variable with the file to which each test of the suite adds its time (`tests/support/environment.rs`).
pub const TEST_TIMES: &str = "MEMPROBE_TEST_TIMES";

/// Tests to print.
const SHOWN: usize = 15;

/// Time of one test in its slots.
#[derive(Debug, PartialEq)]
struct TestTime<'a> {
    seconds: f64,
    program: &'a str,
    test: &'a str,
}

/// Returns the file of the times; removes that of an earlier run.
pub fn begin(repository: &Repository) -> Result<PathBuf> {
    let file = repository.target().join("test-times.tsv");
    match fs::remove_file(&file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", file.display()))
        }
        _ => Ok(file),
    }
}

/// Prints the tests that took longest; nothing if no test wrote a time.
pub fn print(file: &Path) {
    let text = fs::read_to_string(file).unwrap_or_default();
    let times = longest(&text);
    if times.is_empty() {
        return;
    }
    println!("\nLongest tests, of {}:", file.display());
    for time in times.iter().take(SHOWN) {
        println!("{:>8.1} s  {}: {}", time.seconds, time.program, time.test);
    }
}

/// Parses lines of seconds, program and test; returns them with the longest first. Programs are named without the hash
/// of the build.
fn longest(text: &str) -> Vec<TestTime<'_>> {
    let parse = |line| -> Option<TestTime<'_>> {
        let mut fields = str::split(line, '\t');
        let seconds = fields.next()?.parse().ok()?;
        let program = fields.next()?;
        let program = program.rsplit_once('-').map_or(program, |(name, _)| name);
        let test = fields.next()?;
        Some(TestTime {
            seconds,
            program,
            test,
        })
    };
    let mut times: Vec<_> = text.lines().filter_map(parse).collect();
    times.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_test_comes_first_and_a_torn_line_is_left_out() {
        let times = longest("1.5\ttop-0a1b\tquick\n12.0\tlive_screen-0c\tslow\n3.");
        let seconds: Vec<_> = times.iter().map(|time| time.seconds).collect();
        assert_eq!(seconds, [12.0, 1.5]);
        assert_eq!((times[0].program, times[0].test), ("live_screen", "slow"));
    }
}

//! The end of a fuzzer's run: its status, its counts and its CPU time.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result};

use crate::process;

/// Counts of a run, from what libFuzzer prints.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    pub status: ExitStatus,
    /// CPU time in seconds, of user and kernel.
    pub cpu_seconds: u64,
    pub executions: u64,
    /// Edges that the inputs reached.
    pub edges: u64,
}

/// Counts in the lines that libFuzzer has printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    executions: u64,
    edges: u64,
}

/// Runs libFuzzer, passes its output on, and returns its counts.
pub fn watch(fuzz: &mut Command) -> Result<Outcome> {
    eprintln!("  $ {}", process::shown(fuzz));
    let before = process::cpu_of_children()?;
    let shown = process::shown(fuzz);
    let mut child = fuzz
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{shown}`"))?;
    let mut counts = Counts::default();
    let errors = child.stderr.take().context("its errors are read")?;
    for line in BufReader::new(errors).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        eprintln!("{line}");
        counts.read(&line);
    }
    let status = child.wait()?;
    Ok(Outcome {
        status,
        cpu_seconds: (process::cpu_of_children()? - before).as_secs(),
        executions: counts.executions,
        edges: counts.edges,
    })
}

impl Counts {
    /// Reads a line such as `#4096 pulse  cov: 3108 ft: 9000 corp: …`, or a statistic at the end.
    fn read(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        while let Some(word) = words.next() {
            let count = match word {
                "cov:" => &mut self.edges,
                "stat::number_of_executed_units:" => &mut self.executions,
                _ => continue,
            };
            if let Some(number) = words.next().and_then(|word| word.parse().ok()) {
                *count = number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_last_lines() {
        let mut counts = Counts::default();
        for line in [
            "#2\tINITED cov: 12 ft: 13 corp: 1/1b exec/s: 0 rss: 40Mb",
            "#4096\tpulse  cov: 3108 ft: 9000 corp: 40/2Kb lim: 4096 exec/s: 2048 rss: 60Mb",
            "stat::number_of_executed_units: 1670000",
            "cov: of something else",
        ] {
            counts.read(line);
        }
        let expected = Counts {
            executions: 1_670_000,
            edges: 3108,
        };
        assert_eq!(counts, expected);
    }

    #[test]
    fn the_time_of_a_child_counts_once_it_has_ended() {
        let mut busy = Command::new("sh");
        busy.args(["-c", "echo '#1 DONE cov: 7 ft: 9' >&2; exit 3"]);
        let outcome = watch(&mut busy).unwrap();
        assert_eq!((outcome.status.code(), outcome.edges), (Some(3), 7));
    }
}

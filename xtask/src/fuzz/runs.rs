//! Runs of the fuzzer, as `docs/fuzzing.json` keeps them, and the page written from them.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::{MAX_MIB, MAX_SECONDS, READERS};
use crate::markdown::wrapped;

const FILE: &str = "fuzzing.json";
const TEMPLATE: &str = include_str!("page.md");

/// A run of one reader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FuzzRun {
    pub reader: String,
    /// Date (UTC), such as `2026-11-24`.
    pub date: String,
    /// Abbreviated hash of the commit in the checkout.
    pub commit: String,
    /// CPU time of the fuzzer, in seconds.
    pub cpu_seconds: u64,
    pub executions: u64,
    /// Edges of the control flow that its inputs reached.
    pub edges: u64,
    /// Inputs that the reader failed on: the fuzzer ends at the first.
    pub failures: u64,
}

/// Reads the runs in a folder of documents; none if there is no file.
pub fn read(docs: &Path) -> Result<Vec<FuzzRun>> {
    let path = docs.join(FILE);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = fs::read_to_string(&path)?;
    serde_json::from_str(&text).with_context(|| format!("cannot read {}", path.display()))
}

/// Adds a run to those of a folder of documents.
pub fn keep(docs: &Path, run: FuzzRun) -> Result<()> {
    let mut runs = read(docs)?;
    runs.push(run);
    let mut text = serde_json::to_string_pretty(&runs)?;
    text.push('\n');
    let path = docs.join(FILE);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the page: a row for each reader.
pub fn page_of(docs: &Path) -> Result<String> {
    Ok(page(&read(docs)?))
}

fn page(runs: &[FuzzRun]) -> String {
    let mut rows =
        "| reader | input | runs | CPU time | executions | edges | failures | last run |\n\
                    |---|---|---:|---:|---:|---:|---:|---|\n"
            .to_owned();
    for reader in READERS {
        let of_reader: Vec<&FuzzRun> = runs
            .iter()
            .filter(|run| run.reader == reader.name)
            .collect();
        let sum = |field: fn(&FuzzRun) -> u64| of_reader.iter().map(|run| field(run)).sum::<u64>();
        let (edges, last) = match of_reader.last() {
            Some(run) => (
                run.edges.to_string(),
                format!("{}, {}", run.date, run.commit),
            ),
            None => ("–".to_owned(), "–".to_owned()),
        };
        writeln!(
            rows,
            "| {} | {} | {} | {} | {} | {edges} | {} | {last} |",
            reader.name,
            reader.input,
            of_reader.len(),
            minutes(sum(|run| run.cpu_seconds)),
            sum(|run| run.executions),
            sum(|run| run.failures),
        )
        .expect("writing to a string does not fail");
    }
    let page = TEMPLATE
        .replace("{seconds}", &MAX_SECONDS.to_string())
        .replace("{mib}", &MAX_MIB.to_string())
        .replace("{readers}\n", &rows);
    wrapped(&page)
}

fn minutes(seconds: u64) -> String {
    format!("{} min", seconds / 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(reader: &str, cpu_seconds: u64, edges: u64) -> FuzzRun {
        FuzzRun {
            reader: reader.to_owned(),
            date: "2026-11-24".to_owned(),
            commit: "abc1234".to_owned(),
            cpu_seconds,
            executions: 1000,
            edges,
            failures: 0,
        }
    }

    #[test]
    fn the_page_adds_the_runs_of_a_reader_and_has_the_edges_of_the_last() {
        let page = page(&[
            run("elf", 1800, 10),
            run("stack", 60, 5),
            run("elf", 1860, 12),
        ]);
        let elf = page
            .lines()
            .find(|line| line.starts_with("| elf "))
            .unwrap();
        assert!(
            elf.contains("| 2 | 61 min | 2000 | 12 | 0 | 2026-11-24, abc1234 |"),
            "{elf}"
        );
        let heap = page
            .lines()
            .find(|line| line.starts_with("| heap "))
            .unwrap();
        assert!(heap.contains("| 0 | 0 min | 0 | – | 0 | – |"), "{heap}");
    }

    #[test]
    fn runs_stay_in_order() {
        let docs = tempfile::tempdir().unwrap();
        assert_eq!(read(docs.path()).unwrap(), []);
        let (first, second) = (run("elf", 1, 1), run("heap", 2, 2));
        keep(docs.path(), first.clone()).unwrap();
        keep(docs.path(), second.clone()).unwrap();
        assert_eq!(read(docs.path()).unwrap(), [first, second]);
    }
}

//! Criterion benchmarks of memprobe's own code, per event.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::table::Table;
use crate::process;
use crate::repository::Repository;

/// Prefix of the lines in which the ledger benchmark reports memory.
const MEMORY: &str = "memory of ";

/// Runs the benchmarks whose names contain `filter`, or all. They need neither root nor a target
/// process.
pub fn measure(repository: &Repository, filter: Option<&str>) -> Result<Table> {
    let folder = repository.target().join("criterion");
    eprintln!(
        "== memprobe's own code (criterion; reports in {})",
        folder.display()
    );
    // Results of an earlier run would be reported as this one's.
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = Command::new(program);
    // Run every `[[bench]]`, but not the library's libtest harness, which rejects criterion's
    // flags.
    cargo
        .current_dir(repository.root())
        .args(["bench", "--package", "memprobe", "--bench", "*"]);
    cargo.args(["--", "--noplot"]).args(filter);
    let memory = run(&mut cargo).context("the benchmarks did not run to their end")?;

    let mut table = Table::new(
        "memprobe's own code, on one core",
        &["", "time", "a second"],
    );
    for result in results(&folder)? {
        table.row(result.cells());
    }
    for line in memory {
        table.note(capitalized(&line));
    }
    Ok(table)
}

/// Runs cargo, forwards its output to standard error, and returns the lines about memory.
fn run(cargo: &mut Command) -> Result<Vec<String>> {
    eprintln!("  $ {}", process::shown(cargo));
    let mut child = cargo.stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().context("cargo has no pipe")?;
    let mut memory = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line?;
        eprintln!("{line}");
        if line.starts_with(MEMORY) {
            memory.push(line);
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("`{}` failed ({status})", process::shown(cargo));
    }
    Ok(memory)
}

fn capitalized(line: &str) -> String {
    let mut characters = line.chars();
    let first = characters
        .next()
        .map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + characters.as_str() + "."
}

/// One benchmark result: median time per iteration and elements per iteration.
#[derive(Debug, PartialEq)]
struct Outcome {
    name: String,
    nanoseconds: f64,
    elements: Option<u64>,
}

impl Outcome {
    fn cells(&self) -> [String; 3] {
        match self.elements {
            Some(elements) => {
                let each = self.nanoseconds / elements as f64;
                let rate = 1e9 / each;
                [
                    self.name.clone(),
                    format!("{each:.0} ns/event"),
                    format!("{:.2} million", rate / 1e6),
                ]
            }
            None => [
                self.name.clone(),
                format!("{:.1} µs", self.nanoseconds / 1e3),
                "-".to_owned(),
            ],
        }
    }
}

/// `estimates.json` of criterion 0.8.
#[derive(Deserialize)]
struct Estimates {
    median: Estimate,
}

#[derive(Deserialize)]
struct Estimate {
    point_estimate: f64,
}

/// `benchmark.json` of criterion 0.8.
#[derive(Deserialize)]
struct Benchmark {
    full_id: String,
    throughput: Option<Throughput>,
}

#[derive(Deserialize)]
struct Throughput {
    #[serde(rename = "Elements")]
    elements: Option<u64>,
}

/// Returns every result below criterion's folder, by name.
fn results(folder: &Path) -> Result<Vec<Outcome>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).with_context(|| {
            format!(
                "{} is missing: no benchmark has such a name",
                folder.display()
            )
        })?;
        for entry in entries {
            let path = entry?.path();
            if path.ends_with("new") {
                found.push(result(&path)?);
            } else if path.is_dir() {
                folders.push(path);
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn result(folder: &Path) -> Result<Outcome> {
    let benchmark: Benchmark = read(&folder.join("benchmark.json"))?;
    let estimates: Estimates = read(&folder.join("estimates.json"))?;
    Ok(Outcome {
        name: benchmark.full_id,
        nanoseconds: estimates.median.point_estimate,
        elements: benchmark
            .throughput
            .and_then(|throughput| throughput.elements),
    })
}

fn read<T: serde::de::DeserializeOwned>(path: &PathBuf) -> Result<T> {
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is not criterion's", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_found_below_criterions_folder() {
        let folder = tempfile::tempdir().unwrap();
        let new = folder.path().join("apply/20 blocks/new");
        fs::create_dir_all(&new).unwrap();
        let benchmark = r#"{"full_id": "apply/20 blocks", "throughput": {"Elements": 100}}"#;
        fs::write(new.join("benchmark.json"), benchmark).unwrap();
        fs::write(
            new.join("estimates.json"),
            r#"{"median": {"point_estimate": 50000.0}}"#,
        )
        .unwrap();
        let found = results(folder.path()).unwrap();
        assert_eq!(
            found[0].cells(),
            ["apply/20 blocks", "500 ns/event", "2.00 million"]
        );
    }

    #[test]
    fn a_benchmark_without_events_shows_its_time() {
        let outcome = Outcome {
            name: "snapshot".to_owned(),
            nanoseconds: 1500.0,
            elements: None,
        };
        assert_eq!(outcome.cells(), ["snapshot", "1.5 µs", "-"]);
    }
}

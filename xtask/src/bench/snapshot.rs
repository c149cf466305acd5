//! Cost of a snapshot of all tensors: pause of the process, total time, and memory of memprobe.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::footprint::Memory;
use super::profiler::Programs;
use super::statistics::Measured;
use super::table::Table;
use crate::process;

/// Snapshots per process.
const TAKEN: u32 = 15;

/// Time limit for a process to build its heap.
const LIMIT: Duration = Duration::from_secs(120);

/// A process with this many modules and objects.
struct Size {
    name: &'static str,
    modules: u32,
    objects: u32,
}

const SIZES: [Size; 3] = [
    Size {
        name: "PyTorch alone",
        modules: 0,
        objects: 0,
    },
    Size {
        name: "2,000 modules, Adam",
        modules: 2000,
        objects: 0,
    },
    Size {
        name: "and 1,000,000 objects",
        modules: 2000,
        objects: 1_000_000,
    },
];

/// Fields read from a snapshot's JSON.
#[derive(Debug, Deserialize)]
struct Said {
    objects: u64,
    pause_ms: f64,
    tensors: Vec<serde::de::IgnoredAny>,
}

/// One snapshot.
struct Cost {
    said: Said,
    /// Pause by the process's own clock.
    gap: Duration,
    wall: Duration,
    /// Peak resident memory of memprobe, in KiB.
    memory: u64,
}

impl Cost {
    /// Returns the snapshot as it was measured.
    fn sample(&self, size: &Size) -> Value {
        json!({
            "process": size.name,
            "objects": self.said.objects,
            "tensors": self.said.tensors.len(),
            "pause_ms": self.said.pause_ms,
            "pause_by_its_own_clock_ms": self.gap.as_secs_f64() * 1e3,
            "whole_time_ms": self.wall.as_secs_f64() * 1e3,
            "memory_kib": self.memory,
        })
    }
}

/// Measures snapshots of processes of every size.
pub fn measure(python: &Path, script: &Path, programs: &Programs) -> Result<Table> {
    eprintln!("== a snapshot of all tensors: {TAKEN} of each process");
    let mut table = Table::new(
        "A snapshot of all tensors of a process",
        &[
            "",
            "objects",
            "tensors",
            "stands still",
            "by its own clock",
            "per 10^6 objects",
            "whole time",
            "memory",
        ],
    );
    for size in SIZES {
        let target = Target::start(python, script, &size)?;
        let costs = (0..TAKEN).map(|_| target.snapshot(programs));
        let costs: Vec<Cost> = costs.collect::<Result<_>>()?;
        table.samples(costs.iter().map(|cost| cost.sample(&size)));
        let row = row(&size, &costs).context("nothing was measured")?;
        eprintln!("  {}: stands still for {}", row[0], row[3]);
        table.row(row);
        target.end()?;
    }
    table.note(
        "Medians. The pause as memprobe prints it, and the longest time that a thread of the process could not \
         look at its clock meanwhile (3 ms are its least). Memory is the most that memprobe had resident, its \
         program file included.",
    );
    Ok(table)
}

fn row(size: &Size, costs: &[Cost]) -> Option<[String; 8]> {
    let median = |value: &dyn Fn(&Cost) -> f64| {
        Measured::of(costs.iter().map(value).collect()).map(|measured| measured.median())
    };
    let pause = median(&|cost| cost.said.pause_ms)?;
    let last = &costs.last()?.said;
    Some([
        size.name.to_owned(),
        last.objects.to_string(),
        last.tensors.len().to_string(),
        format!("{pause:.1} ms"),
        format!("{:.1} ms", median(&|cost| cost.gap.as_secs_f64() * 1e3)?),
        format!("{:.0} ms", pause * 1e6 / last.objects.max(1) as f64),
        format!("{:.0} ms", median(&|cost| cost.wall.as_secs_f64() * 1e3)?),
        format!("{:.0} MiB", median(&|cost| cost.memory as f64 / 1024.0)?),
    ])
}

/// A process stopped at a point (`tests/workloads/tensor_reference.py`) with its heap.
struct Target {
    child: Child,
    folder: TempDir,
}

impl Target {
    fn start(python: &Path, script: &Path, size: &Size) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let gaps = folder.path().join("gaps");
        File::create(&gaps)?;
        let mut command = Command::new(python);
        command.args(["-W", "ignore"]).arg(script);
        command.arg("--modules").arg(size.modules.to_string());
        command.arg("--objects").arg(size.objects.to_string());
        command.arg("--folder").arg(folder.path());
        command.arg("--gaps").arg(gaps).stdin(Stdio::null());
        eprintln!("  $ {}", process::shown(&command));
        let child = command
            .spawn()
            .with_context(|| format!("cannot start `{}`", process::shown(&command)))?;
        let mut target = Self { child, folder };
        let start = Instant::now();
        while !target.path("point").exists() {
            if let Some(status) = target.child.try_wait()? {
                bail!("the workload ended too early ({status})");
            }
            ensure!(start.elapsed() < LIMIT, "the workload has no heap yet");
            sleep(Duration::from_millis(20));
        }
        Ok(target)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn snapshot(&self, programs: &Programs) -> Result<Cost> {
        File::create(self.path("gaps"))?;
        let output = programs.recordings.join("snapshot.json");
        let mut command = Command::new(&programs.memprobe);
        command.args(["snapshot", "--format", "json", "--pid"]);
        command.arg(self.child.id().to_string());
        command.stdin(Stdio::null()).stdout(File::create(&output)?);
        command.stderr(File::create(programs.recordings.join("snapshot.txt"))?);
        let start = Instant::now();
        let mut memprobe = command.spawn().context("memprobe does not start")?;
        let mut memory = Memory::default();
        let status = loop {
            // Reading fails once the process has ended.
            if let Ok(now) = Memory::of(memprobe.id()) {
                memory.add(now);
            }
            if let Some(status) = memprobe.try_wait()? {
                break status;
            }
            sleep(Duration::from_micros(500));
        };
        let wall = start.elapsed();
        ensure!(status.success(), "`memprobe snapshot` failed ({status})");
        // The process's clock thread writes its gap only after it runs again.
        sleep(Duration::from_millis(20));
        Ok(Cost {
            said: serde_json::from_reader(std::io::BufReader::new(File::open(&output)?))?,
            gap: longest(&fs::read_to_string(self.path("gaps"))?),
            wall,
            memory: memory.most(),
        })
    }

    fn end(mut self) -> Result<()> {
        fs::write(self.path("go"), "")?;
        let status = self.child.wait()?;
        ensure!(status.success(), "the workload failed ({status})");
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Both fail only for a process that has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the longest of the lines, in nanoseconds; an incomplete last line is ignored.
pub(super) fn longest(lines: &str) -> Duration {
    let whole = lines.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let longest = whole.lines().filter_map(|line| line.parse().ok()).max();
    Duration::from_nanos(longest.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_is_that_of_a_whole_line() {
        assert_eq!(
            longest("4000000\n7000000\n900000000"),
            Duration::from_millis(7)
        );
        assert_eq!(longest(""), Duration::ZERO);
    }
}

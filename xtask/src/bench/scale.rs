//! Cases that were much slower than their size: time, pause, memory and losses of each.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::footprint::{Memory, mebibytes};
use super::profiler::Programs;
use super::snapshot::longest;
use super::statistics::{Measured, Shuffle};
use super::table::Table;
use crate::process;

/// Runs of each memprobe on a process.
const RUNS: usize = 3;

/// Longest run of memprobe; a longer one is an error.
const LIMIT: Duration = Duration::from_secs(300);

struct Case {
    name: &'static str,
    /// Program in `tests/workloads` and its arguments. It prints `READY`, and runs on.
    workload: &'static [&'static str],
    /// Arguments of memprobe, without process and output.
    memprobe: &'static [&'static str],
}

const CASES: [Case; 6] = [
    Case {
        name: "2,000 Linears nested 100 deep: record -d 5s",
        workload: &["deep_modules.py"],
        memprobe: &["record", "--duration", "5s"],
    },
    Case {
        name: "200,000 tensors: record --names -d 3s",
        workload: &["many_blocks.py", "--tensors", "200000", "--pause", "0.001"],
        memprobe: &["record", "--names", "--duration", "3s"],
    },
    Case {
        name: "2,000 modules at rest: snapshot",
        workload: &["many_objects.py", "--objects", "0", "--then", "rest"],
        memprobe: &["snapshot"],
    },
    Case {
        name: "2,000 modules that train: snapshot",
        workload: &["many_objects.py", "--objects", "0", "--then", "train"],
        memprobe: &["snapshot"],
    },
    Case {
        name: "1,000,000 tensors: snapshot",
        workload: &["many_blocks.py", "--tensors", "1000000", "--pause", "0.001"],
        memprobe: &["snapshot"],
    },
    Case {
        name: "5,000,000 objects: snapshot",
        workload: &[
            "many_objects.py",
            "--modules",
            "0",
            "--objects",
            "5000000",
            "--then",
            "rest",
        ],
        memprobe: &["snapshot"],
    },
];

/// One run of memprobe.
struct Run {
    wall: Duration,
    /// Longest time that a thread of the process could not look at its clock.
    gap: Duration,
    /// Peak resident memory of memprobe, in KiB.
    memory: u64,
    /// Bytes of the file.
    written: u64,
    figures: Option<Figures>,
}

/// Last line of `record` about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Figures {
    pub events: u64,
    pub lost: u64,
}

impl Run {
    fn sample(&self, case: &Case, memprobe: &Path) -> Value {
        json!({
            "case": case.name,
            "memprobe": memprobe,
            "whole_time_ms": self.wall.as_secs_f64() * 1e3,
            "longest_gap_ms": self.gap.as_secs_f64() * 1e3,
            "memory_kib": self.memory,
            "written_bytes": self.written,
            "events": self.figures.map(|figures| figures.events),
            "lost": self.figures.map(|figures| figures.lost),
        })
    }
}

/// Measures each case with `filter` in its name, several memprobes in turns.
pub fn measure(
    python: &Path,
    workloads: &Path,
    programs: &Programs,
    filter: &str,
) -> Result<Table> {
    eprintln!("== scale: {RUNS} runs of each case");
    let mut table = Table::new(
        "Large and deep programs",
        &[
            "",
            "whole time",
            "longest gap",
            "memory",
            "written",
            "events",
            "lost",
        ],
    );
    let memprobes = [Some(&programs.memprobe), programs.other_memprobe.as_ref()];
    let memprobes: Vec<&PathBuf> = memprobes.into_iter().flatten().collect();
    let mut shuffle = Shuffle::new();
    let cases: Vec<_> = CASES
        .iter()
        .filter(|case| case.name.contains(filter))
        .collect();
    if cases.is_empty() {
        let names = CASES.map(|case| case.name).join("\n");
        bail!("no case has {filter:?} in its name. The cases:\n{names}");
    }
    for case in cases {
        let target = Target::start(python, workloads, case)?;
        let mut runs: Vec<Vec<Run>> = memprobes.iter().map(|_| Vec::new()).collect();
        for _ in 0..RUNS {
            for at in shuffle.order(memprobes.len()) {
                let run = target.run(memprobes[at], case, &programs.recordings)?;
                table.samples([run.sample(case, memprobes[at])]);
                runs[at].push(run);
            }
        }
        for (memprobe, runs) in memprobes.iter().zip(&runs) {
            let row = row(case, memprobe, &programs.memprobe, runs);
            let row = row.context("nothing was measured")?;
            eprintln!("  {}: {}", row[0], row[1]);
            table.row(row);
        }
    }
    table.note(
        "Medians. The gap is the longest time that a thread of the process could not look at its clock: its pause, \
         or the work of others.",
    );
    Ok(table)
}

fn row(case: &Case, memprobe: &Path, own: &Path, runs: &[Run]) -> Option<[String; 7]> {
    let median = |value: &dyn Fn(&Run) -> f64| {
        Measured::of(runs.iter().map(value).collect()).map(|measured| measured.median())
    };
    let of_figures = |value: fn(Figures) -> u64| {
        let values = runs.iter().filter_map(|run| run.figures.map(value));
        Measured::of(values.map(|value| value as f64).collect()).map_or_else(
            || "-".to_owned(),
            |measured| format!("{:.0}", measured.median()),
        )
    };
    let name = match memprobe == own {
        true => case.name.to_owned(),
        false => format!("{} (other)", case.name),
    };
    Some([
        name,
        format!("{:.1} s", median(&|run| run.wall.as_secs_f64())?),
        format!("{:.0} ms", median(&|run| run.gap.as_secs_f64() * 1e3)?),
        mebibytes(median(&|run| run.memory as f64)? as u64),
        mebibytes(median(&|run| run.written as f64)? as u64 / 1024),
        of_figures(|figures| figures.events),
        of_figures(|figures| figures.lost),
    ])
}

/// The program of a case, ended on drop.
struct Target {
    child: Child,
    folder: TempDir,
}

impl Target {
    fn start(python: &Path, workloads: &Path, case: &Case) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let gaps = folder.path().join("gaps");
        File::create(&gaps)?;
        let mut command = Command::new(python);
        command.args(["-W", "ignore"]).current_dir(workloads);
        command.args(case.workload).arg("--gaps").arg(gaps);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        eprintln!("  $ {}", process::shown(&command));
        let child = command.spawn();
        let child =
            child.with_context(|| format!("cannot start `{}`", process::shown(&command)))?;
        let mut target = Self { child, folder };
        let output = target.child.stdout.take().context("it has no output")?;
        let mut lines = BufReader::new(output).lines();
        match lines.next() {
            Some(Ok(line)) if line.starts_with("READY") => {}
            _ => bail!("the workload ended too early; what it said is above"),
        }
        // Its pipe must not fill up.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(target)
    }

    fn run(&self, memprobe: &Path, case: &Case, folder: &Path) -> Result<Run> {
        let gaps = self.folder.path().join("gaps");
        fs::OpenOptions::new().write(true).open(&gaps)?.set_len(0)?;
        let (file, said) = (folder.join("scale.mprb"), folder.join("scale.txt"));
        let mut command = Command::new(memprobe);
        command.args(case.memprobe).arg("--pid");
        command.arg(self.child.id().to_string());
        command.args([OsString::from("-o"), file.clone().into()]);
        command.stdin(Stdio::null()).stderr(File::create(&said)?);
        let start = Instant::now();
        let memory = wait(command.spawn().context("memprobe does not start")?)?;
        let wall = start.elapsed();
        let said = fs::read_to_string(&said)?;
        // The process's clock thread writes its gap only after it runs again.
        sleep(Duration::from_millis(20));
        Ok(Run {
            wall,
            gap: longest(&fs::read_to_string(&gaps)?),
            memory,
            written: fs::metadata(&file)?.len(),
            figures: said.lines().rev().find_map(Figures::of),
        })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Both fail only for a process that has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a program, mostly memprobe, and returns the most memory that it had, in KiB.
pub(super) fn wait(mut memprobe: Child) -> Result<u64> {
    let start = Instant::now();
    let mut memory = 0;
    loop {
        // Reading fails once the process has ended.
        if let Ok(now) = Memory::of(memprobe.id()) {
            memory = memory.max(now.most);
        }
        if let Some(status) = memprobe.try_wait()? {
            ensure!(status.success(), "it failed ({status})");
            return Ok(memory);
        }
        if start.elapsed() > LIMIT {
            memprobe.kill()?;
            memprobe.wait()?;
            bail!("it ran longer than {LIMIT:?}");
        }
        sleep(Duration::from_millis(2));
    }
}

impl Figures {
    /// Parses `memprobe: 00:00:05  145,430 events  120.46 MiB written  lost 0 (duration over)`.
    pub fn of(line: &str) -> Option<Self> {
        let number = |word: &str| word.replace(',', "").parse().ok();
        let (before, after) = line.split_once(" events ")?;
        let lost = after.split_once("  lost ")?.1;
        Some(Self {
            events: number(before.rsplit(' ').next()?)?,
            lost: number(lost.split(' ').next()?)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_and_losses_stand_in_the_last_line_of_a_recording() {
        let line =
            "memprobe: 00:00:05  145,430 events  120.46 MiB written  lost 1622187 (duration over)";
        let figures = Figures {
            events: 145_430,
            lost: 1_622_187,
        };
        assert_eq!(Figures::of(line), Some(figures));
        assert_eq!(Figures::of("memprobe: recording PID 7 to a.json"), None);
    }
}

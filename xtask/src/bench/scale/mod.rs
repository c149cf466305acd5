//! Cases that were much slower than their size: time, pause, memory and losses of each.

mod cases;
mod run;
mod workload;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use self::cases::{CASES, Case, Invocation};
use self::run::Run;
use self::workload::Workload;
use super::footprint::mebibytes;
use super::profiler::Programs;
use super::recording;
use super::statistics::{Measured, Shuffle};
use super::table::Table;

pub(super) use self::run::{Figures, wait};

/// Most runs of each memprobe on a case.
const RUNS: u32 = 3;

/// Measures each case with `filter` in its name, several memprobes in turns.
pub fn measure(
    python: &Path,
    workloads: &Path,
    programs: &Programs,
    filter: &str,
    rounds: u32,
) -> Result<Table> {
    let rounds = rounds.min(RUNS);
    eprintln!("== scale: {rounds} runs of each case");
    let mut table = Table::new(
        "Large and deep programs",
        &[
            "",
            "whole time",
            "CPU time",
            "longest gap",
            "slower",
            "memory",
            "written",
            "events",
            "lost",
        ],
    );
    let memprobes = [Some(&programs.memprobe), programs.other_memprobe.as_ref()];
    let memprobes: Vec<&PathBuf> = memprobes.into_iter().flatten().collect();
    let mut shuffle = Shuffle::new();
    let cases = CASES.iter().filter(|case| case.name.contains(filter));
    let cases: Vec<_> = cases.collect();
    if cases.is_empty() {
        let names = CASES.map(|case| case.name).join("\n");
        bail!("no case has {filter:?} in its name. The cases:\n{names}");
    }
    for case in cases {
        let mut subject = Subject::prepare(python, workloads, programs, case)?;
        let mut runs: Vec<Vec<Run>> = memprobes.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            for at in shuffle.order(memprobes.len()) {
                let run = subject.run(memprobes[at], programs, case)?;
                let name = row_name(case, memprobes[at], &programs.memprobe);
                table.samples([run.sample(&name)]);
                runs[at].push(run);
            }
        }
        for (memprobe, runs) in memprobes.iter().zip(&runs) {
            let row = row(case, memprobe, &programs.memprobe, runs);
            let row = row.context("nothing was measured")?;
            eprintln!("  {}", row.join("  "));
            table.row(row);
        }
    }
    table.note(
        "Medians. The gap is the longest time that a thread of the process could not look at its clock: its pause, \
         or the work of others. \"Slower\" is the growth of the CPU time that the process's own thread takes for a round, \
         in the worst ten seconds of each run; with the budget, for the same time of a loop in each round, and against \
         the worst ten seconds of as long a time without memprobe. Memory is the most that memprobe had resident, \
         its program file included; the ring buffer, which is mapped twice, counts once.",
    );
    Ok(table)
}

/// Shortest gap that a process writes down, in milliseconds (`Gaps` of `tests/workloads/many_objects.py`).
const LEAST_GAP_MS: u32 = 3;

/// Object of a case's runs.
enum Subject {
    Workload(Workload),
    /// A file, and the events in it.
    Recording(PathBuf, Figures),
}

impl Subject {
    fn prepare(python: &Path, workloads: &Path, programs: &Programs, case: &Case) -> Result<Self> {
        let Invocation::Recording(_, events, ending) = case.memprobe else {
            return Workload::start(python, workloads, case).map(Self::Workload);
        };
        let file = programs.recordings.join("scale").with_extension(ending);
        let figures = recording::record(python, workloads, &programs.memprobe, &file, events)?;
        Ok(Self::Recording(file, figures))
    }

    fn run(&mut self, memprobe: &Path, programs: &Programs, case: &Case) -> Result<Run> {
        match (self, &case.memprobe) {
            (Self::Recording(file, figures), Invocation::Recording(arguments, ..)) => Ok(Run {
                events: Some(figures.events),
                lost: Some(figures.lost),
                ..Run::of_recording(memprobe, arguments, file)?
            }),
            (Self::Recording(..), _) => bail!("a recording has no process"),
            (Self::Workload(workload), _) => {
                Run::with_workload(workload, memprobe, case, &programs.recordings)
            }
        }
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        if let Self::Recording(file, _) = self {
            // A file that stays behind only takes room.
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Name of a row; the path of memprobe is of this machine alone.
fn row_name(case: &Case, memprobe: &Path, own: &Path) -> String {
    match memprobe == own {
        true => case.name.to_owned(),
        false => format!("{} (other)", case.name),
    }
}

fn row(case: &Case, memprobe: &Path, own: &Path, runs: &[Run]) -> Option<[String; 9]> {
    let median = |value: &dyn Fn(&Run) -> Option<f64>| {
        let values = runs.iter().filter_map(value).collect();
        Measured::of(values).map(|measured| measured.median())
    };
    let cell =
        |value: Option<f64>, text: fn(f64) -> String| value.map_or_else(|| "-".to_owned(), text);
    let name = row_name(case, memprobe, own);
    let seconds = |seconds| format!("{seconds:.1} s");
    let count = |value: &dyn Fn(&Run) -> Option<u64>| {
        let value = median(&|run| value(run).map(|count| count as f64));
        cell(value, |count| format!("{count:.0}"))
    };
    Some([
        name,
        seconds(median(&|run| Some(run.wall.as_secs_f64()))?),
        seconds(median(&|run| Some(run.cpu.as_secs_f64()))?),
        cell(median(&|run| Some(run.gap?.as_secs_f64() * 1e3)), |gap| {
            if gap == 0.0 {
                format!("< {LEAST_GAP_MS} ms")
            } else {
                format!("{gap:.0} ms")
            }
        }),
        cell(median(&|run| run.slower), |slower| {
            format!("{:+.1} %", 100.0 * slower)
        }),
        mebibytes(median(&|run| Some(run.memory as f64))? as u64),
        cell(median(&|run| Some(run.written? as f64)), |bytes| {
            mebibytes(bytes as u64 / 1024)
        }),
        count(&|run| run.events),
        count(&|run| run.lost),
    ])
}

//! Eight ranks that do little but allocate, all at once: their slowdown, and the records that
//! memprobe loses.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::footprint::{Memory, cpu_seconds, mebibytes};
use super::profiler::{Programs, lost, wait_for_links};
use super::statistics::{Measured, Shuffle};
use super::table::Table;
use crate::process;

const RANKS: usize = 8;

/// Approximate allocator events per rank.
const EVENTS: u32 = 200_000;

/// Number of runs under each watcher, in turns.
const TURNS: usize = 5;

/// Seconds that `top` listens beyond twice the ranks' unwatched run time; it has to find them
/// first.
const LISTEN_ON: f64 = 10.0;

/// A memprobe command that watches the ranks, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watcher {
    Nobody,
    RecordLines,
    Record,
    Top,
}

impl Watcher {
    const ALL: [Self; 4] = [Self::Nobody, Self::RecordLines, Self::Record, Self::Top];

    fn name(self) -> &'static str {
        match self {
            Self::Nobody => "nobody watches",
            Self::RecordLines => "memprobe record --detail lines -o run/",
            Self::Record => "memprobe record -o run/",
            Self::Top => "memprobe top --once",
        }
    }
}

/// A rank's own account of its run (`tests/workloads/rush.py`).
#[derive(Debug, Clone, Deserialize)]
struct Ledger {
    pid: u32,
    begun: f64,
    ended: f64,
    events: u64,
    allocated: u64,
    reserved: u64,
}

/// One run of all ranks.
#[derive(Debug, Clone)]
struct Run {
    ledgers: Vec<Ledger>,
    watched: Option<Watched>,
}

/// Results of memprobe in one run.
#[derive(Debug, Clone)]
struct Watched {
    /// Records that memprobe reports as lost.
    lost: u64,
    /// Ranks whose allocated and reserved bytes match the allocator's at the end.
    right: usize,
    /// User plus system time, in seconds.
    cpu: f64,
    /// Peak resident memory, in KiB.
    memory: u64,
}

impl Run {
    /// Returns the seconds from the first rank's start to the last one's end.
    fn seconds(&self) -> f64 {
        let times = |time: fn(&Ledger) -> f64| self.ledgers.iter().map(time);
        let begun = times(|ledger| ledger.begun).fold(f64::MAX, f64::min);
        times(|ledger| ledger.ended).fold(f64::MIN, f64::max) - begun
    }

    fn events(&self) -> f64 {
        self.ledgers.iter().map(|ledger| ledger.events as f64).sum()
    }

    /// Returns the run as it was measured.
    fn sample(&self, watcher: Watcher, turn: usize) -> Value {
        let watched = self.watched.as_ref();
        json!({
            "watcher": watcher.name(),
            "turn": turn,
            "seconds": self.seconds(),
            "events": self.events(),
            "lost": watched.map(|it| it.lost),
            "right_ranks": watched.map(|it| it.right),
            "cpu_seconds": watched.map(|it| it.cpu),
            "memory_kib": watched.map(|it| it.memory),
        })
    }
}

/// Measures every watcher in turns.
pub fn measure(python: &Path, script: &Path, programs: &Programs) -> Result<Table> {
    eprintln!("== {RANKS} ranks at once that do hardly more than allocate: {TURNS} turns");
    let mut runs: BTreeMap<usize, Vec<Run>> = BTreeMap::new();
    let mut samples = Vec::new();
    let mut shuffle = Shuffle::new();
    // `top` must know for how long to listen, whoever comes first.
    let mut alone = RankRun::prepare(python, script)?.alone()?.seconds();
    for turn in 1..=TURNS {
        for at in shuffle.order(Watcher::ALL.len()) {
            let watcher = Watcher::ALL[at];
            let ranks = RankRun::prepare(python, script)?;
            let run = match watcher {
                Watcher::Nobody => ranks.alone()?,
                Watcher::RecordLines => ranks.recorded(programs, "lines")?,
                Watcher::Record => ranks.recorded(programs, "tensors")?,
                Watcher::Top => ranks.under_top(programs, 2.0 * alone + LISTEN_ON)?,
            };
            if watcher == Watcher::Nobody {
                alone = run.seconds();
            }
            samples.push(run.sample(watcher, turn));
            eprintln!(
                "  turn {turn} of {TURNS}: {:.0} events/s, {}",
                run.events() / run.seconds(),
                watcher.name()
            );
            runs.entry(at).or_default().push(run);
        }
    }
    let mut table = Table::new(
        format!("{RANKS} ranks at once that do hardly more than allocate"),
        &[
            "",
            "events/s in all",
            "of those alone",
            "lost",
            "ranks whose sums are right",
            "CPU of one core",
            "µs/event",
            "memory",
        ],
    );
    table.samples(samples);
    let alone = runs.get(&0).cloned().context("nothing was measured")?;
    for (at, watcher) in Watcher::ALL.into_iter().enumerate() {
        let runs = runs.get(&at).context("nothing was measured")?;
        table.row(row(watcher, runs, &alone).context("nothing was measured")?);
    }
    table.note(format!(
        "Medians of {TURNS} turns of {EVENTS} events a rank, forks of one process on a simulated GPU each; what was lost and \
         the ranks whose sums are right are of all turns together. memprobe's CPU time is over the time of the ranks; its memory \
         is the most that it had resident, with its program file and its ring buffer, which is mapped twice and counts once."
    ));
    Ok(table)
}

fn row(watcher: Watcher, runs: &[Run], alone: &[Run]) -> Option<[String; 8]> {
    let median = |value: &dyn Fn(&Run, &Run) -> Option<f64>| {
        let values = runs
            .iter()
            .zip(alone)
            .filter_map(|(run, alone)| value(run, alone));
        Measured::of(values.collect()).map(|measured| measured.median())
    };
    let rate = |run: &Run| run.events() / run.seconds();
    let watched: Vec<&Watched> = runs.iter().filter_map(|run| run.watched.as_ref()).collect();
    let of_memprobe = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let per_second = |run: &Run, _: &Run| Some(run.watched.as_ref()?.cpu / run.seconds());
    let per_event = |run: &Run, _: &Run| Some(run.watched.as_ref()?.cpu / run.events());
    let memory = |run: &Run, _: &Run| Some(run.watched.as_ref()?.memory as f64);
    let sum = |value: fn(&Watched) -> u64| watched.iter().map(|it| value(it)).sum::<u64>();
    let any = !watched.is_empty();
    Some([
        watcher.name().to_owned(),
        format!("{:.0}", median(&|run, _| Some(rate(run)))?),
        format!(
            "{:.2}",
            median(&|run, alone| Some(rate(run) / rate(alone)))?
        ),
        of_memprobe(any.then(|| sum(|it| it.lost).to_string())),
        of_memprobe(
            any.then(|| format!("{} of {}", sum(|it| it.right as u64), watched.len() * RANKS)),
        ),
        of_memprobe(median(&per_second).map(|share| format!("{:.0} %", 100.0 * share))),
        of_memprobe(median(&per_event).map(|seconds| format!("{:.2}", 1e6 * seconds))),
        of_memprobe(median(&memory).map(|kib| mebibytes(kib as u64))),
    ])
}

/// Ranks ready to start, and the folder of files that control them.
struct RankRun {
    folder: TempDir,
    /// Interpreter, script and arguments.
    ranks: Command,
}

/// Running ranks, or the memprobe that started them.
struct Running {
    child: Child,
    shown: String,
    output: BufReader<ChildStdout>,
}

impl RankRun {
    fn prepare(python: &Path, script: &Path) -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a folder for the ranks")?;
        let mut ranks = Command::new(python);
        ranks.arg(script);
        for (option, value) in [
            ("--ranks", RANKS.to_string()),
            ("--events", EVENTS.to_string()),
        ] {
            ranks.args([option, &value]);
        }
        for (option, name) in [("--go", "go"), ("--until", "until"), ("--folder", "")] {
            ranks.arg(option).arg(folder.path().join(name));
        }
        Ok(Self { folder, ranks })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Creates a file that makes the ranks start or end.
    fn touch(&self, name: &str) -> Result<()> {
        fs::write(self.path(name), "").context("the ranks cannot be told what to do")
    }

    fn alone(mut self) -> Result<Run> {
        let mut running = Running::start(&mut self.ranks)?;
        running.wait_for("ready")?;
        self.touch("go")?;
        running.wait_for("over")?;
        self.touch("until")?;
        running.finish()?;
        self.run(None)
    }

    /// Runs the ranks under `memprobe record`.
    fn recorded(self, programs: &Programs, detail: &str) -> Result<Run> {
        let run = self.path("run/");
        let mut command = Command::new(&programs.memprobe);
        command.args(["record", "--detail", detail, "-o"]);
        command.arg(&run).arg("--").arg(self.ranks.get_program());
        command.args(self.ranks.get_args());
        command.stderr(File::create(self.path("said"))?);
        let mut running = Running::start(&mut command)?;
        running.wait_for("ready")?;
        let memprobe = running.child.id();
        let before = cpu_seconds(memprobe)?;
        self.touch("go")?;
        running.wait_for("over")?;
        let (cpu, memory) = (
            cpu_seconds(memprobe)? - before,
            Memory::of(memprobe)?.most(),
        );
        self.touch("until")?;
        running.finish()?;
        let said = fs::read_to_string(self.path("said"))?;
        let mut report = Command::new(&programs.memprobe);
        report.arg("report").arg(&run).args(["--format", "json"]);
        let report: Value = serde_json::from_str(&process::answer(&mut report)?)?;
        let total = |recording: &Value, name: &str| recording["devices"][0][name].as_u64();
        let right = self.right(&report["recordings"], total)?;
        self.run(Some(Watched {
            lost: lost(&said).with_context(|| format!("no word on losses: {said}"))?,
            right,
            cpu,
            memory,
        }))
    }

    /// Runs the ranks while `memprobe top` watches the whole machine.
    fn under_top(mut self, programs: &Programs, listen: f64) -> Result<Run> {
        let mut running = Running::start(&mut self.ranks)?;
        running.wait_for("ready")?;
        let mut command = Command::new(&programs.memprobe);
        command.args(["top", "--once", "--format", "json", "--duration"]);
        command.arg(format!("{listen:.0}s"));
        let printed = self.path("printed");
        command.stdout(File::create(&printed)?);
        let mut top = Ended(command.spawn().context("cannot start memprobe")?);
        wait_for_links(&mut top.0, &process::shown(&command))?;
        let before = cpu_seconds(top.0.id())?;
        self.touch("go")?;
        running.wait_for("over")?;
        let cpu =
            cpu_seconds(top.0.id()).context("the ranks took longer than `top` listens")? - before;
        let memory = Memory::of(top.0.id())?.most();
        let status = top.0.wait()?;
        ensure!(status.success(), "`top` failed ({status})");
        self.touch("until")?;
        running.finish()?;
        let document: Value = serde_json::from_slice(&fs::read(&printed)?)?;
        let right = self.right(&document["processes"], |row, name| row[name].as_u64())?;
        let number = |name: &str| document[name].as_u64().unwrap_or(0);
        self.run(Some(Watched {
            lost: number("lost_events") + number("lost_stacks"),
            right,
            cpu,
            memory,
        }))
    }

    fn run(&self, watched: Option<Watched>) -> Result<Run> {
        Ok(Run {
            ledgers: self.ledgers()?,
            watched,
        })
    }

    fn ledgers(&self) -> Result<Vec<Ledger>> {
        let read = |rank| {
            let path = self.path(&format!("{rank}.json"));
            let text =
                fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            Ok(serde_json::from_slice(&text)?)
        };
        (0..RANKS).map(read).collect()
    }

    /// Counts the ranks whose totals in memprobe's output match their own.
    fn right(&self, rows: &Value, total: impl Fn(&Value, &str) -> Option<u64>) -> Result<usize> {
        let rows = rows.as_array().context("memprobe told of nobody")?;
        let is_right = |ledger: &&Ledger| {
            rows.iter().any(|row| {
                row["pid"] == ledger.pid
                    && total(row, "allocated") == Some(ledger.allocated)
                    && total(row, "reserved") == Some(ledger.reserved)
            })
        };
        Ok(self.ledgers()?.iter().filter(is_right).count())
    }
}

impl Running {
    fn start(command: &mut Command) -> Result<Self> {
        command
            .env("CUDASIM_DEVICES", RANKS.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let shown = process::shown(command);
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start `{shown}`"))?;
        let output = child.stdout.take().context("the ranks have no pipe")?;
        Ok(Self {
            child,
            shown,
            output: BufReader::new(output),
        })
    }

    /// Waits for a line that starts with `word`.
    fn wait_for(&mut self, word: &str) -> Result<()> {
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line)? == 0 {
                bail!("`{}` ended before it said {word:?}", self.shown);
            }
            if line.starts_with(word) {
                return Ok(());
            }
        }
    }

    fn finish(mut self) -> Result<()> {
        let status = self.child.wait()?;
        ensure!(status.success(), "`{}` failed ({status})", self.shown);
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only for a process that has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A child process that is killed on drop, also after an error.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // Both fail only for a process that has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rush_lasts_from_the_first_beginning_to_the_last_end() {
        let ledger = |begun, ended| Ledger {
            pid: 1,
            begun,
            ended,
            events: 100,
            allocated: 0,
            reserved: 0,
        };
        let run = Run {
            ledgers: vec![ledger(1.0, 3.0), ledger(0.5, 2.0)],
            watched: None,
        };
        assert_eq!((run.seconds(), run.events()), (2.5, 200.0));
    }
}

//! A recording of ten million events: its size, and the time and memory to write, read and export it. PyTorch's own
//! snapshot of the end of the same run stands beside it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::footprint::mebibytes;
use super::profiler::Programs;
use super::scale::{Figures, wait};
use super::table::Table;
use crate::process;

/// Events of the run.
const EVENTS: u64 = 10_000_000;

/// Events that PyTorch's history keeps: its snapshot of ten million takes more memory than many machines have.
const ENTRIES: u64 = 1_000_000;

/// Time limit for attaching.
const ATTACHING: Duration = Duration::from_secs(30);

/// Ways to read the recording: the row's name, and the arguments before and after the file.
const READINGS: [(&str, &[&str], &[&str]); 9] = [
    ("report", &["report"], &["--limit", "30"]),
    ("report --by peak", &["report"], &["--by", "peak"]),
    ("report --by category", &["report"], &["--by", "category"]),
    ("report --by iteration", &["report"], &["--by", "iteration"]),
    ("report --html", &["report"], &["--html"]),
    ("export to pprof", &["export"], &["--at", "peak", "-o"]),
    ("export to Parquet", &["export"], &["-o"]),
    ("export to memory_viz", &["export"], &["-o"]),
    ("export to CSV", &["export"], &["-o"]),
];

/// Ending of an export's file.
fn ending(name: &str) -> Option<&'static str> {
    match name {
        "report --html" => Some("html"),
        "export to pprof" => Some("pb.gz"),
        "export to Parquet" => Some("parquet"),
        "export to memory_viz" => Some("pickle"),
        "export to CSV" => Some("csv"),
        _ => None,
    }
}

/// Cost of one command.
struct Cost {
    wall: Duration,
    /// CPU time of user and kernel.
    cpu: Duration,
    /// Peak resident memory, in KiB.
    memory: u64,
    /// Bytes of the file that it wrote.
    written: Option<u64>,
}

/// Records the run, and reads the recording and PyTorch's snapshot.
pub fn measure(python: &Path, workloads: &Path, programs: &Programs) -> Result<Table> {
    let [events, entries] = [EVENTS, ENTRIES].map(|events| events / 1_000_000);
    eprintln!("== a recording of {events} million events");
    let mut table = Table::new(
        format!(
            "A recording of {events} million events, and PyTorch's snapshot of the last {entries} million"
        ),
        &[
            "",
            "time",
            "CPU time",
            "µs/event",
            "memory",
            "file",
            "bytes/event",
        ],
    );
    let folder = tempfile::tempdir_in(&programs.recordings)?;
    let recording = folder.path().join("trace.mprb");
    let pickle = folder.path().join("snapshot.pickle");
    let mut program = Target::start(python, workloads, &pickle, [EVENTS, ENTRIES])?;
    let (cost, figures) = program.record(&programs.memprobe, &recording)?;
    add(&mut table, "record", figures.events, &cost);
    ensure!(
        figures.events >= EVENTS,
        "only {} events were recorded",
        figures.events
    );
    if figures.lost > 0 {
        table.note(format!("{} events were lost.", figures.lost));
    }
    for (name, before, after) in READINGS {
        let cost = read(&programs.memprobe, &recording, name, before, after)?;
        add(&mut table, name, figures.events, &cost);
    }
    let cost = read(&programs.memprobe, &pickle, "report", &["report"], &[])?;
    let size = fs::metadata(&pickle)?.len();
    let of_pickle = |cost| Cost {
        written: Some(size),
        ..cost
    };
    add(
        &mut table,
        "PyTorch's snapshot: report",
        ENTRIES,
        &of_pickle(cost),
    );
    // PyTorch's own readers: the plain one, and that of its tool, which prints every event.
    let of_pytorch: [(&str, &[&str]); 2] = [
        (
            "PyTorch's snapshot: pickle.load()",
            &[
                "-c",
                "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))",
            ],
        ),
        (
            "PyTorch's snapshot: torch.cuda._memory_viz trace",
            &["-m", "torch.cuda._memory_viz", "trace"],
        ),
    ];
    for (name, arguments) in of_pytorch {
        let mut reader = Command::new(python);
        let cost = measured(reader.args(arguments).arg(&pickle))?;
        add(&mut table, name, ENTRIES, &of_pickle(cost));
    }
    table.note("One run. \"File\" is the file that a row wrote, or PyTorch's snapshot.");
    Ok(table)
}

/// Records a run of about so many events.
pub(super) fn record(
    python: &Path,
    workloads: &Path,
    memprobe: &Path,
    file: &Path,
    events: u64,
) -> Result<Figures> {
    let folder = tempfile::tempdir()?;
    let pickle = folder.path().join("snapshot.pickle");
    let mut program = Target::start(python, workloads, &pickle, [events, 1])?;
    let (_, figures) = program.record(memprobe, file)?;
    Ok(figures)
}

fn add(table: &mut Table, name: &str, events: u64, cost: &Cost) {
    eprintln!("  {name}: {:.1} s", cost.wall.as_secs_f64());
    let of_each = |value: f64| value / events as f64;
    let file = |text: &dyn Fn(u64) -> String| cost.written.map_or_else(|| "-".to_owned(), text);
    table.row([
        name.to_owned(),
        format!("{:.1} s", cost.wall.as_secs_f64()),
        format!("{:.1} s", cost.cpu.as_secs_f64()),
        format!("{:.2}", of_each(cost.cpu.as_secs_f64() * 1e6)),
        mebibytes(cost.memory),
        file(&|bytes| mebibytes(bytes / 1024)),
        file(&|bytes| format!("{:.1}", of_each(bytes as f64))),
    ]);
    table.samples([json!({
        "row": name,
        "events": events,
        "wall_s": cost.wall.as_secs_f64(),
        "cpu_s": cost.cpu.as_secs_f64(),
        "memory_kib": cost.memory,
        "written_bytes": cost.written,
    })]);
}

/// Reads a recording by one command of memprobe.
fn read(memprobe: &Path, file: &Path, name: &str, before: &[&str], after: &[&str]) -> Result<Cost> {
    let mut command = Command::new(memprobe);
    command.args(before).arg(file).args(after);
    let output = ending(name).map(|ending| file.with_extension(ending));
    command.args(&output);
    let cost = measured(&mut command)?;
    let written = output.map(fs::metadata).transpose()?;
    Ok(Cost {
        written: written.map(|written| written.len()),
        ..cost
    })
}

/// Runs a command to its end.
fn measured(command: &mut Command) -> Result<Cost> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let before = process::cpu_of_children()?;
    let start = Instant::now();
    let child = command.spawn();
    let child = child.with_context(|| format!("cannot start `{}`", process::shown(command)))?;
    let memory = wait(child)?;
    Ok(Cost {
        wall: start.elapsed(),
        cpu: process::cpu_of_children()? - before,
        memory,
        written: None,
    })
}

/// The program, ended on drop.
struct Target {
    child: Child,
}

impl Target {
    /// `counts` are the events of the run, and those that PyTorch's history keeps.
    fn start(python: &Path, workloads: &Path, pickle: &Path, counts: [u64; 2]) -> Result<Self> {
        let mut command = Command::new(python);
        command
            .current_dir(workloads)
            .args(["-W", "ignore", "recording_loop.py"])
            .args(counts.map(|number| number.to_string()))
            .arg(pickle)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        eprintln!("  $ {}", process::shown(&command));
        let mut target = Self {
            child: command.spawn().context("cannot start the program")?,
        };
        let output = target.child.stdout.take().context("it has no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        ensure!(line.starts_with("READY"), "the program ended too early");
        Ok(target)
    }

    /// Records the program from here to its end.
    fn record(&mut self, memprobe: &Path, file: &Path) -> Result<(Cost, Figures)> {
        let said = file.with_extension("txt");
        let mut command = Command::new(memprobe);
        let pid = self.child.id().to_string();
        let arguments = [OsStr::new("record"), OsStr::new("--pid"), pid.as_ref()];
        command
            .args(arguments)
            .args([OsString::from("-o"), file.into()]);
        command
            .stdin(Stdio::null())
            .stderr(fs::File::create(&said)?);
        let before = process::cpu_of_children()?;
        let recorder = command.spawn().context("memprobe does not start")?;
        wait_until_recording(&said)?;
        let start = Instant::now();
        let mut input = self.child.stdin.take().context("it has no input")?;
        input.write_all(b"go\n")?;
        let memory = wait(recorder)?;
        let cost = Cost {
            wall: start.elapsed(),
            cpu: process::cpu_of_children()? - before,
            memory,
            written: Some(fs::metadata(file)?.len()),
        };
        // The program is waited for last: its CPU time is none of memprobe's.
        ensure!(self.child.wait()?.success(), "the program failed");
        let said = fs::read_to_string(&said)?;
        let figures = said.lines().rev().find_map(Figures::of);
        Ok((cost, figures.context("memprobe printed no figures")?))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Both fail only for a process that has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait_until_recording(said: &PathBuf) -> Result<()> {
    let start = Instant::now();
    while !fs::read_to_string(said)?.contains("recording PID") {
        if start.elapsed() > ATTACHING {
            bail!("memprobe does not record: {}", fs::read_to_string(said)?);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

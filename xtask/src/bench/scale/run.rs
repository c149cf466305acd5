//! One run of memprobe beside a workload.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::cases::{Case, Invocation};
use super::workload::Workload;
use crate::bench::footprint::Memory;
use crate::bench::profiler::Attached;
use crate::process;

/// Longest run of memprobe, against hanging; it records ten million events in six minutes on a slow machine.
const LIMIT: Duration = Duration::from_secs(20 * 60);

pub(super) struct Run {
    pub wall: Duration,
    /// CPU time of memprobe.
    pub cpu: Duration,
    /// Longest time that a thread of the process could not look at its clock.
    pub gap: Option<Duration>,
    /// Growth of the CPU time of a round, as a share.
    pub slower: Option<f64>,
    /// Peak resident memory of memprobe, in KiB.
    pub memory: u64,
    /// Bytes of the file.
    pub written: Option<u64>,
    pub events: Option<u64>,
    pub lost: Option<u64>,
}

/// Last line of `record` about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) struct Figures {
    pub events: u64,
    pub lost: u64,
}

impl Run {
    /// The run's figures, under the name of its row.
    pub(super) fn sample(&self, row: &str) -> Value {
        json!({
            "case": row,
            "whole_time_ms": self.wall.as_secs_f64() * 1e3,
            "cpu_ms": self.cpu.as_secs_f64() * 1e3,
            "longest_gap_ms": self.gap.map(|gap| gap.as_secs_f64() * 1e3),
            "slower": self.slower,
            "memory_kib": self.memory,
            "written_bytes": self.written,
            "events": self.events,
            "lost": self.lost,
        })
    }

    /// Measures a run beside a workload, after the workload alone.
    pub(super) fn with_workload(
        workload: &Workload,
        memprobe: &Path,
        case: &Case,
        folder: &Path,
    ) -> Result<Self> {
        let begin = Instant::now();
        sleep(case.alone);
        let alone = workload.cost_of_a_round(begin, Instant::now());
        workload.forget_gaps()?;
        let start = Instant::now();
        let run = invoke(memprobe, &case.memprobe, workload.pid(), folder)?;
        let watched = workload.cost_of_a_round(start, Instant::now());
        Ok(Self {
            gap: Some(workload.longest_gap()?),
            slower: alone.zip(watched).map(|(alone, with)| with / alone - 1.0),
            ..run
        })
    }

    /// Measures a command that reads a recording.
    pub(super) fn of_recording(
        memprobe: &Path,
        arguments: &[&str],
        recording: &Path,
    ) -> Result<Self> {
        let mut command = Command::new(memprobe);
        command.args(arguments).arg(recording);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        finished(&mut command)
    }
}

/// Runs memprobe on a process.
fn invoke(memprobe: &Path, invocation: &Invocation, pid: u32, folder: &Path) -> Result<Run> {
    let (file, said) = (folder.join("scale.mprb"), folder.join("scale.txt"));
    let pid = pid.to_string();
    let mut command = Command::new(memprobe);
    match invocation {
        Invocation::File(arguments) => {
            command.args(*arguments).args(["--pid", &pid]);
            command.arg("-o").arg(&file);
            command.stdin(Stdio::null()).stderr(File::create(&said)?);
            let run = finished(&mut command)?;
            let said = fs::read_to_string(&said)?;
            let figures = said.lines().rev().find_map(Figures::of);
            Ok(Run {
                written: Some(fs::metadata(&file)?.len()),
                events: figures.map(|figures| figures.events),
                lost: figures.map(|figures| figures.lost),
                ..run
            })
        }
        Invocation::Refusal(arguments, text) => {
            command.args(*arguments).args(["--pid", &pid]);
            command.arg("-o").arg(&file);
            command.stdin(Stdio::null()).stderr(File::create(&said)?);
            let (status, run) = ended(&mut command)?;
            let said = fs::read_to_string(&said)?;
            ensure!(!status.success(), "it succeeded: {said}");
            ensure!(said.contains(text), "it failed in another way: {said}");
            Ok(run)
        }
        Invocation::Machine(arguments) => {
            command.args(*arguments).stdin(Stdio::null());
            command.stdout(Stdio::null());
            finished(&mut command)
        }
        Invocation::Screen(arguments, time) => {
            command.args(*arguments).args(["--pid", &pid]);
            on_screen(command, *time)
        }
        Invocation::Recording(..) => bail!("a recording has no process"),
    }
}

/// Shows a live screen for a time.
fn on_screen(command: Command, time: Duration) -> Result<Run> {
    let before = process::cpu_of_children()?;
    let start = Instant::now();
    let attached = Attached::on_a_terminal(command)?;
    sleep(time);
    let memory = Memory::of(attached.pid())?.most();
    let lost = attached.detach()?;
    Ok(Run {
        wall: start.elapsed(),
        cpu: process::cpu_of_children()? - before,
        gap: None,
        slower: None,
        memory,
        written: None,
        events: None,
        lost,
    })
}

fn finished(command: &mut Command) -> Result<Run> {
    let (status, run) = ended(command)?;
    ensure!(status.success(), "it failed ({status})");
    Ok(run)
}

fn ended(command: &mut Command) -> Result<(ExitStatus, Run)> {
    let before = process::cpu_of_children()?;
    let start = Instant::now();
    let (status, memory) = end(command.spawn().context("memprobe does not start")?)?;
    let run = Run {
        wall: start.elapsed(),
        cpu: process::cpu_of_children()? - before,
        gap: None,
        slower: None,
        memory,
        written: None,
        events: None,
        lost: None,
    };
    Ok((status, run))
}

/// Waits for a program, mostly memprobe, and returns the most memory that it had, in KiB.
pub(in crate::bench) fn wait(memprobe: Child) -> Result<u64> {
    let (status, memory) = end(memprobe)?;
    ensure!(status.success(), "it failed ({status})");
    Ok(memory)
}

fn end(mut memprobe: Child) -> Result<(ExitStatus, u64)> {
    let start = Instant::now();
    let mut memory = Memory::default();
    loop {
        // Reading fails once the process has ended.
        if let Ok(now) = Memory::of(memprobe.id()) {
            memory.add(now);
        }
        if let Some(status) = memprobe.try_wait()? {
            return Ok((status, memory.most()));
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

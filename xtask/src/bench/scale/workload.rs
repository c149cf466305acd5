//! Processes of a case, and the progress that they print.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::cases::Case;
use crate::bench::snapshot::longest;
use crate::process;

/// Time over which the cost to a process is averaged; of a longer run, the worst such time counts.
const AVERAGED: Duration = Duration::from_secs(10);

/// Running processes of a case; they end on drop.
pub(super) struct Workload {
    processes: Vec<Child>,
    folder: TempDir,
    progress: Arc<Mutex<Vec<Progress>>>,
}

/// Line `steps N SECONDS` or `steps N SECONDS TIMED`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Progress {
    at: Instant,
    /// Work so far: rounds, or the CPU time of a loop in each round that memprobe does not touch. The other processes of
    /// the machine slow the loop as much as the rest of a round, by a tenth and more.
    work: f64,
    /// CPU time of the thread so far, in seconds.
    cpu_s: f64,
}

/// Message for a lock that a panicking thread would poison.
const ADDS: &str = "adding progress does not panic";

impl Workload {
    pub(super) fn start(python: &Path, workloads: &Path, case: &Case) -> Result<Self> {
        // In memory: a disk that writes the recording of the case before would hold up the thread with the clock.
        let folder = tempfile::tempdir_in("/dev/shm")?;
        File::create(folder.path().join("gaps"))?;
        let mut workload = Self {
            processes: Vec::new(),
            folder,
            progress: Arc::default(),
        };
        for number in 0..case.processes {
            workload.add(python, workloads, case, number == 0)?;
        }
        Ok(workload)
    }

    fn add(
        &mut self,
        python: &Path,
        workloads: &Path,
        case: &Case,
        is_measured: bool,
    ) -> Result<()> {
        let mut command = Command::new(python);
        command.args(["-W", "ignore"]).current_dir(workloads);
        command.args(case.workload);
        if is_measured {
            command.arg("--gaps").arg(self.folder.path().join("gaps"));
            eprintln!("  $ {}", process::shown(&command));
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = command.spawn();
        let mut child =
            child.with_context(|| format!("cannot start `{}`", process::shown(&command)))?;
        let output = child.stdout.take();
        self.processes.push(child);
        let mut lines = BufReader::new(output.context("it has no output")?).lines();
        match lines.next() {
            Some(Ok(line)) if line.starts_with("READY") => {}
            _ => bail!("the workload ended too early; what it said is above"),
        }
        // Its pipe must not fill up.
        let progress = Arc::clone(&self.progress);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let now = Progress::parse(&line, Instant::now());
                progress.lock().expect(ADDS).extend(now);
            }
        });
        Ok(())
    }

    pub(super) fn pid(&self) -> u32 {
        self.processes[0].id()
    }

    pub(super) fn forget_gaps(&self) -> Result<()> {
        let gaps = self.folder.path().join("gaps");
        fs::OpenOptions::new().write(true).open(gaps)?.set_len(0)?;
        Ok(())
    }

    /// Returns the longest time that a thread of the process could not look at its clock.
    pub(super) fn longest_gap(&self) -> Result<Duration> {
        // The process's clock thread writes its gap only after it runs again.
        std::thread::sleep(Duration::from_millis(20));
        let gaps = self.folder.path().join("gaps");
        Ok(longest(&fs::read_to_string(gaps)?))
    }

    /// CPU time of a unit of [`Progress::work`] between two moments, in seconds: the highest average of any ten seconds,
    /// or of the whole time if it is shorter. Returns `None` without two lines of progress.
    pub(super) fn cost_of_a_round(&self, from: Instant, to: Instant) -> Option<f64> {
        let progress = self.progress.lock().expect(ADDS);
        let within = progress.iter().filter(|one| from <= one.at && one.at <= to);
        highest_cost(&within.copied().collect::<Vec<_>>())
    }
}

fn highest_cost(progress: &[Progress]) -> Option<f64> {
    let last = progress.last()?;
    let costs = progress.iter().filter_map(|first| {
        let is_end = |one: &&Progress| one.at - first.at >= AVERAGED;
        let end = progress.iter().find(is_end);
        let is_first = first.at == progress[0].at;
        let end = end.or(is_first.then_some(last))?;
        let work = end.work - first.work;
        (work > 0.0).then(|| (end.cpu_s - first.cpu_s) / work)
    });
    costs.max_by(f64::total_cmp)
}

impl Progress {
    fn parse(line: &str, at: Instant) -> Option<Self> {
        let figures = line.strip_prefix("steps ")?.split(' ');
        let figures: Result<Vec<f64>, _> = figures.map(str::parse).collect();
        let (work, cpu_s) = match *figures.ok()? {
            [rounds, cpu_s] => (rounds, cpu_s),
            [_, cpu_s, timed_s] => (timed_s, cpu_s),
            _ => return None,
        };
        Some(Self { at, work, cpu_s })
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        for child in &mut self.processes {
            // Both fail only for a process that has already ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(start: Instant, seconds: u64, work: f64, cpu_s: f64) -> Progress {
        Progress {
            at: start + Duration::from_secs(seconds),
            work,
            cpu_s,
        }
    }

    #[test]
    fn a_line_of_progress_has_work_and_cpu_time() {
        let at = Instant::now();
        let read = Progress::parse("steps 12 0.250000", at).unwrap();
        assert_eq!(read, progress(at, 0, 12.0, 0.25));
        let read = Progress::parse("steps 12 0.250000 0.200000", at).unwrap();
        assert_eq!(read, progress(at, 0, 0.2, 0.25));
        assert_eq!(Progress::parse("READY 7", at), None);
    }

    #[test]
    fn the_worst_ten_seconds_count() {
        let start = Instant::now();
        let at = |seconds, rounds, cpu_s| progress(start, seconds, rounds, cpu_s);
        // A second a round, then two, then one.
        let all = [
            at(0, 0.0, 0.0),
            at(10, 10.0, 10.0),
            at(20, 15.0, 20.0),
            at(30, 25.0, 30.0),
        ];
        assert_eq!(highest_cost(&all), Some(2.0));
        assert_eq!(highest_cost(&all[..2]), Some(1.0));
        assert_eq!(highest_cost(&[at(0, 0.0, 0.0), at(3, 1.0, 3.0)]), Some(3.0));
        assert_eq!(highest_cost(&all[..1]), None);
    }
}

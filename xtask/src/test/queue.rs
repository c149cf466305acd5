//! Order of the jobs of a run, and those that run at once.

use std::collections::VecDeque;
use std::time::Duration;

use super::programs::{ANOTHER_KERNEL, Job};
use super::steps::Times;

/// Slots of the tests (`tests/support/environment.rs`).
pub const SLOTS: u32 = 3;

/// Part of a run in which a job is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Its tests take single slots.
    Slots,
    /// Its tests need all slots: each would wait until they are free, and leave them empty meanwhile.
    Host,
    /// Runs neither memprobe nor a program with CUDA: it needs no slot, and fills the processor that is idle beside
    /// [`Part::Host`].
    Computation,
}

/// Parts of a run, one after the other. Each name stands for one job at a time, beside the others of its list.
pub const ORDER: [&[Part]; 2] = [
    &[Part::Slots; SLOTS as usize],
    &[Part::Host, Part::Computation],
];

const HOST: [&str; 6] = [
    "tests/suite/budget.rs",
    "tests/suite/diagnostics.rs",
    "tests/suite/kernel.rs",
    "tests/suite/many_processes.rs",
    "tests/suite/nvml.rs",
    "tests/suite/top.rs",
];

const COMPUTATIONS: [&str; 3] = [
    "fuzz/tests/corpus.rs",
    "memprobe/src/lib.rs",
    "memprobe/tests/architecture/main.rs",
];

/// True if a test program runs neither memprobe nor a program with CUDA.
pub fn is_computation(name: &str) -> bool {
    COMPUTATIONS.contains(&name)
}

impl Part {
    fn of(job: &Job) -> Self {
        let name = job.name();
        if matches!(job, Job::Benchmark(_)) || is_computation(&name) {
            Self::Computation
        } else if HOST.contains(&name.as_str()) {
            Self::Host
        } else {
            Self::Slots
        }
    }
}

/// Jobs that take minutes. On a fresh checkout they come first, so that none is left alone at the end.
const LONG: [&str; 17] = [
    ANOTHER_KERNEL,
    "memprobe/src/lib.rs",
    "tests/suite/attribution.rs",
    "tests/suite/before_attach.rs",
    "tests/suite/compact_recordings.rs",
    "tests/suite/cuda_sim.rs",
    "tests/suite/estimate.rs",
    "tests/suite/exactness.rs",
    "tests/suite/export_snapshot.rs",
    "tests/suite/kv_cache.rs",
    "tests/suite/late_tables.rs",
    "tests/suite/snapshot_safety.rs",
    "tests/suite/snapshots.rs",
    "tests/suite/suspend.rs",
    "tests/suite/training_shapes.rs",
    "tests/suite/watch.rs",
    "tests/suite/waterfall.rs",
];

/// Returns the expected time of a job without an earlier one.
fn usual_time(name: &str) -> Duration {
    Duration::from_secs(if LONG.contains(&name) { 120 } else { 20 })
}

/// Jobs that wait and run.
pub struct Queue<'a> {
    waiting: VecDeque<Job<'a>>,
    running: Vec<String>,
}

impl<'a> Queue<'a> {
    /// Orders jobs: those first that took longest in an earlier run, or are known to take long.
    pub fn new(mut jobs: Vec<Job<'a>>, times: &Times) -> Self {
        jobs.sort_by_key(|job| {
            let name = job.name();
            let time = times.of(&name).unwrap_or_else(|| usual_time(&name));
            std::cmp::Reverse(time)
        });
        Self {
            waiting: jobs.into(),
            running: Vec::new(),
        }
    }

    /// Takes the next job of a part.
    pub fn next(&mut self, part: Part) -> Option<Job<'a>> {
        let next = self.waiting.iter().position(|job| Part::of(job) == part)?;
        let job = self.waiting.remove(next)?;
        self.running.push(job.name());
        println!("     Started {}", job.name());
        Some(job)
    }

    pub fn end(&mut self, name: &str) {
        self.running.retain(|running| running != name);
    }

    /// Returns the jobs that have not ended.
    pub fn left(&self) -> Vec<String> {
        let waiting = self.waiting.iter().map(Job::name);
        self.running.iter().cloned().chain(waiting).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::programs::TestProgram;
    use super::*;

    fn test(name: &str) -> Job<'static> {
        Job::Program(TestProgram::at(Path::new("/w"), name))
    }

    #[test]
    fn programs_whose_tests_need_all_slots_wait_for_the_others() {
        let jobs = ["tests/suite/top.rs", "tests/suite/names.rs"].map(test);
        let mut queue = Queue::new(jobs.into(), &Times::default());
        let mut name = |part| queue.next(part).map(|job| job.name());
        assert_eq!(name(Part::Slots).unwrap(), "tests/suite/names.rs");
        assert_eq!(name(Part::Slots), None);
        assert_eq!(name(Part::Host).unwrap(), "tests/suite/top.rs");
        queue.end("tests/suite/names.rs");
        assert_eq!(queue.left(), ["tests/suite/top.rs"]);
    }

    #[test]
    fn every_job_has_a_part_that_is_run_and_every_program_of_a_list_is_there() {
        let benchmark = TestProgram::at(Path::new("/w"), "memprobe/benches/ledger.rs");
        let jobs = [
            Job::Benchmark(benchmark),
            test("memprobe/src/lib.rs"),
            test("tests/suite/top.rs"),
            test("memprobe/tests/pauses.rs"),
        ];
        let parts = jobs.each_ref().map(Part::of);
        use Part::{Computation, Host, Slots};
        assert_eq!(parts, [Computation, Computation, Host, Slots]);
        assert!(parts.iter().all(|part| ORDER.concat().contains(part)));
        let root = crate::repository::Repository::here();
        for name in HOST.iter().chain(&COMPUTATIONS) {
            assert!(root.root().join(name).exists(), "{name}");
        }
    }

    #[test]
    fn the_longest_of_earlier_runs_come_first() {
        let mut times = Times::default();
        times.put("usr/short.rs", Duration::from_secs(1));
        times.put("usr/long.rs", Duration::from_secs(100));
        assert!(usual_time("tests/suite/snapshots.rs") > usual_time("tests/suite/names.rs"));
        let jobs = ["usr/short.rs", "usr/long.rs", "usr/new.rs"].map(test);
        let queue = Queue::new(jobs.into(), &times);
        assert_eq!(queue.left(), ["usr/long.rs", "usr/new.rs", "usr/short.rs"]);
    }
}

//! Cost of the probes to the processes that hit them: the kernel's count of runs and their time, and the time of a trap.

use std::arch::naked_asm;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use aya::sys::{Stats, enable_stats};
use hashbrown::{HashMap, HashSet};

use super::loader::{ALLOCATOR_ENTRY, EVENT_WITH_STACK, Loader, Reach, RunTime};
use crate::event::{ProbeCost, Tgid};
use crate::process::maps::Maps;

/// Rounds of the calibration, and calls in each.
const ROUNDS: usize = 15;
const CALLS: u32 = 40;

/// Factor from a trap in memprobe's own process to one in a program that does something else between two traps: there
/// caches are cold. On the machine of docs/guide/src/cost.md a trap takes 0.76 µs here and 1.2 µs there. The factor is
/// larger, so that the estimate agrees with the measured cost of `memprobe attach`, program and reader included.
const COLD: f64 = 2.0;

/// Longest time of a run that counts. A run with 200 Python frames takes 3.6 µs. The kernel measures by the clock, so that
/// a run in the middle of which another thread gets the processor, as when a new stack wakes the reader, takes
/// milliseconds on a busy machine (`__bpf_prog_run`, include/linux/filter.h).
const LONGEST_RUN: Duration = Duration::from_micros(50);

/// Time from the probed instruction to the program and back.
#[derive(Clone, Copy, Debug)]
struct TrapTimes {
    /// On an instruction that the kernel emulates.
    emulated: Duration,
    /// On one that it single-steps.
    stepped: Duration,
}

/// Measures the cost of all probes together. The kernel counts for as long as this exists, which costs each run of a
/// program two readings of the clock.
pub struct ProbeMeter {
    _counting: OwnedFd,
    trap: TrapTimes,
    last: RunTimes,
}

/// Runs of each program, by its name.
type RunTimes = HashMap<String, RunTime>;

impl ProbeMeter {
    /// Has the kernel count, and measures the trap on memprobe itself, which takes about 10 ms.
    pub fn start(loader: &mut Loader) -> Result<Self> {
        let counting =
            enable_stats(Stats::RunTime).context("asking the kernel to time programs")?;
        let trap = TrapTimes {
            emulated: trap_on(loader, emulated)?,
            stepped: trap_on(loader, stepped)?,
        };
        log::debug!(
            "a trap takes {:?}, {:?} where the kernel single-steps",
            trap.emulated,
            trap.stepped
        );
        let mut meter = Self {
            _counting: counting,
            trap,
            last: RunTimes::new(),
        };
        // What was counted so far is the calibration's.
        meter.take(loader, &HashSet::new());
        Ok(meter)
    }

    /// Returns the cost since the last call. `stepped` are the programs with a probe that the kernel single-steps.
    pub fn take(&mut self, loader: &Loader, stepped: &HashSet<&str>) -> ProbeCost {
        cost_since(&mut self.last, loader.run_times(), self.trap, stepped)
    }
}

/// Returns the cost of the runs since `last`, which becomes `now`. Nobody counts the hits of one probe apart: all hits of
/// a program in `stepped` count as single-stepped.
fn cost_since(
    last: &mut RunTimes,
    now: Vec<(&str, RunTime)>,
    trap: TrapTimes,
    stepped: &HashSet<&str>,
) -> ProbeCost {
    let mut cost = ProbeCost::default();
    for (name, now) in now {
        let trap = match stepped.contains(name) {
            true => trap.stepped,
            false => trap.emulated,
        };
        let last = last.entry_ref(name).or_default();
        let spent = spent_since(*last, now, trap);
        *last = now;
        match name {
            "empty_generic" | "empty_strided_generic" => cost.shapes += spent,
            // Its own probes are those of nodes and a few marks; blocks reach it through the allocator's program.
            EVENT_WITH_STACK | "evaluate_function" => cost.graph += spent,
            _ => cost.rest += spent,
        }
    }
    cost
}

/// Returns the time that the runs since `last` took, traps included.
fn spent_since(last: RunTime, now: RunTime, trap: Duration) -> Duration {
    let runs = now.runs.saturating_sub(last.runs) as f64;
    let total = now.total.saturating_sub(last.total);
    total.min(LONGEST_RUN.mul_f64(runs)) + trap.mul_f64(runs)
}

/// Stands for a probed function: it begins with an instruction that the kernel emulates. Its fifth argument is no CUDA
/// device, so that the program ends at once.
#[unsafe(naked)]
extern "C" fn emulated(_: u64, _: u64, _: u64, _: u64, _device: u64) {
    naked_asm!("push rbp", "pop rbp", "ret")
}

/// Like [`emulated`], with an instruction that the kernel single-steps.
#[unsafe(naked)]
extern "C" fn stepped(_: u64, _: u64, _: u64, _: u64, _device: u64) {
    naked_asm!("mov rax, rdi", "ret")
}

type Probed = extern "C" fn(u64, u64, u64, u64, u64);

/// Measures the time that a probe adds to each call of a function of memprobe's own.
fn trap_on(loader: &mut Loader, function: Probed) -> Result<Duration> {
    let tgid = Tgid(std::process::id());
    let address = function as *const () as u64;
    let maps = Maps::of(tgid).context("reading memprobe's own mappings")?;
    let mapping = maps.find(address);
    let mapping = mapping.context("memprobe's own code is in no mapping")?;
    let offset = address - mapping.start + mapping.offset;
    let plain = median_call(function);
    let reach = Reach::Process(tgid);
    let link = loader.attach(
        ALLOCATOR_ENTRY,
        "/proc/self/exe".as_ref(),
        offset,
        None,
        reach,
    )?;
    let probed = median_call(function);
    // The kernel waits until no processor can be in the program.
    thread::spawn(move || drop(link));
    Ok(probed.saturating_sub(plain).mul_f64(COLD))
}

fn median_call(function: Probed) -> Duration {
    let mut rounds: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..CALLS {
                std::hint::black_box(function)(0, 0, 0, 0, 0);
            }
            start.elapsed() / CALLS
        })
        .collect();
    rounds.sort_unstable();
    rounds[ROUNDS / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAP: Duration = Duration::from_micros(2);

    fn counters(runs: u64, total: Duration) -> RunTime {
        RunTime { runs, total }
    }

    #[test]
    fn runs_cost_their_time_and_a_trap_each() {
        let last = counters(100, Duration::from_micros(150));
        let now = counters(110, Duration::from_micros(190));
        assert_eq!(spent_since(last, now, TRAP), Duration::from_micros(60));
        assert_eq!(spent_since(now, now, TRAP), Duration::ZERO);
    }

    #[test]
    fn a_program_that_is_hit_rarely_by_slow_traps_makes_the_traps_of_others_no_slower() {
        let trap = TrapTimes {
            emulated: TRAP,
            stepped: 10 * TRAP,
        };
        let stepped = HashSet::from_iter(["library_mapped"]);
        let mut last = RunTimes::new();
        let mut cost = |blocks, libraries| {
            let now = vec![
                (ALLOCATOR_ENTRY, counters(blocks, Duration::ZERO)),
                ("library_mapped", counters(libraries, Duration::ZERO)),
                ("empty_generic", counters(blocks, Duration::ZERO)),
            ];
            cost_since(&mut last, now, trap, &stepped)
        };
        let first = cost(100, 1);
        assert_eq!((first.rest, first.shapes), (110 * TRAP, 100 * TRAP));
        let second = cost(200, 3);
        assert_eq!((second.rest, second.shapes), (120 * TRAP, 100 * TRAP));
    }

    #[test]
    fn time_of_another_thread_in_the_middle_of_a_run_does_not_count() {
        let now = counters(2, Duration::from_millis(65));
        let spent = spent_since(RunTime::default(), now, TRAP);
        assert_eq!(spent, Duration::from_micros(104));
    }
}

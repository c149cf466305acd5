//! Recent run times of one program in the kernel, and the part of a measured time that the program itself took.

use std::collections::VecDeque;
use std::time::Duration;

use super::loader::RunTime;

/// Measurements that count as recent.
const RECENT: usize = 15;

/// Measurements before a typical time of a run is known.
const FIRST: usize = 8;

/// Time of a run at most until then. A run with 40 Python frames takes 1.1 µs.
const FIRST_RUN: Duration = Duration::from_micros(50);

/// A single run may take so many times the typical time and one.
const SPREAD: f64 = 7.0;

/// Run times of a program. The kernel measures a run by the clock: where another thread has the processor in the middle
/// of a run, its time counts too (`__bpf_prog_run` in include/linux/filter.h), which on a busy machine is milliseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct RunHistory {
    last: RunTime,
    /// Seconds of a run, the mean of each recent measurement.
    means: VecDeque<f64>,
}

impl RunHistory {
    /// Takes the program's counters. Returns the runs since the last call and the time that they took themselves, which
    /// is the measured time unless that is far above the typical one.
    pub(super) fn add(&mut self, now: RunTime) -> RunTime {
        let last = std::mem::replace(&mut self.last, now);
        let runs = now.runs.saturating_sub(last.runs);
        let total = now.total.saturating_sub(last.total);
        if runs == 0 {
            return RunTime::default();
        }
        if self.means.len() == RECENT {
            self.means.pop_front();
        }
        self.means.push_back(total.as_secs_f64() / runs as f64);
        let most = match self.typical() {
            // The mean of many runs strays less than a single one, with the root of their number.
            Some(typical) => typical.mul_f64(runs as f64 + SPREAD * (runs as f64).sqrt()),
            None => FIRST_RUN.mul_f64(runs as f64),
        };
        RunTime {
            runs,
            total: total.min(most),
        }
    }

    /// Lower quartile of the recent means: just after attach, a stack that is sent for the first time wakes the reader,
    /// so that most of the first runs are interrupted.
    fn typical(&self) -> Option<Duration> {
        let mut means: Vec<f64> = self.means.iter().copied().collect();
        means.sort_unstable_by(f64::total_cmp);
        let quartile = means.get(means.len() / 4);
        quartile
            .filter(|_| means.len() >= FIRST)
            .map(|seconds| Duration::from_secs_f64(*seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counters of a program after steps of so many runs of so many nanoseconds in all.
    fn measured(steps: &[(u64, u64)]) -> Vec<u64> {
        let (mut history, mut sum) = (RunHistory::default(), RunTime::default());
        let mut add = |&(runs, nanoseconds): &(u64, u64)| {
            sum.runs += runs;
            sum.total += Duration::from_nanos(nanoseconds);
            history.add(sum).total.as_nanos() as u64
        };
        steps.iter().map(&mut add).collect()
    }

    #[test]
    fn ordinary_times_count_as_measured() {
        let steps = [(10, 10_000), (12, 14_000), (1, 3_000), (900, 1_000_000)];
        assert_eq!(measured(&steps), [10_000, 14_000, 3_000, 1_000_000]);
    }

    #[test]
    fn time_of_another_thread_in_the_middle_of_a_run_does_not_count() {
        let first = measured(&[(2, 65_000_000)]);
        assert_eq!(first, [100_000]);
        let mut steps = vec![(4, 4_000); 8];
        steps.push((4, 20_004_000));
        assert_eq!(measured(&steps).last(), Some(&18_000));
        let mut steps = vec![(10_000, 10_000_000); 8];
        steps.push((10_000, 30_000_000));
        assert_eq!(measured(&steps).last(), Some(&10_700_000));
    }

    #[test]
    fn a_program_that_walks_deeper_stacks_counts_in_full_after_a_moment() {
        let mut steps = vec![(100, 100_000); 15];
        steps.extend(vec![(100, 3_000_000); 12]);
        let measured = measured(&steps);
        assert!(measured[15] < 3_000_000);
        assert_eq!(measured.last(), Some(&3_000_000));
    }

    #[test]
    fn a_program_that_does_not_run_takes_nothing() {
        assert_eq!(measured(&[(0, 0), (0, 0)]), [0, 0]);
    }
}

//! Schedule of the attempts to attach to one process.

use std::time::{Duration, Instant};

/// Interval for a process that is not ready to be probed and was running before.
const RUNNING: Duration = Duration::from_millis(10);
/// Interval for a process that has just started: its first allocation must be seen. The rest of
/// `import torch` lies between the mapping of PyTorch's libraries and that allocation.
const STARTED: Duration = Duration::from_millis(2);
/// Interval if the dynamic loader reports libraries: only the start of Python or of a library is
/// awaited, which ends before the first allocation.
pub(super) const WITH_LOADER: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(2);
/// Inverse of the share of time spent on polling one process.
const SHARE: u32 = 5;
/// Part of a process's age that the interval grows to.
const AGE_SHARE: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// The attempt had no time to finish.
    Immediate,
    /// Not ready; was running before memprobe came.
    Running,
    /// Not ready; has just started.
    Started,
    /// Not ready for long, though its loader reports libraries.
    WithLoader,
    /// Something may still be added.
    Seldom,
    Never,
}

#[derive(Debug)]
pub(super) struct PollSchedule {
    since: Instant,
    pub(super) next: Option<Instant>,
    last: Instant,
    took: Duration,
}

impl PollSchedule {
    /// Schedule of a process that is first seen `now`.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            next: Some(now),
            last: now,
            took: Duration::ZERO,
        }
    }

    /// Schedule of a process whose first attempt is due at `next`.
    pub(super) fn starting(now: Instant, next: Option<Instant>) -> Self {
        Self {
            next,
            ..Self::new(now)
        }
    }

    /// Time since the process was first seen running this program.
    pub(super) fn age(&self, now: Instant) -> Duration {
        now.duration_since(self.since)
    }

    /// Brings the next attempt forward, within the share of time for one process.
    pub(super) fn hasten(&mut self) {
        let due = self.last + self.took * SHARE;
        self.next = Some(self.next.map_or(due, |next| next.min(due)));
    }

    /// Brings the next attempt forward to `now`, whatever share of time the last one took.
    pub(super) fn bring_to(&mut self, now: Instant) {
        self.next = Some(now);
    }

    /// Schedules the next attempt after one from `start` to `end`.
    pub(super) fn attempted(&mut self, start: Instant, end: Instant, pace: Pace) {
        self.last = end;
        self.took = end.duration_since(start);
        let grown = |least: Duration| (self.age(end) / AGE_SHARE).clamp(least, LONGEST);
        let fair = self.took * SHARE;
        self.next = match pace {
            Pace::Immediate => Some(end),
            Pace::Running => Some(end + grown(RUNNING).max(fair)),
            Pace::Started => Some(end + grown(STARTED).max(fair)),
            Pace::WithLoader => Some(end + grown(WITH_LOADER).max(fair)),
            Pace::Seldom => Some(end + LONGEST.max(fair)),
            Pace::Never => None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_grows_with_the_age_of_the_process() {
        let start = Instant::now();
        let mut schedule = PollSchedule::new(start);
        let after = |schedule: &mut PollSchedule, age: u64, pace| {
            let end = start + Duration::from_secs(age);
            schedule.attempted(end, end, pace);
            schedule.next.map(|next| next.duration_since(end))
        };
        assert_eq!(after(&mut schedule, 0, Pace::Started), Some(STARTED));
        assert_eq!(after(&mut schedule, 0, Pace::Running), Some(RUNNING));
        let second = Duration::from_secs(1);
        assert_eq!(after(&mut schedule, 64, Pace::Started), Some(second));
        assert_eq!(after(&mut schedule, 6400, Pace::Started), Some(LONGEST));
        assert_eq!(after(&mut schedule, 1, Pace::Never), None);
    }

    #[test]
    fn one_process_takes_a_bounded_share_of_the_time() {
        let start = Instant::now();
        let mut schedule = PollSchedule::new(start);
        let end = start + Duration::from_secs(1);
        schedule.attempted(start, end, Pace::Started);
        assert_eq!(schedule.next, Some(end + Duration::from_secs(5)));
        schedule.hasten();
        assert_eq!(schedule.next, Some(end + Duration::from_secs(5)));
        schedule.attempted(start, end, Pace::Immediate);
        assert_eq!(schedule.next, Some(end));
    }
}

//! Totals over time, in a bounded number of steps.

use super::snapshot::Timeline;
use crate::event::{TimeNs, Totals};

/// Maximum number of points. When they are full, pairs are merged and the step doubles. The points
/// always cover all time since attach, and at least half of them stay in use.
pub const MAX_POINTS: usize = 1200;

/// Nanoseconds of the first step (1 ms).
const FIRST_STEP: u64 = 1_000_000;

/// Recorder of the highest totals of each step.
#[derive(Clone, Debug)]
pub(super) struct Recorder {
    timeline: Timeline,
    last: Totals,
}

impl Recorder {
    /// Starts with `totals` as the value from `start` on.
    pub(super) fn new(start: TimeNs, totals: Totals) -> Self {
        let timeline = Timeline {
            start,
            step: FIRST_STEP,
            points: vec![totals],
        };
        Self {
            timeline,
            last: totals,
        }
    }

    /// Records new totals at `time`. A time earlier than the previous one counts as the previous
    /// one: events arrive in the allocator's order.
    pub(super) fn record(&mut self, time: TimeNs, totals: Totals) {
        self.extend_to(time);
        self.last = totals;
        if let Some(point) = self.timeline.points.last_mut() {
            *point = point.higher(totals);
        }
    }

    /// Timeline extended to `now` with the last totals.
    pub(super) fn up_to(&self, now: TimeNs) -> Timeline {
        let mut recorder = self.clone();
        recorder.extend_to(now);
        recorder.timeline
    }

    fn extend_to(&mut self, time: TimeNs) {
        let passed = time.0.saturating_sub(self.timeline.start.0);
        let covered = self
            .timeline
            .step
            .saturating_mul(self.timeline.points.len() as u64);
        if passed < covered {
            return;
        }
        while passed / self.timeline.step >= MAX_POINTS as u64 {
            self.double_step();
        }
        let needed = (passed / self.timeline.step) as usize + 1;
        if needed > self.timeline.points.len() {
            self.timeline.points.resize(needed, self.last);
        }
    }

    fn double_step(&mut self) {
        let points = &mut self.timeline.points;
        let merged = points.len().div_ceil(2);
        for index in 0..merged {
            let first = points[index * 2];
            let second = points.get(index * 2 + 1).copied().unwrap_or(first);
            points[index] = first.higher(second);
        }
        points.truncate(merged);
        self.timeline.step *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Bytes;

    fn totals(allocated: u64) -> Totals {
        Totals {
            allocated: Bytes(allocated),
            reserved: Bytes(allocated * 2),
        }
    }

    fn allocated(timeline: &Timeline) -> Vec<u64> {
        timeline
            .points
            .iter()
            .map(|point| point.allocated.0)
            .collect()
    }

    fn ms(milliseconds: u64) -> TimeNs {
        TimeNs(milliseconds * FIRST_STEP)
    }

    #[test]
    fn a_step_keeps_the_highest_and_a_silent_one_repeats_the_last() {
        let mut recorder = Recorder::new(ms(100), totals(5));
        recorder.record(ms(102), totals(9));
        recorder.record(ms(102), totals(3));
        recorder.record(ms(105), totals(4));
        assert_eq!(allocated(&recorder.up_to(ms(106))), [5, 5, 9, 3, 3, 4, 4]);
    }

    #[test]
    fn a_time_before_the_last_counts_as_the_last() {
        let mut recorder = Recorder::new(ms(10), totals(1));
        recorder.record(ms(12), totals(2));
        recorder.record(ms(3), totals(7));
        assert_eq!(allocated(&recorder.up_to(ms(0))), [1, 1, 7]);
    }

    #[test]
    fn a_full_timeline_merges_pairs_and_keeps_every_peak() {
        let mut recorder = Recorder::new(ms(0), totals(0));
        let count = MAX_POINTS as u64;
        for step in 0..count {
            recorder.record(ms(step), totals(if step == 301 { 1_000_000 } else { step }));
        }
        assert_eq!(recorder.timeline.points.len(), MAX_POINTS);
        recorder.record(ms(count), totals(count));
        let timeline = recorder.up_to(ms(count));
        assert_eq!(timeline.step, 2 * FIRST_STEP);
        assert_eq!(timeline.points.len(), MAX_POINTS / 2 + 1);
        assert_eq!(timeline.points[150].allocated, Bytes(1_000_000));
        assert_eq!(timeline.points[0].allocated, Bytes(1));
    }

    #[test]
    fn the_end_of_time_still_fits() {
        let mut recorder = Recorder::new(TimeNs(0), totals(1));
        recorder.record(TimeNs(u64::MAX), totals(2));
        let timeline = recorder.up_to(TimeNs(u64::MAX));
        assert!(timeline.points.len() <= MAX_POINTS);
        assert_eq!(timeline.points.last(), Some(&totals(2)));
        assert_eq!(timeline.points[0], totals(1));
    }
}

//! Totals over time, in a bounded number of steps.

use super::snapshot::Timeline;
use crate::event::{TimeNs, Totals};

/// Maximum number of points. When they are full, pairs are merged and the step doubles. The points
/// always cover all time since attach, and at least half of them stay in use.
pub const MAX_POINTS: usize = 1200;

/// Nanoseconds of the first step (1 ms).
pub(crate) const FIRST_STEP: u64 = 1_000_000;

/// Value of which a timeline keeps the highest in each step.
pub trait Highest: Clone {
    /// Becomes `other` as far as that is higher.
    fn raise_to(&mut self, other: &Self);
}

impl Highest for Totals {
    fn raise_to(&mut self, other: &Self) {
        *self = self.higher(*other);
    }
}

impl<T: Highest> Timeline<T> {
    /// Starts with `first` as the value from `start` on.
    pub(crate) fn new(start: TimeNs, first: T) -> Self {
        Self {
            start,
            step: FIRST_STEP,
            points: vec![first],
        }
    }

    /// Appends steps with the value `last`, up to `time`. A time earlier than the previous one counts as the previous
    /// one: events arrive in the allocator's order.
    pub(crate) fn extend_to(&mut self, time: TimeNs, last: &T) {
        let passed = time.0.saturating_sub(self.start.0);
        if passed < self.step.saturating_mul(self.points.len() as u64) {
            return;
        }
        while passed / self.step >= MAX_POINTS as u64 {
            self.double_step();
        }
        let needed = (passed / self.step) as usize + 1;
        if needed > self.points.len() {
            self.points.resize(needed, last.clone());
        }
    }

    pub(crate) fn raise(&mut self, now: &T) {
        if let Some(point) = self.points.last_mut() {
            point.raise_to(now);
        }
    }

    fn double_step(&mut self) {
        let mut pairs = std::mem::take(&mut self.points).into_iter();
        while let Some(mut first) = pairs.next() {
            if let Some(second) = pairs.next() {
                first.raise_to(&second);
            }
            self.points.push(first);
        }
        self.step *= 2;
    }
}

#[derive(Clone, Debug)]
pub(super) struct TotalsRecorder {
    timeline: Timeline,
    last: Totals,
}

impl TotalsRecorder {
    pub(super) fn new(start: TimeNs, totals: Totals) -> Self {
        Self {
            timeline: Timeline::new(start, totals),
            last: totals,
        }
    }

    pub(super) fn record(&mut self, time: TimeNs, totals: Totals) {
        self.timeline.extend_to(time, &self.last);
        self.last = totals;
        self.timeline.raise(&totals);
    }

    /// Timeline extended to `now` with the last totals.
    pub(super) fn up_to(&self, now: TimeNs) -> Timeline {
        let mut timeline = self.timeline.clone();
        timeline.extend_to(now, &self.last);
        timeline
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
        let mut recorder = TotalsRecorder::new(ms(100), totals(5));
        recorder.record(ms(102), totals(9));
        recorder.record(ms(102), totals(3));
        recorder.record(ms(105), totals(4));
        assert_eq!(allocated(&recorder.up_to(ms(106))), [5, 5, 9, 3, 3, 4, 4]);
    }

    #[test]
    fn a_time_before_the_last_counts_as_the_last() {
        let mut recorder = TotalsRecorder::new(ms(10), totals(1));
        recorder.record(ms(12), totals(2));
        recorder.record(ms(3), totals(7));
        assert_eq!(allocated(&recorder.up_to(ms(0))), [1, 1, 7]);
    }

    #[test]
    fn a_full_timeline_merges_pairs_and_keeps_every_peak() {
        let mut recorder = TotalsRecorder::new(ms(0), totals(0));
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
        let mut recorder = TotalsRecorder::new(TimeNs(0), totals(1));
        recorder.record(TimeNs(u64::MAX), totals(2));
        let timeline = recorder.up_to(TimeNs(u64::MAX));
        assert!(timeline.points.len() <= MAX_POINTS);
        assert_eq!(timeline.points.last(), Some(&totals(2)));
        assert_eq!(timeline.points[0], totals(1));
    }
}

//! Totals over time, in a bounded number of steps: all time since attach in steps that grow, and the recent past in
//! steps that do not.

use std::collections::VecDeque;

use super::snapshot::{DeviceTimeline, TimeWindow, Timeline, TimelineMarks, TotalsPoint};
use crate::event::{MarkedPhase, TimeNs, Totals};

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

impl Highest for TotalsPoint {
    /// Covers both steps.
    fn raise_to(&mut self, other: &Self) {
        self.low = self.low.lower(other.low);
        self.high = self.high.higher(other.high);
        self.marks.add(other.marks);
    }
}

impl TimelineMarks {
    pub(super) fn add(&mut self, other: Self) {
        let add = |sum: &mut u32, more: u32| *sum = sum.saturating_add(more);
        add(&mut self.steps, other.steps);
        add(&mut self.zero_grads, other.zero_grads);
        add(&mut self.batches, other.batches);
        add(&mut self.ooms, other.ooms);
        add(&mut self.readings, other.readings);
    }

    pub(super) fn of_ooms(ooms: u32) -> Self {
        Self {
            ooms,
            ..Self::default()
        }
    }

    pub(super) fn of_reading() -> Self {
        Self {
            readings: 1,
            ..Self::default()
        }
    }

    pub(super) fn of_phase(phase: MarkedPhase) -> Self {
        let mut marks = Self::default();
        let mark = match phase {
            MarkedPhase::Step => &mut marks.steps,
            MarkedPhase::ZeroGrad => &mut marks.zero_grads,
            MarkedPhase::NextBatch => &mut marks.batches,
        };
        *mark = 1;
        marks
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

/// Most steps that one span is drawn over.
const MAX_SPAN_STEPS: usize = 1 << 12;

/// Points of a recent window.
const RECENT_POINTS: usize = 400;

/// Last points of a window, in steps of a fixed length.
#[derive(Clone, Debug)]
struct RecentTimeline {
    /// Start of the first point.
    start: TimeNs,
    /// Nanoseconds per step.
    step: u64,
    /// At least one, at most [`RECENT_POINTS`].
    points: VecDeque<TotalsPoint>,
}

impl RecentTimeline {
    fn new(start: TimeNs, window: TimeWindow, first: TotalsPoint) -> Self {
        Self {
            start,
            step: window.length().unwrap_or(u64::MAX) / RECENT_POINTS as u64,
            points: VecDeque::from([first]),
        }
    }

    /// Appends steps with the value `last` up to `time`, and forgets the oldest.
    fn extend_to(&mut self, time: TimeNs, last: TotalsPoint) {
        let passed = time.0.saturating_sub(self.start.0);
        // Nearly all events lie in the last step.
        if passed < self.step.saturating_mul(self.points.len() as u64) {
            return;
        }
        let passed = passed / self.step;
        let missing = (passed + 1).saturating_sub(self.points.len() as u64);
        let pushed = missing.min(RECENT_POINTS as u64);
        for _ in 0..pushed {
            self.points.push_back(last);
        }
        let over = self.points.len().saturating_sub(RECENT_POINTS);
        self.points.drain(..over);
        let forgotten = over as u64 + (missing - pushed);
        self.start.0 = self
            .start
            .0
            .saturating_add(forgotten.saturating_mul(self.step));
    }

    fn raise(&mut self, now: &TotalsPoint) {
        if let Some(point) = self.points.back_mut() {
            point.raise_to(now);
        }
    }

    fn up_to(mut self, now: TimeNs, last: TotalsPoint) -> Timeline {
        self.extend_to(now, last);
        Timeline {
            start: self.start,
            step: self.step,
            points: self.points.into(),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct TotalsRecorder {
    all: Timeline,
    recent: [RecentTimeline; 3],
    last: Totals,
    /// Totals and marks that the last step of each timeline still lacks. Nearly all events change this point alone.
    pending: TotalsPoint,
    /// First end of a last step.
    pending_until: TimeNs,
}

impl TotalsRecorder {
    pub(super) fn new(start: TimeNs, totals: Totals) -> Self {
        let first = TotalsPoint::at(totals);
        let mut recorder = Self {
            all: Timeline::new(start, first),
            recent: TimeWindow::RECENT.map(|window| RecentTimeline::new(start, window, first)),
            last: totals,
            pending: first,
            pending_until: start,
        };
        recorder.pending_until = recorder.first_end();
        recorder
    }

    pub(super) fn record(&mut self, time: TimeNs, totals: Totals) {
        self.extend_to(time);
        self.last = totals;
        self.pending.raise_to(&TotalsPoint::at(totals));
    }

    /// Records that the totals lay between those of `point` after each event of a span, and the last ones. Each step of
    /// the span gets them and those before, since it may have had any.
    pub(super) fn record_span(
        &mut self,
        [begin, end]: [TimeNs; 2],
        point: TotalsPoint,
        last: Totals,
    ) {
        self.extend_to(begin);
        let before = std::mem::replace(&mut self.last, last);
        self.pending.raise_to(&point);
        let span = TotalsPoint {
            low: point.low.lower(before),
            high: point.high.higher(before),
            marks: TimelineMarks::default(),
        };
        // More steps than this have only cells of a hostile file.
        for _ in 0..MAX_SPAN_STEPS {
            if self.pending_until > end {
                break;
            }
            self.extend_to(self.pending_until);
            self.pending.raise_to(&span);
        }
        self.extend_to(end);
    }

    /// Marks the step of `time`.
    pub(super) fn mark(&mut self, time: TimeNs, marks: TimelineMarks) {
        self.extend_to(time);
        self.pending.marks.add(marks);
    }

    fn extend_to(&mut self, time: TimeNs) {
        if time < self.pending_until {
            return;
        }
        self.flush();
        let last = self.pending;
        self.all.extend_to(time, &last);
        for recent in &mut self.recent {
            recent.extend_to(time, last);
        }
        self.pending_until = self.first_end();
    }

    /// Adds the pending point to the last steps; the last totals are pending then.
    fn flush(&mut self) {
        let pending = std::mem::replace(&mut self.pending, TotalsPoint::at(self.last));
        self.all.raise(&pending);
        self.recent
            .iter_mut()
            .for_each(|recent| recent.raise(&pending));
    }

    fn first_end(&self) -> TimeNs {
        let end = |start: TimeNs, step: u64, points: usize| {
            start.0.saturating_add(step.saturating_mul(points as u64))
        };
        let all = end(self.all.start, self.all.step, self.all.points.len());
        let recent = self.recent.iter();
        let ends = recent.map(|recent| end(recent.start, recent.step, recent.points.len()));
        TimeNs(ends.fold(all, u64::min))
    }

    /// Timelines extended to `now` with the last totals.
    pub(super) fn up_to(&self, now: TimeNs) -> DeviceTimeline {
        let mut whole = self.clone();
        whole.flush();
        let last = whole.pending;
        whole.all.extend_to(now, &last);
        DeviceTimeline {
            all: whole.all,
            recent: whole.recent.map(|recent| recent.up_to(now, last)),
        }
    }
}

impl TotalsPoint {
    /// Both steps as one.
    pub(crate) fn with(mut self, other: Self) -> Self {
        self.raise_to(&other);
        self
    }

    /// Step in which the totals did not change.
    pub(crate) const fn at(totals: Totals) -> Self {
        Self {
            low: totals,
            high: totals,
            marks: TimelineMarks {
                steps: 0,
                zero_grads: 0,
                batches: 0,
                ooms: 0,
                readings: 0,
            },
        }
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

    fn allocated(timeline: &DeviceTimeline) -> Vec<u64> {
        timeline
            .all
            .points
            .iter()
            .map(|point| point.high.allocated.0)
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
        assert_eq!(recorder.all.points.len(), MAX_POINTS);
        recorder.record(ms(count), totals(count));
        let timeline = recorder.up_to(ms(count)).all;
        assert_eq!(timeline.step, 2 * FIRST_STEP);
        assert_eq!(timeline.points.len(), MAX_POINTS / 2 + 1);
        assert_eq!(timeline.points[150].high.allocated, Bytes(1_000_000));
        assert_eq!(timeline.points[0].high.allocated, Bytes(1));
    }

    #[test]
    fn the_end_of_time_still_fits() {
        let mut recorder = TotalsRecorder::new(TimeNs(0), totals(1));
        recorder.record(TimeNs(u64::MAX), totals(2));
        let timeline = recorder.up_to(TimeNs(u64::MAX));
        assert!(timeline.all.points.len() <= MAX_POINTS);
        assert_eq!(timeline.all.points[0].low, totals(1));
        for timeline in [&timeline.all].into_iter().chain(&timeline.recent) {
            assert_eq!(
                timeline.points.last().map(|point| point.high),
                Some(totals(2))
            );
        }
        assert_eq!(timeline.recent[0].points.len(), RECENT_POINTS);
    }

    #[test]
    fn a_step_keeps_the_lowest_too() {
        let mut recorder = TotalsRecorder::new(ms(0), totals(5));
        recorder.record(ms(1), totals(9));
        recorder.record(ms(1), totals(2));
        recorder.record(ms(1), totals(4));
        let points = recorder.up_to(ms(2)).all.points;
        assert_eq!((points[1].low, points[1].high), (totals(2), totals(9)));
        assert_eq!(points[2], TotalsPoint::at(totals(4)));
    }

    #[test]
    fn recent_windows_keep_short_steps_and_forget_the_past() {
        let second = 1000;
        let mut recorder = TotalsRecorder::new(ms(0), totals(7));
        for at in 0..3600 {
            recorder.record(ms(at * second), totals(at));
        }
        let timeline = recorder.up_to(ms(3600 * second));
        for window in TimeWindow::RECENT {
            let recent = timeline.window(window);
            assert_eq!(recent.points.len(), RECENT_POINTS, "{window:?}");
            assert_eq!(Some(recent.length()), window.length());
            let (end, now) = (recent.start.0 + recent.length(), 3600 * second * FIRST_STEP);
            assert!(end > now && end - now <= recent.step, "{window:?}");
        }
        let oldest = |window| timeline.window(window).points[0].low.allocated.0;
        assert!((3590..3592).contains(&oldest(TimeWindow::TenSeconds)));
        assert!((3540..3542).contains(&oldest(TimeWindow::Minute)));
        assert!((3000..3003).contains(&oldest(TimeWindow::TenMinutes)));
        assert!(timeline.all.step > 1000 * FIRST_STEP);
    }

    #[test]
    fn marks_stay_in_their_window_and_are_never_merged_away() {
        let mut recorder = TotalsRecorder::new(ms(0), totals(7));
        let step = TimelineMarks::of_phase(MarkedPhase::Step);
        for at in 0..10_000 {
            recorder.mark(ms(at * 100), step);
        }
        let oom = TimelineMarks {
            ooms: 1,
            ..TimelineMarks::default()
        };
        recorder.mark(ms(999_950), oom);
        let timeline = recorder.up_to(ms(1_000_000));
        let sum = |window, number: fn(&TimelineMarks) -> u32| -> u32 {
            let points = timeline.window(window).points.iter();
            points.map(|point| number(&point.marks)).sum()
        };
        assert_eq!(sum(TimeWindow::All, |marks| marks.steps), 10_000);
        assert!((598..=600).contains(&sum(TimeWindow::Minute, |marks| marks.steps)));
        assert_eq!(sum(TimeWindow::TenSeconds, |marks| marks.ooms), 1);
    }
}

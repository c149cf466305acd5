//! Allocated bytes of a process over the last minute.

use std::collections::VecDeque;

use crate::event::{Bytes, TimeNs};
use crate::ledger::snapshot::host::{TREND_STEPS as STEPS, Trend};

/// Nanoseconds of a step (1 s).
pub(super) const STEP: u64 = 1_000_000_000;

#[derive(Clone, Debug, Default)]
pub(super) struct TrendRecorder {
    /// Number of the newest step, counted from time 0.
    newest: u64,
    points: VecDeque<Bytes>,
    last: Bytes,
}

impl TrendRecorder {
    /// Records `bytes` as allocated from `time` on. A time earlier than the previous one counts as
    /// the previous one.
    pub(super) fn record(&mut self, time: TimeNs, bytes: Bytes) {
        if self.points.is_empty() {
            self.newest = time.0 / STEP;
            self.points.push_back(bytes);
        }
        self.advance(time);
        self.last = bytes;
        if let Some(newest) = self.points.back_mut() {
            *newest = (*newest).max(bytes);
        }
    }

    /// Extends the last value to `now`. Does nothing before the first record.
    pub(super) fn advance(&mut self, now: TimeNs) {
        if self.points.is_empty() {
            return;
        }
        let step = now.0 / STEP;
        let missing = step.saturating_sub(self.newest).min(STEPS as u64);
        for _ in 0..missing {
            if self.points.len() == STEPS {
                self.points.pop_front();
            }
            self.points.push_back(self.last);
        }
        self.newest = self.newest.max(step);
    }

    pub(super) fn snapshot(&self) -> Trend {
        Trend {
            step: STEP,
            points: self.points.iter().copied().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> TimeNs {
        TimeNs(seconds * STEP + 1)
    }

    fn points(recorder: &TrendRecorder) -> Vec<u64> {
        recorder
            .snapshot()
            .points
            .iter()
            .map(|bytes| bytes.0)
            .collect()
    }

    #[test]
    fn a_step_keeps_the_highest_and_a_silent_one_repeats_the_last() {
        let mut recorder = TrendRecorder::default();
        recorder.advance(seconds(90));
        assert_eq!(points(&recorder), [0; 0]);
        recorder.record(seconds(100), Bytes(5));
        recorder.record(seconds(100), Bytes(9));
        recorder.record(seconds(100), Bytes(2));
        recorder.advance(seconds(102));
        assert_eq!(points(&recorder), [9, 2, 2]);
        recorder.record(seconds(101), Bytes(7));
        assert_eq!(points(&recorder), [9, 2, 7]);
    }

    #[test]
    fn what_is_older_than_the_last_steps_is_forgotten() {
        let mut recorder = TrendRecorder::default();
        for second in 0..200 {
            recorder.record(seconds(second), Bytes(second));
        }
        assert_eq!(points(&recorder), (140..200).collect::<Vec<_>>());
        recorder.advance(TimeNs(u64::MAX));
        assert_eq!(points(&recorder), [199; STEPS]);
    }
}

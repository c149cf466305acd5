//! Iterations over time, by PyTorch's marks: growth is shown per iteration where these are known.

use std::sync::Arc;

use super::SiteRef;
use crate::event::{MarkedPhase, PhaseMark, TimeNs};

/// Points that are kept. Beyond them, every second one is dropped.
const MAX_POINTS: usize = 512;
/// Fewest iterations in a span to count by: up to one of them may lie beyond its ends.
const FEWEST: f64 = 10.0;

/// Marks of one kind and one call site, each the begin or end of an iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
struct IterationMark {
    rank: u8,
    class: Arc<str>,
    site: SiteRef,
}

impl IterationMark {
    fn of(mark: &PhaseMark, site: SiteRef) -> Self {
        let rank = match mark.phase {
            MarkedPhase::NextBatch => 0,
            MarkedPhase::ZeroGrad => 1,
            MarkedPhase::Step => 2,
        };
        Self {
            rank,
            class: Arc::clone(&mark.class),
            site,
        }
    }
}

/// Counts the steps of the first optimizer; without any its calls of `zero_grad()`, else batches of a data loader.
#[derive(Clone, Debug, Default)]
pub(super) struct IterationRecorder {
    counted: Option<IterationMark>,
    number: u64,
    /// Time and number of every `2^halvings`-th iteration, in order.
    points: Vec<(TimeNs, u64)>,
    halvings: u32,
    /// Time of the last iteration.
    last: TimeNs,
}

impl IterationRecorder {
    /// Counts a mark made at a call site.
    pub(super) fn mark(&mut self, mark: &PhaseMark, site: SiteRef) {
        let seen = IterationMark::of(mark, site);
        match &self.counted {
            Some(counted) if seen.rank < counted.rank => return,
            Some(counted) if seen.rank == counted.rank && seen != *counted => return,
            _ => self.counted = Some(seen),
        }
        self.number += 1;
        self.last = self.last.max(mark.time);
        if !self.number.is_multiple_of(1 << self.halvings) {
            return;
        }
        self.points.push((self.last, self.number));
        if self.points.len() == MAX_POINTS {
            // Fewer than 2^32 marks a second for a century leave it below 63.
            self.halvings = (self.halvings + 1).min(63);
            let stride = 1 << self.halvings;
            self.points
                .retain(|(_, number)| number.is_multiple_of(stride));
        }
    }

    /// Iterations a minute in a span of time; `None` if they are unknown or too few.
    pub(super) fn per_minute(&self, from: TimeNs, to: TimeNs) -> Option<f64> {
        let number = self.number_at(to)? - self.number_at(from)?;
        let minutes = to.0.saturating_sub(from.0) as f64 / 60e9;
        (number >= FEWEST && minutes > 0.0).then(|| number / minutes)
    }

    /// Number of iterations until a moment, with the finished part of the next one.
    fn number_at(&self, time: TimeNs) -> Option<f64> {
        let after = self.points.partition_point(|(point, _)| *point <= time);
        let before = after.checked_sub(1).map(|at| self.points[at]);
        let (begin, first) = before.or_else(|| self.points.first().copied())?;
        let next = self.points.get(after).copied();
        let (end, last) = next.unwrap_or((self.last, self.number));
        let passed = time.0.saturating_sub(begin.0) as f64;
        let share = passed / (end.0.saturating_sub(begin.0)).max(1) as f64;
        Some(first as f64 + (last - first) as f64 * share.min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Dense as _;
    use super::*;
    use crate::event::{StackId, Tgid, Tid};

    const SECOND: u64 = 1_000_000_000;

    fn mark(time: u64, phase: MarkedPhase, class: &str) -> PhaseMark {
        PhaseMark {
            time: TimeNs(time),
            tgid: Tgid(7),
            tid: Tid(7),
            phase,
            class: class.into(),
            stack: StackId::NONE,
        }
    }

    fn site(number: usize) -> SiteRef {
        SiteRef::from_index(number)
    }

    /// One iteration of two optimizers every 100 ms.
    fn trained(iterations: u64) -> IterationRecorder {
        let mut recorder = IterationRecorder::default();
        for number in 1..=iterations {
            let time = number * SECOND / 10;
            let batch = mark(time - 3, MarkedPhase::NextBatch, "DataLoader");
            recorder.mark(&batch, site(1));
            recorder.mark(&mark(time - 2, MarkedPhase::ZeroGrad, "Adam"), site(2));
            recorder.mark(&mark(time - 1, MarkedPhase::Step, "Adam"), site(3));
            recorder.mark(&mark(time, MarkedPhase::Step, "Adam"), site(4));
        }
        recorder
    }

    #[test]
    fn steps_of_the_first_optimizer_are_iterations() {
        for (iterations, from, to) in [(300, 10, 20), (30_000, 10, 2_000), (200_000, 0, 20_000)] {
            let recorder = trained(iterations);
            let rate = recorder.per_minute(TimeNs(from * SECOND), TimeNs(to * SECOND));
            let rate = rate.expect("a rate");
            assert!((rate - 600.0).abs() < 4.0, "{iterations}: {rate}");
            assert!(recorder.points.len() < MAX_POINTS);
        }
    }

    #[test]
    fn few_iterations_say_nothing() {
        let recorder = trained(300);
        let rate = |from, to| recorder.per_minute(TimeNs(from), TimeNs(to));
        assert_eq!(rate(10 * SECOND, 10 * SECOND + SECOND / 2), None);
        // The training has ended by then.
        assert_eq!(rate(40 * SECOND, 60 * SECOND), None);
        assert_eq!(rate(20 * SECOND, 10 * SECOND), None);
        let never = IterationRecorder::default();
        assert_eq!(never.per_minute(TimeNs(0), TimeNs(u64::MAX)), None);
    }

    #[test]
    fn batches_are_iterations_where_nothing_steps() {
        let mut recorder = IterationRecorder::default();
        for number in 0..100 {
            let batch = mark(number * SECOND, MarkedPhase::NextBatch, "DataLoader");
            recorder.mark(&batch, site(1));
        }
        let rate = recorder.per_minute(TimeNs(10 * SECOND), TimeNs(70 * SECOND));
        assert_eq!(rate, Some(60.0));
    }
}

//! Iterations of a training loop or server, built from step intervals.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

pub use super::epochs::Epochs;
use super::step_interval::{IntervalDevice, IntervalKind, StepInterval, StepIntervals};
pub use super::step_interval::{IterationLine, Source};
use crate::event::{DeviceIndex, TimeNs};

/// Longest cycle of optimizer steps searched for.
const LONGEST_CYCLE: usize = 64;
/// From so many steps on, one stray leaves 19 of 20 pairs equal for any length of a cycle.
const MANY: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum IterationKind {
    /// The whole recording, if nothing separates iterations.
    Undivided,
    Before,
    #[strum(serialize = "iteration")]
    Whole,
    /// Modules called without grad between two iterations.
    Evaluation,
    Unfinished,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Iteration {
    /// Counts iterations from 1; other rows carry the number of iterations before them.
    pub number: u64,
    pub kind: IterationKind,
    pub begin: TimeNs,
    /// Time of its last event.
    pub end: TimeNs,
    pub batches: u32,
    /// Backward passes begun: several with gradient accumulation.
    pub backwards: u32,
    /// Epoch in which it began, counted from 1 for the first one seen; `None` if unknown. Inferred: see
    /// [`Iterations::epochs`].
    pub epoch: Option<u64>,
    pub(super) intervals: RangeInclusive<u64>,
    /// Every device known by its end.
    pub devices: Vec<(DeviceIndex, IntervalDevice)>,
}

impl Iteration {
    /// True if the row is an iteration, finished or not, so that its number is its own.
    pub fn is_numbered(&self) -> bool {
        matches!(self.kind, IterationKind::Whole | IterationKind::Unfinished)
    }
}

impl IterationKind {
    /// Keyword in CSV and JSON.
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// Grouping of several optimizers' steps, or backward passes without marks, into iterations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cycle {
    /// At most one call site.
    Single,
    /// An iteration begins with each batch, whatever its number of steps.
    ByBatch,
    /// A cycle of so many steps repeats.
    Repeats(usize),
    /// No cycle: each step ends an iteration.
    Irregular,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Iterations {
    pub source: Source,
    pub cycle: Cycle,
    pub epochs: Epochs,
    /// In order of time.
    pub rows: Vec<Iteration>,
    /// Threads that allocate below the user's line alone, so that its visits cannot be told apart.
    pub threads_that_stay: u64,
    /// Visits of the user's line that are inferred.
    pub inferred_visits: u64,
    /// Step intervals before the first row that are no longer stored.
    pub dropped: u64,
}

impl Iterations {
    pub(super) fn of(intervals: &StepIntervals) -> Self {
        Self::latest(intervals, usize::MAX)
    }

    pub(super) fn latest(intervals: &StepIntervals, most: usize) -> Self {
        let all: Vec<&StepInterval> = intervals.all().collect();
        let cycle = match intervals.source {
            Source::Steps | Source::ZeroGrads | Source::Backwards => cycle(&all),
            Source::Nothing | Source::Batches | Source::Line => Cycle::Single,
        };
        let (epochs, loader) = intervals.epochs();
        let mut rows = Rows {
            most,
            loader: matches!(epochs, Epochs::Told { .. }).then_some(loader),
            ..Rows::default()
        };
        if intervals.source == Source::Nothing {
            return Self::undivided(&all, intervals);
        }
        let evaluations = all
            .iter()
            .filter(|interval| interval.kind == IntervalKind::Evaluation);
        let trainings = all.iter().filter(|interval| interval.key.is_some()).count();
        // Evaluation in most iterations belongs to them: a teacher or a target network.
        let evaluation_is_part = evaluations.count() * 2 > trainings;
        let (finished, current) = all.split_at(all.len().saturating_sub(1));
        let mut count = 0;
        for interval in finished {
            match interval.kind {
                IntervalKind::Preamble => rows.push(IterationKind::Before, interval),
                IntervalKind::Evaluation
                    if evaluation_is_part || !is_first(count, interval, cycle) =>
                {
                    rows.take(interval);
                }
                IntervalKind::Evaluation => rows.push(IterationKind::Evaluation, interval),
                IntervalKind::Training => {
                    let begins = is_first(count, interval, cycle);
                    rows.iterate(interval, begins);
                    count += 1;
                }
            }
        }
        if let Some(interval) = current.first().filter(|interval| did_anything(interval)) {
            match (intervals.source, finished.is_empty()) {
                (Source::Line, true) => rows.push(IterationKind::Before, interval),
                _ => {
                    rows.iterate(interval, is_first(count, interval, cycle));
                    let is_last = is_last(count, interval, intervals.source, cycle);
                    if let (Some((kind, _)), false) = (&mut rows.open, is_last) {
                        *kind = IterationKind::Unfinished;
                    }
                }
            }
        }
        Self {
            source: intervals.source,
            cycle,
            epochs,
            rows: rows.finish(),
            threads_that_stay: intervals.line_visits.threads_that_stay(),
            inferred_visits: intervals.line_visits.inferred,
            dropped: intervals.dropped,
        }
    }

    pub fn at(&self, time: TimeNs) -> Option<&Iteration> {
        let mut rows = self.rows.iter();
        rows.find(|row| (row.begin..=row.end).contains(&time))
    }

    fn undivided(intervals: &[&StepInterval], of: &StepIntervals) -> Self {
        let mut rows = Rows {
            most: usize::MAX,
            ..Rows::default()
        };
        if let Some((first, others)) = intervals.split_first() {
            let mut all = (*first).clone();
            others.iter().for_each(|interval| all.extend(interval));
            if did_anything(&all) {
                rows.push(IterationKind::Undivided, &all);
            }
        }
        Self {
            source: of.source,
            cycle: Cycle::Single,
            epochs: of.epochs().0,
            rows: rows.finish(),
            threads_that_stay: 0,
            inferred_visits: 0,
            dropped: of.dropped,
        }
    }
}

fn did_anything(interval: &StepInterval) -> bool {
    interval.devices.iter().any(|(_, device)| device.allocs > 0)
}

/// True if a step interval begins an iteration; `count` training intervals came before it.
fn is_first(count: usize, interval: &StepInterval, cycle: Cycle) -> bool {
    match cycle {
        Cycle::Single | Cycle::Irregular => true,
        Cycle::ByBatch => interval.batches > 0 || count == 0,
        Cycle::Repeats(steps) => count.is_multiple_of(steps),
    }
}

/// True if the unfinished interval ends an iteration: its step has begun and nothing followed.
fn is_last(count: usize, interval: &StepInterval, source: Source, cycle: Cycle) -> bool {
    let ends = match cycle {
        Cycle::Repeats(steps) => (count + 1).is_multiple_of(steps),
        Cycle::Single | Cycle::ByBatch | Cycle::Irregular => true,
    };
    source == Source::Steps && interval.key.is_some() && ends
}

fn cycle(intervals: &[&StepInterval]) -> Cycle {
    let trainings = intervals
        .iter()
        .filter(|interval| interval.kind == IntervalKind::Training);
    let steps: Vec<_> = trainings
        .filter_map(|interval| Some((interval.key?, interval.batches)))
        .collect();
    let Some((first, _)) = steps.first() else {
        return Cycle::Single;
    };
    if steps.iter().all(|(key, _)| key == first) || has_one_stray(&steps) {
        return Cycle::Single;
    }
    if steps.iter().any(|(_, batches)| *batches > 0) {
        return Cycle::ByBatch;
    }
    let repeats = |length: &usize| {
        let pairs = steps.iter().zip(&steps[*length..]);
        let (same, all) = pairs.fold((0, 0), |(same, all), (one, other)| {
            (same + usize::from(one.0 == other.0), all + 1)
        });
        // A step may be skipped now and then (overflow in mixed precision).
        all >= *length && same * 20 >= all * 19
    };
    match (2..=LONGEST_CYCLE.min(steps.len() / 2)).find(repeats) {
        Some(length) => Cycle::Repeats(length),
        None => Cycle::Irregular,
    }
}

/// True if one key of many is another: memprobe attached within a pass, or a stack was lost.
fn has_one_stray(steps: &[(u32, u32)]) -> bool {
    let is_many = steps.len() >= MANY;
    let ends = [steps.first(), steps.last()].into_iter().flatten();
    let strays = |key: u32| steps.iter().filter(move |(other, _)| *other != key).count();
    is_many && ends.map(|(key, _)| strays(*key)).any(|strays| strays == 1)
}

#[derive(Default)]
struct Rows {
    most: usize,
    /// Loader whose epochs are shown.
    loader: Option<u32>,
    done: VecDeque<Iteration>,
    number: u64,
    /// Last row, which may still grow; `part` is evaluation for the row of the next training interval.
    open: Option<(IterationKind, StepInterval)>,
    part: Option<StepInterval>,
}

impl Rows {
    fn push(&mut self, kind: IterationKind, interval: &StepInterval) {
        self.close();
        self.open = Some((kind, interval.clone()));
        self.close();
    }

    /// Adds evaluation to the row of the next training interval.
    fn take(&mut self, interval: &StepInterval) {
        match &mut self.part {
            Some(part) => part.extend(interval),
            None => self.part = Some(interval.clone()),
        }
    }

    fn iterate(&mut self, interval: &StepInterval, begins: bool) {
        let mut whole = self.part.take().unwrap_or_else(|| interval.clone());
        if whole.end != interval.end || whole.begin != interval.begin {
            whole.extend(interval);
        }
        match &mut self.open {
            Some((_, open)) if !begins => open.extend(&whole),
            _ => {
                self.close();
                self.open = Some((IterationKind::Whole, whole));
            }
        }
    }

    fn close(&mut self) {
        let Some((kind, interval)) = self.open.take() else {
            return;
        };
        if matches!(kind, IterationKind::Whole | IterationKind::Unfinished) {
            self.number += 1;
        }
        let epoch = interval
            .epoch
            .filter(|epoch| self.loader == Some(epoch.loader));
        self.done.push_back(Iteration {
            number: self.number,
            kind,
            begin: interval.begin,
            end: interval.end,
            batches: interval.batches,
            backwards: interval.backwards,
            epoch: epoch.map(|epoch| epoch.number),
            intervals: interval.first..=interval.last,
            devices: interval.devices.into_vec(),
        });
        if self.done.len() > self.most {
            self.done.pop_front();
        }
    }

    fn finish(mut self) -> Vec<Iteration> {
        self.close();
        if let Some(part) = self.part.take() {
            self.push(IterationKind::Evaluation, &part);
        }
        self.done.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(key: u32, batches: u32) -> StepInterval {
        StepInterval {
            key: Some(key),
            batches,
            ..StepInterval::default()
        }
    }

    fn cycle_of(keys: &str) -> Cycle {
        let intervals: Vec<StepInterval> = keys
            .bytes()
            .map(|key| interval(u32::from(key), 0))
            .collect();
        cycle(&intervals.iter().collect::<Vec<_>>())
    }

    #[test]
    fn steps_of_several_optimizers_are_taken_together_by_their_cycle() {
        assert_eq!(cycle_of("AAAA"), Cycle::Single);
        assert_eq!(cycle_of("DGDGDGD"), Cycle::Repeats(2));
        assert_eq!(cycle_of("DDDDDGDDDDDG"), Cycle::Repeats(6));
        assert_eq!(cycle_of("ABBABAAABBBA"), Cycle::Irregular);
        assert_eq!(cycle_of(""), Cycle::Single);
        let stray = format!("A{}", "B".repeat(40));
        assert_eq!(cycle_of(&stray), Cycle::Single);
    }

    #[test]
    fn batches_take_precedence_over_a_cycle() {
        let intervals = [
            interval(1, 1),
            interval(2, 0),
            interval(1, 1),
            interval(2, 0),
        ];
        let cycle = cycle(&intervals.iter().collect::<Vec<_>>());
        assert_eq!(cycle, Cycle::ByBatch);
        let first: Vec<bool> = (0..4)
            .map(|at| is_first(at, &intervals[at], cycle))
            .collect();
        assert_eq!(first, [true, false, true, false]);
    }
}

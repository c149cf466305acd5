//! Memory by category at recorded moments: peaks and steps of a timeline.
//!
//! The category of a block is often decided later. Recorded moments are then revised if the block was live:
//! their event number is not below that of its allocation.

use super::category::{CategoryRule, Composition};
use crate::event::{TimeNs, Totals};
use crate::ledger::timeline::MAX_POINTS;

/// First step of a timeline: 1 ms, in nanoseconds.
const FIRST_STEP: u64 = 1_000_000;

/// Memory of a device at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    pub time: TimeNs,
    /// Totals reported by the allocator.
    pub totals: Totals,
    /// Allocated bytes by rule.
    pub composition: Composition,
    /// Number of the last memory event before it.
    pub(super) ordinal: u64,
}

/// Change of the rule of a block of `size` bytes, allocated by event number `born`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Revision {
    pub(super) born: u64,
    pub(super) size: u64,
    pub(super) from: CategoryRule,
    pub(super) to: CategoryRule,
}

impl Moment {
    /// Changes the rule of a block that has been live since its allocation.
    pub(super) fn revise(&mut self, revision: Revision) {
        if self.ordinal >= revision.born {
            let Revision { size, from, to, .. } = revision;
            self.composition.change(from, to, size);
        }
    }

    /// Becomes `other` if that has more allocated bytes; returns true if so.
    pub(super) fn rise_to(&mut self, other: &Self) -> bool {
        let rises = other.totals.allocated > self.totals.allocated;
        if rises {
            self.clone_from(other);
        }
        rises
    }
}

/// Allocated bytes of a device by category over time, in equal steps. Each step keeps its moment of most
/// allocated bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divided {
    /// Beginning of the first step.
    pub start: TimeNs,
    /// Nanoseconds per step.
    pub step: u64,
    /// One per step, at most [`MAX_POINTS`].
    pub points: Vec<Moment>,
}

impl Divided {
    pub(super) fn new(first: Moment) -> Self {
        Self {
            start: first.time,
            step: FIRST_STEP,
            points: vec![first],
        }
    }

    /// Raises the last step to the current state.
    pub(super) fn rise(&mut self, now: &Moment) {
        if let Some(point) = self.points.last_mut() {
            point.rise_to(now);
        }
    }

    pub(super) fn revise(&mut self, revision: Revision) {
        let newest = self.points.iter_mut().rev();
        newest
            .take_while(|point| point.ordinal >= revision.born)
            .for_each(|point| point.revise(revision));
    }

    /// Appends steps with the state `before`, up to `time`.
    pub(super) fn extend_to(&mut self, time: TimeNs, before: &Moment) {
        let passed = time.0.saturating_sub(self.start.0);
        while passed / self.step >= MAX_POINTS as u64 {
            self.double_step();
        }
        let needed = (passed / self.step) as usize + 1;
        if needed > self.points.len() {
            self.points.resize(needed, before.clone());
        }
    }

    fn double_step(&mut self) {
        let old = std::mem::take(&mut self.points);
        let mut pairs = old.into_iter();
        while let Some(mut first) = pairs.next() {
            if let Some(second) = pairs.next() {
                first.rise_to(&second);
            }
            self.points.push(first);
        }
        self.step *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribution::category::Category;
    use crate::event::Bytes;

    fn moment(time: u64, ordinal: u64, saved: u64) -> Moment {
        let mut composition = Composition::default();
        composition.add(CategoryRule::SoFarForward, saved);
        Moment {
            time: TimeNs(time * FIRST_STEP),
            totals: Totals {
                allocated: Bytes(saved),
                reserved: Bytes(1 << 20),
            },
            composition,
            ordinal,
        }
    }

    fn record(divided: &mut Divided, before: &Moment, now: &Moment) {
        divided.extend_to(now.time, before);
        divided.rise(now);
    }

    #[test]
    fn moments_before_a_block_was_made_are_left_alone() {
        let mut divided = Divided::new(moment(0, 0, 0));
        let moments = [moment(1, 1, 512), moment(3, 2, 1024)];
        record(&mut divided, &moment(0, 0, 0), &moments[0]);
        record(&mut divided, &moments[0], &moments[1]);
        divided.revise(Revision {
            born: 2,
            size: 512,
            from: CategoryRule::SoFarForward,
            to: CategoryRule::WithinForward,
        });
        let of = |category| {
            let points = divided.points.iter();
            points
                .map(|point| point.composition.of(category))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(Category::Activation), [0, 512, 512, 512]);
        assert_eq!(of(Category::Temporary), [0, 0, 0, 512]);
    }

    #[test]
    fn a_full_timeline_keeps_every_peak() {
        let mut divided = Divided::new(moment(0, 0, 0));
        let mut last = moment(0, 0, 0);
        for step in 1..=MAX_POINTS as u64 {
            let saved = if step == 301 { 1_000_000 } else { step };
            let next = moment(step, step, saved);
            record(&mut divided, &last, &next);
            last = next;
        }
        assert!(divided.points.len() <= MAX_POINTS);
        let highest = divided.points.iter().map(|it| it.totals.allocated.0).max();
        assert_eq!(highest, Some(1_000_000));
    }
}

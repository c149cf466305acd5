//! What was live at the moments that are kept: the peaks, and the steps of a timeline.
//!
//! What a block is for is often known only later. A moment that it was live at is then put right: it is known by
//! the number of the event whether it was.

use super::category::{CategoryRule, Composition};
use crate::event::{TimeNs, Totals};
use crate::model::timeline::MAX_POINTS;

/// Nanoseconds of the first step of a timeline: a millisecond.
const FIRST_STEP: u64 = 1_000_000;

/// What was live at one moment of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// When.
    pub time: TimeNs,
    /// The allocator's own totals.
    pub totals: Totals,
    /// How the allocated bytes divide.
    pub composition: Composition,
    /// The number of the event after which it was so.
    pub(super) ordinal: u64,
}

/// A block that turns out to be for something else: its bytes, the event that made it, and both rules.
#[derive(Clone, Copy, Debug)]
pub(super) struct Revision {
    pub(super) born: u64,
    pub(super) size: u64,
    pub(super) from: CategoryRule,
    pub(super) to: CategoryRule,
}

impl Moment {
    /// Puts right what a block that is live until now is for.
    pub(super) fn revise(&mut self, revision: Revision) {
        if self.ordinal >= revision.born {
            let Revision { size, from, to, .. } = revision;
            self.composition.change(from, to, size);
        }
    }

    /// Takes a moment's place if more was allocated there.
    pub(super) fn rise_to(&mut self, other: &Self) -> bool {
        let rises = other.totals.allocated > self.totals.allocated;
        if rises {
            self.clone_from(other);
        }
        rises
    }
}

/// How the allocated bytes of a device divided over time, in steps of equal length. Of each step, the moment at which
/// most was allocated is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divided {
    /// When the first step begins.
    pub start: TimeNs,
    /// Nanoseconds of a step.
    pub step: u64,
    /// One for each step, at most [`MAX_POINTS`].
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

    /// What is live changed.
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

    /// Up to that time, everything was as it was before.
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
    use crate::event::Bytes;
    use crate::model::why::category::Category;

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

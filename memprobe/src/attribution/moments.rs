//! Memory by category at recorded moments: peaks and steps of a timeline.
//!
//! The category of a block is often decided later. Recorded moments are then revised if the block was live:
//! their event number is not below that of its allocation.

use std::cmp::Ordering;

use super::category::{Category, CategoryRule, Composition};
use crate::event::{TimeNs, Totals};
use crate::ledger::snapshot::Timeline;
use crate::ledger::timeline::Highest;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    pub time: TimeNs,
    pub totals: Totals,
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

    /// Gives blocks from before attach their category.
    pub(super) fn name(&mut self, blocks: &Composition) {
        self.composition.name(blocks);
    }

    /// Order of peaks: by allocated bytes, of equal ones by the bytes whose category is known.
    pub(super) fn is_above(&self, other: &Self) -> bool {
        match self.totals.allocated.cmp(&other.totals.allocated) {
            Ordering::Equal => self.unknown() < other.unknown(),
            order => order == Ordering::Greater,
        }
    }

    /// Bytes without a known category.
    pub(super) fn unknown(&self) -> u64 {
        let composition = &self.composition;
        let unattributed = composition
            .before_attach
            .saturating_add(composition.unaccounted.unsigned_abs());
        unattributed.saturating_add(composition.of(Category::Unknown))
    }
}

impl Highest for Moment {
    fn raise_to(&mut self, other: &Self) {
        if other.is_above(self) {
            self.clone_from(other);
        }
    }
}

impl Timeline<Moment> {
    pub(super) fn revise(&mut self, revision: Revision) {
        let newest = self.points.iter_mut().rev();
        newest
            .take_while(|point| point.ordinal >= revision.born)
            .for_each(|point| point.revise(revision));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Bytes;
    use crate::ledger::timeline::{FIRST_STEP, MAX_POINTS};

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

    fn record(divided: &mut Timeline<Moment>, before: &Moment, now: &Moment) {
        divided.extend_to(now.time, before);
        divided.raise(now);
    }

    #[test]
    fn moments_before_a_block_was_made_are_left_alone() {
        let mut divided = Timeline::new(TimeNs(0), moment(0, 0, 0));
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
        let mut divided = Timeline::new(TimeNs(0), moment(0, 0, 0));
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

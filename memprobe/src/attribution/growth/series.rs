//! Levels of an allocation group at equal steps, stored only where they change.

/// Cap on steps. Beyond it pairs of steps are merged, and the lower level of each pair stays.
pub(super) const MAX_STEPS: u64 = 256;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SeriesLevel {
    pub(super) live: u64,
    pub(super) blocks: u64,
}

impl SeriesLevel {
    pub(super) fn lower(self, other: Self) -> Self {
        if other.live < self.live { other } else { self }
    }
}

/// Steps shared by all series of a track.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeriesSteps {
    /// Samples per step.
    pub(super) stride: u64,
    pub(super) taken: u64,
}

impl Default for SeriesSteps {
    fn default() -> Self {
        Self {
            stride: 1,
            taken: 0,
        }
    }
}

impl SeriesSteps {
    pub(super) fn whole(&self) -> usize {
        usize::try_from(self.taken / self.stride).unwrap_or(usize::MAX)
    }

    /// Index of the step that the next sample belongs to.
    pub(super) fn next(&self) -> u32 {
        u32::try_from(self.taken / self.stride).unwrap_or(u32::MAX)
    }

    /// True if the next sample is the first of its step.
    pub(super) fn begins(&self) -> bool {
        self.taken.is_multiple_of(self.stride)
    }

    /// True if pairs of steps must be merged before the next sample.
    pub(super) fn is_full(&self) -> bool {
        self.taken / self.stride >= MAX_STEPS
    }
}

/// Level changes of one group by step; the level is 0 before the first.
#[derive(Clone, Debug, Default)]
pub(super) struct Series(Vec<(u32, SeriesLevel)>);

impl Series {
    pub(super) fn last(&self) -> SeriesLevel {
        self.0.last().map(|(_, level)| *level).unwrap_or_default()
    }

    /// Adds a sample of the current step. Returns true if the series grew by an entry.
    pub(super) fn take(&mut self, steps: &SeriesSteps, sample: SeriesLevel) -> bool {
        let step = steps.next();
        let last = self.last();
        let level = if steps.begins() {
            sample
        } else {
            last.lower(sample)
        };
        match self.0.last_mut() {
            Some((at, known)) if *at == step => *known = level,
            _ if level == last => return false,
            _ => {
                self.0.push((step, level));
                return true;
            }
        }
        false
    }

    /// Merges pairs of steps; returns the number of entries left.
    pub(super) fn halve(&mut self) -> usize {
        let mut halved: Vec<(u32, SeriesLevel)> = Vec::new();
        let mut before = SeriesLevel::default();
        for (step, level) in self.0.drain(..) {
            let at = step / 2;
            // The other step of the pair has the level before this change, or keeps the level after it.
            let lower = match step % 2 {
                0 => level,
                _ => before.lower(level),
            };
            match halved.last_mut() {
                Some((known, _)) if *known == at => {
                    // Both steps of the pair changed: `before` is the level of the first.
                    halved.pop();
                    halved.push((at, lower));
                }
                _ => halved.push((at, lower)),
            }
            // A rise in the second step of a pair shows from the next pair on.
            if step % 2 == 1 && lower != level {
                halved.push((at + 1, level));
            }
            before = level;
        }
        self.0 = halved;
        self.0.len()
    }

    /// Levels of the first `steps` steps.
    pub(super) fn levels(&self, steps: usize) -> Vec<SeriesLevel> {
        let mut levels = Vec::with_capacity(steps);
        let mut now = SeriesLevel::default();
        let mut changes = self.0.iter().peekable();
        for step in 0..steps {
            while let Some((_, level)) =
                changes.next_if(|(at, _)| usize::try_from(*at).is_ok_and(|at| at <= step))
            {
                now = *level;
            }
            levels.push(now);
        }
        levels
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn level(live: u64) -> SeriesLevel {
        SeriesLevel {
            live,
            blocks: live / 8,
        }
    }

    proptest! {
        #[test]
        fn a_series_holds_the_lowest_sample_of_each_step(samples in prop::collection::vec(0..5_u64, 1..2000)) {
            let (mut series, mut steps) = (Series::default(), SeriesSteps::default());
            for sample in &samples {
                if steps.is_full() {
                    series.halve();
                    steps.stride *= 2;
                }
                series.take(&steps, level(*sample));
                steps.taken += 1;
            }
            let whole = steps.whole();
            prop_assert!(whole <= MAX_STEPS as usize);
            let lowest: Vec<u64> = samples
                .chunks(steps.stride as usize)
                .take(whole)
                .map(|chunk| chunk.iter().copied().min().unwrap())
                .collect();
            let folded: Vec<u64> = series.levels(whole).iter().map(|level| level.live).collect();
            prop_assert_eq!(folded, lowest);
        }
    }
}

//! Epochs: which of a `DataLoader`'s batches was its last.
//!
//! PyTorch says when the next batch is asked for, not whether there was one (`_BaseDataLoaderIter.__next__` in
//! torch/utils/data/dataloader.py@v2.15.0 raises `StopIteration` within its mark). Where a program asked for a batch, learned nothing,
//! and then asks for one again, the loader was exhausted. A program that skips batches looks the same, so this is believed only of
//! epochs of equal length.

use std::collections::BTreeMap;

use super::phase::Phase;

/// The loader that stands for those that are not told apart.
pub(super) const NO_LOADER: u32 = u32::MAX;

/// Batches of an epoch whose end can be told from a program that skips every other batch.
const FEWEST: u64 = 2;

/// An epoch of a loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Epoch {
    /// The loader.
    pub(super) loader: u32,
    /// Counts its epochs from 1, as far as they were seen.
    pub(super) number: u64,
}

/// What is said of epochs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Epochs {
    /// No loader whose batches were learned from was seen to be exhausted, or not often enough.
    #[default]
    NoEnd,
    /// Batches that nothing was learned from do not come at equal distances.
    Irregular,
    /// Batches of several loaders were learned from.
    SeveralLoaders,
    /// They are inferred.
    Told {
        /// Batches of a whole one.
        batches: u64,
    },
}

/// What is known of a loader: a line that asks for batches.
#[derive(Clone, Copy, Debug, Default)]
struct Loader {
    /// Epochs that ended.
    ended: u64,
    /// Batches of this one that were learned from.
    batches: u64,
    /// Those of the first epoch, which may have begun before memprobe came.
    first: u64,
    /// Those of each one after it.
    length: Option<u64>,
    irregular: bool,
    learned: bool,
}

impl Loader {
    /// It was exhausted.
    fn end(&mut self) {
        let batches = std::mem::take(&mut self.batches);
        match (self.ended, self.length) {
            // Batches that a program skips when it goes on where it was left off, or fetches ahead.
            (0, _) if batches == 0 => return,
            (0, _) => self.first = batches,
            (_, None) if batches >= FEWEST => self.length = Some(batches),
            (_, length) => self.irregular |= length != Some(batches),
        }
        self.ended = self.ended.saturating_add(1);
    }

    fn says(&self) -> Epochs {
        match (self.ended, self.length) {
            _ if self.irregular => Epochs::Irregular,
            (0, _) => Epochs::NoEnd,
            (_, Some(length)) if self.first > length || self.batches > length => Epochs::Irregular,
            (_, Some(batches)) => Epochs::Told { batches },
            // One end alone is believed where what came after it is as long as what came before.
            (_, None) if self.first >= FEWEST && self.batches == self.first => Epochs::Told {
                batches: self.first,
            },
            (_, None) => Epochs::NoEnd,
        }
    }
}

/// The loaders of a process.
#[derive(Debug, Default)]
pub(super) struct Loaders {
    known: BTreeMap<u32, Loader>,
    /// The one that was asked for a batch, until something is learned.
    waiting: Option<u32>,
}

impl Loaders {
    /// A loader is asked for its next batch.
    pub(super) fn next_batch(&mut self, loader: u32) {
        if let Some(exhausted) = self.waiting.replace(loader) {
            self.known.entry(exhausted).or_default().end();
        }
    }

    /// Memory was asked for in a phase; gives the epoch of the batch that something is learned from now for the first time.
    pub(super) fn pass(&mut self, phase: Phase) -> Option<Epoch> {
        if phase != Phase::Forward && !phase.is_of_backward() {
            return None;
        }
        let loader = self.waiting.take()?;
        let known = self.known.entry(loader).or_default();
        known.learned = true;
        known.batches = known.batches.saturating_add(1);
        Some(Epoch {
            loader,
            number: known.ended.saturating_add(1),
        })
    }

    /// What is said of all of them, and the number of the loader that it is said of.
    pub(super) fn says(&self) -> (Epochs, u32) {
        let mut learned = self.known.iter().filter(|(_, loader)| loader.learned);
        match (learned.next(), learned.next()) {
            (Some((&NO_LOADER, _)), _) | (Some(_), Some(_)) => (Epochs::SeveralLoaders, NO_LOADER),
            (Some((number, loader)), None) => (loader.says(), *number),
            (None, _) => (Epochs::NoEnd, NO_LOADER),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each letter asks that loader for a batch, `.` learns from it, `-` evaluates.
    fn told(story: &str) -> (Epochs, Vec<u64>) {
        let mut loaders = Loaders::default();
        let mut numbers = Vec::new();
        for byte in story.bytes() {
            let phase = match byte {
                b'.' => Phase::Forward,
                b'-' => Phase::Evaluation,
                loader => {
                    loaders.next_batch(loader.into());
                    continue;
                }
            };
            numbers.extend(loaders.pass(phase).map(|epoch| epoch.number));
        }
        (loaders.says().0, numbers)
    }

    #[test]
    fn a_batch_that_nothing_is_learned_from_ends_an_epoch() {
        let (epochs, numbers) = told("a.a.a.aa.a.a.aa.");
        assert_eq!(epochs, Epochs::Told { batches: 3 });
        assert_eq!(numbers, [1, 1, 1, 2, 2, 2, 3]);
    }

    #[test]
    fn validation_with_a_loader_of_its_own_is_no_epoch_of_training() {
        let (epochs, numbers) = told("a.a.ab-b-ba.a.ab-b-b");
        assert_eq!(epochs, Epochs::Told { batches: 2 });
        assert_eq!(numbers, [1, 1, 2, 2]);
    }

    #[test]
    fn an_evaluation_without_a_loader_does_not_hide_the_end() {
        assert_eq!(told("a.a.a-a.a.a-a.").0, Epochs::Told { batches: 2 });
    }

    #[test]
    fn one_end_is_believed_where_both_sides_of_it_are_as_long() {
        assert_eq!(told("a.a.a.aa.a.a.").0, Epochs::Told { batches: 3 });
        assert_eq!(told("a.a.a.aa.a.").0, Epochs::NoEnd);
        assert_eq!(told("a.a.a.").0, Epochs::NoEnd);
    }

    #[test]
    fn a_program_that_skips_batches_says_nothing_of_epochs() {
        assert_eq!(told("a.a.aa.aa.a.a.aa.a.").0, Epochs::Irregular);
        assert_eq!(told("aa.aa.aa.aa.").0, Epochs::Irregular, "two at a time");
    }

    #[test]
    fn one_that_goes_on_where_it_was_left_off_or_fetches_ahead_does() {
        let (epochs, numbers) = told("aaaa.a.aa.a.a.aa.a.a.aa.");
        assert_eq!(epochs, Epochs::Told { batches: 3 });
        assert_eq!(numbers, [1, 1, 2, 2, 2, 3, 3, 3, 4]);
        assert_eq!(told("aa.a.a.aa.a.a.aa.a.").0, Epochs::Told { batches: 3 });
    }

    #[test]
    fn of_several_loaders_nobody_knows_which_one_counts() {
        assert_eq!(told("a.a.aa.a.ab.b.bb.").0, Epochs::SeveralLoaders);
    }
}

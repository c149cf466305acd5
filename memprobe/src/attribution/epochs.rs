//! Epochs: infers the last batch of each pass over a `DataLoader`.
//!
//! PyTorch marks the request for a batch, not its success: `_BaseDataLoaderIter.__next__` raises
//! `StopIteration` within its mark (torch/utils/data/dataloader.py@v2.15.0). A request followed by another
//! request, without training between them, means that the loader was exhausted. A program that skips batches
//! looks the same, so only epochs of equal length count.

use std::collections::BTreeMap;

use super::phase::Phase;

/// Number shared by all loaders beyond the limit.
pub(super) const NO_LOADER: u32 = u32::MAX;

/// Fewest batches of an epoch. A shorter one looks like a program that skips every other batch.
const FEWEST: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Epoch {
    pub(super) loader: u32,
    /// Counts from 1, starting with the first epoch seen.
    pub(super) number: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Epochs {
    /// No loader used for training was seen exhausted often enough.
    #[default]
    NoEnd,
    /// Requests without training come at unequal distances.
    Irregular,
    SeveralLoaders,
    Told {
        batches: u64,
    },
}

/// State of a loader, identified by the line that requests batches.
#[derive(Clone, Copy, Debug, Default)]
struct Loader {
    ended: u64,
    batches: u64,
    /// Training batches of the first epoch, which may have begun before attach.
    first: u64,
    length: Option<u64>,
    irregular: bool,
    learned: bool,
}

impl Loader {
    /// Ends the current epoch: the loader was exhausted.
    fn end(&mut self) {
        let batches = std::mem::take(&mut self.batches);
        match (self.ended, self.length) {
            // Batches skipped by a program that resumes, or prefetched batches.
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
            // A single end counts only if the epochs before and after it have equal length.
            (_, None) if self.first >= FEWEST && self.batches == self.first => Epochs::Told {
                batches: self.first,
            },
            (_, None) => Epochs::NoEnd,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Loaders {
    known: BTreeMap<u32, Loader>,
    /// Loader with a request that no training has followed yet.
    waiting: Option<u32>,
}

impl Loaders {
    pub(super) fn next_batch(&mut self, loader: u32) {
        if let Some(exhausted) = self.waiting.replace(loader) {
            self.known.entry(exhausted).or_default().end();
        }
    }

    /// Records an allocation in a phase. Returns the epoch of a batch at its first training allocation.
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

    /// Returns the epochs of the only training loader, and its number.
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

    /// A letter requests a batch from that loader, `.` trains on it, `-` evaluates.
    fn epochs_of(story: &str) -> (Epochs, Vec<u64>) {
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
        let (epochs, numbers) = epochs_of("a.a.a.aa.a.a.aa.");
        assert_eq!(epochs, Epochs::Told { batches: 3 });
        assert_eq!(numbers, [1, 1, 1, 2, 2, 2, 3]);
    }

    #[test]
    fn validation_with_a_loader_of_its_own_is_no_epoch_of_training() {
        let (epochs, numbers) = epochs_of("a.a.ab-b-ba.a.ab-b-b");
        assert_eq!(epochs, Epochs::Told { batches: 2 });
        assert_eq!(numbers, [1, 1, 2, 2]);
    }

    #[test]
    fn an_evaluation_without_a_loader_does_not_hide_the_end() {
        assert_eq!(epochs_of("a.a.a-a.a.a-a.").0, Epochs::Told { batches: 2 });
    }

    #[test]
    fn accepts_one_end_between_two_epochs_of_equal_length() {
        assert_eq!(epochs_of("a.a.a.aa.a.a.").0, Epochs::Told { batches: 3 });
        assert_eq!(epochs_of("a.a.a.aa.a.").0, Epochs::NoEnd);
        assert_eq!(epochs_of("a.a.a.").0, Epochs::NoEnd);
    }

    #[test]
    fn a_program_that_skips_batches_says_nothing_of_epochs() {
        assert_eq!(epochs_of("a.a.aa.aa.a.a.aa.a.").0, Epochs::Irregular);
        assert_eq!(
            epochs_of("aa.aa.aa.aa.").0,
            Epochs::Irregular,
            "two at a time"
        );
    }

    #[test]
    fn one_that_goes_on_where_it_was_left_off_or_fetches_ahead_does() {
        let (epochs, numbers) = epochs_of("aaaa.a.aa.a.a.aa.a.a.aa.");
        assert_eq!(epochs, Epochs::Told { batches: 3 });
        assert_eq!(numbers, [1, 1, 2, 2, 2, 3, 3, 3, 4]);
        assert_eq!(
            epochs_of("aa.a.a.aa.a.a.aa.a.").0,
            Epochs::Told { batches: 3 }
        );
    }

    #[test]
    fn of_several_loaders_nobody_knows_which_one_counts() {
        assert_eq!(epochs_of("a.a.aa.a.ab.b.bb.").0, Epochs::SeveralLoaders);
    }
}

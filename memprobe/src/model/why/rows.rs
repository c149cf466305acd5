//! Rows of a table beside the ledger: what each holds now, and what it held at the device's peak.

/// What one row holds and held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Bytes now.
    pub live: u64,
    /// Blocks now.
    pub blocks: u64,
    /// Bytes when most was allocated on the device.
    pub at_peak: u64,
    /// Blocks that were ever counted here.
    pub allocs: u64,
    /// Bytes of those.
    pub alloc_bytes: u64,
    /// The peak that `at_peak` is of.
    peak: u64,
}

/// Whether a block was live when most was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtPeak {
    Live,
    Gone,
}

impl Holding {
    /// The row as it is when `peak` is the number of the highest peak so far: nothing changed since then if it
    /// was not told.
    pub(super) fn as_of(mut self, peak: u64) -> Self {
        self.see(peak);
        self
    }

    fn see(&mut self, peak: u64) {
        if self.peak != peak {
            self.peak = peak;
            self.at_peak = self.live;
        }
    }

    /// A block comes, now or (where it turns out later that it belongs here) at the peak too.
    pub(super) fn add(&mut self, size: u64, peak: u64, was: AtPeak) {
        self.see(peak);
        self.live = self.live.saturating_add(size);
        self.blocks = self.blocks.saturating_add(1);
        self.allocs = self.allocs.saturating_add(1);
        self.alloc_bytes = self.alloc_bytes.saturating_add(size);
        if was == AtPeak::Live {
            self.at_peak = self.at_peak.saturating_add(size);
        }
    }

    /// Both together, as of the same peak.
    pub fn join(&mut self, other: Self) {
        self.live = self.live.saturating_add(other.live);
        self.blocks = self.blocks.saturating_add(other.blocks);
        self.at_peak = self.at_peak.saturating_add(other.at_peak);
        self.allocs = self.allocs.saturating_add(other.allocs);
        self.alloc_bytes = self.alloc_bytes.saturating_add(other.alloc_bytes);
    }

    /// A block is freed.
    pub(super) fn release(&mut self, size: u64, peak: u64) {
        self.see(peak);
        self.live = self.live.saturating_sub(size);
        self.blocks = self.blocks.saturating_sub(1);
    }

    /// A block turns out to belong elsewhere, and never to have been here.
    pub(super) fn remove(&mut self, size: u64, peak: u64, was: AtPeak) {
        self.release(size, peak);
        self.allocs = self.allocs.saturating_sub(1);
        self.alloc_bytes = self.alloc_bytes.saturating_sub(size);
        if was == AtPeak::Live {
            self.at_peak = self.at_peak.saturating_sub(size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_held_at_the_peak_is_known_without_visiting_every_row() {
        let mut row = Holding::default();
        row.add(512, 0, AtPeak::Gone);
        // The device peaks for the first time: nobody tells the row.
        row.release(512, 1);
        row.add(64, 1, AtPeak::Gone);
        assert_eq!((row.live, row.at_peak), (64, 512));
        assert_eq!(row.as_of(2).at_peak, 64);
    }

    #[test]
    fn a_block_that_belongs_elsewhere_never_was_here() {
        let mut row = Holding::default();
        row.add(512, 0, AtPeak::Gone);
        row.remove(512, 1, AtPeak::Live);
        assert_eq!((row.live, row.at_peak, row.allocs), (0, 0, 0));
    }
}

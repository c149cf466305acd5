//! Rows of a table: memory held now and at the device's peak.

/// Memory of a row, now and at the peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Bytes now.
    pub live: u64,
    /// Blocks now.
    pub blocks: u64,
    /// Bytes at the device's peak.
    pub at_peak: u64,
    /// Blocks ever counted in the row.
    pub allocs: u64,
    /// Bytes of all blocks ever counted in the row.
    pub alloc_bytes: u64,
    /// Number of the peak that `at_peak` belongs to.
    peak: u64,
}

/// State of a block at the device's peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtPeak {
    Live,
    Gone,
}

impl Holding {
    /// The row at peak number `peak`. A row with an older number has not changed since that peak.
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

    /// Adds a block. `was` is [`AtPeak::Live`] for a block counted late, which was live at the peak.
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

    /// Adds a row with the same peak number.
    pub fn join(&mut self, other: Self) {
        self.live = self.live.saturating_add(other.live);
        self.blocks = self.blocks.saturating_add(other.blocks);
        self.at_peak = self.at_peak.saturating_add(other.at_peak);
        self.allocs = self.allocs.saturating_add(other.allocs);
        self.alloc_bytes = self.alloc_bytes.saturating_add(other.alloc_bytes);
    }

    pub(super) fn release(&mut self, size: u64, peak: u64) {
        self.see(peak);
        self.live = self.live.saturating_sub(size);
        self.blocks = self.blocks.saturating_sub(1);
    }

    /// Removes a block that was counted in the wrong row.
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
        // The device's first peak: the row has no notice of it.
        row.release(512, 1);
        row.add(64, 1, AtPeak::Gone);
        assert_eq!((row.live, row.at_peak), (64, 512));
        assert_eq!(row.as_of(2).at_peak, 64);
    }

    #[test]
    fn a_reassigned_block_leaves_no_trace_in_its_old_row() {
        let mut row = Holding::default();
        row.add(512, 0, AtPeak::Gone);
        row.remove(512, 1, AtPeak::Live);
        assert_eq!((row.live, row.at_peak, row.allocs), (0, 0, 0));
    }
}

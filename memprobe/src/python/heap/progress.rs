//! Progress of reading a process, for whoever waits for it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Stage of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadStage {
    /// Finds what must be copied while the process runs.
    Running,
    /// The process is paused.
    Paused,
    /// Reads the copy. The process runs again.
    Copy,
    /// Names the tensors. The process runs again.
    Naming,
}

/// Counters that the reader raises and others read at any time. They say nothing about the result.
#[derive(Debug, Default)]
pub struct ReadProgress {
    stage: AtomicU8,
    objects: AtomicU64,
    all: AtomicU64,
}

impl ReadProgress {
    /// Begins a stage; its objects count from 0.
    pub(crate) fn begin(&self, stage: ReadStage) {
        self.objects.store(0, Ordering::Relaxed);
        self.all.store(0, Ordering::Relaxed);
        self.stage.store(stage as u8, Ordering::Relaxed);
    }

    /// Sets the number of objects of this stage.
    pub(crate) fn expect(&self, all: usize) {
        self.objects.store(0, Ordering::Relaxed);
        self.all.store(all as u64, Ordering::Relaxed);
    }

    pub(crate) fn reach(&self, objects: usize) {
        self.objects.store(objects as u64, Ordering::Relaxed);
    }

    pub fn stage(&self) -> ReadStage {
        let stage = self.stage.load(Ordering::Relaxed);
        [ReadStage::Paused, ReadStage::Copy, ReadStage::Naming]
            .into_iter()
            .find(|known| *known as u8 == stage)
            .unwrap_or(ReadStage::Running)
    }

    /// Objects that were read in this stage, and all that it reads; `None` while their number is unknown.
    pub fn objects(&self) -> Option<(u64, u64)> {
        let all = self.all.load(Ordering::Relaxed);
        (all > 0).then(|| (self.objects.load(Ordering::Relaxed).min(all), all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_counts_its_own_objects() {
        let progress = ReadProgress::default();
        assert_eq!(
            (progress.stage(), progress.objects()),
            (ReadStage::Running, None)
        );
        progress.begin(ReadStage::Copy);
        progress.expect(10);
        progress.reach(7);
        assert_eq!(
            (progress.stage(), progress.objects()),
            (ReadStage::Copy, Some((7, 10)))
        );
        progress.begin(ReadStage::Naming);
        assert_eq!(progress.objects(), None);
    }
}

//! Reads memory again of which there is a copy, and finds the pages that have changed by their digests: the copy need
//! not lie there as it was read.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::LazyLock;

use twox_hash::XxHash3_64;

use super::{PAGE, Piece, ReadMemory, ReadResult};

/// Pieces that are read and compared at a time. Their bytes stay in the processor's cache in between.
const AT_ONCE: usize = 16;

/// Digest of a page. Of different pages those are the same once in 2^64 cases, and nobody can provoke it: the seed
/// differs from run to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest(u64);

impl Digest {
    pub fn of(page: &[u8]) -> Self {
        static SEED: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(()));
        Self(XxHash3_64::oneshot_with_seed(*SEED, page))
    }
}

/// Pages that follow each other, of which there is a copy.
#[derive(Debug)]
pub struct StalePages<'a> {
    pub address: u64,
    /// Digests of the pages as they were.
    pub digests: &'a [Digest],
    /// The result.
    pub outcome: ReadResult<()>,
    /// Pages that have changed, by their places in `digests`, and their bytes one after the other.
    pub changed: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl<'a> StalePages<'a> {
    pub fn of(address: u64, digests: &'a [Digest]) -> Self {
        Self {
            address,
            digests,
            outcome: Ok(()),
            changed: Vec::new(),
            bytes: Vec::new(),
        }
    }

    /// Number of bytes that are read again.
    pub const fn size(&self) -> usize {
        self.digests.len() * PAGE
    }

    /// Changed pages, by their places in `digests`.
    pub fn changed(&self) -> impl Iterator<Item = (usize, &[u8])> {
        self.changed.iter().copied().zip(self.bytes.chunks(PAGE))
    }

    fn compare(&mut self, now: &[u8]) {
        let pages = now.chunks(PAGE).zip(self.digests);
        for (place, (now, digest)) in pages.enumerate() {
            if Digest::of(now) != *digest {
                self.changed.push(place);
                self.bytes.extend_from_slice(now);
            }
        }
    }
}

/// Reads all pages again, in their order.
pub(super) fn refresh(memory: &(impl ReadMemory + ?Sized), stale: &mut [StalePages<'_>]) {
    let mut buffer = Vec::new();
    for stale in stale.chunks_mut(AT_ONCE) {
        buffer.resize(stale.iter().map(StalePages::size).sum(), 0);
        let mut rest = &mut buffer[..];
        let pieces = stale.iter().map(|stale| {
            let (own, others) = std::mem::take(&mut rest).split_at_mut(stale.size());
            rest = others;
            Piece::of(stale.address, own)
        });
        let mut pieces: Vec<_> = pieces.collect();
        memory.read_each(&mut pieces);
        for (stale, piece) in stale.iter_mut().zip(&pieces) {
            stale.outcome = piece.outcome;
            if piece.outcome.is_ok() {
                stale.compare(piece.into);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::FakeMemory;
    use super::*;

    #[test]
    fn changed_pages_are_found_and_copied() {
        let mut memory = FakeMemory::default();
        memory.map(0x1_0000, vec![7; 4 * PAGE]);
        memory.write(0x1_0000 + 3 * PAGE as u64 + 5, &[8]);
        let sevens = Digest::of(&[7; PAGE]);
        assert_ne!(sevens, Digest::of(&[1; PAGE]));
        let digests = [sevens; 2];
        let addresses = [0x1_0000, 0x1_0000 + 2 * PAGE as u64, 0x9_0000];
        let pieces = addresses.iter();
        let pieces = pieces.map(|&address| StalePages::of(address, &digests));
        let mut pieces: Vec<_> = pieces.collect();
        memory.refresh_each(&mut pieces);
        let read: Vec<_> = pieces.iter().map(|piece| piece.outcome.is_ok()).collect();
        assert_eq!(read, [true, true, false]);
        let changed = pieces.iter().flat_map(StalePages::changed);
        let mut expected = [7; PAGE];
        expected[5] = 8;
        assert_eq!(changed.collect::<Vec<_>>(), [(1, &expected[..])]);
    }
}

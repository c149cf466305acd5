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

/// Most pages of a piece.
pub const STALE_PAGES: usize = 4;

/// Pages that follow each other, of which there is a copy.
#[derive(Debug)]
pub struct StalePages<'a> {
    pub address: u64,
    /// Number of pages, [`STALE_PAGES`] at most.
    pub count: usize,
    /// Digests of the pages as they were; of those that have changed, as they are.
    pub digests: [Digest; STALE_PAGES],
    /// The copy, if it lies as the memory does: the pages that have changed are written to it.
    pub copy: Option<&'a mut [u8]>,
    /// The result.
    pub outcome: ReadResult<()>,
    /// Pages that have changed, one bit each.
    pub changed: u8,
    /// Without [`Self::copy`], the bytes of these pages, one after the other.
    bytes: Vec<u8>,
}

impl<'a> StalePages<'a> {
    /// Pages from an address on, as many as there are digests.
    pub fn of(address: u64, digests: &[Digest], copy: Option<&'a mut [u8]>) -> Self {
        let mut known = [Digest::default(); STALE_PAGES];
        for (known, digest) in known.iter_mut().zip(digests) {
            *known = *digest;
        }
        Self {
            address,
            count: digests.len().min(STALE_PAGES),
            digests: known,
            copy,
            outcome: Ok(()),
            changed: 0,
            bytes: Vec::new(),
        }
    }

    /// Number of bytes that are read again.
    pub const fn size(&self) -> usize {
        self.count * PAGE
    }

    /// The result alone, without the copy.
    pub fn into_result(self) -> StalePages<'static> {
        StalePages {
            address: self.address,
            count: self.count,
            digests: self.digests,
            copy: None,
            outcome: self.outcome,
            changed: self.changed,
            bytes: self.bytes,
        }
    }

    /// Numbers of the changed pages.
    pub fn changed_pages(&self) -> impl Iterator<Item = usize> + use<> {
        let changed = self.changed;
        (0..STALE_PAGES).filter(move |page| changed >> page & 1 != 0)
    }

    /// Bytes of the changed pages, in their order; none if they were written to the copy.
    pub fn changed_bytes(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks(PAGE)
    }

    fn compare(&mut self, now: &[u8]) {
        let pages = now.chunks(PAGE).zip(&mut self.digests);
        for (page, (now, digest)) in pages.enumerate() {
            let digest_now = Digest::of(now);
            if digest_now == *digest {
                continue;
            }
            *digest = digest_now;
            self.changed |= 1 << page;
            match &mut self.copy {
                Some(copy) => copy[page * PAGE..][..PAGE].copy_from_slice(now),
                None => self.bytes.extend_from_slice(now),
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
        let mut copy = vec![7; 2 * PAGE];
        let last = 0x1_0000 + 2 * PAGE as u64;
        let mut pieces = [
            StalePages::of(0x1_0000, &digests, None),
            StalePages::of(last, &digests, None),
            StalePages::of(last, &digests, Some(&mut copy)),
            StalePages::of(0x9_0000, &digests[..1], None),
        ];
        memory.refresh_each(&mut pieces);
        let read = pieces.each_ref().map(|piece| piece.outcome.is_ok());
        assert_eq!(read, [true, true, true, false]);
        let changed = pieces.each_ref().map(|piece| piece.changed);
        assert_eq!(changed, [0, 0b10, 0b10, 0]);
        assert_eq!(pieces[1].changed_pages().collect::<Vec<_>>(), [1]);
        let mut expected = [7; PAGE];
        expected[5] = 8;
        assert_eq!(pieces[1].digests[..2], [sevens, Digest::of(&expected)]);
        let bytes = pieces.iter().flat_map(StalePages::changed_bytes);
        assert_eq!(bytes.collect::<Vec<_>>(), [&expected[..]]);
        assert_eq!(copy, [[7; PAGE], expected].concat());
    }
}

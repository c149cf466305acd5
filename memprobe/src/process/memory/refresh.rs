//! Brings a copy of memory up to date, and finds the pages that have changed.

use super::{PAGE, Piece, ReadMemory, ReadResult};

/// Pieces that are read and compared at a time. Their bytes stay in the processor's cache in between, so that comparing
/// costs no more than writing all of them.
const AT_ONCE: usize = 16;

/// A piece of a copy.
#[derive(Debug)]
pub struct StalePiece<'a> {
    pub address: u64,
    /// The bytes as they were; at most 64 pages.
    pub bytes: &'a mut [u8],
    /// The result; after an error the bytes are as they were.
    pub outcome: ReadResult<()>,
    /// Pages of [`PAGE`] bytes, from the first byte on, that have changed: one bit each.
    pub changed: u64,
}

impl<'a> StalePiece<'a> {
    pub fn of(address: u64, bytes: &'a mut [u8]) -> Self {
        Self {
            address,
            bytes,
            outcome: Ok(()),
            changed: 0,
        }
    }
}

/// Reads all pieces again, in their order.
pub(super) fn refresh(memory: &(impl ReadMemory + ?Sized), stale: &mut [StalePiece<'_>]) {
    let mut buffer = Vec::new();
    for stale in stale.chunks_mut(AT_ONCE) {
        buffer.resize(stale.iter().map(|piece| piece.bytes.len()).sum(), 0);
        let mut rest = &mut buffer[..];
        let pieces = stale.iter().map(|stale| {
            let (own, others) = std::mem::take(&mut rest).split_at_mut(stale.bytes.len());
            rest = others;
            Piece::of(stale.address, own)
        });
        let mut pieces: Vec<_> = pieces.collect();
        memory.read_each(&mut pieces);
        for (stale, piece) in stale.iter_mut().zip(&pieces) {
            stale.outcome = piece.outcome;
            if piece.outcome.is_ok() {
                stale.update(piece.into);
            }
        }
    }
}

impl StalePiece<'_> {
    fn update(&mut self, now: &[u8]) {
        let pages = self.bytes.chunks_mut(PAGE).zip(now.chunks(PAGE));
        for (number, (old, now)) in pages.enumerate() {
            if old != now {
                old.copy_from_slice(now);
                self.changed |= 1 << (number % 64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::FakeMemory;
    use super::*;

    #[test]
    fn changed_pages_are_copied_and_marked() {
        let mut memory = FakeMemory::default();
        memory.map(0x1_0000, vec![7; 4 * PAGE]);
        let mut copies = [vec![7; 2 * PAGE], vec![7; 2 * PAGE], vec![1; PAGE]];
        memory.write(0x1_0000 + 3 * PAGE as u64 + 5, &[8]);
        let addresses = [0x1_0000, 0x1_0000 + 2 * PAGE as u64, 0x9_0000];
        let pieces = addresses.iter().zip(&mut copies);
        let pieces = pieces.map(|(&address, bytes)| StalePiece::of(address, bytes));
        let mut pieces: Vec<_> = pieces.collect();
        memory.refresh_each(&mut pieces);
        let changed: Vec<_> = pieces.iter().map(|piece| piece.changed).collect();
        assert_eq!(changed, [0, 0b10, 0]);
        let read: Vec<_> = pieces.iter().map(|piece| piece.outcome.is_ok()).collect();
        assert_eq!(read, [true, true, false]);
        assert_eq!(copies[1][PAGE + 5], 8);
        assert_eq!(copies[2], vec![1; PAGE]);
    }
}

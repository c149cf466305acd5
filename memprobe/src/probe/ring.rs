//! The reading end of the ring buffer.

use std::io;

use aya::maps::{MapData, RingBuf};
use tokio::io::unix::AsyncFd;

use super::positions::{Positions, watch_ring};

/// Records in the order in which the programs reserved them.
pub struct Records {
    ring: AsyncFd<RingBuf<MapData>>,
    positions: Positions,
}

/// A place in the stream of records: those before it were reserved when it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPosition(u64);

impl Records {
    /// Wraps the map. Must be called within a tokio runtime.
    pub fn new(ring: RingBuf<MapData>) -> io::Result<Self> {
        Ok(Self {
            positions: Positions::of(&ring)?,
            ring: watch_ring(ring)?,
        })
    }

    /// End of the records that programs have begun so far. A record still being written hides those
    /// behind it, so the absence of a next one does not mean that all were read.
    pub fn end(&self) -> StreamPosition {
        StreamPosition(self.positions.reserved())
    }

    pub fn has_passed(&self, place: StreamPosition) -> bool {
        self.positions.read() >= place.0
    }

    /// Bytes that were read so far.
    pub fn bytes_read(&self) -> u64 {
        self.positions.read()
    }

    /// Waits until a program wakes the reader. Most records are sent in silence: poll as well.
    pub async fn woken(&self) {
        if let Ok(mut ready) = self.ring.readable().await {
            ready.clear_ready();
        }
    }

    /// Takes the next records before a place, `most` at most, in place of those of the batch. The batch stays empty if
    /// there is none.
    ///
    /// Another processor wrote them. To copy many in a row overlaps the waits for its cache.
    pub fn take(&mut self, batch: &mut RecordBatch, most: usize, end: StreamPosition) {
        batch.clear();
        let ring = self.ring.get_mut();
        while batch.len() < most
            && self.positions.read() < end.0
            && let Some(record) = ring.next()
        {
            batch.push(&record);
        }
    }
}

/// Copies of records, in the order of the ring buffer.
#[derive(Default)]
pub struct RecordBatch {
    bytes: Vec<u8>,
    /// End of each record in `bytes`.
    ends: Vec<usize>,
}

impl RecordBatch {
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of each record.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        starts
            .zip(&self.ends)
            .map(|(start, end)| &self.bytes[start..*end])
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    fn push(&mut self, record: &[u8]) {
        self.bytes.extend_from_slice(record);
        self.ends.push(self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_gives_each_record_back() {
        let mut batch = RecordBatch::default();
        for record in [&[1u8, 2][..], &[], &[3]] {
            batch.push(record);
        }
        assert_eq!(batch.len(), 3);
        assert_eq!(batch.iter().collect::<Vec<_>>(), [&[1u8, 2][..], &[], &[3]]);
        batch.clear();
        assert!(batch.is_empty() && batch.iter().count() == 0);
    }
}

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

    /// Takes the next record's bytes; `None` if there is no record.
    pub fn next<T>(&mut self, take: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let record = self.ring.get_mut().next();
        record.map(|record| take(&record))
    }
}

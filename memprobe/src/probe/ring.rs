//! The reading end of the ring buffer.

use std::io;

use aya::maps::{MapData, RingBuf};
use tokio::io::unix::AsyncFd;

/// Records in the order in which the programs reserved them.
pub struct Records(AsyncFd<RingBuf<MapData>>);

impl Records {
    /// Wraps the map. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the runtime cannot watch it.
    pub fn new(ring: RingBuf<MapData>) -> io::Result<Self> {
        super::descriptor::watch_ring(ring).map(Self)
    }

    /// Waits until a program wakes the reader. Most records are sent in silence: poll as well.
    pub async fn woken(&self) {
        if let Ok(mut ready) = self.0.readable().await {
            ready.clear_ready();
        }
    }

    /// The next record's bytes, passed to `take`; says whether there was one.
    pub fn next(&mut self, take: impl FnOnce(&[u8])) -> bool {
        self.0
            .get_mut()
            .next()
            .map(|record| take(&record))
            .is_some()
    }
}

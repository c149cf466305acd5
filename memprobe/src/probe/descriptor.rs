//! The descriptor of the ring buffer, which wakes the runtime.

use std::io;

use aya::maps::{MapData, RingBuf};
use tokio::io::unix::AsyncFd;

/// Watches a ring buffer. Must be called within a tokio runtime.
pub(super) fn watch_ring(ring: RingBuf<MapData>) -> io::Result<AsyncFd<RingBuf<MapData>>> {
    // SAFETY: the runtime watches the descriptor by number. The ring buffer returns the same one every time and closes
    // it only when dropped: it holds its map, and with it the descriptor, in a field that never changes.
    unsafe { AsyncFd::register(ring) }.map_err(Into::into)
}

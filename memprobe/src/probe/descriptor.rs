//! Descriptors that wake the runtime.

use std::io;
use std::os::fd::AsRawFd;

use aya::maps::{MapData, RingBuf};
use tokio::io::unix::AsyncFd;

/// Owner of a descriptor: returns the same one every time and closes it only when dropped.
///
/// # Safety
/// The runtime watches the descriptor by number: an implementation must hold the sentence above.
unsafe trait OwnsDescriptor: AsRawFd {}

// SAFETY: holds its map, and with it the descriptor, in a field that never changes.
unsafe impl OwnsDescriptor for RingBuf<MapData> {}

/// Watches a ring buffer. Must be called within a tokio runtime.
pub(super) fn watch_ring(ring: RingBuf<MapData>) -> io::Result<AsyncFd<RingBuf<MapData>>> {
    watch(ring)
}

fn watch<T: OwnsDescriptor>(descriptor: T) -> io::Result<AsyncFd<T>> {
    // SAFETY: the trait's promise is the one that is asked for here.
    unsafe { AsyncFd::register(descriptor) }.map_err(Into::into)
}

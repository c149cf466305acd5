//! Read and write positions of a ring buffer, and its descriptor, which wakes the runtime.

use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::{MapData, RingBuf};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use tokio::io::unix::AsyncFd;

/// Bytes of a page (x86-64; memprobe supports no other machine yet).
const PAGE: usize = 4096;

/// The two positions of a ring buffer, in bytes since its beginning: the reader's is the first word
/// of its mapping, the programs' that of the next page (`struct bpf_ringbuf` of
/// kernel/bpf/ringbuf.c@v5.15; `tools/lib/bpf/ringbuf.c` maps them likewise).
#[derive(Debug)]
pub(super) struct Positions(NonNull<AtomicU64>);

impl Positions {
    /// Maps the positions of a ring buffer, to be read.
    pub(super) fn of(ring: impl AsFd) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses; nothing of ours is replaced.
        let start = unsafe {
            mmap(
                ptr::null_mut(),
                2 * PAGE,
                ProtFlags::READ,
                MapFlags::SHARED,
                ring,
                0,
            )
        }?;
        NonNull::new(start.cast())
            .map(Self)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    pub(super) fn read(&self) -> u64 {
        // SAFETY: mapped as long as `self` lives and aligned to a page; the kernel and the reader write it as one word.
        unsafe { self.0.as_ref() }.load(Ordering::Acquire)
    }

    /// Position up to which the programs have reserved records.
    pub(super) fn reserved(&self) -> u64 {
        // SAFETY: as above; two pages were mapped.
        unsafe { self.0.byte_add(PAGE).as_ref() }.load(Ordering::Acquire)
    }
}

impl Drop for Positions {
    fn drop(&mut self) {
        // SAFETY: what `of` mapped, and nobody refers to it any more.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), 2 * PAGE) };
    }
}

/// Watches a ring buffer. Must be called within a tokio runtime.
pub(super) fn watch_ring(ring: RingBuf<MapData>) -> io::Result<AsyncFd<RingBuf<MapData>>> {
    // SAFETY: the runtime watches the descriptor by number. The ring buffer returns the same one every time and closes
    // it only when dropped: it holds its map, and with it the descriptor, in a field that never changes.
    unsafe { AsyncFd::register(ring) }.map_err(Into::into)
}

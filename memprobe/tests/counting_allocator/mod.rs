//! Allocator that counts the bytes of this process, for a test and a benchmark.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system allocator unchanged; the counters are atomics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let allocated = ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(allocated, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `alloc` above took the block from the system allocator.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Bytes of this process beyond those at an earlier moment.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Bytes at the end.
    pub allocated: usize,
    /// Highest bytes until the end.
    pub peak: usize,
}

/// Counts bytes from its start on.
#[derive(Debug)]
pub struct Counter {
    before: usize,
}

impl Counter {
    /// Starts to count. Of several counters only the last one has the peak.
    pub fn start() -> Self {
        let before = ALLOCATED.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        Self { before }
    }

    /// Bytes since the start; 0 if there are fewer than then.
    pub fn memory(&self) -> Memory {
        let since = |bytes: &AtomicUsize| bytes.load(Ordering::Relaxed).saturating_sub(self.before);
        Memory {
            allocated: since(&ALLOCATED),
            peak: since(&PEAK),
        }
    }
}

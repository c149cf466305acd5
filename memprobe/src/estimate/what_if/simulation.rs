//! One simulated allocator, and the live blocks of the recording in it.

use std::collections::HashMap;

use crate::estimate::allocator::settings::AllocatorSettings;
use crate::estimate::allocator::{CachingAllocator, GpuBlock, PoolPlace, Ties};
use crate::event::{Address, Bytes, Totals};

/// Largest block of the small pool: such a block is as large as its rounded request.
const SMALL: Bytes = Bytes(1 << 20);

/// Peaks of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimulatedPeak {
    pub allocated: Bytes,
    pub reserved: Bytes,
    /// Allocated bytes when `reserved` was reached first.
    pub allocated_then: Bytes,
}

impl SimulatedPeak {
    pub(super) fn raise(&mut self, totals: Totals) {
        self.allocated = self.allocated.max(totals.allocated);
        if totals.reserved > self.reserved {
            self.reserved = totals.reserved;
            self.allocated_then = totals.allocated;
        }
    }

    /// Reserved bytes that were not allocated when most was reserved.
    pub fn cached(&self) -> Bytes {
        Bytes(self.reserved.0.saturating_sub(self.allocated_then.0))
    }
}

#[derive(Debug)]
pub(super) struct Simulation {
    allocator: CachingAllocator,
    settings: AllocatorSettings,
    /// By the address in the recording.
    live: HashMap<Address, GpuBlock>,
    pub(super) peak: SimulatedPeak,
    /// Events after which the totals differed from the recording.
    pub(super) differing: u64,
    has_failed: bool,
}

impl Simulation {
    pub(super) fn new(settings: AllocatorSettings, ties: Ties, capacity: Option<Bytes>) -> Self {
        Self {
            allocator: CachingAllocator::with_settings(settings, ties, capacity),
            settings,
            live: HashMap::new(),
            peak: SimulatedPeak::default(),
            differing: 0,
            has_failed: false,
        }
    }

    pub(super) fn alloc(&mut self, addr: Address, size: Bytes, place: PoolPlace) {
        // A block at the same address shows that its free was lost.
        if let Some(block) = self.live.remove(&addr) {
            self.allocator.free(block);
        }
        match self.allocator.malloc_at(size, place) {
            Ok(block) => {
                self.live.insert(addr, block);
            }
            Err(_) => self.has_failed = true,
        }
        self.peak.raise(self.allocator.totals);
    }

    pub(super) fn free(&mut self, addr: Address) {
        if let Some(block) = self.live.remove(&addr) {
            self.allocator.free(block);
        }
    }

    pub(super) fn empty_cache(&mut self) {
        self.allocator.empty_cache();
    }

    /// True if this request, and all before, get memory.
    pub(super) fn grants(&mut self, size: Bytes, place: PoolPlace) -> bool {
        !self.has_failed && self.allocator.malloc_at(size, place).is_ok()
    }

    /// True if the last block, of this size, may be larger than its request was.
    pub(super) fn has_doubtful_size(&self, size: Bytes) -> bool {
        size > SMALL && !self.settings.expandable && !self.allocator.was_cut
    }

    pub(super) fn check(&mut self, recorded: Totals) {
        self.differing += u64::from(self.allocator.totals != recorded);
    }
}

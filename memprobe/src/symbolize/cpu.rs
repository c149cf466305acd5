//! Live memory of PyTorch's CPU allocator, which keeps no list of blocks itself; the events are summed up here.

use hashbrown::HashMap;

use super::PriorCudaUse;
use crate::event::{Address, AtAttach, Bytes, DeviceIndex, Tgid, TimeNs, Totals};

/// The most live blocks that are tracked. Further ones are not part of the sum.
const MOST: usize = 1 << 24;

const UNREAD: &str = "PyTorch's CPU allocator keeps no books: what it gave out before is not known";

/// The blocks that the CPU allocator has handed out since the first event.
#[derive(Debug)]
pub struct CpuAllocatorTotals {
    tgid: Tgid,
    sizes: HashMap<Address, Bytes>,
    live: u64,
    /// True until the first event, if blocks from before it may be live.
    is_untold: bool,
}

impl CpuAllocatorTotals {
    pub fn new(tgid: Tgid, past: PriorCudaUse) -> Self {
        Self {
            tgid,
            sizes: HashMap::new(),
            live: 0,
            is_untold: past == PriorCudaUse::Unknown,
        }
    }

    /// Returns the event that must precede the first one of the CPU allocator: earlier allocations are unknown.
    pub fn begin(&mut self, time: TimeNs) -> Option<AtAttach> {
        std::mem::take(&mut self.is_untold).then(|| AtAttach {
            time,
            tgid: self.tgid,
            device: Some(DeviceIndex::CPU),
            totals: Totals::default(),
            peak: Totals::default(),
            unread: Some(UNREAD.into()),
        })
    }

    pub fn alloc(&mut self, addr: Address, size: Bytes) {
        if self.sizes.len() >= MOST && !self.sizes.contains_key(&addr) {
            return;
        }
        let before = self.sizes.insert(addr, size);
        // The free of the previous block at this address was lost.
        let gone = before.map_or(0, |size| size.0);
        self.live = self.live.saturating_sub(gone).saturating_add(size.0);
    }

    /// Records a free and returns the block's bytes; 0 for an unknown block.
    pub fn free(&mut self, addr: Address) -> Bytes {
        let size = self.sizes.remove(&addr).unwrap_or_default();
        self.live = self.live.saturating_sub(size.0);
        size
    }

    pub fn totals(&self) -> Totals {
        Totals::of(self.live, self.live)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: Address = Address(0x5000);

    #[test]
    fn a_block_that_is_not_known_takes_nothing_from_the_sum() {
        let mut books = CpuAllocatorTotals::new(Tgid(1), PriorCudaUse::Unknown);
        books.alloc(Address(0x6000), Bytes(100));
        assert_eq!(books.free(BLOCK), Bytes(0));
        assert_eq!(books.totals().allocated, Bytes(100));
        assert_eq!(books.free(Address(0x6000)), Bytes(100));
        assert_eq!(books.totals().allocated, Bytes(0));
    }

    #[test]
    fn an_address_that_is_handed_out_again_was_freed_unheard() {
        let mut books = CpuAllocatorTotals::new(Tgid(1), PriorCudaUse::None);
        books.alloc(BLOCK, Bytes(100));
        books.alloc(BLOCK, Bytes(30));
        assert_eq!(books.totals().allocated, Bytes(30));
    }

    #[test]
    fn that_the_past_is_not_known_is_said_once() {
        let mut books = CpuAllocatorTotals::new(Tgid(1), PriorCudaUse::Unknown);
        assert!(books.begin(TimeNs(5)).is_some_and(|it| it.unread.is_some()));
        assert_eq!(books.begin(TimeNs(6)), None);
        assert_eq!(
            CpuAllocatorTotals::new(Tgid(1), PriorCudaUse::None).begin(TimeNs(5)),
            None
        );
    }
}

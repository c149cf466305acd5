//! Visits of threads to the line at which the user lets an iteration begin.
//!
//! A visit begins when a thread allocates below the line after it allocated elsewhere. A thread of a server's pool may
//! allocate nowhere else. There a visit is inferred: the stack of the visit's first allocation comes again, and no
//! tensor of the visit is live. A loop below the line that keeps nothing looks the same.

use std::collections::HashMap;

use crate::event::{PurposeId, Tid};
use crate::ledger::{BlockId, PerBlock, StackRef};

/// Threads tracked.
const MAX_THREADS: usize = 4096;

/// Role of a thread in its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThreadRole {
    /// Runs the program: it allocates models elsewhere, perhaps before attach.
    Main,
    Other,
}

/// An allocation, as far as visits depend on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct LineAllocation {
    pub(super) tid: Tid,
    pub(super) role: ThreadRole,
    pub(super) stack: StackRef,
    /// True if the stack contains the line.
    pub(super) at_line: bool,
    /// `None` for a block beyond the ledger's cap.
    pub(super) block: Option<BlockId>,
    pub(super) purpose: PurposeId,
}

#[derive(Clone, Copy, Debug)]
struct ThreadVisits {
    /// True if its last allocation was below the line.
    is_there: bool,
    /// True once it has allocated outside the line.
    has_left: bool,
    /// Visits so far, inferred ones included.
    visits: u32,
    /// Stack of the first allocation of the visit.
    first: StackRef,
    /// Live blocks of the visit, without workspaces.
    live: u64,
}

impl Default for ThreadVisits {
    fn default() -> Self {
        Self {
            is_there: false,
            has_left: false,
            visits: 0,
            first: StackRef::UNKNOWN,
            live: 0,
        }
    }
}

impl ThreadVisits {
    fn begins_again(&self, allocation: &LineAllocation) -> bool {
        allocation.role == ThreadRole::Other
            && !self.has_left
            && self.live == 0
            && allocation.stack == self.first
            && self.first != StackRef::UNKNOWN
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct LineVisits {
    threads: HashMap<Tid, ThreadVisits>,
    /// Thread and visit of each live block below the line.
    blocks: PerBlock<(Tid, u32)>,
    /// Visits that are inferred.
    pub(super) inferred: u64,
    /// Threads forgotten at the limit; such a thread at the line counts as arriving there.
    pub(super) forgotten: u64,
}

impl LineVisits {
    /// Handles an allocation. Returns true if it begins a visit.
    pub(super) fn allocate(&mut self, allocation: LineAllocation) -> bool {
        let tid = allocation.tid;
        if self.threads.len() >= MAX_THREADS && !self.threads.contains_key(&tid) {
            self.forgotten = self.forgotten.saturating_add(self.threads.len() as u64);
            self.threads.clear();
        }
        let thread = self.threads.entry(tid).or_default();
        let was_there = std::mem::replace(&mut thread.is_there, allocation.at_line);
        if !allocation.at_line {
            thread.has_left = true;
            return false;
        }
        let is_inferred = was_there && thread.begins_again(&allocation);
        let begins = !was_there || is_inferred;
        if begins {
            self.inferred += u64::from(is_inferred);
            thread.visits = thread.visits.saturating_add(1);
            (thread.first, thread.live) = (allocation.stack, 0);
        }
        // Libraries keep workspaces from one call to the next.
        if let Some(block) = allocation.block
            && allocation.purpose != PurposeId::NO_TENSOR
        {
            thread.live += 1;
            self.blocks.insert(block, (tid, thread.visits));
        }
        begins
    }

    /// Handles the end of a block.
    pub(super) fn release(&mut self, block: BlockId) {
        let Some((tid, visit)) = self.blocks.remove(block) else {
            return;
        };
        if let Some(thread) = self.threads.get_mut(&tid)
            && thread.visits == visit
        {
            thread.live = thread.live.saturating_sub(1);
        }
    }

    /// Number of threads that have allocated nowhere else since they first came to the line.
    pub(super) fn threads_that_stay(&self) -> u64 {
        let mut threads = 0;
        for thread in self.threads.values() {
            threads += u64::from(thread.is_there && thread.visits == 1);
        }
        threads
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Dense as _;

    const POOL: Tid = Tid(2);

    fn allocation(tid: Tid, stack: usize, block: usize) -> LineAllocation {
        LineAllocation {
            tid,
            role: ThreadRole::Other,
            stack: StackRef::from_index(stack),
            at_line: true,
            block: Some(BlockId::from_index(block)),
            purpose: PurposeId::NONE,
        }
    }

    fn outside(tid: Tid) -> LineAllocation {
        LineAllocation {
            at_line: false,
            block: None,
            ..allocation(tid, 9, 0)
        }
    }

    #[test]
    fn counts_the_threads_that_allocate_below_the_line_of_the_user_alone() {
        let mut visits = LineVisits::default();
        let at_line = |tid| allocation(Tid(tid), 1, tid as usize);
        for allocation in [outside(Tid(1)), at_line(1), at_line(2), at_line(1)] {
            visits.allocate(allocation);
        }
        assert_eq!(visits.threads_that_stay(), 2);
        // Thread 1 leaves, and comes again: its visits are apart.
        for allocation in [outside(Tid(1)), at_line(1), at_line(2)] {
            visits.allocate(allocation);
        }
        assert_eq!(visits.threads_that_stay(), 1);
        visits.allocate(outside(Tid(2)));
        assert_eq!((visits.threads_that_stay(), visits.inferred), (0, 0));
    }

    #[test]
    fn a_visit_of_a_pool_thread_begins_when_nothing_of_the_last_one_is_live() {
        let mut visits = LineVisits::default();
        for request in 0..3 {
            assert!(visits.allocate(allocation(POOL, 1, 10)), "{request}");
            assert!(!visits.allocate(allocation(POOL, 2, 11)));
            // The first stack again while a block is live: a loop below the line.
            visits.release(BlockId::from_index(10));
            assert!(!visits.allocate(allocation(POOL, 1, 10)));
            visits.release(BlockId::from_index(10));
            visits.release(BlockId::from_index(11));
        }
        assert_eq!((visits.inferred, visits.threads_that_stay()), (2, 0));
    }

    #[test]
    fn workspaces_outlive_a_visit() {
        let mut visits = LineVisits::default();
        assert!(visits.allocate(allocation(POOL, 1, 10)));
        let workspace = LineAllocation {
            purpose: PurposeId::NO_TENSOR,
            ..allocation(POOL, 2, 11)
        };
        assert!(!visits.allocate(workspace));
        visits.release(BlockId::from_index(10));
        assert!(visits.allocate(allocation(POOL, 1, 10)));
    }

    #[test]
    fn nothing_is_inferred_on_the_main_thread_or_after_an_allocation_outside_the_line() {
        let mut visits = LineVisits::default();
        let main = LineAllocation {
            role: ThreadRole::Main,
            ..allocation(Tid(1), 1, 10)
        };
        for _ in 0..2 {
            visits.allocate(main);
            visits.release(BlockId::from_index(10));
        }
        for allocation in [outside(POOL), allocation(POOL, 1, 11)] {
            visits.allocate(allocation);
        }
        visits.release(BlockId::from_index(11));
        assert!(!visits.allocate(allocation(POOL, 1, 11)));
        assert_eq!((visits.inferred, visits.threads_that_stay()), (0, 2));
    }
}

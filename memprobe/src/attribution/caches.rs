//! Caches of keys and values: found by their growth from one call of the modules to the next.
//!
//! A cache that grows (`torch.cat` of the keys so far and new ones) is a new block in each call. The block of the
//! call before is freed as soon as the new one exists, and the same call goes on to allocate. An output of the
//! program is replaced between two calls instead; a state of fixed size does not grow.

use std::num::NonZeroU32;

use hashbrown::HashMap;

use super::phase::Phase;
use crate::event::Tid;

/// Replacements by larger blocks after which the kept blocks of a stack count as a cache.
const MIN_REPLACEMENTS: u32 = 2;
/// Threads tracked; at the limit all are forgotten and tracked afresh.
const MAX_THREADS: usize = 4096;

/// Outermost call of modules without grad; the default stands for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OutermostCall {
    /// Number of the calling thread; `None` outside of such calls.
    caller: Option<NonZeroU32>,
    number: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct CallingThread {
    /// The current or the latest call.
    call: OutermostCall,
    is_inside: bool,
    /// Origin and bytes of its latest block, if allocated in `call` and no block was replaced since.
    latest: Option<(u32, u64)>,
    /// Origins of a block, and of the smaller one of an earlier call that was freed after it.
    replaced: Option<(u32, u32)>,
}

/// Replacements of kept blocks, by origin.
#[derive(Clone, Debug, Default)]
pub(super) struct Caches {
    threads: HashMap<Tid, CallingThread>,
    callers: u32,
    replacements: HashMap<u32, u32>,
}

impl Caches {
    /// Handles an allocation; returns the call that it belongs to.
    pub(super) fn allocate(
        &mut self,
        tid: Tid,
        phase: Phase,
        origin: u32,
        bytes: u64,
    ) -> OutermostCall {
        if phase != Phase::Evaluation {
            if let Some(caller) = self.threads.get_mut(&tid) {
                (caller.is_inside, caller.latest, caller.replaced) = (false, None, None);
            }
            return OutermostCall::default();
        }
        if self.threads.len() >= MAX_THREADS && !self.threads.contains_key(&tid) {
            self.threads.clear();
        }
        let callers = &mut self.callers;
        let caller = self.threads.entry(tid).or_insert_with(|| {
            *callers = callers.saturating_add(1);
            let mut caller = CallingThread::default();
            caller.call.caller = NonZeroU32::new(*callers);
            caller
        });
        if !caller.is_inside {
            caller.is_inside = true;
            caller.call.number = caller.call.number.saturating_add(1);
        }
        if let Some((new, old)) = caller.replaced.take() {
            for origin in [Some(new), Some(old).filter(|old| *old != new)] {
                let count = origin.map(|origin| self.replacements.entry(origin).or_default());
                count
                    .into_iter()
                    .for_each(|count| *count = count.saturating_add(1));
            }
        }
        caller.latest = Some((origin, bytes));
        caller.call
    }

    /// Handles the free of a block that `call` allocated.
    pub(super) fn free(&mut self, tid: Tid, call: OutermostCall, origin: u32, bytes: u64) {
        let Some(caller) = self.threads.get_mut(&tid) else {
            return;
        };
        let is_earlier = call.caller == caller.call.caller && call.number < caller.call.number;
        if let Some((new, _)) = caller.latest.filter(|(_, new)| is_earlier && *new > bytes) {
            (caller.latest, caller.replaced) = (None, Some((new, origin)));
        }
    }

    /// True if kept blocks of this origin are a cache.
    pub(super) fn has(&self, origin: u32) -> bool {
        let count = self.replacements.get(&origin);
        count.is_some_and(|count| *count >= MIN_REPLACEMENTS)
    }
}

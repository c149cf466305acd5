//! Confidence in modules that may be short-lived.
//!
//! Stacks hold addresses, which are looked up a moment later. By then another, identical-looking module may
//! have the address: the allocator hands out recently freed memory first. So a tree or module is confirmed only
//! after it was found unchanged at several moments, independent of its calls. The process must have run between
//! two such moments: while a busy machine leaves it descheduled, everything that it has created stays.

use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashSet};

use super::fingerprint::{ObjectFingerprint, ObjectState};
use crate::process::memory::ReadMemory;
use crate::python::layout::PythonLayout;

/// Moments at which a tree, or a module called inside another tree, must have been found unchanged.
pub(super) const STAYS: u32 = 6;

/// Same as [`STAYS`], for trees of a class of which another tree has gone.
pub(super) const LASTS: u32 = 64;

/// Least time between two such moments.
const BETWEEN: Duration = Duration::from_millis(5);

const IDLE: Duration = Duration::from_millis(100);
const MOST: usize = 1 << 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Confidence {
    Full,
    /// Possible: it has not been there for long enough.
    Growing,
    /// Unknown, and not expected to be confirmed soon.
    None,
}

/// A module that was called inside a tree that does not hold it.
#[derive(Clone, Copy, Debug)]
struct UnplacedModule {
    sign: ObjectFingerprint,
    moments: u32,
}

#[derive(Debug, Default)]
pub(super) struct ConfidenceTracker {
    /// Classes of modules that have gone: roots of trees, or modules called inside another tree.
    fleeting: HashSet<u64>,
    unplaced: HashMap<u64, UnplacedModule>,
}

impl ConfidenceTracker {
    pub fn is_fleeting(&mut self, class: u64) {
        if self.fleeting.len() < MOST {
            self.fleeting.insert(class);
        }
    }

    fn may_go(&self, class: u64) -> bool {
        self.fleeting.len() >= MOST || self.fleeting.contains(&class)
    }

    /// Confidence in a tree that was found unchanged at `moments` moments and whose root has this class.
    pub fn of_tree(&self, class: u64, moments: u32) -> Confidence {
        match self.may_go(class) {
            false if moments >= STAYS => Confidence::Full,
            false => Confidence::Growing,
            true if moments >= LASTS => Confidence::Full,
            true => Confidence::None,
        }
    }

    /// Confidence in a module that was called inside another tree; `None` when it is first met.
    pub fn of_unplaced(&mut self, module: u64, sign: ObjectFingerprint) -> Option<Confidence> {
        if self.unplaced.len() >= MOST {
            self.unplaced.clear();
        }
        let known = self.unplaced.get(&module).copied();
        let Some(known) = known.filter(|known| known.sign == sign) else {
            let moments = 0;
            self.unplaced
                .insert(module, UnplacedModule { sign, moments });
            return None;
        };
        Some(match known.moments >= STAYS {
            true => Confidence::Full,
            false if self.may_go(sign.class) => Confidence::None,
            false => Confidence::Growing,
        })
    }

    pub fn has_doubts(&self) -> bool {
        let mut unplaced = self.unplaced.values();
        unplaced.any(|stranger| stranger.moments < STAYS)
    }

    /// Checks the modules that are waiting to be confirmed, at a moment independent of their calls.
    pub fn look(&mut self, memory: &impl ReadMemory, layout: &PythonLayout) {
        let doubted = self.unplaced.iter();
        let doubted = doubted.filter(|(_, stranger)| stranger.moments < STAYS);
        let doubted: Vec<_> = doubted
            .map(|(module, stranger)| (*module, stranger.sign))
            .collect();
        if doubted.is_empty() {
            return;
        }
        let states = ObjectFingerprint::states(memory, layout, &doubted);
        for ((module, sign), state) in doubted.iter().zip(states) {
            match (state, self.unplaced.get_mut(module)) {
                (ObjectState::Same, Some(stranger)) => stranger.moments += 1,
                _ => {
                    self.unplaced.remove(module);
                    self.is_fleeting(sign.class);
                }
            }
        }
    }
}

/// CPU time of this thread: on a busy machine wall time includes the work of others.
pub fn worked() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}

#[derive(Debug, Default)]
pub(super) struct ReadTiming {
    looked: Option<Instant>,
    took: Duration,
    ran: Option<u64>,
}

impl ReadTiming {
    /// Checks take at most one part in `SHARE` of the time.
    const SHARE: u32 = 10;

    /// True if a check is due, after which the caller calls [`Self::looked`]. `ran` returns the process's CPU time.
    pub fn is_due(&mut self, now: Instant, ran: &dyn Fn() -> Option<u64>) -> bool {
        let Some(looked) = self.looked else {
            self.ran = ran();
            return true;
        };
        let passed = now.duration_since(looked);
        let pause = BETWEEN.max(self.took * Self::SHARE);
        if passed < pause {
            return false;
        }
        let ran = ran();
        let has_run = ran.is_some() && ran != self.ran;
        if !has_run && passed < pause.max(IDLE) {
            return false;
        }
        self.ran = ran;
        true
    }

    pub fn looked(&mut self, took: Duration) {
        self.took = took;
        self.looked = Some(Instant::now());
    }
}

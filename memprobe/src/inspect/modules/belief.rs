//! What is believed of modules that may be made and dropped at once.
//!
//! A stack holds addresses, and they are looked up a moment later. By then another module can be there that looks
//! the same: memory that was freed last is given out first, so who is made and dropped in each step has its place
//! and its sign again and again, but not all the time. So nothing is believed but what was found unchanged at
//! several moments, none of them chosen by its calls, and between any two of which the process has run: on a busy
//! machine it may stand still for long, and then all that it has made stays.

use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashSet};

use super::sign::{Fate, Sign};
use crate::symbolize::python::layout::PythonLayout;
use crate::target::memory::ReadMemory;

/// At how many moments a tree must have been found unchanged, or a module that was called within a tree that it is
/// not in.
pub(super) const STAYS: u32 = 6;

/// As [`STAYS`], of a tree of which others of its class were seen to go.
pub(super) const LASTS: u32 = 64;

/// How long there is between two such moments at least.
const BETWEEN: Duration = Duration::from_millis(5);

/// How long there is between them where the process has nothing to do.
const IDLE: Duration = Duration::from_millis(100);

/// The most classes and modules of which anything is kept.
const MOST: usize = 1 << 12;

/// How far something is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Faith {
    /// It is what it seems.
    Full,
    /// It may be: it has not been there for long.
    Growing,
    /// There is no telling.
    None,
}

/// A module that was called within a tree that it is not in.
#[derive(Clone, Copy, Debug)]
struct Stranger {
    sign: Sign,
    moments: u32,
}

/// What was seen of modules that go and that stay.
#[derive(Debug, Default)]
pub(super) struct Belief {
    /// Classes of which a module has gone that was at the top of a tree, or called within one that it was not in.
    fleeting: HashSet<u64>,
    strangers: HashMap<u64, Stranger>,
}

impl Belief {
    /// A module of this class has gone.
    pub(super) fn is_fleeting(&mut self, class: u64) {
        if self.fleeting.len() < MOST {
            self.fleeting.insert(class);
        }
    }

    fn may_go(&self, class: u64) -> bool {
        self.fleeting.len() >= MOST || self.fleeting.contains(&class)
    }

    /// How far a tree is believed that was found unchanged at so many moments and has a module of this class at its
    /// top.
    pub(super) fn of_tree(&self, class: u64, moments: u32) -> Faith {
        match self.may_go(class) {
            false if moments >= STAYS => Faith::Full,
            false => Faith::Growing,
            true if moments >= LASTS => Faith::Full,
            true => Faith::None,
        }
    }

    /// How far a module is believed that is met where its place is not known; `None` of one that is met for the
    /// first time.
    pub(super) fn of_stranger(&mut self, module: u64, sign: Sign) -> Option<Faith> {
        if self.strangers.len() >= MOST {
            self.strangers.clear();
        }
        let known = self.strangers.get(&module).copied();
        let Some(known) = known.filter(|known| known.sign == sign) else {
            let moments = 0;
            self.strangers.insert(module, Stranger { sign, moments });
            return None;
        };
        Some(match known.moments >= STAYS {
            true => Faith::Full,
            false if self.may_go(sign.class) => Faith::None,
            false => Faith::Growing,
        })
    }

    /// Whether there are modules that have not stayed long enough to be believed.
    pub(super) fn has_doubts(&self) -> bool {
        self.strangers
            .values()
            .any(|stranger| stranger.moments < STAYS)
    }

    /// Looks whether those are there that have not stayed long enough to be believed, at a moment that they did not
    /// choose.
    pub(super) fn look(&mut self, memory: &impl ReadMemory, layout: &PythonLayout) {
        let doubted = self.strangers.iter();
        let doubted = doubted.filter(|(_, stranger)| stranger.moments < STAYS);
        let doubted: Vec<_> = doubted
            .map(|(module, stranger)| (*module, stranger.sign))
            .collect();
        if doubted.is_empty() {
            return;
        }
        let fates = Sign::fates(memory, layout, &doubted);
        for ((module, sign), fate) in doubted.iter().zip(fates) {
            match (fate, self.strangers.get_mut(module)) {
                (Fate::Same, Some(stranger)) => stranger.moments += 1,
                _ => {
                    self.strangers.remove(module);
                    self.is_fleeting(sign.class);
                }
            }
        }
    }
}

/// For how long this thread has run: on a busy machine, others run meanwhile.
pub(super) fn worked() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// When what may go is looked at.
#[derive(Debug, Default)]
pub(super) struct Watch {
    looked: Option<Instant>,
    took: Duration,
    /// For how long the process had run by then.
    ran: Option<u64>,
}

impl Watch {
    /// What share of the time may be spent with it.
    const SHARE: u32 = 10;

    /// Whether it is time to look, where the process has run for so long; then [`Self::looked`] is to follow.
    pub(super) fn is_due(&mut self, now: Instant, ran: &dyn Fn() -> Option<u64>) -> bool {
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

    /// It was looked, which took so long.
    pub(super) fn looked(&mut self, took: Duration) {
        self.took = took;
        self.looked = Some(Instant::now());
    }

    /// As if it were time to look.
    #[cfg(test)]
    pub(super) fn hurry(&mut self) {
        *self = Self::default();
    }
}

//! What is believed of modules that may be made and dropped at once.
//!
//! A stack holds addresses, and they are looked up a moment later. By then another module can be there that looks
//! the same. So of classes whose objects were seen to go, only those are believed that have stayed for a while.

use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashSet};

use super::sign::{Fate, Sign};
use crate::symbolize::python::layout::PythonLayout;
use crate::target::memory::ReadMemory;

/// How long a tree must have been the same where others of its class were seen to go.
pub(super) const LASTS: Duration = Duration::from_secs(1);

/// At how many moments, none of them chosen by its calls, a module must have been found there that was called within a
/// tree that it is not in. One that is made and dropped has its place and its sign again and again, but not all the time.
pub(super) const STAYS: u32 = 5;

/// How long there is between two such moments at least.
const BETWEEN: Duration = Duration::from_millis(10);

/// The most classes and modules of which anything is kept.
const MOST: usize = 1 << 12;

/// What was seen of modules that go and that stay.
#[derive(Debug, Default)]
pub(super) struct Belief {
    /// Classes of which a module at the top of a tree has gone.
    fleeting: HashSet<u64>,
    /// Modules that were called within trees that they are not in: as what, and at how many moments they were there.
    strangers: HashMap<u64, (Sign, u32)>,
    /// When they were looked for last.
    looked: Option<Instant>,
}

impl Belief {
    /// A module of this class at the top of a tree has gone.
    pub(super) fn is_fleeting(&mut self, class: u64) {
        if self.fleeting.len() < MOST {
            self.fleeting.insert(class);
        }
    }

    /// Whether a tree with such a module at its top, the same since that moment, is one that lasts.
    pub(super) fn lasts(&self, class: u64, since: Instant) -> bool {
        let may_all_go = self.fleeting.len() >= MOST;
        !(may_all_go || self.fleeting.contains(&class)) || since.elapsed() >= LASTS
    }

    /// Whether a module has stayed that is met where its place is not known.
    pub(super) fn has_stayed(&mut self, module: u64, sign: Sign) -> bool {
        if self.strangers.len() >= MOST {
            self.strangers.clear();
        }
        let (known, moments) = self.strangers.entry(module).or_insert((sign, 0));
        if *known != sign {
            (*known, *moments) = (sign, 0);
        }
        *moments >= STAYS
    }

    /// Looks whether those are there that have not stayed long enough to be believed. Call it now and then.
    pub(super) fn look(&mut self, memory: &impl ReadMemory, layout: &PythonLayout) {
        if self.strangers.is_empty() || self.looked.is_some_and(|last| last.elapsed() < BETWEEN) {
            return;
        }
        self.looked = Some(Instant::now());
        let doubted = self.strangers.iter();
        let doubted = doubted.filter(|(_, (_, moments))| *moments < STAYS);
        let doubted: Vec<_> = doubted
            .map(|(module, (sign, _))| (*module, *sign))
            .collect();
        let fates = Sign::fates(memory, layout, &doubted);
        for ((module, _), fate) in doubted.iter().zip(fates) {
            match (fate, self.strangers.get_mut(module)) {
                (Fate::Same, Some((_, moments))) => *moments += 1,
                _ => drop(self.strangers.remove(module)),
            }
        }
    }

    /// As if it were time to look.
    #[cfg(test)]
    pub(super) fn hurry(&mut self) {
        self.looked = None;
    }
}

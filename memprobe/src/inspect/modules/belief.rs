//! What is believed of modules that may be made and dropped at once.
//!
//! A stack holds addresses, and they are looked up a moment later. By then another module can be there that looks
//! the same. So of classes whose objects were seen to go, only those are believed that have stayed for a while.

use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashSet};

use super::sign::Sign;

/// How long a tree must have been the same where others of its class were seen to go.
pub(super) const LASTS: Duration = Duration::from_secs(1);

/// How long a module must have been the same that was called within a tree that it is not in.
pub(super) const STAYS: Duration = Duration::from_millis(50);

/// The most classes and modules of which anything is kept.
const MOST: usize = 1 << 12;

/// What was seen of modules that go and that stay.
#[derive(Debug, Default)]
pub(super) struct Belief {
    /// Classes of which a module at the top of a tree has gone.
    fleeting: HashSet<u64>,
    /// Modules that were called within trees that they are not in: as what, and since when.
    strangers: HashMap<u64, (Sign, Instant)>,
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

    /// Whether a module was the same for a while that is met where its place is not known.
    pub(super) fn has_stayed(&mut self, module: u64, sign: Sign) -> bool {
        if self.strangers.len() >= MOST {
            self.strangers.clear();
        }
        let now = Instant::now();
        let (known, since) = self.strangers.entry(module).or_insert((sign, now));
        if *known != sign {
            (*known, *since) = (sign, now);
        }
        now.duration_since(*since) >= STAYS
    }

    /// As if so much time had passed.
    #[cfg(test)]
    pub(super) fn wait(&mut self, time: Duration) {
        for (_, since) in self.strangers.values_mut() {
            *since = since.checked_sub(time).expect("a moment");
        }
    }
}

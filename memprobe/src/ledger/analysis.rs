//! Analyses: tables computed from the changes of a ledger.

use super::{Change, Model};
use crate::event::Target;
use crate::event::{Event, TimeNs};

/// Follows the changes of a ledger. It keeps its own values for blocks in a [`super::PerBlock`], and reads everything
/// else about them from the ledger.
pub trait Analysis {
    /// Applies an event and the change that it made to `ledger`.
    fn apply(&mut self, event: &Event, change: &Change, ledger: &Model);
}

impl Analysis for () {
    fn apply(&mut self, _: &Event, _: &Change, _: &Model) {}
}

impl<A: Analysis, B: Analysis> Analysis for (A, B) {
    fn apply(&mut self, event: &Event, change: &Change, ledger: &Model) {
        self.0.apply(event, change, ledger);
        self.1.apply(event, change, ledger);
    }
}

/// A ledger with its analyses: everything that one process's events lead to.
#[derive(Debug)]
pub struct AnalyzedLedger<A> {
    pub ledger: Model,
    pub analyses: A,
}

impl<A: Analysis> AnalyzedLedger<A> {
    /// Returns an empty ledger of `target`, tracked since `started`.
    pub fn new(target: Target, started: TimeNs, analyses: A) -> Self {
        Self {
            ledger: Model::new(target, started),
            analyses,
        }
    }

    /// Applies the next event of the stream.
    pub fn apply(&mut self, event: &Event) {
        let change = self.ledger.apply(event);
        self.analyses.apply(event, &change, &self.ledger);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::attribution::allocation_groups::samples::learning_for;
    use crate::event::Tid;
    use crate::ledger::snapshot::Grouping;
    use crate::ledger::{BlockId, Freed, PerBlock};

    /// Live bytes by allocating thread.
    #[derive(Default)]
    struct Threads {
        by_block: PerBlock<Tid>,
        live: BTreeMap<Tid, u64>,
    }

    impl Threads {
        fn end(&mut self, id: BlockId, ledger: &Model) {
            if let Some(tid) = self.by_block.remove(id) {
                *self.live.entry(tid).or_default() -= ledger.block(id).size.0;
            }
        }
    }

    impl Analysis for Threads {
        fn apply(&mut self, event: &Event, change: &Change, ledger: &Model) {
            match (event, change) {
                (
                    Event::Memory(event),
                    Change::Allocated {
                        block,
                        is_tracked: true,
                        replaced,
                    },
                ) => {
                    replaced.iter().for_each(|ended| self.end(*ended, ledger));
                    self.by_block.insert(*block, event.tid);
                    *self.live.entry(event.tid).or_default() += event.size.0;
                }
                (_, Change::Freed(Freed::Known(block))) => self.end(*block, ledger),
                _ => {}
            }
        }
    }

    #[test]
    fn an_analysis_adds_up_to_the_ledger() {
        let program = learning_for(10, |iteration| iteration % 3 == 0);
        let played = program.analyzed((Threads::default(), ()));
        let (threads, ()) = played.analyses;
        let device = &played.ledger.snapshot(TimeNs(0), Grouping::User).devices[0];
        assert_eq!(device.live_blocks, 4);
        assert_eq!(
            threads.live.values().sum::<u64>(),
            device.totals.allocated.0
        );
    }
}

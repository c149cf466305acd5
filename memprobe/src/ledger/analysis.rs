//! Analyses: tables computed from the changes of a ledger.

use super::keyframe::LedgerKeyframe;
use super::{Change, Ledger};
use crate::event::{Event, Target, TimeNs};

/// Follows the changes of a ledger. It keeps its own values for blocks in a [`super::PerBlock`], and reads everything
/// else about them from the ledger.
pub trait Analysis {
    /// Applies an event and the change that it made to `ledger`.
    fn apply(&mut self, event: &Event, change: &Change, ledger: &Ledger);
}

impl Analysis for () {
    fn apply(&mut self, _: &Event, _: &Change, _: &Ledger) {}
}

/// `None` follows nothing.
impl<A: Analysis> Analysis for Option<A> {
    fn apply(&mut self, event: &Event, change: &Change, ledger: &Ledger) {
        if let Some(analysis) = self {
            analysis.apply(event, change, ledger);
        }
    }
}

impl<A: Analysis, B: Analysis> Analysis for (A, B) {
    fn apply(&mut self, event: &Event, change: &Change, ledger: &Ledger) {
        self.0.apply(event, change, ledger);
        self.1.apply(event, change, ledger);
    }
}

/// A ledger with its analyses: everything that one process's events lead to.
#[derive(Clone, Debug)]
pub struct AnalyzedLedger<A> {
    pub ledger: Ledger,
    pub analyses: A,
}

impl<A: Analysis> AnalyzedLedger<A> {
    pub fn new(target: Target, started: TimeNs, analyses: A) -> Self {
        Self {
            ledger: Ledger::new(target, started),
            analyses,
        }
    }

    /// Begins with the state of a keyframe. `analyses` know nothing of the events before it.
    ///
    /// # Errors
    ///
    /// If the keyframe, which may come from a hostile file, contradicts itself.
    pub fn of_keyframe(
        target: Target,
        keyframe: &LedgerKeyframe,
        analyses: A,
    ) -> Result<Self, &'static str> {
        let ledger = Ledger::of_keyframe(target, keyframe)?;
        Ok(Self { ledger, analyses })
    }

    pub fn apply(&mut self, event: &Event) {
        let change = self.ledger.apply(event);
        self.analyses.apply(event, &change, &self.ledger);
    }
}

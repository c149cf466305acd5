//! Agreement of the ledger with the allocator's totals, and the losses that excuse a difference.

use crate::event::TimeNs;

/// Nanoseconds between a loss and a difference that the loss still explains, in either direction.
/// The kernel's loss counters are read separately from the ring buffer. A report of a loss may
/// therefore arrive before or after the events around it.
const GRACE: u64 = 1_000_000_000;

/// Nanoseconds after a loss in which it explains as many differences as events were lost. The kernel's counters are
/// ahead of the events: these wait in the ring, for the names of modules, and for a heap snapshot.
const MAX_LAG: u64 = 60_000_000_000;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Agreement {
    confirmed: u64,
    /// Differences near `suspected_at`. They count until a loss explains them.
    suspected: u64,
    suspected_at: TimeNs,
    loss_at: Option<TimeNs>,
    /// Lost events that have explained no difference yet. Each explains one at most, after which the ledger agrees
    /// with the allocator again.
    unexplained: u64,
}

impl Agreement {
    /// Records a new difference between ledger and allocator at `time`.
    pub(super) fn differs(&mut self, time: TimeNs) {
        let is_late = self.loss_at.is_some_and(|loss| is_late(loss, time)) && self.unexplained > 0;
        if is_late || self.loss_at.is_some_and(|loss| near(loss, time)) {
            self.unexplained = self.unexplained.saturating_sub(1);
            return;
        }
        if !near(self.suspected_at, time) {
            self.confirm();
            self.suspected_at = time;
        }
        self.suspected = self.suspected.saturating_add(1);
    }

    /// Records a loss of `events` events; `time` is the time of the last event before the report.
    pub(super) fn lost(&mut self, time: TimeNs, events: u64) {
        let before = match self.loss_at {
            Some(loss) if is_late(loss, time) => self.unexplained,
            _ => 0,
        };
        self.unexplained = before.saturating_add(events);
        if near(self.suspected_at, time) {
            self.suspected = 0;
        } else {
            self.confirm();
        }
        self.loss_at = Some(time);
    }

    pub(super) fn disagreements(&self) -> u64 {
        self.confirmed.saturating_add(self.suspected)
    }

    fn confirm(&mut self) {
        self.confirmed = self.confirmed.saturating_add(self.suspected);
        self.suspected = 0;
    }
}

/// True if an event at `time` may have been on its way when a loss was reported after an event at `loss`.
fn is_late(loss: TimeNs, time: TimeNs) -> bool {
    time.0.checked_sub(loss.0).is_some_and(|lag| lag <= MAX_LAG)
}

fn near(a: TimeNs, b: TimeNs) -> bool {
    a.0.abs_diff(b.0) <= GRACE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> TimeNs {
        TimeNs(seconds * 1_000_000_000)
    }

    #[test]
    fn a_difference_counts_at_once() {
        let mut agreement = Agreement::default();
        agreement.differs(seconds(5));
        assert_eq!(agreement.disagreements(), 1);
    }

    #[test]
    fn a_loss_reported_soon_after_explains_it() {
        let mut agreement = Agreement::default();
        agreement.differs(seconds(5));
        agreement.lost(seconds(6), 1);
        assert_eq!(agreement.disagreements(), 0);
    }

    #[test]
    fn a_loss_reported_just_before_explains_it() {
        let mut agreement = Agreement::default();
        agreement.lost(seconds(4), 1);
        agreement.differs(seconds(5));
        assert_eq!(agreement.disagreements(), 0);
    }

    #[test]
    fn a_loss_long_before_or_after_does_not_explain_it() {
        let mut agreement = Agreement::default();
        agreement.lost(seconds(1), 1000);
        agreement.differs(seconds(62));
        agreement.lost(seconds(66), 1);
        assert_eq!(agreement.disagreements(), 1);
        agreement.differs(seconds(200));
        agreement.differs(seconds(210));
        agreement.lost(seconds(210), 1);
        assert_eq!(agreement.disagreements(), 2);
    }

    #[test]
    fn a_loss_explains_as_many_later_differences_as_events_were_lost() {
        let mut agreement = Agreement::default();
        agreement.lost(seconds(1), 2);
        agreement.lost(seconds(2), 1);
        for time in [10, 12, 14] {
            agreement.differs(seconds(time));
        }
        assert_eq!(agreement.disagreements(), 0);
        agreement.differs(seconds(16));
        assert_eq!(agreement.disagreements(), 1);
    }
}

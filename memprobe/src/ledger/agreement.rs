//! Agreement of the ledger with the allocator's totals, and the losses that excuse a difference.

use crate::event::TimeNs;

/// Nanoseconds between a loss and a difference that the loss still explains, in either direction.
/// The kernel's loss counters are read separately from the ring buffer. A report of a loss may
/// therefore arrive before or after the events around it.
const GRACE: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Agreement {
    confirmed: u64,
    /// Differences near `suspected_at`. They count until a loss explains them.
    suspected: u64,
    suspected_at: TimeNs,
    loss_at: Option<TimeNs>,
}

impl Agreement {
    /// Records a new difference between ledger and allocator at `time`.
    pub(super) fn differs(&mut self, time: TimeNs) {
        if self.loss_at.is_some_and(|loss| near(loss, time)) {
            return;
        }
        if !near(self.suspected_at, time) {
            self.confirm();
            self.suspected_at = time;
        }
        self.suspected = self.suspected.saturating_add(1);
    }

    /// Records a loss of events; `time` is the time of the last event before the report.
    pub(super) fn lost(&mut self, time: TimeNs) {
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
        agreement.lost(seconds(6));
        assert_eq!(agreement.disagreements(), 0);
    }

    #[test]
    fn a_loss_reported_just_before_explains_it() {
        let mut agreement = Agreement::default();
        agreement.lost(seconds(4));
        agreement.differs(seconds(5));
        assert_eq!(agreement.disagreements(), 0);
    }

    #[test]
    fn a_loss_long_before_or_after_does_not_explain_it() {
        let mut agreement = Agreement::default();
        agreement.lost(seconds(1));
        agreement.differs(seconds(5));
        agreement.lost(seconds(9));
        assert_eq!(agreement.disagreements(), 1);
        agreement.differs(seconds(20));
        agreement.differs(seconds(30));
        agreement.lost(seconds(30));
        assert_eq!(agreement.disagreements(), 2);
    }
}

//! Agreement of the ledger with the allocator's totals, and the losses that excuse a difference.

use crate::event::TimeNs;

/// Nanoseconds between a loss and a difference that the loss still explains, in either direction.
/// The kernel's loss counters are read separately from the ring buffer. A report of a loss may
/// therefore arrive before or after the events around it.
const GRACE: u64 = 1_000_000_000;

/// Nanoseconds after a loss in which it still explains differences. The kernel's counters are ahead of the events: these
/// wait in the ring, for the names of modules, and for a heap snapshot.
const MAX_LAG: u64 = 60_000_000_000;

/// Differences that a lost event explains: one of the totals, and one of the block when its address is seen next.
/// Afterwards the ledger agrees with the allocator again.
const EXPLAINS: u64 = 2;

#[derive(Clone, Copy, Debug, Default)]
pub struct Agreement {
    pub confirmed: u64,
    /// Differences near `suspected_at`. They count until a loss explains them.
    pub suspected: u64,
    pub suspected_at: TimeNs,
    pub loss_at: Option<TimeNs>,
    /// Latest change of what the probes report.
    pub changed_at: Option<TimeNs>,
    /// Differences that the losses at `loss_at` may yet explain.
    pub explicable: u64,
}

impl Agreement {
    /// Records a new difference between ledger and allocator at `time`.
    pub(super) fn differs(&mut self, time: TimeNs) {
        if self.changed_at.is_some_and(|change| near(change, time)) {
            return;
        }
        let explains = |loss| is_late(loss, time) || near(loss, time);
        if self.explicable > 0 && self.loss_at.is_some_and(explains) {
            self.explicable -= 1;
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
            Some(loss) if is_late(loss, time) => self.explicable,
            _ => 0,
        };
        self.explicable = before.saturating_add(events.saturating_mul(EXPLAINS));
        if near(self.suspected_at, time) {
            let explained = self.suspected.min(self.explicable);
            self.suspected -= explained;
            self.explicable -= explained;
        } else {
            self.confirm();
        }
        self.loss_at = Some(time);
    }

    /// Records that the probes were switched off or on again: until the blocks are brought up to date, the ledger differs.
    pub(super) fn capture_changed(&mut self, time: TimeNs) {
        if near(self.suspected_at, time) {
            self.suspected = 0;
        }
        self.changed_at = Some(time);
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
    fn a_lost_event_explains_two_later_differences() {
        let mut agreement = Agreement::default();
        agreement.lost(seconds(1), 1);
        agreement.lost(seconds(2), 1);
        for time in [10, 12, 14, 16] {
            agreement.differs(seconds(time));
        }
        assert_eq!(agreement.disagreements(), 0);
        agreement.differs(seconds(18));
        assert_eq!(agreement.disagreements(), 1);
    }

    #[test]
    fn a_change_of_the_probes_explains_all_differences_near_it() {
        let mut agreement = Agreement::default();
        agreement.differs(seconds(4));
        agreement.capture_changed(seconds(5));
        agreement.differs(seconds(6));
        assert_eq!(agreement.disagreements(), 0);
        agreement.differs(seconds(7));
        assert_eq!(agreement.disagreements(), 1);
    }

    #[test]
    fn one_lost_event_does_not_explain_every_difference_near_it() {
        let mut before = Agreement::default();
        let mut after = Agreement::default();
        before.lost(seconds(5), 1);
        for _ in 0..5 {
            before.differs(seconds(5));
            after.differs(seconds(5));
        }
        after.lost(seconds(5), 1);
        assert_eq!(before.disagreements(), 3);
        assert_eq!(after.disagreements(), 3);
    }
}

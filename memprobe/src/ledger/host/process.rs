//! One process of a host: its ledger, and its row.

use super::{Attached, trend};
use crate::event::{Bytes, Event, Target, Tgid, TimeNs, Totals};
use crate::ledger::snapshot::host::{
    DriverUse, HostHealth, ProcessFacts, ProcessRow, ProcessState, TopHolder, Trend,
};
use crate::ledger::snapshot::{Grouping, Snapshot, TargetState};
use crate::ledger::suspension::{DriverListing, SuspensionTracker};
use crate::ledger::{Caps, Change, Ledger};

#[derive(Clone, Debug)]
pub(super) struct HostProcess {
    pub(super) ledger: Ledger,
    pub(super) ended: Option<TimeNs>,
    trend: trend::TrendRecorder,
    /// Reason why a signal or a debugger has stopped it.
    run_stop: Option<String>,
    suspension: SuspensionTracker,
    pub(super) row: ProcessRow,
    /// True if the row is older than the ledger.
    stale: bool,
}

impl HostProcess {
    pub(super) fn new(target: Target, facts: ProcessFacts, now: TimeNs, caps: Caps) -> Self {
        let mut ledger = Ledger::with_caps(target.clone(), now, caps);
        let state = ProcessState::Found;
        ledger.health.state = seen(&state);
        let row = ProcessRow {
            tgid: target.tgid.unwrap_or(Tgid(0)),
            target,
            facts,
            state,
            stopped: None,
            devices: Vec::new(),
            totals_age: None,
            peak: Totals::default(),
            driver: Vec::new(),
            driver_is_partial: false,
            trend: Trend::default(),
            growth: None,
            top: None,
            note: None,
            events: 0,
            events_per_second: 0.0,
        };
        Self {
            ledger,
            ended: None,
            trend: trend::TrendRecorder::default(),
            run_stop: None,
            suspension: SuspensionTracker::default(),
            row,
            stale: false,
        }
    }

    pub(super) fn describe(&mut self, target: Target, facts: ProcessFacts) {
        self.identify(target);
        self.row.facts = facts;
    }

    pub(super) fn attach(&mut self, found: Attached) {
        self.ledger.target = found.target.clone();
        let health = &mut self.ledger.health;
        health.probes = found.probes;
        health.capture = found.capture;
        health.missing = found.missing;
        self.row.target = found.target;
        self.set_state(ProcessState::Probed);
    }

    pub(super) fn identify(&mut self, target: Target) {
        self.ledger.target = target.clone();
        self.row.target = target;
    }

    pub(super) fn set_stopped(&mut self, reason: Option<String>) {
        self.run_stop = reason;
        self.show_stop();
    }

    /// Shows why its code or its calls of CUDA wait.
    fn show_stop(&mut self) {
        let stop = self.run_stop.clone();
        let reason = stop.or_else(|| self.suspension.reason(self.row.tgid, self.reserved()));
        self.ledger.health.stopped.clone_from(&reason);
        self.row.stopped = reason;
    }

    fn reserved(&self) -> Option<Bytes> {
        self.ledger.totals().map(|totals| totals.reserved)
    }

    /// Sets the state, unless the process has ended.
    pub(super) fn set_state(&mut self, state: ProcessState) {
        if self.ended.is_none() {
            self.ledger.health.state = seen(&state);
            self.row.state = state;
        }
    }

    pub(super) fn apply(&mut self, event: &Event) -> Change {
        let change = self.ledger.apply(event);
        let time = match event {
            Event::Memory(event) => event.time,
            Event::AtAttach(found) => found.time,
            _ => return change,
        };
        self.stale = true;
        if let Some(totals) = self.ledger.totals() {
            self.row.peak = self.row.peak.higher(totals);
            self.trend.record(time, totals.allocated);
        }
        change
    }

    pub(super) fn end(&mut self, now: TimeNs) {
        self.suspension = SuspensionTracker::default();
        self.set_stopped(None);
        self.set_state(ProcessState::Ended);
        self.ended.get_or_insert(now);
    }

    /// Counts peaks and growth from `now` on.
    pub(super) fn reset_peaks(&mut self, now: TimeNs) {
        self.ledger.reset_peaks(now);
        self.row.peak = self.ledger.totals().unwrap_or_default();
        self.stale = true;
    }

    /// Returns true if it ended at least `fade` nanoseconds ago.
    pub(super) fn has_faded(&self, now: TimeNs, fade: u64) -> bool {
        self.ended
            .is_some_and(|ended| now.0.saturating_sub(ended.0) >= fade)
    }

    /// Sets the memory that the driver reports. An ended process keeps its last value.
    pub(super) fn set_driver(
        &mut self,
        held: &[DriverUse],
        is_partial: bool,
        listing: DriverListing,
    ) {
        if self.ended.is_none() {
            self.suspension.update(listing, self.reserved());
            self.show_stop();
            self.row.driver = held.to_vec();
            self.row.driver_is_partial = is_partial;
        }
    }

    pub(super) fn tick(&mut self, now: TimeNs) {
        self.ledger.tick(now);
        self.trend.advance(self.ended.unwrap_or(now));
    }

    pub(super) fn add_to(&self, health: &mut HostHealth) {
        let own = &self.ledger;
        health.events = health.events.saturating_add(own.health.events);
        health.events_per_second += own.events_rate.per_second();
        let malformed = &mut health.losses.malformed;
        *malformed = malformed.saturating_add(own.malformed);
        let disagreements = own.agreement.disagreements();
        health.disagreements = health.disagreements.saturating_add(disagreements);
        if self.ended.is_none() {
            let budgets = health.budget.into_iter().chain(own.health.budget);
            health.budget = budgets.max_by_key(|budget| budget.overhead);
        }
    }

    /// Row of the process, rebuilt if it changed.
    pub(super) fn row(&mut self, now: TimeNs) -> ProcessRow {
        self.row.growth = self.ledger.growth();
        if std::mem::replace(&mut self.stale, false) {
            self.row.devices = self.ledger.device_rows();
            if let [only] = self.row.devices.as_slice() {
                self.row.peak = self.row.peak.higher(only.peak);
            }
            let top = self.ledger.top_holder(Grouping::User);
            self.row.top = top.map(|(holder, live)| TopHolder { holder, live });
            self.row.events = self.ledger.health.events;
        }
        let budget = (self.ledger.health.budget.as_ref()).filter(|_| !self.row.devices.is_empty());
        let now = self.ended.unwrap_or(now);
        self.row.totals_age = budget.and_then(|budget| budget.totals_age(now));
        self.row.events_per_second = self.ledger.events_rate.per_second();
        self.row.trend = self.trend.snapshot();
        self.row.clone()
    }

    pub(super) fn snapshot(&self, now: TimeNs, grouping: Grouping) -> Snapshot {
        self.ledger.snapshot(self.ended.unwrap_or(now), grouping)
    }
}

/// State as shown on the screen of one process.
fn seen(state: &ProcessState) -> TargetState {
    match state {
        ProcessState::Found => TargetState::Waiting("memprobe to look at the process".to_owned()),
        ProcessState::Waiting(what) => TargetState::Waiting(what.clone()),
        ProcessState::Refused(reason) => {
            TargetState::Waiting(format!("nothing: it cannot be probed ({reason})"))
        }
        ProcessState::Probed => TargetState::Running,
        ProcessState::Ended => TargetState::Exited,
    }
}

//! All processes of a host: a ledger for each, and its row for views.
//!
//! Like the ledgers it has no clock; time comes with the events and with [`Host::tick`]. Rows are
//! rebuilt only after a change. A host without allocations costs next to nothing, however many
//! processes it has.

mod process;
mod trend;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::snapshot::host::{
    DriverSnapshot, DriverUse, HostHealth, HostSnapshot, ProcessFacts, ProcessState,
};
use super::snapshot::{Grouping, Snapshot};
use super::suspension::DriverListing;
use super::{Caps, Change, Ledger};
use crate::event::{Action, CaptureOptions, Event, Losses, Tgid, TimeNs};
use crate::event::{ProbeStatus, Target};
use process::HostProcess;

/// Limits of a host's stores, and the time that ended processes stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostCaps {
    /// Processes; [`HostHealth::untracked`] counts the excess.
    pub processes: usize,
    pub each: Caps,
    /// Nanoseconds for which an ended process keeps its row.
    pub fade: u64,
}

impl Default for HostCaps {
    fn default() -> Self {
        Self {
            processes: 1024,
            each: Caps {
                blocks: 8_000_000,
                stacks: 125_000,
                frames: 4_000_000,
                holders: 50_000,
                threads: 16_384,
            },
            fade: 5_000_000_000,
        }
    }
}

/// Facts about a process once its probes are attached.
#[derive(Clone, Debug, Default)]
pub struct Attached {
    pub target: Target,
    pub probes: Vec<ProbeStatus>,
    /// Record kinds that the kernel emits for this process.
    pub capture: CaptureOptions,
    /// Data that cannot be recorded, one sentence each.
    pub missing: Vec<String>,
}

#[derive(Clone, Debug, Default)]
pub struct Host {
    caps: HostCaps,
    started: TimeNs,
    processes: BTreeMap<Tgid, HostProcess>,
    driver: DriverSnapshot,
    /// Process that the user has open; it stays after it ended.
    opened: Option<Tgid>,
    past: HostHealth,
    /// Losses of the ring buffer, which all processes share.
    losses: Losses,
}

impl Host {
    pub fn new(started: TimeNs) -> Self {
        Self::with_caps(started, HostCaps::default())
    }

    pub fn with_caps(started: TimeNs, caps: HostCaps) -> Self {
        Self {
            caps,
            started,
            ..Self::default()
        }
    }

    /// Adds a process found at `now`; returns false if there is no room. An ended process with the
    /// same id is removed. A live one keeps its ledger and gets the new facts.
    pub fn start(&mut self, target: Target, facts: ProcessFacts, now: TimeNs) -> bool {
        let Some(tgid) = target.tgid else {
            return false;
        };
        if let Some(known) = self.processes.get_mut(&tgid) {
            if known.ended.is_none() {
                known.describe(target, facts);
                return true;
            }
            self.forget(tgid);
        }
        if self.processes.len() >= self.caps.processes && !self.forget_an_ended_one() {
            self.past.untracked = self.past.untracked.saturating_add(1);
            return false;
        }
        let process = HostProcess::new(target, facts, now, self.caps.each);
        self.processes.insert(tgid, process);
        true
    }

    /// User, rank and parent of a process; `None` if it has no row.
    pub fn facts(&self, tgid: Tgid) -> Option<&ProcessFacts> {
        Some(&self.processes.get(&tgid)?.row.facts)
    }

    /// Returns true if the process has a row and has not ended.
    pub fn is_live(&self, tgid: Tgid) -> bool {
        let process = self.processes.get(&tgid);
        process.is_some_and(|process| process.ended.is_none())
    }

    pub fn wait(&mut self, tgid: Tgid, what: &str) {
        self.set_state(tgid, ProcessState::Waiting(what.to_owned()));
    }

    pub fn refuse(&mut self, tgid: Tgid, reason: &str) {
        self.set_state(tgid, ProcessState::Refused(reason.to_owned()));
    }

    pub fn attach(&mut self, tgid: Tgid, found: Attached) {
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.attach(found);
        }
    }

    /// Takes what became known of the GPUs behind the ordinals of a process.
    pub fn identify(&mut self, tgid: Tgid, target: Target) {
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.identify(target);
        }
    }

    /// Counts peaks and growth of a process from `now` on.
    pub fn reset_peaks(&mut self, tgid: Tgid, now: TimeNs) {
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.reset_peaks(now);
        }
    }

    /// Sets the reason why the process runs nothing; `None` if it runs.
    pub fn set_stopped(&mut self, tgid: Tgid, reason: Option<String>) {
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.set_stopped(reason);
        }
    }

    fn set_state(&mut self, tgid: Tgid, state: ProcessState) {
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.set_state(state);
        }
    }

    /// Applies the next event of a process. Returns `None` if the process has no row. Also `None`
    /// for baseline events that a forked process copied from its parent.
    pub fn apply(&mut self, tgid: Tgid, event: &Event) -> Option<Change> {
        if is_of_before(event) && self.is_copy_of_a_user(tgid) {
            return None;
        }
        let process = self.processes.get_mut(&tgid)?;
        Some(process.apply(event))
    }

    /// Returns true if the process is a fork of one whose allocator was seen. Its allocator state
    /// is then the parent's: CUDA does not survive a fork.
    fn is_copy_of_a_user(&self, tgid: Tgid) -> bool {
        let parent = self.facts(tgid).and_then(|facts| facts.forked_from);
        let parent = parent.and_then(|parent| self.processes.get(&parent));
        parent.is_some_and(|parent| parent.ledger.totals().is_some())
    }

    /// Sets the running totals of losses before decoding, for all processes together. Each process
    /// also gets its own as events ([`Event::Loss`]).
    pub fn count_loss(&mut self, losses: Losses) {
        self.losses = losses;
    }

    /// Removes a process that executes another program: its memory is freed.
    pub fn forget(&mut self, tgid: Tgid) {
        if let Some(process) = self.processes.remove(&tgid) {
            process.add_to(&mut self.past);
            self.past.events_per_second = 0.0;
        }
    }

    pub fn note(&mut self, tgid: Tgid, text: &str) {
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.row.note = Some(text.to_owned());
        }
    }

    /// Marks the process as ended. Its row stays for a while, unchanged.
    pub fn end(&mut self, tgid: Tgid, now: TimeNs) {
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.end(now);
        }
    }

    /// Sets the process that the user has open, which is kept meanwhile; `None` closes it.
    pub fn open(&mut self, tgid: Option<Tgid>) {
        self.opened = tgid;
    }

    /// Sets the driver's data: its devices, and the memory of each process on them.
    pub fn set_driver(&mut self, driver: DriverSnapshot, held: &BTreeMap<Tgid, Vec<DriverUse>>) {
        let is_partial = driver.unlisted().next().is_some();
        let is_silent = driver.devices().is_empty();
        self.driver = driver;
        for (tgid, process) in &mut self.processes {
            let held = held.get(tgid).map_or(&[][..], Vec::as_slice);
            let listing = match held {
                [] if is_silent || is_partial => DriverListing::Unknown,
                [] => DriverListing::Absent,
                _ => DriverListing::Listed,
            };
            process.set_driver(held, is_partial, listing);
        }
    }

    /// Updates rates and trends, and removes processes that ended long enough ago.
    pub fn tick(&mut self, now: TimeNs) {
        for process in self.processes.values_mut() {
            process.tick(now);
        }
        let (fade, opened) = (self.caps.fade, self.opened);
        let faded: Vec<Tgid> = self
            .processes
            .iter()
            .filter(|(tgid, process)| Some(**tgid) != opened && process.has_faded(now, fade))
            .map(|(tgid, _)| *tgid)
            .collect();
        for tgid in faded {
            self.forget(tgid);
        }
    }

    fn forget_an_ended_one(&mut self) -> bool {
        let opened = self.opened;
        let mut processes = self.processes.iter();
        let ended = processes
            .find(|(tgid, process)| Some(**tgid) != opened && process.ended.is_some())
            .map(|(tgid, _)| *tgid);
        ended.inspect(|tgid| self.forget(*tgid)).is_some()
    }

    pub fn snapshot(&mut self, now: TimeNs) -> HostSnapshot {
        let mut health = self.past;
        for process in self.processes.values() {
            process.add_to(&mut health);
        }
        // The processes' own losses are only malformed events; the rest is counted for the host.
        health.losses = Losses {
            malformed: health
                .losses
                .malformed
                .saturating_add(self.losses.malformed),
            ..self.losses
        };
        let processes = self.processes.values_mut();
        HostSnapshot {
            started: self.started,
            now,
            processes: processes.map(|process| process.row(now)).collect(),
            driver: self.driver.clone(),
            health,
        }
    }

    /// Ledger of a process; `None` if it has no row.
    pub fn ledger(&self, tgid: Tgid) -> Option<&Ledger> {
        Some(&self.processes.get(&tgid)?.ledger)
    }

    /// Snapshot of one process for views, as of `now`; `None` if it has no row.
    pub fn process(&self, tgid: Tgid, now: TimeNs, grouping: Grouping) -> Option<Snapshot> {
        let process = self.processes.get(&tgid)?;
        Some(process.snapshot(now, grouping))
    }
}

/// Returns true for an event that describes memory from before attach.
fn is_of_before(event: &Event) -> bool {
    match event {
        Event::AtAttach(_) => true,
        Event::Memory(event) => event.action == Action::Held,
        _ => false,
    }
}

//! All processes of a host: a ledger for each, and a row of it for views.
//!
//! Pure as the ledgers are: time comes with the events and with [`Host::tick`]. Rows are made anew
//! only where something has happened, so that a host on which nobody allocates costs next to
//! nothing, however many processes hold memory.

mod process;
mod trend;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::snapshot::host::{
    DriverSnapshot, DriverUse, HostHealth, HostSnapshot, ProcessFacts, ProcessState,
};
use super::snapshot::{Grouping, ProbeStatus, Snapshot, Target};
use super::tensors::Ledgers;
use super::{Applied, Caps};
use crate::event::{Action, Event, Losses, Tgid, TimeNs, Told};
use process::Process;

/// How much a host keeps at most, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostCaps {
    /// Processes. What is beyond is counted in [`HostHealth::not_kept`].
    pub processes: usize,
    /// Of each process.
    pub each: Caps,
    /// Nanoseconds for which a process that has ended keeps its row.
    pub fade: u64,
}

impl Default for HostCaps {
    fn default() -> Self {
        Self {
            processes: 1024,
            each: Caps {
                blocks: 8_000_000,
                stacks: 50_000,
                frames: 1_000_000,
                holders: 50_000,
                threads: 16_384,
            },
            fade: 5_000_000_000,
        }
    }
}

/// What is known of a process once it is probed.
#[derive(Clone, Debug, Default)]
pub struct Attached {
    /// Who it is, with its versions.
    pub target: Target,
    /// The probes.
    pub probes: Vec<ProbeStatus>,
    /// What the kernel was asked to tell.
    pub told: Told,
    /// What cannot be told, a sentence each.
    pub missing: Vec<String>,
}

/// Everything known of the processes of a host, brought up to date by each event.
#[derive(Debug)]
pub struct Host {
    caps: HostCaps,
    started: TimeNs,
    processes: BTreeMap<Tgid, Process>,
    driver: DriverSnapshot,
    /// Kept however long ago it ended: somebody looks at it.
    opened: Option<Tgid>,
    /// Of processes that are not kept any more.
    past: HostHealth,
    /// On the way here, which all processes share.
    losses: Losses,
}

impl Host {
    /// A host that is looked at since `started`.
    pub fn new(started: TimeNs) -> Self {
        Self::with_caps(started, HostCaps::default())
    }

    /// A host that keeps no more than `caps`.
    pub fn with_caps(started: TimeNs, caps: HostCaps) -> Self {
        Self {
            caps,
            started,
            processes: BTreeMap::new(),
            driver: DriverSnapshot::default(),
            opened: None,
            past: HostHealth::default(),
            losses: Losses::default(),
        }
    }

    /// A process was found at `now`. One of the same number that has ended gives way; one that
    /// has not keeps its ledger and gets the new facts. Says whether there was room.
    pub fn start(&mut self, target: Target, facts: ProcessFacts, now: TimeNs) -> bool {
        let Some(tgid) = target.tgid else {
            return false;
        };
        if let Some(known) = self.processes.get_mut(&tgid) {
            if !known.has_ended() {
                known.describe(target, facts);
                return true;
            }
            self.forget(tgid);
        }
        if self.processes.len() >= self.caps.processes && !self.forget_an_ended_one() {
            self.past.not_kept = self.past.not_kept.saturating_add(1);
            return false;
        }
        let process = Process::new(target, facts, now, self.caps.each);
        self.processes.insert(tgid, process);
        true
    }

    /// In whose name and what for a process runs, where it has a row.
    pub fn facts(&self, tgid: Tgid) -> Option<&ProcessFacts> {
        self.processes.get(&tgid).map(Process::facts)
    }

    /// Whether the process has a row and has not ended.
    pub fn is_live(&self, tgid: Tgid) -> bool {
        self.processes
            .get(&tgid)
            .is_some_and(|process| !process.has_ended())
    }

    /// The process waits for something before it can be probed.
    pub fn wait(&mut self, tgid: Tgid, what: &str) {
        self.set_state(tgid, ProcessState::Waiting(what.to_owned()));
    }

    /// The process cannot be probed, and this is why.
    pub fn refuse(&mut self, tgid: Tgid, why: &str) {
        self.set_state(tgid, ProcessState::Refused(why.to_owned()));
    }

    /// The process is probed: its versions and probes are known.
    pub fn attach(&mut self, tgid: Tgid, found: Attached) {
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.attach(found);
        }
    }

    fn set_state(&mut self, tgid: Tgid, state: ProcessState) {
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.set_state(state);
        }
    }

    /// Brings a process up to date with the next event of its stream; `None` where it has no row, or where the event tells of
    /// what is its parent's.
    pub fn apply(&mut self, tgid: Tgid, event: &Event) -> Option<Applied> {
        if is_of_before(event) && self.is_copy_of_a_user(tgid) {
            return None;
        }
        let process = self.processes.get_mut(&tgid)?;
        Some(process.apply(event))
    }

    /// Whether what is written down in the memory of a process is that of the one it is a copy of:
    /// CUDA does not survive a fork.
    fn is_copy_of_a_user(&self, tgid: Tgid) -> bool {
        let parent = self.processes.get(&tgid).and_then(Process::forked_from);
        let parent = parent.and_then(|parent| self.processes.get(&parent));
        parent.is_some_and(Process::was_heard)
    }

    /// The running totals of what was lost on the way here, for all processes together. Of its own each is
    /// told by an event too ([`Event::Loss`]).
    pub fn lose(&mut self, losses: Losses) {
        self.losses = losses;
    }

    /// The process runs another program from now on: what it held is freed, and its row is gone.
    pub fn forget(&mut self, tgid: Tgid) {
        if let Some(process) = self.processes.remove(&tgid) {
            process.add_to(&mut self.past);
            self.past.events_per_second = 0.0;
        }
    }

    /// Something that whoever looks at the process should know.
    pub fn note(&mut self, tgid: Tgid, text: &str) {
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.note(text);
        }
    }

    /// The process has ended. Its row stays for a while, as it was last.
    pub fn end(&mut self, tgid: Tgid, now: TimeNs) {
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.end(now);
        }
    }

    /// Somebody looks at this process, or at none: it is kept as long as they do.
    pub fn open(&mut self, tgid: Option<Tgid>) {
        self.opened = tgid;
    }

    /// What the driver says: its devices, and who holds what on them.
    pub fn set_driver(&mut self, driver: DriverSnapshot, held: &BTreeMap<Tgid, Vec<DriverUse>>) {
        let is_partial = driver.unlisted().next().is_some();
        self.driver = driver;
        for (tgid, process) in &mut self.processes {
            process.set_driver(held.get(tgid).map_or(&[], Vec::as_slice), is_partial);
        }
    }

    /// Brings rates and trends up to date, and lets go of what ended long enough ago.
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
        let ended = self
            .processes
            .iter()
            .find(|(tgid, process)| Some(**tgid) != opened && process.has_ended())
            .map(|(tgid, _)| *tgid);
        ended.inspect(|tgid| self.forget(*tgid)).is_some()
    }

    /// Everything a view of the host needs, as of `now`.
    pub fn snapshot(&mut self, now: TimeNs) -> HostSnapshot {
        let mut health = self.past;
        for process in self.processes.values() {
            process.add_to(&mut health);
        }
        // Of the processes' own there are only events that none of an allocator can be.
        health.losses = Losses {
            malformed: health
                .losses
                .malformed
                .saturating_add(self.losses.malformed),
            ..self.losses
        };
        HostSnapshot {
            started: self.started,
            now,
            processes: self.processes.values_mut().map(Process::row).collect(),
            driver: self.driver.clone(),
            health,
        }
    }

    /// What is known of the live blocks of a process; `None` where it has no row.
    pub fn ledgers(&self, tgid: Tgid) -> Option<Ledgers<'_>> {
        self.processes.get(&tgid).map(Process::ledgers)
    }

    /// Everything a view of one process needs, as of `now`; `None` where it has no row.
    pub fn process(&self, tgid: Tgid, now: TimeNs, grouping: Grouping) -> Option<Snapshot> {
        let process = self.processes.get(&tgid)?;
        Some(process.snapshot(now, grouping))
    }
}

/// Whether an event tells of what was there at attach.
fn is_of_before(event: &Event) -> bool {
    match event {
        Event::AtAttach(_) => true,
        Event::Memory(event) => event.action == Action::Held,
        Event::Stack(..)
        | Event::Use(..)
        | Event::Thread(..)
        | Event::Mark(_)
        | Event::Names(_)
        | Event::Loss(_) => false,
    }
}

//! The processes of a host: from the session, `/proc` and the driver to the ledgers of all.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use hashbrown::HashMap;

use super::BaselineReading;
use super::process_view::ViewCache;
use super::saving::SavedFiles;
use crate::cuda::nvml::{DeviceMemory, Sample};
use crate::event::{Bytes, CaptureOptions, Event, Rank, Target, Tgid, TimeNs, TimeShare};
use crate::ledger::Analysis;
use crate::ledger::host::{Attached, Host, HostCaps};
use crate::ledger::snapshot::host::{
    DriverDevice, DriverMemory, DriverSnapshot, DriverUse, ProcessFacts, ProcessRow, ProcessState,
};
use crate::probe::attach::AttachError;
use crate::probe::catalog::{Allocators, DriverCalls};
use crate::probe::loader::{Wanted, Watch};
use crate::probe::watched::Watched;
use crate::process::process_scan::{HostScan, ScanResult};
use crate::process::run_state::RunState;
use crate::process::status::Status;
use crate::process::{facts, process_scan, user};
use crate::recording::EndReason;
use crate::session::host::HostSession;
use crate::session::process::{ProcessOrigin, identified};
use crate::session::process_monitor::{ProcessMonitor, Seen, has_pids_of_the_driver};
use crate::session::{HostEvent, HostItem};
use crate::tui::{Command, News};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Host,
    /// One process, and those that it makes.
    Family(Tgid),
}

/// Longest wait for the blocks of processes whose probes are off at the end.
const MAX_CATCHING_UP: Duration = Duration::from_secs(2);

/// Options of the probes on all processes.
#[derive(Clone, Copy, Debug)]
pub struct HostProbes {
    pub capture: CaptureOptions,
    pub driver: DriverCalls,
    pub ring_bytes: u32,
    /// Share of each process's time that the probes may take (`--max-overhead`).
    pub max_overhead: Option<TimeShare>,
    /// Reading of memory from before attach, of processes that are opened.
    pub reading: BaselineReading,
}

pub(super) struct Watching {
    session: HostSession,
    monitor: ProcessMonitor,
    pub(super) host: Host,
    scope: Scope,
    capture: CaptureOptions,
    opened: ViewCache,
    /// Processes that the session tells of and that have no row.
    others: HashMap<Tgid, Other>,
    /// Names of users by number: a directory service may be slow.
    users: HashMap<u32, String>,
    /// Processes that have ended and have a row for the memory that they still hold.
    zombies: Vec<Tgid>,
    /// True if something changed since the last update of the screen.
    pub(super) news: bool,
    looks: u64,
}

/// A process that has no row, since it is not known to use CUDA.
struct Other {
    target: Target,
    /// Its user, and its watched parent if it is a fork. Read when found: it may be gone by its first event.
    facts: ProcessFacts,
    /// State that its row will have.
    state: ProcessState,
    stopped: Option<String>,
}

impl Watching {
    /// Loads the programs, and begins to look. Must be called within a tokio runtime.
    pub(super) fn begin(scope: Scope, probes: HostProbes, caps: HostCaps) -> Result<Self> {
        let (watch, scan, root) = match scope {
            Scope::Host => (Watch::Everyone, Some(HostScan::default()), None),
            Scope::Family(tgid) => (Watch::Family, None, Some(Watched::open(tgid)?)),
        };
        let wanted = Wanted {
            watch,
            detail: probes.capture.detail,
            allocators: Allocators::Cuda,
            graph: probes.capture.graph,
            driver: probes.driver,
        };
        let mut session = HostSession::load(wanted, probes.ring_bytes)?;
        session.set_max_overhead(probes.max_overhead);
        if let Some(root) = root {
            session.add_family(root, ProcessOrigin::Running)?;
        }
        super::end_start()?;
        let (monitor, first) = ProcessMonitor::begin(scan)?;
        let mut watching = Self {
            session,
            monitor,
            host: Host::with_caps(crate::session::now(), caps),
            scope,
            capture: probes.capture,
            opened: ViewCache::new(probes.reading),
            others: HashMap::new(),
            users: HashMap::new(),
            zombies: Vec::new(),
            news: true,
            looks: 0,
        };
        watching.found(first)?;
        watching.drain()?;
        Ok(watching)
    }

    /// Waits until there may be something to do, and does what was seen.
    pub(super) async fn wait(&mut self) -> Result<()> {
        tokio::select! {
            seen = self.monitor.next() => self.take_in(seen),
            () = self.session.wait() => Ok(()),
            () = self.opened.taken() => Ok(()),
        }
    }

    pub(super) fn drain(&mut self) -> Result<()> {
        // Borrowed apart: the session is not among the fields that its events change.
        let mut events = Vec::new();
        let mut taken = 1;
        while taken > 0 {
            taken = self.session.drain(|event| {
                events.push(event);
                Ok(())
            })?;
            events.drain(..).for_each(|event| self.handle(event));
        }
        self.host.count_loss(self.session.losses);
        self.name();
        Ok(())
    }

    /// Brings processes up to date whose probes are off (`--max-overhead`).
    pub(super) fn catch_up(&mut self) -> Result<()> {
        self.session.catch_up(crate::session::now());
        self.drain()?;
        let begun = Instant::now();
        while self.session.is_catching_up() && begun.elapsed() < MAX_CATCHING_UP {
            std::thread::sleep(Duration::from_millis(2));
            self.drain()?;
        }
        Ok(())
    }

    /// True if a scan has finished and every process with a row is probed or refused.
    pub(super) fn is_settled(&mut self) -> bool {
        let snapshot = self.host.snapshot(crate::session::now());
        let mut rows = snapshot.processes.iter();
        let is_unsettled = |row: &ProcessRow| {
            let is_waiting = matches!(row.state, ProcessState::Found | ProcessState::Waiting(_));
            is_waiting && row.stopped.is_none()
        };
        self.looks > 0 && !rows.any(is_unsettled)
    }

    fn take_in(&mut self, seen: Seen) -> Result<()> {
        self.looks += 1;
        self.news = true;
        self.found(seen.found)?;
        let (devices, held) = match seen.driver {
            Ok(sample) => driver(sample),
            Err(cause) => (DriverSnapshot::Silent(cause), BTreeMap::new()),
        };
        if self.scope == Scope::Host {
            for tgid in held.keys() {
                if let RunState::Zombie(parent) = RunState::of(*tgid) {
                    self.show_zombie(*tgid, parent);
                } else {
                    self.watch(*tgid)?;
                    self.show(*tgid);
                }
            }
            self.end_zombies(&held);
        }
        held.keys().for_each(|tgid| self.follow_title(*tgid));
        self.host.set_driver(devices, &held);
        Ok(())
    }

    /// Gives a row to a process that has ended and still has memory by the driver's lists.
    fn show_zombie(&mut self, tgid: Tgid, parent: Tgid) {
        // Its own row says that it ended, and goes first.
        if self.host.facts(tgid).is_some() {
            return;
        }
        let facts = self.facts(tgid, None);
        let target = Target {
            command: format!("[{}] <defunct>", facts::name(tgid)),
            ..identified(tgid)
        };
        if self.host.start(target, facts, crate::session::now()) {
            self.zombies.push(tgid);
            let reason = format!(
                "it has ended, and its parent, PID {}, has not collected it; the driver still counts its memory: end the \
                 parent",
                parent.0
            );
            self.host.refuse(tgid, &reason);
        }
    }

    /// Ends the rows of zombies that have left the driver's lists.
    fn end_zombies(&mut self, held: &BTreeMap<Tgid, Vec<DriverUse>>) {
        let (kept, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut self.zombies)
            .into_iter()
            .partition(|tgid| held.contains_key(tgid));
        self.zombies = kept;
        for tgid in gone {
            self.host.end(tgid, crate::session::now());
        }
    }

    /// Reads the title of a Ray worker again: it names the actor or task that the worker runs by now
    /// (`python/ray/_raylet.pyx`@ray-2.52).
    fn follow_title(&mut self, tgid: Tgid) {
        let Some(target) = self.host.ledger(tgid).map(|ledger| &ledger.target) else {
            return;
        };
        let is_worker = target.command.starts_with("ray::")
            || target
                .command
                .contains("/ray/_private/workers/default_worker.py");
        if !is_worker {
            return;
        }
        let command = facts::command_line(tgid);
        if !command.is_empty() && command != target.command {
            let target = Target {
                command,
                ..target.clone()
            };
            self.host.identify(tgid, target);
        }
    }

    /// Watches processes that use CUDA, and one process for each dynamic loader, which reports others.
    fn found(&mut self, found: ScanResult) -> Result<()> {
        for tgid in found.users {
            self.watch(tgid)?;
            self.show(tgid);
        }
        for tgid in found.loaders {
            self.watch(tgid)?;
        }
        Ok(())
    }

    fn watch(&mut self, tgid: Tgid) -> Result<()> {
        if self.session.is_watched(tgid) {
            return Ok(());
        }
        match Watched::if_there(tgid).filter(|watched| !watched.has_ended()) {
            Some(watched) => self.session.add(watched, ProcessOrigin::Running),
            None => Ok(()),
        }
    }

    /// Gives a process a row, unless it has one or has ended.
    fn show(&mut self, tgid: Tgid) {
        // The session may already know the end of a process whose start is only now processed.
        let is_reported = self.others.contains_key(&tgid) || self.session.is_watched(tgid);
        if self.host.is_live(tgid) || !is_reported {
            return;
        }
        let other = self.others.remove(&tgid);
        let (target, mut facts) = match &other {
            Some(other) => (other.target.clone(), other.facts.clone()),
            None => (identified(tgid), self.facts(tgid, None)),
        };
        facts.forked_from = facts.forked_from.or_else(|| self.copied_from(tgid));
        if !self.host.start(target, facts, crate::session::now()) {
            return;
        }
        // Whatever had this number before is another process, or was another program.
        if let Some(opened) = self.opened.of(tgid) {
            opened.begin_anew();
        }
        let Some(other) = other else { return };
        self.host.set_stopped(tgid, other.stopped);
        match other.state {
            ProcessState::Waiting(what) => self.host.wait(tgid, &what),
            ProcessState::Refused(cause) => self.host.refuse(tgid, &cause),
            ProcessState::Found | ProcessState::Probed | ProcessState::Ended => {}
        }
    }

    fn facts(&mut self, tgid: Tgid, parent: Option<Tgid>) -> ProcessFacts {
        let status = Status::of(tgid).unwrap_or_default();
        let name = |uid| {
            let known = || user::name(uid).unwrap_or_else(|| uid.to_string());
            self.users.entry(uid).or_insert_with(known).clone()
        };
        let user = status.uid.map(name);
        ProcessFacts {
            // One that is gone already was its parent's user when it was made.
            user: user.or_else(|| self.user(parent?)),
            rank: Rank::of(tgid),
            forked_from: parent,
        }
    }

    fn user(&self, tgid: Tgid) -> Option<String> {
        match self.others.get(&tgid) {
            Some(other) => other.facts.user.clone(),
            None => self.host.facts(tgid)?.user.clone(),
        }
    }

    /// The process that this one is a copy of, where it was so before memprobe came: its parent,
    /// if that has a row and runs the same program with the same words.
    fn copied_from(&self, tgid: Tgid) -> Option<Tgid> {
        let parent = facts::parent(tgid)?;
        let same = self.session.is_watched(parent)
            && facts::program(parent).is_some_and(|own| facts::program(tgid) == Some(own))
            && facts::command_line(parent) == facts::command_line(tgid)
            && process_scan::is_user(parent);
        same.then_some(parent)
    }

    fn apply(&mut self, tgid: Tgid, event: &Event) {
        // Nobody looks at most of them.
        let Some(opened) = self.opened.of(tgid) else {
            self.host.apply(tgid, event);
            return;
        };
        let change = self.host.apply(tgid, event);
        if let (Some(change), Some(ledger)) = (change, self.host.ledger(tgid)) {
            opened.apply(event, &change, ledger);
        }
    }

    /// Takes in what was read of the tensors of processes, once all events up to now have been taken.
    fn name(&mut self) {
        let mut all = Vec::new();
        for (tgid, opened) in self.opened.each() {
            let ledger = self.host.ledger(tgid);
            let names = ledger.and_then(|ledger| {
                let session = &self.session;
                opened.show_tensors(ledger, |calls| session.add_call_paths(tgid, calls))
            });
            all.extend(names.map(|names| (tgid, names)));
            let is_settled = self.session.is_settled(tgid);
            let add_calls = |calls: &mut _| self.session.add_call_paths(tgid, calls);
            let labels =
                ledger.and_then(|ledger| opened.label_baseline(ledger, is_settled, add_calls));
            if let Some(outcome) = labels {
                match (outcome.event, outcome.said) {
                    (Some(labels), _) => all.push((tgid, labels)),
                    (None, Some(failure)) => self.host.note(tgid, &failure),
                    (None, None) => {}
                }
            }
        }
        for (tgid, names) in all {
            self.apply(tgid, &names);
            self.news = true;
        }
    }

    pub(super) fn open(&mut self, tgid: Tgid) {
        self.host.open(Some(tgid));
        self.opened.open(tgid);
    }

    pub(super) fn close(&mut self) {
        self.host.open(None);
        self.opened.close();
    }

    pub(super) fn execute(&mut self, command: Command) {
        let shown = self.opened.shown;
        if let (Command::ResetPeaks, Some(tgid)) = (command, shown) {
            self.host.reset_peaks(tgid, crate::session::now());
        }
        let now = crate::session::now();
        let ledger = shown.and_then(|tgid| self.host.ledger(tgid));
        let opened = shown.and_then(|tgid| self.opened.of(tgid));
        if let (Some(opened), Some(ledger)) = (opened, ledger) {
            opened.execute(command, ledger, now);
        }
    }

    /// Ends the recordings in progress, and returns all files that were saved.
    pub(super) fn finish_saving(&mut self) -> Vec<SavedFiles> {
        self.opened.finish_saving()
    }

    fn end_saving(&mut self, tgid: Tgid) {
        if let Some(opened) = self.opened.of(tgid) {
            opened.saver.end(EndReason::TargetExited);
        }
    }

    /// Updates the opened process and returns its views; `None` if no process is open.
    pub(super) fn show_opened(&mut self, now: TimeNs) -> Option<(Tgid, News)> {
        let host = &self.host;
        self.opened.keep(|tgid| host.ledger(tgid).is_some());
        let tgid = self.opened.shown?;
        let ledger = host.ledger(tgid)?;
        let opened = self.opened.follow(tgid, ledger, now);
        opened.show(host.process(tgid, now, opened.grouping)?, ledger);
        Some((tgid, opened.news()))
    }

    fn handle(&mut self, event: HostEvent) {
        let tgid = event.tgid;
        match event.item {
            // Losses and the budget give nobody a row.
            HostItem::Event(event @ (Event::Loss(_) | Event::Capture(_))) => {
                self.apply(tgid, &event);
            }
            HostItem::Event(event) => {
                self.show(tgid);
                self.apply(tgid, &event);
            }
            HostItem::Found { parent, target } => self.meet(tgid, *target, parent),
            HostItem::Waiting(what) => self.waiting(tgid, &what),
            HostItem::Placing(placed) => self.waiting(tgid, &placing(placed)),
            HostItem::Attached {
                target,
                probes,
                missing,
            } => {
                self.show(tgid);
                if let Some(first) = missing.first() {
                    self.host.note(tgid, first);
                }
                let found = Attached {
                    target: *target,
                    probes,
                    capture: self.capture,
                    missing,
                };
                self.host.attach(tgid, found);
            }
            HostItem::Identified(target) => self.host.identify(tgid, *target),
            HostItem::Refused(error) => self.refused(tgid, &error),
            HostItem::Notice(text) => self.host.note(tgid, &text),
            HostItem::Stopped(reason) => self.set_stopped(tgid, Some(reason)),
            HostItem::Continued => self.set_stopped(tgid, None),
            HostItem::SnapshotPoint(_) => {}
            HostItem::Executed(target) => {
                self.end_saving(tgid);
                self.host.forget(tgid);
                self.meet(tgid, *target, None);
            }
            HostItem::Ended => {
                self.end_saving(tgid);
                self.others.remove(&tgid);
                self.host.end(tgid, crate::session::now());
            }
        }
        self.news = true;
    }

    /// A process of which it is not known yet whether it uses CUDA, and what it is a copy of.
    fn meet(&mut self, tgid: Tgid, target: Target, parent: Option<Tgid>) {
        // The scan or the driver's list was faster.
        if self.host.is_live(tgid) {
            return;
        }
        let other = Other {
            target,
            facts: self.facts(tgid, parent),
            state: ProcessState::Found,
            stopped: None,
        };
        self.others.insert(tgid, other);
        if self.scope == Scope::Family(tgid) {
            self.show(tgid);
        }
    }

    fn waiting(&mut self, tgid: Tgid, what: &str) {
        // The screen writes "waiting for" itself.
        let what = what.strip_prefix("waiting for ").unwrap_or(what);
        match self.others.get_mut(&tgid) {
            Some(other) => other.state = ProcessState::Waiting(what.to_owned()),
            None => self.host.wait(tgid, what),
        }
    }

    fn set_stopped(&mut self, tgid: Tgid, reason: Option<String>) {
        match self.others.get_mut(&tgid) {
            Some(other) => other.stopped = reason,
            None => self.host.set_stopped(tgid, reason),
        }
    }

    /// A process that cannot be probed is shown if it uses CUDA: of others nobody asks.
    fn refused(&mut self, tgid: Tgid, error: &AttachError) {
        let cause = reason(error, tgid);
        if let Some(other) = self.others.get_mut(&tgid) {
            other.state = ProcessState::Refused(cause.clone());
            let asked_for = self.scope == Scope::Family(tgid);
            if !asked_for && !process_scan::is_user(tgid) {
                return;
            }
            self.show(tgid);
        }
        self.host.refuse(tgid, &cause);
    }
}

/// Describes the placing of probes in a process, after "waiting for".
pub(super) fn placing(placed: usize) -> String {
    format!("its probes: {placed} placed so far")
}

/// Reason not to probe a process, for a row that names the process already.
fn reason(error: &AttachError, tgid: Tgid) -> String {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    let named = format!("process {}: ", tgid.0);
    first.strip_prefix(&named).unwrap_or(first).to_owned()
}

/// Reason why processes are unknown in a PID namespace other than the first.
const OTHER_PIDS: &str =
    "memprobe runs in a PID namespace of its own, and the driver has other process ids";

fn driver(sample: Sample) -> (DriverSnapshot, BTreeMap<Tgid, Vec<DriverUse>>) {
    // memprobe does not start in a PID namespace of its own. If it ever does, the driver's process ids may be those of
    // other processes: older drivers give the host's, newer ones translate them (`os_find_ns_pid`,
    // open-gpu-kernel-modules 595.45.04), and 560.35.03 gave 0 bytes with translated ones (HAMi-core issue 112).
    let same = has_pids_of_the_driver();
    let others: BTreeMap<u32, Bytes> = sample
        .devices
        .iter()
        .filter_map(|device| Some((device.index, others(&sample, device)?)))
        .collect();
    let device = |device: DeviceMemory| DriverDevice {
        index: device.index,
        name: device.name,
        uuid: device.hardware.uuid,
        pci_bus_id: device.hardware.pci_bus_id,
        memory: device.memory.map(|memory| DriverMemory {
            used: memory.used,
            total: memory.total,
        }),
        mig_devices: device.mig_devices,
        processes: if same {
            device.processes
        } else {
            Err(OTHER_PIDS.to_owned())
        },
        others: others.get(&device.index).copied(),
    };
    let devices = sample.devices.into_iter().map(device).collect();
    let held = sample.held.into_iter().filter(|_| same);
    let used = |(device, bytes)| DriverUse { device, bytes };
    let held = held.map(|(tgid, on)| (tgid, on.into_iter().map(used).collect()));
    (DriverSnapshot::Devices(devices), held.collect())
}

/// Returns the bytes in use on a device that no listed process has; `None` if one of the numbers is unknown.
fn others(sample: &Sample, device: &DeviceMemory) -> Option<Bytes> {
    let used = device.memory.as_ref().ok()?.used;
    device.processes.as_ref().ok()?;
    let mut uses = sample.held.values().flatten();
    let held = uses.try_fold(0_u64, |sum, (index, bytes)| {
        if *index == device.index {
            sum.checked_add((*bytes)?.0)
        } else {
            Some(sum)
        }
    })?;
    Some(Bytes(used.0.saturating_sub(held)))
}

/// Time limit of `top --once`.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::nvml::{Hardware, Usage};

    #[test]
    fn a_reason_does_not_name_the_process_again_and_has_one_line() {
        let error = AttachError::NoCuda(Tgid(7));
        assert!(!reason(&error, Tgid(7)).contains('\n'));
        let error = AttachError::Gone(Tgid(7), "it ended".to_owned());
        assert!(reason(&error, Tgid(7)).ends_with("it ended"));
    }

    #[test]
    fn what_the_driver_says_is_passed_on_device_by_device() {
        let sample = Sample {
            devices: vec![DeviceMemory {
                index: 3,
                name: "Simulated GPU".to_owned(),
                memory: Ok(Usage {
                    used: Bytes(5),
                    total: Bytes(9),
                }),
                mig_devices: None,
                processes: Ok(()),
                hardware: Hardware::default(),
            }],
            held: BTreeMap::from([(Tgid(7), vec![(3, Some(Bytes(5)))])]),
        };
        let (devices, held) = driver(sample);
        let DriverSnapshot::Devices(devices) = devices else {
            unreachable!("it answered")
        };
        let memory = devices[0].memory.clone().unwrap();
        assert_eq!((memory.used, memory.total), (Bytes(5), Bytes(9)));
        let same = has_pids_of_the_driver();
        assert_eq!(held.contains_key(&Tgid(7)), same);
        assert_eq!(devices[0].processes.is_ok(), same);
    }
}

//! The watched processes: their flight recorders, and the dumps in progress.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use tokio::sync::mpsc;

use super::DumpObjects;
use super::cooldown::Cooldown;
use super::dump::{BLOCKS_PATIENCE, DriverAnswer, DumpEvidence, PendingDump, WatchedCache};
use super::flight::FlightRecorder;
use super::folder::DumpFolder;
use super::hook::Hook;
use crate::commands::{messages, snapshot};
use crate::cuda::nvml::Sample;
use crate::event::{Action, Event, Tgid};
use crate::probe::catalog::Allocators;
use crate::recording::{DumpReason, Reader};
use crate::report::explain::{explain_recording, verdict_of};
use crate::session::host::HostSession;
use crate::session::process_monitor::sample_driver;
use crate::session::{HostEvent, HostItem, SnapshotPoint};
use crate::tensors::named;
use crate::view::{counted, short_command};

#[derive(Clone)]
pub(super) struct DumpOptions {
    pub(super) cooldown: Duration,
    pub(super) objects: DumpObjects,
    pub(super) hook: Option<Hook>,
}

struct WatchedProcess {
    flight: FlightRecorder,
    cooldown: Cooldown,
    pending: Option<PendingDump>,
    has_ended: bool,
}

pub(super) struct WatchedProcesses {
    processes: HashMap<Tgid, WatchedProcess>,
    folder: DumpFolder,
    options: DumpOptions,
    /// Last regular answer of the driver.
    driver: Option<DriverAnswer>,
    dumps: u64,
    counted: u64,
    /// Time since which somebody waits for a dump of every process.
    requested: Option<Instant>,
    finished: Arc<()>,
    send: mpsc::UnboundedSender<(Tgid, DumpEvidence)>,
    arrived: mpsc::UnboundedReceiver<(Tgid, DumpEvidence)>,
}

impl WatchedProcess {
    fn new(flight: FlightRecorder) -> Self {
        Self {
            flight,
            cooldown: Cooldown::default(),
            pending: None,
            has_ended: false,
        }
    }

    /// Fixes the contents of the dump in progress, as of the last event.
    fn freeze(&mut self) {
        if let Some(pending) = self.pending.as_mut().filter(|pending| !pending.is_frozen()) {
            pending.freeze(self.flight.freeze(), self.flight.last());
        }
    }
}

impl WatchedProcesses {
    pub(super) fn new(folder: DumpFolder, options: DumpOptions) -> Self {
        let (send, arrived) = mpsc::unbounded_channel();
        Self {
            processes: HashMap::new(),
            folder,
            options,
            driver: None,
            dumps: 0,
            counted: 0,
            requested: None,
            finished: Arc::default(),
            send,
            arrived,
        }
    }

    /// Waits for evidence of a dump.
    pub(super) async fn next(&mut self) -> (Tgid, DumpEvidence) {
        match self.arrived.recv().await {
            Some(arrived) => arrived,
            // It has a sender of its own.
            None => std::future::pending().await,
        }
    }

    pub(super) fn take(&mut self, (tgid, evidence): (Tgid, DumpEvidence)) {
        let process = self.processes.get_mut(&tgid);
        if let Some(pending) = process.and_then(|process| process.pending.as_mut()) {
            pending.take(evidence);
        }
    }

    /// Keeps a regular answer of the driver.
    pub(super) fn take_driver(&mut self, sample: Result<Sample, String>) {
        self.driver = Some((crate::session::now(), sample));
    }

    pub(super) fn handle(&mut self, event: HostEvent) {
        let tgid = event.tgid;
        match event.item {
            HostItem::Found { target, .. } => {
                let flight = FlightRecorder::new(*target, crate::session::now());
                self.replace(tgid, flight);
            }
            HostItem::Executed(target) => {
                let flight = FlightRecorder::new(*target, crate::session::now());
                self.replace(tgid, flight);
            }
            HostItem::Attached { target, probes, .. } => {
                if let Some(process) = self.processes.get_mut(&tgid) {
                    process.flight.target = *target;
                    process.flight.probes = probes;
                }
            }
            HostItem::Identified(target) => {
                if let Some(process) = self.processes.get_mut(&tgid) {
                    process.flight.target = *target;
                }
            }
            HostItem::SnapshotPoint(SnapshotPoint::OutOfMemory) => {
                self.on_failure(tgid);
            }
            HostItem::Event(event) => self.record(tgid, event),
            HostItem::Ended => self.end(tgid),
            HostItem::Notice(text) => messages::print(&format!("PID {}: {text}", tgid.0)),
            HostItem::SnapshotPoint(_)
            | HostItem::Waiting(_)
            | HostItem::Placing(_)
            | HostItem::Stopped(_)
            | HostItem::Continued
            | HostItem::Refused(_) => {}
        }
    }

    fn replace(&mut self, tgid: Tgid, flight: FlightRecorder) {
        self.end(tgid);
        self.write_last(tgid);
        self.processes.insert(tgid, WatchedProcess::new(flight));
    }

    /// Handles the record of a failed request, whose event follows. Returns true if a dump begins.
    fn on_failure(&mut self, tgid: Tgid) -> bool {
        let Some(process) = self.processes.get_mut(&tgid) else {
            return false;
        };
        // One at a time: the next dump of this process counts it.
        let cooldown = match process.pending {
            Some(_) => Duration::MAX,
            None => self.options.cooldown,
        };
        let Some(counted) = process.cooldown.note(Instant::now(), cooldown) else {
            self.counted += 1;
            return false;
        };
        self.begin(tgid, DumpReason::OutOfMemory, counted);
        true
    }

    /// Begins a dump: asks the driver, and reads the objects of the process while it handles the error.
    fn begin(&mut self, tgid: Tgid, reason: DumpReason, counted: u64) {
        let mut pending = PendingDump::new(tgid, reason, counted, self.driver.clone());
        pending.caches = self.caches_of_others(tgid);
        let send = self.send.clone();
        tokio::task::spawn_blocking(move || {
            let sample = sample_driver();
            let _ = send.send((tgid, DumpEvidence::Driver((crate::session::now(), sample))));
        });
        match self.options.objects {
            DumpObjects::Unread => pending.leave_objects("--no-names"),
            DumpObjects::Read(manner) => {
                let send = self.send.clone();
                tokio::task::spawn_blocking(move || {
                    let progress = Default::default();
                    let taken = snapshot::taken(tgid, manner, Allocators::Cuda, &progress);
                    let read = taken.map(|taken| (named(&taken, tgid), taken.consistency));
                    // Nobody listens where the watch has ended meanwhile.
                    let _ = send.send((tgid, DumpEvidence::Objects(Box::new(read))));
                });
            }
        }
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.pending = Some(pending);
        }
    }

    fn caches_of_others(&self, tgid: Tgid) -> Vec<WatchedCache> {
        let others = self.processes.iter();
        let others = others.filter(|(other, process)| **other != tgid && !process.has_ended);
        let cache = |(tgid, process): (&Tgid, &WatchedProcess)| WatchedCache {
            tgid: *tgid,
            target: process.flight.target.clone(),
            cached: process.flight.cached().collect(),
        };
        others.map(cache).collect()
    }

    fn record(&mut self, tgid: Tgid, event: Event) {
        let is_of_cuda =
            matches!(&event, Event::Memory(event) if event.action == Action::CudaOutOfMemory);
        // Only its event shows that a failed call is not the allocator's own. A dump that waits for the allocator's
        // event stays as it is.
        let begins = is_of_cuda && self.on_failure(tgid);
        let Some(process) = self.processes.get_mut(&tgid) else {
            return;
        };
        if let Some(pending) = &mut process.pending {
            pending.follow(&event);
        }
        if let (Event::Memory(failure), Some(pending)) = (&event, &mut process.pending)
            && (begins || failure.action == Action::OutOfMemory)
            && pending.reason == DumpReason::OutOfMemory
            && !pending.is_frozen()
        {
            pending.fail(failure);
            // Later events free what the failed call held. After a pause they are waited for.
            if !process.flight.is_paused() {
                process.flight.record(event);
                process.freeze();
                self.write(tgid);
                return;
            }
        }
        process.flight.record(event);
    }

    /// Writes the dump in progress with what is known by now.
    fn write(&mut self, tgid: Tgid) -> Option<String> {
        let process = self.processes.get_mut(&tgid)?;
        let pending = process.pending.as_mut()?;
        match pending.write(&mut self.folder) {
            Ok(path) => Some(path),
            Err(error) => {
                messages::print(&format!(
                    "PID {}: the dump was not written: {error:#}",
                    tgid.0
                ));
                None
            }
        }
    }

    fn end(&mut self, tgid: Tgid) {
        let Some(process) = self.processes.get_mut(&tgid) else {
            return;
        };
        process.has_ended = true;
        process.freeze();
        if process.pending.is_none() {
            self.forget(tgid);
        }
    }

    fn forget(&mut self, tgid: Tgid) {
        let Some(process) = self.processes.remove(&tgid) else {
            return;
        };
        if process.cooldown.counted() > 0 {
            let errors = counted(process.cooldown.counted(), "more out-of-memory error");
            messages::print(&format!("PID {}: {errors} since its last dump", tgid.0));
        }
    }

    /// Asks for a dump of every process with GPU memory. It is written once the live blocks are up to date.
    pub(super) fn request_dumps(&mut self) {
        self.requested.get_or_insert_with(Instant::now);
    }

    fn dump_all(&mut self) {
        let processes = self.processes.iter();
        let idle = processes.filter(|(_, process)| {
            process.pending.is_none() && process.flight.has_devices() && !process.has_ended
        });
        let idle: Vec<Tgid> = idle.map(|(tgid, _)| *tgid).collect();
        if idle.is_empty() {
            messages::print("nothing to dump: no watched process is known to have GPU memory");
        }
        for tgid in idle {
            self.begin(tgid, DumpReason::Requested, 0);
            if let Some(process) = self.processes.get_mut(&tgid) {
                process.freeze();
            }
            self.write(tgid);
        }
    }

    /// True while a dump is written or explained.
    pub(super) fn has_pending(&self) -> bool {
        let mut processes = self.processes.values();
        processes.any(|process| process.pending.is_some())
            || self.requested.is_some()
            || Arc::strong_count(&self.finished) > 1
    }

    /// Waits for no more evidence.
    pub(super) fn give_up(&mut self, reason: &str) {
        for process in self.processes.values_mut() {
            process.freeze();
            if let Some(pending) = &mut process.pending {
                pending.give_up(reason);
            }
        }
    }

    /// True if a dump needs the present blocks: one that was asked for, or that of a failed request.
    pub(super) fn needs_blocks(&self) -> bool {
        let mut pending = self
            .processes
            .values()
            .filter_map(|process| process.pending.as_ref());
        self.requested.is_some() || pending.any(|pending| !pending.is_frozen())
    }

    /// Fixes the contents of dumps, and completes those whose evidence has arrived.
    pub(super) fn finish_dumps(&mut self, session: &HostSession) {
        let is_due =
            |since: &mut Instant| !session.lacks_blocks() || since.elapsed() >= BLOCKS_PATIENCE;
        if self.requested.take_if(is_due).is_some() {
            self.dump_all();
        }
        let (mut frozen, mut whole) = (Vec::new(), Vec::new());
        for (tgid, process) in &mut self.processes {
            let Some(pending) = &mut process.pending else {
                continue;
            };
            session.add_call_paths(*tgid, &mut pending.calls);
            if pending.can_freeze() && !pending.waits_for_blocks(session.is_catching_up()) {
                frozen.push(*tgid);
            } else if pending.is_whole(process.has_ended || session.is_settled(*tgid)) {
                whole.push(*tgid);
            }
        }
        for tgid in frozen {
            if let Some(process) = self.processes.get_mut(&tgid) {
                process.freeze();
            }
            self.write(tgid);
        }
        for tgid in whole {
            self.write_last(tgid);
        }
    }

    /// Writes a dump for the last time, and explains it.
    fn write_last(&mut self, tgid: Tgid) {
        let Some(process) = self.processes.get_mut(&tgid) else {
            return;
        };
        if let Some(pending) = &mut process.pending {
            pending.complete();
            let (reason, command) = (
                pending.reason,
                short_command(&process.flight.target.command),
            );
            if let Some(path) = self.write(tgid) {
                self.dumps += 1;
                self.explain(tgid, reason, command, path);
            }
        }
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.pending = None;
            if process.has_ended {
                self.forget(tgid);
            }
        }
    }

    /// Prints the verdict on a dump, and runs the program of `--on-oom`.
    fn explain(&self, tgid: Tgid, reason: DumpReason, command: String, path: String) {
        let hook = self.options.hook.clone();
        let hook = hook.filter(|_| reason == DumpReason::OutOfMemory);
        let guard = Arc::clone(&self.finished);
        tokio::task::spawn_blocking(move || {
            let (cause, verdict) = read_verdict(&path);
            messages::print(&format!("PID {} ({command}): {verdict}", tgid.0));
            messages::print(&format!(
                "saved {path}: `memprobe explain {path}` says more"
            ));
            if let Some(hook) = hook {
                hook.run(tgid, &path, cause);
            }
            drop(guard);
        });
    }

    pub(super) fn print_end(&self) {
        let dumps = counted(self.dumps, "dump");
        let more = match self.counted {
            0 => String::new(),
            counted_errors => format!(
                "; {} more were counted within the cooldown",
                counted(counted_errors, "out-of-memory error")
            ),
        };
        messages::print(&format!("{dumps} written{more}"));
    }
}

/// Key of the cause and the sentences about it.
fn read_verdict(path: &str) -> (&'static str, String) {
    let explained = Reader::open(path.as_ref()).map_err(anyhow::Error::from);
    let explained =
        explained.and_then(|reader| explain_recording(reader, path).map_err(anyhow::Error::from));
    match explained {
        Ok(explanation) => verdict_of(&explanation),
        Err(error) => ("unknown", format!("the dump cannot be read: {error:#}")),
    }
}

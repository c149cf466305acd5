//! Probed processes, one or many: from one ring buffer to the events of each.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::before_attach;
use super::process::{Origin, Phase, Process};
use crate::decode::{ProcessEvent, Record, decode};
use crate::event::{self, Detail, Event, Losses, Tgid};
use crate::event::{ProbeStatus, Target};
use crate::probe::attach::AttachError;
use crate::probe::attaching::{self, Attaching, Step};
use crate::probe::files::ProbedFiles;
use crate::probe::heap;
use crate::probe::kernel::TaskOffsets;
use crate::probe::loader::{Counters, Loader, Wanted, Watch};
use crate::probe::ring::Records;
use crate::probe::watched::{Watched, allow_many_files};
use crate::process::facts;
use crate::process::maps::Maps;
use crate::python::CodeCache;
use crate::python::module_trees::ModuleNames;
use crate::symbolize::marks;

/// Polling interval of the ring buffer: the programs do not wake the reader.
const POLL: Duration = Duration::from_millis(5);

/// [`POLL`] after [`QUIET`] without records.
const POLL_QUIET: Duration = Duration::from_millis(50);
const QUIET: Duration = Duration::from_secs(2);

/// Time in which a new process may be something other than Python (a shell script, a launcher).
const STARTING: Duration = Duration::from_secs(20);

/// Interval of checking that processes still exist, in case the record of their end is lost.
const SWEEP: Duration = Duration::from_millis(250);

/// Interval of comparing probed functions with the memory of the processes that use them.
const CHECK_CODE: Duration = Duration::from_secs(1);

/// Time limit from the kernel's record of a process's exit to its end, while it frees its memory.
const ENDING: Duration = Duration::from_secs(10);

/// The most records taken in one go, so that a flood does not starve screen and signals.
const BATCH: usize = 65_536;

/// Output of a session, in order. [`HostItem::Found`] is the first of a process, [`HostItem::Ended`] the
/// last; after that its number may be another process's, which is found anew.
#[derive(Debug)]
pub(crate) struct HostEvent {
    pub(crate) tgid: Tgid,
    pub(crate) item: HostItem,
}

/// News of one process.
#[derive(Debug)]
pub(crate) enum HostItem {
    /// Watched from now on.
    Found {
        /// Parent process, if it is watched too.
        parent: Option<Tgid>,
        target: Target,
    },
    /// Not ready to be probed; says what is missing.
    Waiting(String),
    /// Probes are in place, or more of them than before.
    Attached {
        target: Target,
        probes: Vec<ProbeStatus>,
        /// Sentences on what is not seen, for lack of a probe or of a kernel feature.
        missing: Vec<String>,
    },
    /// The next of its events.
    Event(Event),
    /// Reached a point worth a heap snapshot. Sent at once, before the events that led there.
    SnapshotPoint(SnapshotPoint),
    /// Something that whoever looks at it should know.
    Notice(String),
    /// Impossible to probe. Its events may still arrive, without lines.
    Refused(AttachError),
    /// Runs another program from now on; its memory is freed. Earlier events and probes were the old
    /// program's.
    Executed(Target),
    /// Ended; its memory is freed.
    Ended,
}

/// Point of a program that is worth a heap snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotPoint {
    /// The first call of a module that is seen: there is a model.
    FirstCall,
    /// A step of an optimizer begins.
    Step,
}

/// Processes, probed.
pub(crate) struct HostSession {
    wanted: Wanted,
    processes: HashMap<u32, Process>,
    /// Ended processes with the time of the record: see [`Self::sweep_entries`].
    ended: Vec<(Tgid, Instant)>,
    /// News to send before the next events.
    emitted: VecDeque<HostEvent>,
    /// Processes whose symbolizer has something to do.
    busy: Vec<Tgid>,
    files: ProbedFiles,
    records: Records,
    counters: Counters,
    losses: Losses,
    malformed: u64,
    /// Blocks that came without the copy of a stack that was wanted.
    without_use: u64,
    /// Records of the life of processes that were lost, as far as was heeded.
    processes_lost: u64,
    refused_rooms: u64,
    /// True if the last drain read every record that existed when it began.
    is_drained: bool,
    swept: Instant,
    code_checked: Instant,
    heard: Instant,
    /// Dropped last: it holds the programs.
    loader: Loader,
}

impl HostSession {
    /// Loads the programs into the kernel; nobody is watched yet. Takes a good part of a second: do
    /// it before a command is started, so that the probes are in place before its first allocation.
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn load(wanted: Wanted, ring_bytes: u32) -> Result<Self> {
        let watch = wanted.watch;
        let mut loader = Loader::new(&TaskOffsets::of_this_kernel()?, watch, ring_bytes)?;
        heap::give_back_freed();
        if watch == Watch::Everyone {
            allow_many_files();
        }
        let now = Instant::now();
        Ok(Self {
            wanted,
            processes: HashMap::new(),
            ended: Vec::new(),
            emitted: VecDeque::new(),
            busy: Vec::new(),
            files: ProbedFiles::default(),
            records: Records::new(loader.take_records()?).context("watching the ring buffer")?,
            counters: loader.take_counters()?,
            losses: Losses::default(),
            malformed: 0,
            without_use: 0,
            processes_lost: 0,
            refused_rooms: 0,
            is_drained: false,
            swept: now,
            code_checked: now,
            heard: now,
            loader,
        })
    }

    /// Watches a process.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn add(&mut self, watched: Watched, origin: Origin) -> Result<()> {
        let tgid = watched.tgid;
        if self.processes.contains_key(&tgid.0) {
            return Ok(());
        }
        let attaching = Attaching::new(tgid, self.wanted);
        let is_new = self
            .loader
            .admit(tgid, attaching.config(super::now()))
            .with_context(|| format!("watching process {}", tgid.0))?;
        if !is_new {
            // The kernel's programs were faster, and their word of it is on its way.
            return Ok(());
        }
        self.dismiss_if_ended(tgid, Some(&watched));
        let now = Instant::now();
        let process = Process::new(Some(watched), tgid, origin, attaching, now);
        self.found(process);
        Ok(())
    }

    /// Takes away the kernel's entry of a process that had ended before it got one: no word of its end
    /// will come.
    fn dismiss_if_ended(&mut self, tgid: Tgid, watched: Option<&Watched>) {
        if watched.is_none_or(Watched::has_ended) {
            let _ = self.loader.dismiss(tgid);
        }
    }

    /// Watches a process and those that descend from it, also those that it makes later.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn add_family(&mut self, watched: Watched, origin: Origin) -> Result<()> {
        allow_many_files();
        let root = watched.tgid;
        self.add(watched, origin)?;
        // Whoever is watched by now has its children watched from their first instruction on; those
        // that were made before that are found by looking until there is nobody new.
        loop {
            let before = self.processes.len();
            for tgid in facts::descendants(root) {
                if let Some(watched) = Watched::if_there(tgid) {
                    self.add(watched, Origin::Running)?;
                }
            }
            if self.processes.len() == before {
                return Ok(());
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.processes.len()
    }

    pub(crate) fn is_watched(&self, tgid: Tgid) -> bool {
        self.processes.contains_key(&tgid.0)
    }

    /// Waits until there may be something to read or to do.
    pub(crate) async fn wait(&mut self) {
        let now = Instant::now();
        let poll = if now.duration_since(self.heard) < QUIET {
            POLL
        } else {
            POLL_QUIET
        };
        let looks = self.processes.values().filter_map(Process::next_look);
        let due = looks.min().map_or(poll, |next| next.duration_since(now));
        if !self.emitted.is_empty() || due.is_zero() {
            // Others may want to do something too.
            tokio::task::yield_now().await;
            return;
        }
        tokio::select! {
            biased;
            () = self.records.woken() => {}
            () = tokio::time::sleep(poll.min(due)) => {}
        }
    }

    /// Passes on all that is there, in order; says how many records were read.
    ///
    /// # Errors
    /// The first error of `sink`, after which nothing more is passed on.
    pub(crate) fn drain(&mut self, mut sink: impl FnMut(HostEvent) -> Result<()>) -> Result<usize> {
        let end = self.records.end();
        let taken = self.take_records();
        let all = self.records.has_passed(end);
        let now = Instant::now();
        if taken > 0 {
            self.heard = now;
        }
        // Before the records are settled: what they leave out must not be taken for known.
        self.emit_losses();
        self.look(now);
        // Whoever has ended may have records in the ring that were not reached yet.
        if taken < BATCH && now.duration_since(self.swept) >= SWEEP {
            self.swept = now;
            self.sweep(now);
        }
        while let Some(event) = self.emitted.pop_front() {
            sink(event)?;
        }
        self.settle(now, all, &mut sink)?;
        self.is_drained = all;
        Ok(taken)
    }

    /// Drains until nothing is left, at the end: nobody is watched any more.
    ///
    /// # Errors
    /// As [`Self::drain`].
    pub(crate) fn drain_all(
        &mut self,
        mut sink: impl FnMut(HostEvent) -> Result<()>,
    ) -> Result<()> {
        let watched: Vec<_> = self.processes.keys().copied().map(Tgid).collect();
        for tgid in &watched {
            self.loader.dismiss(*tgid)?;
        }
        loop {
            let taken = self.drain(&mut sink)?;
            if taken == 0 && self.busy.is_empty() {
                for tgid in watched {
                    self.emit_rest(tgid, "memprobe ended before its probes were in place");
                }
                return self.emitted.drain(..).try_for_each(sink);
            }
            // A record that a program is still writing hides those behind it.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// True if all events of a process up to the last drain were passed on.
    pub(crate) fn is_settled(&self, tgid: Tgid) -> bool {
        let process = self.processes.get(&tgid.0);
        self.is_drained && process.is_none_or(|process| !process.is_busy)
    }

    /// Losses so far, of all processes together.
    pub(crate) fn losses(&self) -> Losses {
        self.losses
    }

    /// Takes the records that are there and brings each to its process.
    fn take_records(&mut self) -> usize {
        let mut taken = 0;
        while taken < BATCH {
            let mut record = None;
            if !self.records.next(|bytes| record = decode(bytes).ok()) {
                break;
            }
            taken += 1;
            match record {
                Some(Record::Process(step, process)) => {
                    self.follow(step, Tgid(process.tgid), Tgid(process.parent));
                }
                Some(record) => self.pass_on(record),
                None => self.malformed += 1,
            }
        }
        taken
    }

    fn pass_on(&mut self, record: Record) {
        let tgid = record.tgid();
        let process = match self.processes.entry(tgid.0) {
            Entry::Occupied(process) => process.into_mut(),
            Entry::Vacant(_) => {
                self.adopt(tgid);
                return self.pass_on(record);
            }
        };
        if self.wanted.detail == Detail::Full && record.is_block_without_reason() {
            process.without_use += 1;
            self.without_use += 1;
        }
        let step = is_step(&record).then_some(SnapshotPoint::Step);
        process.symbolizer.push(record);
        let notice = process.follow_module_call(&mut self.loader);
        let come = process
            .calls_first()
            .then_some(SnapshotPoint::FirstCall)
            .or(step);
        if !process.is_busy {
            process.is_busy = true;
            self.busy.push(tgid);
        }
        if let Some(notice) = notice {
            self.emit(tgid, HostItem::Notice(notice));
        }
        if let Some(come) = come {
            self.emit(tgid, HostItem::SnapshotPoint(come));
        }
    }

    /// Heeds something in the life of a process.
    fn follow(&mut self, step: ProcessEvent, tgid: Tgid, parent: Tgid) {
        match step {
            ProcessEvent::Forked => self.fork(tgid, parent),
            ProcessEvent::Found => self.readmit(tgid),
            ProcessEvent::Executed => self.execute(tgid),
            ProcessEvent::Exited => self.end(tgid),
            ProcessEvent::LibraryMapped => match self.processes.get_mut(&tgid.0) {
                Some(process) => process.look_soon(),
                // Of the processes of a host those are watched that have something to probe.
                None if uses_cuda(tgid) => self.adopt(tgid),
                None => {}
            },
        }
    }

    /// Starts tracking a process first seen through its kernel records.
    fn adopt(&mut self, tgid: Tgid) {
        let now = Instant::now();
        let attaching = Attaching::new(tgid, self.wanted);
        let watched = Watched::if_there(tgid);
        // An error means that it is admitted already.
        let _ = self.loader.admit(tgid, attaching.config(super::now()));
        self.dismiss_if_ended(tgid, watched.as_ref());
        let process = Process::new(watched, tgid, Origin::Running, attaching, now);
        self.found(process);
    }

    /// The kernel's programs let a process through of which they knew nothing.
    fn readmit(&mut self, tgid: Tgid) {
        match self.processes.get(&tgid.0) {
            Some(process) => {
                let config = process.attaching.config(super::now());
                // An error means that it is gone.
                let _ = self.loader.revise(tgid, config);
            }
            None => self.adopt(tgid),
        }
    }

    fn fork(&mut self, tgid: Tgid, parent: Tgid) {
        if self.processes.contains_key(&tgid.0) {
            // The word of its end was lost, and its number is another's by now.
            self.end(tgid);
        }
        let Some(parent) = self.processes.get(&parent.0) else {
            self.adopt(tgid);
            return;
        };
        let attaching = parent.attaching.fork(tgid, &mut self.files);
        let watched = Watched::if_there(tgid);
        let process = Process::fork(parent, watched, tgid, attaching, Instant::now());
        let attached = process.phase == Phase::Attached;
        self.found(process);
        if attached {
            self.emit_attached(tgid);
        }
    }

    fn found(&mut self, mut process: Process) {
        // What bears its number is its own from the first record on.
        process.lost_before = Losses {
            stacks: self.counters.processes_lost(),
            malformed: self.malformed,
            ..Losses::default()
        };
        let mut target = process.target();
        if target.command.is_empty()
            && let Some(parent) = process.parent.and_then(|it| self.processes.get(&it.0))
        {
            target.command = parent.target().command;
        }
        let (tgid, parent) = (process.tgid, process.parent);
        self.processes.insert(tgid.0, process);
        self.emit(tgid, HostItem::Found { parent, target });
    }

    fn execute(&mut self, tgid: Tgid) {
        self.emit_rest(tgid, "the process became another program before");
        let now = Instant::now();
        let Some(process) = self.processes.get_mut(&tgid.0) else {
            self.adopt(tgid);
            return;
        };
        process.attaching.forget(&mut self.files, now);
        process.execute(now);
        let target = process.target();
        self.emit(tgid, HostItem::Executed(target));
    }

    fn end(&mut self, tgid: Tgid) {
        self.emit_losses();
        self.emit_rest(tgid, "the process ended before");
        if let Some(mut process) = self.processes.remove(&tgid.0) {
            let now = Instant::now();
            process.attaching.forget(&mut self.files, now);
            self.counters.forget(tgid);
            self.ended.push((tgid, now));
            self.busy.retain(|busy| *busy != tgid);
            self.emit(tgid, HostItem::Ended);
        }
    }

    fn emit(&mut self, tgid: Tgid, item: HostItem) {
        self.emitted.push_back(HostEvent { tgid, item });
    }

    /// Tells the events of a process after which nothing of its present program follows.
    fn emit_rest(&mut self, tgid: Tgid, reason: &str) {
        let Some(process) = self.processes.get_mut(&tgid.0) else {
            return;
        };
        process.finish(reason);
        while let Some(event) = process.pop() {
            let notice = before_attach::notice(&event).map(HostItem::Notice);
            for item in notice.into_iter().chain([HostItem::Event(event)]) {
                self.emitted.push_back(HostEvent { tgid, item });
            }
        }
        if let Some(notice) = process.startup_check.take_notice() {
            let item = HostItem::Notice(notice);
            self.emitted.push_back(HostEvent { tgid, item });
        }
    }

    /// Passes on the events of all processes that have some.
    fn settle(
        &mut self,
        now: Instant,
        all: bool,
        sink: &mut impl FnMut(HostEvent) -> Result<()>,
    ) -> Result<()> {
        let busy = std::mem::take(&mut self.busy);
        for tgid in busy {
            let Some(process) = self.processes.get_mut(&tgid.0) else {
                continue;
            };
            process.settle(now, all);
            while let Some(event) = process.pop() {
                let notice = before_attach::notice(&event).map(HostItem::Notice);
                for item in notice.into_iter().chain([HostItem::Event(event)]) {
                    sink(HostEvent { tgid, item })?;
                }
            }
            if let Some(notice) = process.startup_check.take_notice() {
                let item = HostItem::Notice(notice);
                sink(HostEvent { tgid, item })?;
            }
            if let Some(notice) = process.look_at_modules(&mut self.loader) {
                let item = HostItem::Notice(notice);
                sink(HostEvent { tgid, item })?;
            }
            process.is_busy = process.is_unsettled();
            if process.is_busy {
                self.busy.push(tgid);
            }
        }
        Ok(())
    }

    /// Looks at the processes whose turn it is.
    fn look(&mut self, now: Instant) {
        let due: Vec<_> = self
            .processes
            .values()
            .filter(|process| process.next_look().is_some_and(|next| next <= now))
            .map(|process| process.tgid)
            .collect();
        for tgid in due {
            self.look_at(tgid);
        }
    }

    fn look_at(&mut self, tgid: Tgid) {
        let Some(process) = self.processes.get_mut(&tgid.0) else {
            return;
        };
        let start = Instant::now();
        let had_python = process.attaching.python().is_some();
        let step = process
            .attaching
            .step(&mut self.loader, &mut self.files, super::now());
        if !had_python && let Some(python) = process.attaching.python() {
            process.symbolizer.set_code(CodeCache::new(python));
            let names = ModuleNames::of(python.memory(), python.layout);
            process.symbolizer.set_module_names(Box::new(names));
        }
        if process.attaching.runs_no_python() {
            process.symbolizer.runs_no_python();
        }
        let mut item = None;
        let mut again = false;
        let mut busy = false;
        match step {
            Ok(Step::Again) => again = true,
            Ok(Step::Done) if process.phase != Phase::Attached => {
                process.attached();
                busy = true;
            }
            Ok(Step::Done) => {}
            Ok(Step::Waiting(what)) => {
                if process.waiting_for != what {
                    process.waiting_for.clone_from(&what);
                    item = Some(HostItem::Waiting(what));
                }
            }
            Err(error) if is_bearable(&error, process, self.wanted.watch, start) => {}
            Err(error) => {
                process.refused();
                busy = true;
                item = Some(HostItem::Refused(error));
            }
        }
        process.was_looked_at(start, Instant::now(), again);
        if busy && !process.is_busy {
            process.is_busy = true;
            self.busy.push(tgid);
        }
        let is_attached = process.phase == Phase::Attached;
        let has_more = process.attaching.probes().len() > process.announced_probes;
        if let Some(item) = item {
            self.emit(tgid, item);
        }
        if is_attached && has_more && !again {
            self.leave_patched(tgid);
            self.emit_attached(tgid);
        }
    }

    fn emit_attached(&mut self, tgid: Tgid) {
        let Some(process) = self.processes.get_mut(&tgid.0) else {
            return;
        };
        process.read_torch();
        let probes = process.attaching.probes().to_vec();
        process.announced_probes = probes.len();
        let mut missing = process.attaching.missing();
        missing.extend(self.loader.modules().missing().map(str::to_owned));
        let item = HostItem::Attached {
            target: process.target(),
            probes,
            missing,
        };
        self.emit(tgid, item);
    }

    /// Asks each process whether it is still there, and lets go of files that nobody uses.
    fn sweep(&mut self, now: Instant) {
        let mut ended = Vec::new();
        for process in self.processes.values_mut() {
            let is_gone = process.watched.as_ref().is_none_or(Watched::has_ended);
            // Its last records, and the word of its end, are there by the next time.
            if is_gone && process.is_gone {
                ended.push(process.tgid);
            }
            process.is_gone = is_gone;
        }
        for tgid in ended {
            self.end(tgid);
        }
        self.sweep_entries(now);
        self.files.let_go(now);
        if now.duration_since(self.code_checked) >= CHECK_CODE {
            self.code_checked = now;
            let attached = self.processes.values();
            let attached = attached.filter(|process| process.phase == Phase::Attached);
            for tgid in attached.map(|process| process.tgid).collect::<Vec<_>>() {
                if self.leave_patched(tgid) {
                    self.emit_attached(tgid);
                }
            }
        }
    }

    /// Takes probes away from functions that a process has rewritten in its memory; says whether what is
    /// probed has changed.
    fn leave_patched(&mut self, tgid: Tgid) -> bool {
        let Some(process) = self.processes.get_mut(&tgid.0) else {
            return false;
        };
        let attaching = &mut process.attaching;
        let changed = attaching.leave_patched(&mut self.loader, &mut self.files);
        changed.unwrap_or_else(|error| {
            self.emit(tgid, HostItem::Notice(error.to_string()));
            false
        })
    }

    /// Removes the kernel's entries of ended processes. The programs do so themselves, but a process admitted
    /// between its exit record and its end got another entry, which the next owner of its number would
    /// inherit.
    fn sweep_entries(&mut self, now: Instant) {
        let (processes, loader) = (&self.processes, &mut self.loader);
        self.ended.retain(|&(tgid, since)| {
            if processes.contains_key(&tgid.0) {
                return false;
            }
            let is_over = Watched::if_there(tgid).is_none_or(|watched| watched.has_ended());
            if is_over {
                let _ = loader.dismiss(tgid);
            }
            // If it is not, it still ends, or the number is another's by now.
            !is_over && now.duration_since(since) < ENDING
        });
    }

    /// Puts the running totals of losses into the streams when they have grown.
    fn emit_losses(&mut self) {
        let losses = Losses {
            events: self.counters.events_lost(),
            // Without the word of a process's start or end its lines are not known.
            stacks: self.counters.stacks_lost() + self.counters.processes_lost(),
            malformed: self.malformed,
            uses: self.without_use,
        };
        if losses != self.losses {
            self.losses = losses;
            for process in self.processes.values_mut() {
                let own = lost_of(process, &self.counters, losses.malformed);
                if process.count_loss(own) && !process.is_busy {
                    process.is_busy = true;
                    self.busy.push(process.tgid);
                }
            }
        }
        self.handle_lost_processes();
    }

    /// Looks at everybody where the word of a process's start or end was lost.
    fn handle_lost_processes(&mut self) {
        let lost = self.counters.processes_lost();
        if lost != self.processes_lost {
            self.processes_lost = lost;
            for process in self.processes.values_mut() {
                process.attaching.doubt();
                process.look_soon();
            }
        }
        let refused = self.counters.processes_refused() + self.counters.threads_refused();
        if refused != self.refused_rooms {
            self.refused_rooms = refused;
            let notice = format!(
                "limits of memprobe exceeded: {} processes are not watched, and {} events have no stack",
                self.counters.processes_refused(),
                self.counters.threads_refused(),
            );
            if let Some(first) = self.processes.keys().next() {
                let tgid = Tgid(*first);
                self.emit(tgid, HostItem::Notice(notice));
            }
        }
    }
}

/// Losses of a process. Lost records of process starts and ends, and malformed records, have no known owner:
/// they count for every process.
fn lost_of(process: &Process, counters: &Counters, malformed: u64) -> Losses {
    Losses {
        events: counters.events_lost_of(process.tgid),
        stacks: counters.stacks_lost_of(process.tgid) + counters.processes_lost(),
        malformed,
        uses: process.without_use,
    }
}

/// True if an optimizer step begins.
fn is_step(record: &Record) -> bool {
    match record {
        Record::Mark(mark) => {
            matches!(
                marks::parse(&mark.name),
                Some((event::MarkedPhase::Step, _))
            )
        }
        _ => false,
    }
}

/// True if a process has a library of the catalog.
fn uses_cuda(tgid: Tgid) -> bool {
    Maps::of(tgid).is_ok_and(|maps| attaching::uses_cuda(&maps))
}

/// True if a user need not hear of an error: it may pass, or the process is irrelevant to memprobe.
fn is_bearable(error: &AttachError, process: &Process, watch: Watch, now: Instant) -> bool {
    if matches!(error, AttachError::Gone(..)) {
        // The session reports its end by itself.
        return true;
    }
    let starting = process.origin == Origin::Started && process.age(now) < STARTING;
    (starting && error.may_pass()) || (watch != Watch::One && error.is_no_python())
}

//! Probed processes, one or many: from one ring buffer to the events of each.

mod catching_up;
mod ended;
mod gpus;
mod losses;
mod read_interval;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use hashbrown::HashMap;

use self::ended::EndedProcesses;
use self::read_interval::{ReadInterval, ReadNeed};
use super::budget::{BudgetStep, OverheadBudget};
use super::gpus::GpuSampler;
use super::process::{Process, ProcessOrigin};
use super::start_phases::{StartPhase, StartPhases};
use super::{HostEvent, HostItem};
use crate::decode::{Malformed, ProcessEvent, Record, decode};
use crate::event::{CallPaths, CaptureLevel, Detail, Losses, Tgid, TimeShare};
use crate::probe::files::ProbedFiles;
use crate::probe::kernel::TaskOffsets;
use crate::probe::loader::{Counters, Loader, Wanted, Watch};
use crate::probe::ring::{RecordBatch, Records, StreamPosition};
use crate::probe::watched::{Watched, allow_many_files};
use crate::probe::{attaching, heap};
use crate::process::facts;
use crate::process::maps::Maps;

/// Interval of checking that processes still exist, in case the record of their end is lost.
const SWEEP: Duration = Duration::from_millis(250);
/// Interval of comparing probed functions with the memory of the processes that use them, and of checking whether
/// processes were stopped.
const CHECK_CODE: Duration = Duration::from_secs(1);
/// The most records taken in one go, so that a flood does not starve screen and signals.
const BATCH: usize = 65_536;
/// Records that become events together. Most are of 64 or 144 bytes: they and their events stay in a processor's cache.
const CHUNK: usize = 256;

pub(crate) struct HostSession {
    wanted: Wanted,
    processes: HashMap<u32, Process>,
    ended: EndedProcesses,
    emitted: VecDeque<HostEvent>,
    busy: Vec<Tgid>,
    files: ProbedFiles,
    gpus: GpuSampler,
    records: Records,
    chunk: RecordBatch,
    counters: Counters,
    /// Losses so far, of all processes together.
    pub(crate) losses: Losses,
    malformed: u64,
    without_stack_copy: u64,
    handled_losses: u64,
    refused_rooms: u64,
    unsent_failures: u64,
    max_overhead: Option<TimeShare>,
    budget: Option<OverheadBudget>,
    phases: StartPhases,
    is_drained: bool,
    swept: Instant,
    code_checked: Instant,
    interval: ReadInterval,
    /// Dropped last: it holds the programs.
    loader: Loader,
}

impl HostSession {
    /// Loads the programs into the kernel; nobody is watched yet. Takes a good part of a second: do it before a command
    /// is started, so that the probes are in place before its first allocation. Must be called within a tokio runtime.
    pub(crate) fn load(wanted: Wanted, ring_bytes: u32) -> Result<Self> {
        let watch = wanted.watch;
        let mut phases = StartPhases::begin();
        let offsets = TaskOffsets::of_this_kernel()?;
        phases.end(StartPhase::KernelTypes, StartPhase::Programs);
        let mut loader = Loader::new(&offsets, watch, ring_bytes)?;
        phases.end(StartPhase::Programs, StartPhase::Probes);
        heap::give_back_freed();
        if watch == Watch::Everyone {
            allow_many_files();
        }
        let now = Instant::now();
        Ok(Self {
            wanted,
            processes: HashMap::new(),
            ended: EndedProcesses::default(),
            emitted: VecDeque::new(),
            busy: Vec::new(),
            files: ProbedFiles::default(),
            gpus: GpuSampler::default(),
            records: Records::new(loader.take_records()?).context("watching the ring buffer")?,
            chunk: RecordBatch::default(),
            counters: loader.take_counters()?,
            losses: Losses::default(),
            malformed: 0,
            without_stack_copy: 0,
            handled_losses: 0,
            refused_rooms: 0,
            unsent_failures: 0,
            max_overhead: None,
            budget: None,
            phases,
            is_drained: false,
            swept: now,
            code_checked: now,
            interval: ReadInterval::new(ring_bytes, now),
            loader,
        })
    }

    /// Keeps the cost to each process within a share of its time. To be called before processes are added.
    pub(crate) fn set_max_overhead(&mut self, share: Option<TimeShare>) {
        self.max_overhead = share;
    }

    pub(crate) fn add(&mut self, watched: Watched, origin: ProcessOrigin) -> Result<()> {
        let tgid = watched.tgid;
        if self.processes.contains_key(&tgid.0) || self.ended.includes(&watched) {
            return Ok(());
        }
        let process = self.new_process(Some(watched), tgid, origin);
        let is_new = self
            .loader
            .admit(tgid, process.config())
            .with_context(|| format!("watching process {}", tgid.0))?;
        // Otherwise the kernel's programs were faster, and their record of it is on its way.
        if is_new {
            self.insert(process);
        }
        Ok(())
    }

    /// Watches a process and those that descend from it, also those that it makes later.
    pub(crate) fn add_family(&mut self, watched: Watched, origin: ProcessOrigin) -> Result<()> {
        allow_many_files();
        let root = watched.tgid;
        self.add(watched, origin)?;
        // Whoever is watched by now has its children watched from their first instruction on; those
        // that were made before that are found by looking until there is nobody new.
        loop {
            let before = self.processes.len();
            for tgid in facts::descendants(root) {
                if let Some(watched) = Watched::if_there(tgid) {
                    self.add(watched, origin)?;
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

    pub(crate) async fn wait(&mut self) {
        let now = Instant::now();
        let need = match self.busy.is_empty() {
            true => ReadNeed::None,
            false => ReadNeed::Waiting,
        };
        let poll = self.interval.next(self.records.bytes_read(), need, now);
        let looks = self
            .processes
            .values()
            .filter_map(|process| process.schedule.next);
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

    /// Emits all that was there at the beginning, in order; returns the number of records read.
    pub(crate) fn drain(&mut self, mut sink: impl FnMut(HostEvent) -> Result<()>) -> Result<usize> {
        let end = self.records.end();
        // Counted later than the last record was begun, and before the records become events: what they leave out must
        // not be taken for known.
        self.emit_losses();
        let taken = self.take_records(end, &mut sink)?;
        let all = self.records.has_passed(end);
        let now = Instant::now();
        if taken > 0 {
            self.interval.heard(now);
        }
        self.keep_budget(now);
        self.poll(now);
        // Whoever has ended may have records in the ring that were not reached yet.
        if taken < BATCH && now.duration_since(self.swept) >= SWEEP {
            self.swept = now;
            self.sweep(now);
        }
        self.pass_emitted(&mut sink)?;
        self.settle(now, all, &mut sink)?;
        self.ask_driver(now);
        self.identify_gpus(now);
        self.read_segments(|process| process.read_segments(now));
        self.note_phases();
        self.is_drained = all;
        Ok(taken)
    }

    /// Notes how far the first process is.
    fn note_phases(&mut self) {
        if self.phases.is_over() {
            return;
        }
        let mut processes = self.processes.values();
        if let Some(process) = processes.find(|process| process.is_attached()) {
            self.phases.end(StartPhase::Probes, StartPhase::Blocks);
            if !process.is_reading_blocks() {
                self.phases.end(StartPhase::Blocks, StartPhase::Over);
            }
        }
    }

    /// Waits for the readings of blocks from before attach that are in progress, and drains. At the end of a recording,
    /// while the probes are in place: later tables have blocks without an event.
    pub(crate) fn wait_for_baselines(
        &mut self,
        sink: impl FnMut(HostEvent) -> Result<()>,
    ) -> Result<()> {
        for process in self.processes.values_mut() {
            process.wait_for_baseline();
        }
        self.drain(sink).map(drop)
    }

    /// Drains until nothing is left, at the end: nobody is watched any more.
    pub(crate) fn drain_all(
        &mut self,
        mut sink: impl FnMut(HostEvent) -> Result<()>,
    ) -> Result<()> {
        self.wait_for_baselines(&mut sink)?;
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

    /// True while the blocks of a probed process from before attach are read. Its events wait for that.
    pub(crate) fn is_reading_blocks(&self, tgid: Tgid) -> bool {
        let process = self.processes.get(&tgid.0);
        process.is_some_and(Process::is_reading_blocks)
    }

    /// True if all events of a process up to the last drain were passed on.
    pub(crate) fn is_settled(&self, tgid: Tgid) -> bool {
        let process = self.processes.get(&tgid.0);
        self.is_drained && process.is_none_or(|process| !process.is_busy)
    }

    /// Adds the modules of a process that were called so far.
    pub(crate) fn add_call_paths(&self, tgid: Tgid, known: &mut CallPaths) {
        if let Some(process) = self.processes.get(&tgid.0) {
            process.modules().add_paths(known);
        }
    }

    /// Takes the records before a place, and emits what is known at once of them.
    fn take_records(
        &mut self,
        end: StreamPosition,
        sink: &mut impl FnMut(HostEvent) -> Result<()>,
    ) -> Result<usize> {
        let mut taken = 0;
        let mut chunk = std::mem::take(&mut self.chunk);
        while taken < BATCH {
            self.records.take(&mut chunk, CHUNK, end);
            if chunk.is_empty() {
                break;
            }
            taken += chunk.len();
            for bytes in chunk.iter() {
                match decode(bytes) {
                    Ok(Record::Process(step, process)) => {
                        self.follow(step, Tgid(process.tgid), Tgid(process.parent));
                    }
                    Ok(record) => self.deliver(record),
                    Err(Malformed) => self.malformed += 1,
                }
            }
            self.pass_known(sink)?;
            // More may arrive than is taken meanwhile: the probes must not stay for as long as this takes.
            let now = Instant::now();
            if self.budget.as_ref().is_some_and(|it| it.is_due(now)) {
                self.settle(now, false, sink)?;
                self.keep_budget(Instant::now());
            }
        }
        self.chunk = chunk;
        Ok(taken)
    }

    /// Passes on the events of the processes that wait for nothing.
    fn pass_known(&mut self, sink: &mut impl FnMut(HostEvent) -> Result<()>) -> Result<()> {
        self.pass_emitted(sink)?;
        for tgid in &self.busy {
            if let Some(process) = self.processes.get_mut(&tgid.0)
                && process.settle_known()
            {
                process.pass_items(sink)?;
            }
        }
        Ok(())
    }

    fn pass_emitted(&mut self, sink: &mut impl FnMut(HostEvent) -> Result<()>) -> Result<()> {
        while let Some(event) = self.emitted.pop_front() {
            sink(event)?;
        }
        Ok(())
    }

    fn deliver(&mut self, record: Record<'_>) {
        let tgid = record.tgid();
        let process = match self.processes.get_mut(&tgid.0) {
            Some(process) => process,
            None => {
                self.adopt(tgid);
                let Some(process) = self.processes.get_mut(&tgid.0) else {
                    return;
                };
                process
            }
        };
        if self.wanted.detail == Detail::Full && record.is_block_without_reason() {
            process.without_stack_copy += 1;
            self.without_stack_copy += 1;
        }
        let received = process.receive(record, &mut self.loader);
        if process.become_busy() {
            self.busy.push(tgid);
        }
        if let Some(notice) = received.notice {
            self.emit(tgid, HostItem::Notice(notice));
        }
        if let Some(point) = received.point {
            self.emit(tgid, HostItem::SnapshotPoint(point));
        }
    }

    fn follow(&mut self, step: ProcessEvent, tgid: Tgid, parent: Tgid) {
        match step {
            ProcessEvent::Forked => self.fork(tgid, parent),
            ProcessEvent::Found => self.readmit(tgid),
            ProcessEvent::Executed => self.execute(tgid),
            ProcessEvent::Exited => self.end(tgid),
            ProcessEvent::LibraryMapped => match self.processes.get_mut(&tgid.0) {
                Some(process) => process.poll_soon(Instant::now()),
                // Of the processes of a host those are watched that have something to probe.
                None if Maps::of(tgid).is_ok_and(|maps| attaching::uses_cuda(&maps)) => {
                    self.adopt(tgid);
                }
                None => {}
            },
        }
    }

    fn new_process(&self, watched: Option<Watched>, tgid: Tgid, origin: ProcessOrigin) -> Process {
        let mut process = Process::new(watched, tgid, origin, self.wanted, Instant::now());
        if self.max_overhead.is_some() {
            let level = self.budget.as_ref().map(|budget| budget.level);
            process.keep_blocks(level.unwrap_or_default());
        }
        process
    }

    /// Starts tracking a process first seen through its kernel records.
    fn adopt(&mut self, tgid: Tgid) {
        let watched = Watched::if_there(tgid);
        let process = self.new_process(watched, tgid, ProcessOrigin::Running);
        // An error means that it is admitted already.
        let _ = self.loader.admit(tgid, process.config());
        self.insert(process);
    }

    /// Handles a process that the kernel's programs admitted without its configuration.
    fn readmit(&mut self, tgid: Tgid) {
        match self.processes.get(&tgid.0) {
            // An error means that it is gone.
            Some(process) => _ = self.loader.revise(tgid, process.config()),
            None => self.adopt(tgid),
        }
    }

    fn fork(&mut self, tgid: Tgid, parent: Tgid) {
        if self.processes.contains_key(&tgid.0) {
            // The record of its end was lost, and its process id is reused.
            self.end(tgid);
        }
        let Some(parent) = self.processes.get(&parent.0) else {
            self.adopt(tgid);
            return;
        };
        let process = parent.fork(tgid, self.wanted, &mut self.files, Instant::now());
        let is_attached = process.is_attached();
        self.found(process);
        if is_attached {
            self.announce(tgid);
        }
    }

    /// Adds a process that was admitted to the kernel's map.
    fn insert(&mut self, process: Process) {
        if process.had_ended() {
            // Its entry must be removed here, as no record of its end will follow.
            let _ = self.loader.dismiss(process.tgid);
        }
        self.found(process);
    }

    fn found(&mut self, mut process: Process) {
        // Every record from now on is its own.
        process.lost_before = Losses {
            stacks: self.processes_lost(),
            malformed: self.malformed,
            ..Losses::default()
        };
        let (tgid, parent) = (process.tgid, process.parent);
        let mut target = process.target();
        if target.command.is_empty()
            && let Some(parent) = parent.and_then(|it| self.processes.get(&it.0))
        {
            target.command = parent.target().command;
        }
        self.processes.insert(tgid.0, process);
        self.emit(
            tgid,
            HostItem::Found {
                parent,
                target: Box::new(target),
            },
        );
    }

    fn execute(&mut self, tgid: Tgid) {
        self.emit_rest(tgid, "the process became another program before");
        let now = Instant::now();
        let Some(process) = self.processes.get_mut(&tgid.0) else {
            self.adopt(tgid);
            return;
        };
        process.execute(&mut self.files, now);
        let target = process.target();
        self.emit(tgid, HostItem::Executed(Box::new(target)));
    }

    fn end(&mut self, tgid: Tgid) {
        self.emit_losses();
        self.emit_rest(tgid, "the process ended before");
        if let Some(process) = self.processes.remove(&tgid.0) {
            let now = Instant::now();
            let watched = process.end(&mut self.files, now);
            self.counters.forget(tgid);
            self.ended.push(tgid, watched, now);
            self.busy.retain(|busy| *busy != tgid);
            self.emit(tgid, HostItem::Ended);
        }
    }

    fn emit(&mut self, tgid: Tgid, item: HostItem) {
        self.emitted.push_back(HostEvent { tgid, item });
    }

    /// Emits the last events of a process's present program.
    fn emit_rest(&mut self, tgid: Tgid, reason: &str) {
        if let Some(process) = self.processes.get_mut(&tgid.0) {
            process.finish(reason);
            let items = std::iter::from_fn(|| process.next_item());
            self.emitted
                .extend(items.map(|item| HostEvent { tgid, item }));
        }
        self.identify_last(tgid);
    }

    /// Reads the segments of all processes, before the last drain of a recording. Calls `begun` before each process.
    pub(crate) fn read_last_segments(&mut self, begun: impl Fn()) {
        self.read_segments(|process| process.read_last_segments(&begun));
        self.ask_driver_last();
    }

    fn read_segments(&mut self, read: impl Fn(&mut Process) -> bool) {
        for process in self.processes.values_mut() {
            if read(process) && process.become_busy() {
                self.busy.push(process.tgid);
            }
        }
    }

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
            process.pass_items(sink)?;
            if let Some(notice) = process.look_at_modules(&mut self.loader) {
                let item = HostItem::Notice(notice);
                sink(HostEvent { tgid, item })?;
            }
            if process.stays_busy() {
                self.busy.push(tgid);
            }
        }
        Ok(())
    }

    fn poll(&mut self, now: Instant) {
        let processes = self.processes.values();
        let due = processes.filter(|process| process.schedule.next.is_some_and(|next| next <= now));
        for tgid in due.map(|process| process.tgid).collect::<Vec<_>>() {
            self.attach(tgid);
        }
    }

    fn attach(&mut self, tgid: Tgid) {
        let Some(process) = self.processes.get_mut(&tgid.0) else {
            return;
        };
        let attempt = process.attach(&mut self.loader, &mut self.files, self.wanted.watch);
        if attempt.has_events && process.become_busy() {
            self.busy.push(tgid);
        }
        let has_more = process.has_unannounced_probes();
        if let Some(item) = attempt.item {
            self.emit(tgid, item);
        }
        if has_more && !attempt.is_unfinished {
            self.leave_patched(tgid);
            self.announce(tgid);
        }
    }

    fn announce(&mut self, tgid: Tgid) {
        if let Some(process) = self.processes.get_mut(&tgid.0) {
            let item = process.announce(&self.loader);
            self.emit(tgid, item);
        }
        self.check_run_state(tgid);
    }

    fn check_run_state(&mut self, tgid: Tgid) {
        let process = self.processes.get_mut(&tgid.0);
        if let Some(item) = process.and_then(Process::check_run_state) {
            self.emit(tgid, item);
        }
    }

    /// Ends processes that no longer exist, and releases files without users.
    fn sweep(&mut self, now: Instant) {
        let processes = self.processes.values_mut();
        let ended = processes.filter_map(|process| process.sweep().then_some(process.tgid));
        for tgid in ended.collect::<Vec<_>>() {
            self.end(tgid);
        }
        self.sweep_entries(now);
        self.files.let_go(now);
        if now.duration_since(self.code_checked) >= CHECK_CODE {
            self.code_checked = now;
            let all: Vec<_> = self.processes.keys().copied().collect();
            all.into_iter()
                .for_each(|tgid| self.check_run_state(Tgid(tgid)));
            let processes = self.processes.values();
            let attached = processes.filter(|process| process.is_attached());
            for tgid in attached.map(|process| process.tgid).collect::<Vec<_>>() {
                if self.leave_patched(tgid) {
                    self.announce(tgid);
                }
            }
        }
    }

    /// Removes probes from functions that a process has rewritten. Returns true if its set of probes changed.
    fn leave_patched(&mut self, tgid: Tgid) -> bool {
        let Some(process) = self.processes.get_mut(&tgid.0) else {
            return false;
        };
        let changed = (process.attaching).leave_patched(&mut self.loader, &mut self.files);
        changed.unwrap_or_else(|error| {
            self.emit(tgid, HostItem::Notice(error.to_string()));
            false
        })
    }

    /// Removes the kernel's entries of ended processes. The programs do so themselves, but a process admitted between
    /// its exit record and its end got another entry, which the next owner of its number would inherit.
    fn sweep_entries(&mut self, now: Instant) {
        let (processes, loader) = (&self.processes, &mut self.loader);
        let is_another = |tgid: Tgid| processes.contains_key(&tgid.0);
        self.ended.sweep(now, is_another, |tgid| {
            let _ = loader.dismiss(tgid);
        });
    }

    /// Measures the cost of the probes, and changes the detail that is recorded to what can be afforded.
    fn keep_budget(&mut self, now: Instant) {
        let Some(share) = self.max_overhead else {
            return;
        };
        let Some(budget) = &mut self.budget else {
            self.start_budget(share, now);
            return;
        };
        if !budget.is_due(now) {
            return;
        }
        let stepped = self.files.stepped_programs();
        let records = self.processes.values();
        let records = records.map(|process| (process.tgid, process.records));
        match budget.step(&self.loader, &stepped, records, now) {
            Some(BudgetStep::Change) => self.change_level(),
            Some(BudgetStep::Report) => self.report_budget(),
            None => {}
        }
    }

    fn start_budget(&mut self, share: TimeShare, now: Instant) {
        let mut processes = self.processes.values();
        let Some(first) = processes.find(|process| process.is_attached()) else {
            return;
        };
        let first = first.tgid;
        match OverheadBudget::start(share, self.wanted, &mut self.loader, now) {
            Ok(budget) => {
                self.budget = Some(budget);
                self.report_budget();
            }
            Err(error) => {
                self.max_overhead = None;
                let notice = format!("--max-overhead is not kept: {error:#}");
                self.emit(first, HostItem::Notice(notice));
            }
        }
    }

    /// Tells each process's stream the state of the budget.
    fn report_budget(&mut self) {
        let Some(budget) = &mut self.budget else {
            return;
        };
        let mut first = None;
        for process in self.processes.values_mut() {
            if process.is_attached() {
                first.get_or_insert(process.tgid);
                process.note_capture(budget.change(process.tgid));
                if process.become_busy() {
                    self.busy.push(process.tgid);
                }
            }
        }
        let warning = budget.warning();
        if let (Some(first), Some(warning)) = (first, warning) {
            self.emit(first, HostItem::Notice(warning));
        }
    }

    /// Brings the probes and programs to the level that can be afforded.
    fn change_level(&mut self) {
        let Some(budget) = &mut self.budget else {
            return;
        };
        let mut level = budget.wanted_level();
        if level == CaptureLevel::Paused {
            let processes = || self.processes.values();
            if !processes().all(Process::can_pause) {
                level = budget.forbid_pauses();
            } else if processes().any(Process::is_reading_blocks) {
                // It needs every event for that. The step after it tries again.
                return;
            }
        }
        if budget.level == CaptureLevel::Paused && (self.files.is_detaching() || !self.is_drained) {
            return;
        }
        self.apply_level(level);
    }

    fn apply_level(&mut self, level: CaptureLevel) {
        let Some(budget) = &mut self.budget else {
            return;
        };
        budget.level = level;
        let mut result = self.files.set_level(&mut self.loader, level);
        for process in self.processes.values_mut() {
            let change = budget.change(process.tgid);
            result = result.and(process.set_level(&mut self.loader, change));
            if process.become_busy() {
                self.busy.push(process.tgid);
            }
        }
        let first = self.processes.keys().next().copied();
        if let (Err(error), Some(first)) = (result, first) {
            self.emit(Tgid(first), HostItem::Notice(error.to_string()));
        }
    }
}

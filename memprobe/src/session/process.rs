//! One process of a session: what is known of it, and its way from records to events.

mod capture_level;
mod events;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memprobe_common::ProcessConfig;

use super::before_attach::BaselineReader;
use super::driver::DriverReader;
use super::gpus::{DeviceTracker, TimedSample};
use super::live_blocks::{FoundBlocks, LiveBlocks};
use super::poll::{self, Pace, PollSchedule};
use super::segments::SegmentReader;
use super::startup_check::{ObservedFrom, StartupCheck};
use super::{HostItem, SnapshotPoint, loaded_libraries};
use crate::decode::Record;
use crate::event::{
    CaptureLevel, Event, LoadedLibrary, Losses, SegmentReading, Target, Tgid, TimeNs,
};
use crate::probe::attach::AttachError;
use crate::probe::attaching::{AttachStep, Attaching, Placement};
use crate::probe::files::ProbedFiles;
use crate::probe::loader::{Loader, Wanted, Watch};
use crate::probe::watched::Watched;
use crate::process::memory::ProcessMemory;
use crate::process::run_state::RunState;
use crate::process::status::Status;
use crate::process::{container, facts};
use crate::python::CodeCache;
use crate::symbolize::readings::{SegmentClaim, TimedReading};
use crate::symbolize::{PriorCudaUse, Symbolizer};
use crate::torch::module_calls::ModuleCalls;
use crate::torch::module_trees::ModuleNames;

/// Time in which a new process may be something other than Python (a shell script, a launcher).
const STARTING: Duration = Duration::from_secs(20);
/// Time that a segment waits, after the last record, for its thread to name the device.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessOrigin {
    Running,
    /// Just started, by a watched process or as another program.
    Started,
    /// Started by memprobe, or by such a process.
    Launched,
}

impl ProcessOrigin {
    /// Origin of a process that one of this origin starts, or becomes by `exec`.
    fn of_child(self) -> Self {
        match self {
            Self::Running | Self::Started => Self::Started,
            Self::Launched => Self::Launched,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessPhase {
    /// Not ready to be probed.
    Looking,
    Attached,
    Refused,
}

/// One process of a session. Its state is [`ProcessPhase`]; the methods below are its only transitions.
pub(super) struct Process {
    pub(super) tgid: Tgid,
    pub(super) parent: Option<Tgid>,
    watched: Option<Watched>,
    is_gone: bool,
    origin: ProcessOrigin,
    phase: ProcessPhase,
    run_states: [RunState; 2],
    pub(super) attaching: Attaching,
    symbolizer: Symbolizer<ProcessMemory>,
    startup_check: StartupCheck,
    before: Option<BaselineReader>,
    /// Reason of the last item that says why it is not probed yet.
    unprobed_because: String,
    announced_probes: usize,
    /// Losses before it appeared.
    pub(super) lost_before: Losses,
    lost: Losses,
    /// Blocks that came without the requested copy of a stack.
    pub(super) without_stack_copy: u64,
    /// True if the session has it in its list of busy processes.
    pub(super) is_busy: bool,
    has_called: bool,
    last_record: Instant,
    torch: Option<String>,
    allocator_conf: Option<String>,
    /// Libraries that it had loaded at attach, if it ran before.
    libraries: Vec<LoadedLibrary>,
    pub(super) devices: DeviceTracker,
    pub(super) schedule: PollSchedule,
    segments: SegmentReader,
    pub(super) driver: DriverReader,
    /// Events that come before all others; of the first the notice may have been taken.
    next_events: VecDeque<Event>,
    /// Records so far.
    pub(super) records: u64,
    /// Blocks that the emitted events leave live; `None` unless there is a budget.
    live: Option<LiveBlocks>,
    /// The state of the allocator after a pause, as far as it was read.
    found: Option<FoundBlocks>,
    /// Time of the corrections, if it is not that of the reading.
    corrected_at: Option<TimeNs>,
    level: CaptureLevel,
    /// True after the first pause.
    was_paused: bool,
}

#[derive(Debug, Default)]
pub(super) struct Attempt {
    pub(super) item: Option<HostItem>,
    /// True if it must go on at once.
    pub(super) is_unfinished: bool,
    /// True if there may be events to emit.
    pub(super) has_events: bool,
}

/// News of a record, before it becomes an event.
pub(super) struct Received {
    pub(super) notice: Option<String>,
    pub(super) point: Option<SnapshotPoint>,
}

impl Process {
    pub(super) fn new(
        watched: Option<Watched>,
        tgid: Tgid,
        origin: ProcessOrigin,
        wanted: Wanted,
        now: Instant,
    ) -> Self {
        let (observed_from, past) = match origin {
            ProcessOrigin::Running => (ObservedFrom::Unseen, PriorCudaUse::Unknown),
            ProcessOrigin::Started | ProcessOrigin::Launched => {
                (ObservedFrom::Seen, PriorCudaUse::None)
            }
        };
        let placement = match origin {
            ProcessOrigin::Running | ProcessOrigin::Started => Placement::Running,
            ProcessOrigin::Launched => Placement::Paused,
        };
        Self {
            tgid,
            parent: None,
            watched,
            is_gone: false,
            origin,
            phase: ProcessPhase::Looking,
            run_states: [RunState::Running; 2],
            attaching: Attaching::new(tgid, wanted, placement),
            symbolizer: Symbolizer::new(tgid, ProcessMemory::new(tgid), None, past),
            startup_check: StartupCheck::new(observed_from),
            before: Some(BaselineReader::of(tgid)),
            unprobed_because: String::new(),
            announced_probes: 0,
            lost_before: Losses::default(),
            without_stack_copy: 0,
            lost: Losses::default(),
            is_busy: false,
            has_called: false,
            last_record: now,
            torch: None,
            allocator_conf: None,
            libraries: Vec::new(),
            devices: DeviceTracker::default(),
            schedule: PollSchedule::new(now),
            segments: SegmentReader::of(tgid),
            driver: DriverReader::default(),
            next_events: VecDeque::new(),
            records: 0,
            live: None,
            found: None,
            corrected_at: None,
            level: CaptureLevel::Full,
            was_paused: false,
        }
    }

    /// A process that `self` has just made by `fork`.
    pub(super) fn fork(
        &self,
        tgid: Tgid,
        wanted: Wanted,
        files: &mut ProbedFiles,
        now: Instant,
    ) -> Self {
        let attaching = self.attaching.fork(tgid, files);
        let observed_from = if attaching.has_allocator() {
            ObservedFrom::Forked
        } else {
            ObservedFrom::Seen
        };
        let code = attaching.python.as_ref().map(CodeCache::new);
        let mut symbolizer =
            Symbolizer::new(tgid, ProcessMemory::new(tgid), code, PriorCudaUse::None);
        symbolizer.inherit_cpu_memory();
        symbolizer.inherit_code(&self.symbolizer);
        if let Some(python) = attaching.python.as_ref() {
            let names = ModuleNames::of(ProcessMemory::new(tgid), python.layout);
            symbolizer.set_module_names(Box::new(names));
        }
        if attaching.runs_no_python() {
            symbolizer.runs_no_python();
        }
        if attaching.has_tensors() {
            symbolizer.watch_all_tensors();
        }
        // The parent's libraries are there; others are reported by the loader or by an exec.
        let first_poll = (self.phase == ProcessPhase::Looking).then(|| now + poll::WITH_LOADER);
        Self {
            parent: Some(self.tgid),
            torch: self.torch.clone(),
            phase: self.phase,
            // A copy of a process that has a model need not call it.
            has_called: symbolizer.module_call().is_some(),
            symbolizer,
            attaching,
            startup_check: StartupCheck::new(observed_from),
            // Where the probes are in place already, nothing can come before them.
            before: (self.phase != ProcessPhase::Attached).then(|| BaselineReader::of(tgid)),
            schedule: PollSchedule::starting(now, first_poll),
            live: self.live.as_ref().map(|_| LiveBlocks::default()),
            level: self.level,
            ..Self::new(
                Watched::if_there(tgid),
                tgid,
                self.origin.of_child(),
                wanted,
                now,
            )
        }
    }

    /// Starts anew: the process runs another program.
    pub(super) fn execute(&mut self, files: &mut ProbedFiles, now: Instant) {
        self.attaching.forget(files, now);
        self.origin = self.origin.of_child();
        self.phase = ProcessPhase::Looking;
        let memory = ProcessMemory::new(self.tgid);
        self.symbolizer = Symbolizer::new(self.tgid, memory, None, PriorCudaUse::None);
        self.startup_check = StartupCheck::new(ObservedFrom::Seen);
        self.before = Some(BaselineReader::of(self.tgid));
        self.segments = SegmentReader::of(self.tgid);
        self.driver = DriverReader::default();
        self.unprobed_because.clear();
        self.announced_probes = 0;
        (self.torch, self.allocator_conf, self.found) = (None, None, None);
        self.libraries.clear();
        self.devices = DeviceTracker::default();
        self.has_called = false;
        self.live = self.live.as_ref().map(|_| LiveBlocks::default());
        self.schedule = PollSchedule::new(now);
    }

    /// Returns what holds its number.
    pub(super) fn end(mut self, files: &mut ProbedFiles, now: Instant) -> Option<Watched> {
        self.attaching.forget(files, now);
        self.watched
    }

    pub(super) fn modules(&self) -> &ModuleCalls {
        self.symbolizer.modules()
    }

    pub(super) fn is_attached(&self) -> bool {
        self.phase == ProcessPhase::Attached
    }

    /// Marks it as busy; returns false if it was already.
    pub(super) fn become_busy(&mut self) -> bool {
        !std::mem::replace(&mut self.is_busy, true)
    }

    /// Entry of the process in the kernel's map.
    pub(super) fn config(&self) -> ProcessConfig {
        self.attaching.config(super::now())
    }

    /// Returns the change if it was stopped or continued since the last check.
    pub(super) fn check_run_state(&mut self) -> Option<HostItem> {
        let state = RunState::of(self.tgid);
        let [announced, seen] = self.run_states;
        self.run_states[1] = state;
        // Whoever reads its objects stops it for less than the time between two checks, memprobe among them.
        if announced == state || matches!(state, RunState::Traced(_)) && seen != state {
            return None;
        }
        self.run_states[0] = state;
        let stopped = state.pause_reason(self.tgid).map(HostItem::Stopped);
        let had_stopped = || announced.pause_reason(self.tgid).is_some();
        stopped.or_else(|| had_stopped().then_some(HostItem::Continued))
    }

    /// True if it had ended when memprobe began to watch it, so that no record of its end will come.
    pub(super) fn had_ended(&self) -> bool {
        self.watched.as_ref().is_none_or(Watched::has_ended)
    }

    /// Returns true at the second check that does not find it: by then its last records have been read.
    pub(super) fn sweep(&mut self) -> bool {
        let is_gone = self.had_ended();
        std::mem::replace(&mut self.is_gone, is_gone) && is_gone
    }

    pub(super) fn receive(&mut self, record: Record<'_>, loader: &mut Loader) -> Received {
        let point = SnapshotPoint::of(&record);
        self.records += 1;
        match self.waits_for_reading() {
            true => self.symbolizer.push(record),
            false => self.symbolizer.push_known(record),
        }
        let notice = self.follow_module_call(loader);
        let is_failure = point == Some(SnapshotPoint::OutOfMemory);
        let point = match self.calls_first() {
            true if !is_failure => Some(SnapshotPoint::FirstCall),
            _ => point,
        };
        Received { notice, point }
    }

    pub(super) fn attach(
        &mut self,
        loader: &mut Loader,
        files: &mut ProbedFiles,
        watch: Watch,
    ) -> Attempt {
        let start = Instant::now();
        let had_python = self.attaching.python.as_ref().is_some();
        let had_tensors = self.attaching.has_tensors();
        let step = self.attaching.step(loader, files, super::now());
        if !had_python && let Some(python) = self.attaching.python.as_ref() {
            self.symbolizer.set_code(CodeCache::new(python));
            let names = ModuleNames::of(python.memory(), python.layout);
            self.symbolizer.set_module_names(Box::new(names));
        }
        if self.attaching.runs_no_python() {
            self.symbolizer.runs_no_python();
        }
        if self.is_attached() && !had_tensors {
            // It may have imported PyTorch after it used CUDA without.
            self.watch_tensors();
        }
        let mut attempt = Attempt::default();
        match step {
            Ok(AttachStep::Again) => {
                attempt.is_unfinished = true;
                let placed = self.attaching.probes.len();
                attempt.item = (!self.is_attached()).then_some(HostItem::Placing(placed));
            }
            Ok(AttachStep::Done) if self.phase != ProcessPhase::Attached => {
                self.attached();
                attempt.has_events = true;
            }
            Ok(AttachStep::Done) => {}
            // Its calls into CUDA are watched already, and it imports PyTorch.
            Ok(AttachStep::Waiting(_)) if self.is_attached() => {}
            Ok(AttachStep::Waiting(what)) => {
                let is_news = self.is_news(&what);
                attempt.item = is_news.then_some(HostItem::Waiting(what));
            }
            Err(error) if self.is_bearable(&error, watch, start) => {
                // The driver may list it all the same: it counts the memory of graphics and of OpenCL too.
                let unrelated = AttachError::Unrelated(self.tgid);
                let is_news = watch == Watch::Everyone
                    && error.is_not_python()
                    && !self.is_starting(start)
                    && self.is_news(&unrelated.to_string());
                attempt.item = is_news.then_some(HostItem::Refused(unrelated));
            }
            Err(error) => {
                self.refused();
                attempt.has_events = true;
                attempt.item = Some(HostItem::Refused(error));
            }
        }
        let pace = self.pace(attempt.is_unfinished);
        self.schedule.attempted(start, Instant::now(), pace);
        attempt
    }

    fn pace(&self, is_unfinished: bool) -> Pace {
        match (self.phase, self.origin) {
            _ if is_unfinished => Pace::Immediate,
            (ProcessPhase::Refused, _) => Pace::Never,
            // A process that has not loaded PyTorch for minutes hardly will within milliseconds.
            _ if self.attaching.is_impatient() => Pace::WithLoader,
            _ if self.attaching.has_loader => Pace::Seldom,
            (ProcessPhase::Attached, _) => Pace::Seldom,
            (ProcessPhase::Looking, ProcessOrigin::Running) => Pace::Running,
            (ProcessPhase::Looking, ProcessOrigin::Started | ProcessOrigin::Launched) => {
                Pace::Started
            }
        }
    }

    /// True if a user need not know of an error: it may pass, or the process is irrelevant to memprobe.
    fn is_bearable(&self, error: &AttachError, watch: Watch, now: Instant) -> bool {
        if matches!(error, AttachError::Gone(..)) {
            // The session reports its end by itself.
            return true;
        }
        (self.is_starting(now) && error.may_pass()) || (watch != Watch::One && error.is_no_python())
    }

    fn is_starting(&self, now: Instant) -> bool {
        self.origin != ProcessOrigin::Running && self.schedule.age(now) < STARTING
    }

    /// Notes why it is not probed; returns false if that was the reason already.
    fn is_news(&mut self, reason: &str) -> bool {
        let is_news = self.unprobed_because != reason;
        if is_news {
            reason.clone_into(&mut self.unprobed_because);
        }
        is_news
    }

    /// True if probes were placed that are not announced yet.
    pub(super) fn has_unannounced_probes(&self) -> bool {
        self.is_attached() && self.attaching.probes.len() > self.announced_probes
    }

    pub(super) fn announce(&mut self, loader: &Loader) -> HostItem {
        self.read_torch();
        let probes = self.attaching.probes.to_vec();
        self.announced_probes = probes.len();
        let mut missing = self.attaching.missing();
        missing.extend(loader.modules.missing().map(str::to_owned));
        HostItem::Attached {
            target: Box::new(self.target()),
            probes,
            missing,
        }
    }

    pub(super) fn target(&self) -> Target {
        let python = self.attaching.python.as_ref();
        Target {
            python: python.map(|python| python.version.to_string()),
            torch: self.torch.clone(),
            gpus: self.devices.identities.clone(),
            allocator_conf: self.allocator_conf.clone(),
            libraries: self.libraries.clone(),
            ..identified(self.tgid)
        }
    }

    /// Reads PyTorch's version and settings. A program may change the settings before its first use of CUDA.
    pub(super) fn read_torch(&mut self) {
        if self.torch.is_none() {
            self.torch = facts::torch_version(self.tgid);
        }
        let conf = super::allocator_conf::read(self.tgid, self.torch.as_deref());
        self.allocator_conf = conf.or(self.allocator_conf.take());
    }

    /// Brings the next attempt forward: a library was mapped.
    pub(super) fn poll_soon(&mut self, now: Instant) {
        self.symbolizer.library_mapped();
        match (self.phase, self.origin) {
            (ProcessPhase::Refused, _) => {}
            // Its code does not run for long before it is paused.
            (_, ProcessOrigin::Launched) => self.schedule.bring_to(now),
            _ => self.schedule.hasten(),
        }
    }

    /// Distrusts what is known of its libraries: a record of its life may be lost.
    pub(super) fn doubt(&mut self, now: Instant) {
        self.attaching.doubt();
        self.poll_soon(now);
    }

    /// Enters [`ProcessPhase::Attached`]: the blocks from before can be read.
    fn attached(&mut self) {
        self.phase = ProcessPhase::Attached;
        if self.origin == ProcessOrigin::Running {
            self.libraries = loaded_libraries::read(self.tgid, self.attaching.python.as_ref());
        }
        self.read_torch();
        self.devices.begin(self.tgid);
        self.symbolizer.look_at_code();
        self.watch_tensors();
        let was_running = self.origin == ProcessOrigin::Running;
        let is_unlisted = was_running && self.attaching.may_hold_unlisted_memory();
        if let Some(before) = &mut self.before {
            match is_unlisted {
                true => before.settle_unlisted(),
                false => before.begin(self.torch.clone()),
            }
        }
    }

    /// Notes the time from which every tensor is reported, if the probes for it are in place.
    fn watch_tensors(&mut self) {
        if !self.attaching.has_tensors() || self.level >= CaptureLevel::WithoutShapes {
            return;
        }
        match self.origin {
            ProcessOrigin::Running => self.symbolizer.watch_tensors_since(super::now()),
            ProcessOrigin::Started | ProcessOrigin::Launched => self.symbolizer.watch_all_tensors(),
        }
    }

    /// Enters [`ProcessPhase::Refused`]; its records still become events.
    fn refused(&mut self) {
        self.phase = ProcessPhase::Refused;
        self.finish("its allocator is unknown");
    }

    /// Turns its records into events. `all` is true if every record written by now was read.
    pub(super) fn settle(&mut self, now: Instant, all: bool) {
        if self.segments.is_reading() {
            return;
        }
        if self.symbolizer.is_unsettled() {
            self.last_record = now;
        } else if now.duration_since(self.last_record) >= PATIENCE {
            self.symbolizer.give_up();
        }
        self.symbolizer.settle();
        let all = all && !self.symbolizer.is_unsettled() && !self.symbolizer.is_waiting();
        if all {
            self.symbolizer.settle_readings();
        }
        self.keep_back();
        if let Some(before) = &mut self.before {
            before.settle(all);
        }
        self.correct_blocks();
        if self.is_attached() && self.before.as_ref().is_none_or(BaselineReader::is_settled) {
            self.segments.begin(now);
        }
    }

    /// Waits for the reading of its blocks from before attach that is in progress.
    pub(super) fn wait_for_baseline(&mut self) {
        if let Some(before) = &mut self.before {
            before.wait_for_reading();
        }
    }

    /// Takes an answer of the driver. Returns true if a reading waits for earlier events.
    pub(super) fn take_driver(&mut self, answer: &TimedSample) -> bool {
        let target = Target {
            gpus: self.devices.identities.clone(),
            ..Target::default()
        };
        let reading = self.driver.take(self.tgid, &target, answer);
        self.push_reading(reading.map(TimedReading::Driver))
    }

    /// Reads the allocator's segments if they may have changed. Returns true if a reading is in progress, or waits for
    /// earlier events.
    pub(super) fn read_segments(&mut self, now: Instant) -> bool {
        let reading = self.segments.read_if_due(self.torch.as_deref(), now);
        self.push_segments(reading) || self.segments.is_reading()
    }

    /// Like [`Self::read_segments`], at the end of a recording. Calls `begun` before.
    pub(super) fn read_last_segments(&mut self, begun: impl Fn()) -> bool {
        begun();
        let reading = self.segments.read_last(self.torch.as_deref());
        self.push_segments(reading)
    }

    fn push_segments(&mut self, reading: Option<Arc<SegmentReading>>) -> bool {
        let claim = match self.attaching.has_allocator() {
            true => SegmentClaim::Listed,
            false => SegmentClaim::None,
        };
        self.push_reading(reading.map(|reading| TimedReading::Segments(reading, claim)))
    }

    /// Returns true if there is a reading.
    fn push_reading(&mut self, reading: Option<TimedReading>) -> bool {
        reading
            .map(|reading| self.symbolizer.push_reading(reading))
            .is_some()
    }

    /// Marks it as busy only if events may become ready without another record; returns the mark.
    pub(super) fn stays_busy(&mut self) -> bool {
        self.is_busy = self.symbolizer.is_unsettled()
            || self.symbolizer.is_waiting()
            || self.symbolizer.has_readings()
            || self.segments.is_reading()
            || self.before.as_ref().is_some_and(BaselineReader::is_reading);
        self.is_busy
    }

    /// Makes events of all records, the last that there will be; `reason` says what ends.
    pub(super) fn finish(&mut self, reason: &str) {
        self.symbolizer.settle_all();
        self.symbolizer.settle_readings();
        self.keep_back();
        if let Some(before) = &mut self.before {
            before.finish(reason);
        }
        self.correct_blocks();
    }

    /// Has the kernel's programs report modules once the code of their call is known. Returns a notice if they cannot.
    fn follow_module_call(&mut self, loader: &mut Loader) -> Option<String> {
        let code = self.symbolizer.module_call();
        if self.attaching.module_call() == code {
            return None;
        }
        let result = self.attaching.set_module_call(loader, code, super::now());
        result.err().map(without_modules)
    }

    /// True once, after the first call of a module.
    fn calls_first(&mut self) -> bool {
        let had_called = self.has_called;
        self.has_called = self.symbolizer.module_call().is_some();
        self.has_called && !had_called
    }

    /// Requests again the stacks on which there may be other modules by now. Returns a notice for users if that fails.
    pub(super) fn look_at_modules(&mut self, loader: &mut Loader) -> Option<String> {
        let tgid = self.tgid;
        if !self.symbolizer.look_at_modules(&|| facts::ran(tgid)) {
            return None;
        }
        let result = self.attaching.update_filter(loader, super::now());
        result.err().map(without_modules)
    }

    /// Takes the losses of its process id so far, and adds its blocks without a stack copy. Returns true if they grew.
    pub(super) fn count_loss(&mut self, losses: Losses) -> bool {
        let losses = Losses {
            uses: self.without_stack_copy,
            ..losses
        };
        let lost = losses.zip(self.lost_before, u64::saturating_sub);
        // The kernel's side may have forgotten what it counted of one of very many.
        let lost = lost.zip(self.lost, u64::max);
        if lost == self.lost {
            return false;
        }
        let records = Losses {
            uses: self.lost.uses,
            ..lost
        };
        if records != self.lost {
            self.startup_check.lost();
        }
        if lost.stacks != self.lost.stacks {
            self.symbolizer.forget_waiting();
        }
        if lost.events != self.lost.events {
            self.symbolizer.forget_devices();
        }
        self.lost = lost;
        self.symbolizer.push_event(Event::Loss(lost));
        true
    }
}

/// Sentence for people if the kernel refuses the configuration for modules.
fn without_modules(error: AttachError) -> String {
    format!("the modules that are called may be unknown or out of date: {error}")
}

pub(crate) fn identified(tgid: Tgid) -> Target {
    Target {
        tgid: Some(tgid),
        inner_tgid: Status::of(tgid).ok().and_then(|status| status.inner_tgid()),
        container: container::of(tgid).map(|container| container.label()),
        command: facts::command_line(tgid),
        ..Target::default()
    }
}

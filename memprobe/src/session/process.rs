//! One process of a session: what is known of it, and its way from records to events.

use std::time::{Duration, Instant};

use super::before_attach::BeforeAttach;
use super::startup_check::{ObservedFrom, StartupCheck};
use crate::event::Target;
use crate::event::{Event, Losses, Tgid, TimeNs};
use crate::probe::attach::AttachError;
use crate::probe::attaching::Attaching;
use crate::probe::loader::Loader;
use crate::probe::watched::Watched;
use crate::process::container;
use crate::process::facts;
use crate::process::memory::ProcessMemory;
use crate::process::status::Status;
use crate::python::CodeCache;
use crate::python::module_trees::ModuleNames;
use crate::symbolize::{PriorCudaUse, Symbolizer};

/// Polling interval for a process that is not ready to be probed and was running before.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Polling interval for a process that has just started: its first allocation must be seen. The rest of
/// `import torch` lies between the mapping of PyTorch's libraries and that allocation.
const LOOK_SOON: Duration = Duration::from_millis(2);

/// Polling interval if the dynamic loader reports libraries: only the start of Python or of a library is
/// awaited, which ends before the first allocation.
const LOOK_WITH_LOADER: Duration = Duration::from_millis(20);

/// Longest polling interval.
const LOOK_SELDOM: Duration = Duration::from_secs(2);

/// Time that a segment waits, after the last record, for its thread to name the device. On a busy machine
/// the thread may not run at once.
const PATIENCE: Duration = Duration::from_secs(1);

/// Nanoseconds that it takes to make a tensor at most: CUDA may have to find memory for it first.
const GRACE: u64 = 1_000_000_000;

/// Inverse of the share of time spent on polling one process.
const LOOKING_SHARE: u32 = 5;

/// Origin of a watched process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Already running.
    Running,
    /// Just started: by memprobe, by a watched process, or as another program.
    Started,
}

/// State of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not ready to be probed.
    Looking,
    /// Probed.
    Attached,
    /// Impossible to probe.
    Refused,
}

/// One process of a session.
pub(super) struct Process {
    pub(super) tgid: Tgid,
    pub(super) parent: Option<Tgid>,
    pub(super) watched: Option<Watched>,
    /// Its end was noticed without a word from the kernel's programs.
    pub(super) is_gone: bool,
    pub(super) origin: Origin,
    pub(super) phase: Phase,
    pub(super) attaching: Attaching,
    pub(super) symbolizer: Symbolizer<ProcessMemory>,
    pub(super) startup_check: StartupCheck,
    /// Baseline before its first event; a child of a probed process has none.
    before: Option<BeforeAttach>,
    /// The last that was said to be waited for.
    pub(super) waiting_for: String,
    /// Number of probes announced.
    pub(super) announced_probes: usize,
    /// Losses before it appeared.
    pub(super) lost_before: Losses,
    /// Losses announced in its events.
    lost: Losses,
    /// Its blocks that came without the copy of a stack that was wanted.
    pub(super) without_use: u64,
    /// True if its symbolizer has work.
    pub(super) is_busy: bool,
    /// True if a call of a module was seen.
    has_called: bool,
    /// When the last record of it was read.
    pub(super) heard: Instant,
    torch: Option<String>,
    since: Instant,
    next_look: Option<Instant>,
    looked: Instant,
    look_took: Duration,
}

impl Process {
    /// A process of which nothing is known yet.
    pub(super) fn new(
        watched: Option<Watched>,
        tgid: Tgid,
        origin: Origin,
        attaching: Attaching,
        now: Instant,
    ) -> Self {
        let observed_from = match origin {
            Origin::Running => ObservedFrom::Unseen,
            Origin::Started => ObservedFrom::Seen,
        };
        Self {
            tgid,
            parent: None,
            watched,
            is_gone: false,
            origin,
            phase: Phase::Looking,
            attaching,
            symbolizer: Symbolizer::new(tgid, ProcessMemory::new(tgid), None, past(origin)),
            startup_check: StartupCheck::new(observed_from),
            before: Some(BeforeAttach::of(tgid)),
            waiting_for: String::new(),
            announced_probes: 0,
            lost_before: Losses::default(),
            without_use: 0,
            lost: Losses::default(),
            is_busy: false,
            has_called: false,
            heard: now,
            torch: None,
            since: now,
            next_look: Some(now),
            looked: now,
            look_took: Duration::ZERO,
        }
    }

    /// A process that another one has just made by `fork`.
    pub(super) fn fork(
        parent: &Self,
        watched: Option<Watched>,
        tgid: Tgid,
        attaching: Attaching,
        now: Instant,
    ) -> Self {
        let observed_from = if attaching.has_allocator() {
            ObservedFrom::Forked
        } else {
            ObservedFrom::Seen
        };
        let code = attaching.python().map(CodeCache::new);
        let mut symbolizer =
            Symbolizer::new(tgid, ProcessMemory::new(tgid), code, PriorCudaUse::None);
        symbolizer.inherit_cpu_memory();
        symbolizer.inherit_code(&parent.symbolizer);
        if let Some(python) = attaching.python() {
            let names = ModuleNames::of(ProcessMemory::new(tgid), python.layout);
            symbolizer.set_module_names(Box::new(names));
        }
        if attaching.runs_no_python() {
            symbolizer.runs_no_python();
        }
        if attaching.has_tensors() {
            symbolizer.watch_tensors(TimeNs(0));
        }
        Self {
            parent: Some(parent.tgid),
            torch: parent.torch.clone(),
            phase: parent.phase,
            // A copy of a process that has a model need not call it.
            has_called: symbolizer.module_call().is_some(),
            symbolizer,
            startup_check: StartupCheck::new(observed_from),
            // Where the probes are in place already, nothing can come before them.
            before: (parent.phase != Phase::Attached).then(|| BeforeAttach::of(tgid)),
            // What its parent waits for it has; of itself it tells by its loader or by an exec.
            next_look: (parent.phase == Phase::Looking).then(|| now + LOOK_WITH_LOADER),
            ..Self::new(watched, tgid, Origin::Started, attaching, now)
        }
    }

    /// Starts anew: the process runs another program.
    pub(super) fn execute(&mut self, now: Instant) {
        self.origin = Origin::Started;
        self.phase = Phase::Looking;
        let memory = ProcessMemory::new(self.tgid);
        self.symbolizer = Symbolizer::new(self.tgid, memory, None, PriorCudaUse::None);
        self.startup_check = StartupCheck::new(ObservedFrom::Seen);
        self.before = Some(BeforeAttach::of(self.tgid));
        self.waiting_for.clear();
        self.announced_probes = 0;
        self.torch = None;
        self.has_called = false;
        self.since = now;
        self.next_look = Some(now);
    }

    pub(super) fn target(&self) -> Target {
        let python = self.attaching.python();
        Target {
            python: python.map(|python| python.version.to_string()),
            torch: self.torch.clone(),
            ..identified(self.tgid)
        }
    }

    /// Reads the version of its PyTorch, unless that is known.
    pub(super) fn read_torch(&mut self) {
        if self.torch.is_none() {
            self.torch = facts::torch_version(self.tgid);
        }
    }

    /// Time since it was first seen running this program.
    pub(super) fn age(&self, now: Instant) -> Duration {
        now.duration_since(self.since)
    }

    /// When it is to be looked at next.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.next_look
    }

    /// Its loader has something new: look soon, but do not spend all time with it.
    pub(super) fn look_soon(&mut self) {
        if self.phase == Phase::Refused {
            return;
        }
        let due = self.looked + self.look_took * LOOKING_SHARE;
        self.next_look = Some(self.next_look.map_or(due, |next| next.min(due)));
    }

    /// Schedules the next look after one from `start` to `end`.
    pub(super) fn was_looked_at(&mut self, start: Instant, end: Instant, again: bool) {
        self.looked = end;
        self.look_took = end.duration_since(start);
        let pause = match self.phase {
            _ if again => Duration::ZERO,
            Phase::Refused => {
                self.next_look = None;
                return;
            }
            // Whoever has not become a PyTorch in minutes will hardly do so in milliseconds.
            _ if self.attaching.is_impatient() => {
                (self.age(end) / 64).clamp(LOOK_WITH_LOADER, LOOK_SELDOM)
            }
            _ if self.attaching.reports_libraries() => LOOK_SELDOM,
            Phase::Attached => LOOK_SELDOM,
            Phase::Looking => {
                let soon = match self.origin {
                    Origin::Running => LOOK_AGAIN,
                    Origin::Started => LOOK_SOON,
                };
                (self.age(end) / 64).clamp(soon, LOOK_SELDOM)
            }
        };
        let fair = if again {
            Duration::ZERO
        } else {
            self.look_took * LOOKING_SHARE
        };
        self.next_look = Some(end + pause.max(fair));
    }

    /// Its probes are in place: what it held before can be read.
    pub(super) fn attached(&mut self) {
        self.phase = Phase::Attached;
        self.read_torch();
        self.symbolizer.look_at_code();
        self.watch_tensors();
        if let Some(before) = &mut self.before {
            before.begin(self.torch.clone());
        }
    }

    /// Notes the time from which every tensor is reported, if the probes for it are in place.
    fn watch_tensors(&mut self) {
        if !self.attaching.has_tensors() {
            return;
        }
        self.symbolizer.watch_tensors(match self.origin {
            // A tensor may have been begun before the probes were in place.
            Origin::Running => TimeNs(super::now().0.saturating_add(GRACE)),
            Origin::Started => TimeNs(0),
        });
    }

    /// Gives up probing; its records are still passed on.
    pub(super) fn refused(&mut self) {
        self.phase = Phase::Refused;
        self.finish("its allocator is unknown");
    }

    /// Turns its records into events. `all` is true if every record written by now was read.
    pub(super) fn settle(&mut self, now: Instant, all: bool) {
        if self.symbolizer.is_unsettled() {
            self.heard = now;
        } else if now.duration_since(self.heard) >= PATIENCE {
            self.symbolizer.give_up();
        }
        self.symbolizer.settle();
        self.keep_back();
        let all = all && !self.symbolizer.is_unsettled() && !self.symbolizer.is_waiting();
        if let Some(before) = &mut self.before {
            before.settle(all);
        }
    }

    /// Makes events of all records, the last that there will be; `reason` says what ends.
    pub(super) fn finish(&mut self, reason: &str) {
        self.symbolizer.settle_all();
        self.keep_back();
        if let Some(before) = &mut self.before {
            before.finish(reason);
        }
    }

    /// Has the kernel's programs tell of the modules on stacks as soon as it is known how; gives what a user
    /// should know where they cannot.
    pub(super) fn follow_module_call(&mut self, loader: &mut Loader) -> Option<String> {
        let code = self.symbolizer.module_call();
        if self.attaching.module_call() == code {
            return None;
        }
        let result = self.attaching.set_module_call(loader, code, super::now());
        result.err().map(without_modules)
    }

    /// True once, after the first call of a module.
    pub(super) fn calls_first(&mut self) -> bool {
        let had_called = self.has_called;
        self.has_called = self.symbolizer.module_call().is_some();
        self.has_called && !had_called
    }

    /// Has the stacks told anew on which there may be other modules by now.
    pub(super) fn look_at_modules(&mut self, loader: &mut Loader) -> Option<String> {
        let tgid = self.tgid;
        if !self.symbolizer.look_at_modules(&|| facts::ran(tgid)) {
            return None;
        }
        let result = self.attaching.renew_stacks(loader, super::now());
        result.err().map(without_modules)
    }

    /// True if events may become ready without another record.
    pub(super) fn is_unsettled(&self) -> bool {
        self.symbolizer.is_unsettled()
            || self.symbolizer.is_waiting()
            || self.before.as_ref().is_some_and(BeforeAttach::is_reading)
    }

    /// Puts events behind what it held before them, once that is known.
    fn keep_back(&mut self) {
        let was_whole = self.startup_check.is_whole();
        while self.before.is_some() {
            let Some(event) = self.admitted() else {
                break;
            };
            if let Some(before) = &mut self.before {
                before.push(event);
            }
        }
        if let Some(before) = &mut self.before
            && !was_whole
            && self.startup_check.is_whole()
        {
            before.settle_with_nothing();
        }
    }

    /// Takes in how much was lost of what bears its number; says whether that has grown.
    pub(super) fn count_loss(&mut self, losses: Losses) -> bool {
        let before = self.lost_before;
        let lost = Losses {
            events: losses.events.saturating_sub(before.events),
            stacks: losses.stacks.saturating_sub(before.stacks),
            malformed: losses.malformed.saturating_sub(before.malformed),
            uses: losses.uses.saturating_sub(before.uses),
        };
        // The kernel's side may have forgotten what it counted of one of very many.
        let lost = Losses {
            events: lost.events.max(self.lost.events),
            stacks: lost.stacks.max(self.lost.stacks),
            malformed: lost.malformed.max(self.lost.malformed),
            uses: lost.uses,
        };
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

    /// Its next event.
    pub(super) fn pop(&mut self) -> Option<Event> {
        match &mut self.before {
            Some(before) => before.pop(),
            None => self.admitted(),
        }
    }

    /// The next event that the symbolizer has; those of memory that the process does not hold are
    /// left out.
    fn admitted(&mut self) -> Option<Event> {
        loop {
            let event = self.symbolizer.pop()?;
            match &event {
                Event::Memory(memory) if !self.startup_check.admits(memory) => {}
                _ => return Some(event),
            }
        }
    }
}

/// Sentence for people if the kernel refuses the configuration for modules.
fn without_modules(error: AttachError) -> String {
    format!("the modules that are called may be unknown or out of date: {error}")
}

/// Use of CUDA before memprobe looked.
fn past(origin: Origin) -> PriorCudaUse {
    match origin {
        Origin::Running => PriorCudaUse::Unknown,
        Origin::Started => PriorCudaUse::None,
    }
}

/// Identity of a process: number, command line, user.
pub(crate) fn identified(tgid: Tgid) -> Target {
    Target {
        tgid: Some(tgid),
        inner_tgid: Status::of(tgid).ok().and_then(|status| status.inner_tgid()),
        container: container::of(tgid).map(|container| container.label()),
        command: facts::command_line(tgid),
        ..Target::default()
    }
}

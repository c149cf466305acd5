//! Heap snapshots of recorded processes: reads their objects for block names, and puts the names into the event
//! stream at the moment of reading.
//!
//! A snapshot takes several hundred milliseconds and pauses the process for a fraction of that. Its events are held
//! back meanwhile: earlier ones go before the names, later ones behind. If the process ends before the snapshot has
//! been analysed, its end is held back too.

mod cutoff;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use hashbrown::{HashMap, HashSet};
use tokio::sync::mpsc;
use tokio::time::Instant;

use self::cutoff::{Cutoff, Filtered};
use super::snapshot::{CaptureMode, NotTaken, read_line, taken};
use crate::event::tensors::Consistency;
use crate::event::{BlockLabels, CallPaths, Event, LabeledBlock, Tgid, TimeNs};
use crate::probe::catalog::Allocators;
use crate::session::{HostEvent, HostItem, SnapshotPoint};
use crate::tensors::named;
use crate::torch::tensors::ReadProgress;
use crate::view::{consistency, counted};

/// Optimizer step of the first snapshot: by then optimizer state and gradients exist.
const STEP: u64 = 2;
/// Factor between the steps of two snapshots: growing memory is found, and long runs are paused little.
const AGAIN: u64 = 8;
/// Time until a failed reading is tried again: a process may be busy, or under a debugger. Each attempt may pause it for
/// as long as `--max-pause` allows, so they become rare.
const RETRY: Duration = Duration::from_secs(10);
/// Factor between two of these times.
const RETRY_AGAIN: u32 = 4;
/// Most failed readings in a row that are tried again.
const MOST_RETRIES: u32 = 3;
/// The most events of a process that are held back; then its names are given up.
const MOST: usize = 1 << 20;

/// Advice for a process that ended too soon.
const LIVE_LONGER: &str =
    "Run more steps, or end the script with time.sleep(2) while its model is live";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    Off,
    /// When a module is called first, at the second step of an optimizer, the 16th, the 128th and so on, and when the
    /// recording ends before they do. A reading that fails is tried again some seconds later.
    NowAndThen,
}

struct Course {
    /// Steps of optimizers that it has made.
    steps: u64,
    /// The next at which it is read, or the first after it at which it is not being read.
    next: u64,
    /// True if it has called a module since its last snapshot.
    has_called: bool,
    has_names: bool,
    /// Readings that failed since the last one that succeeded.
    failures: u32,
    /// Time at which a failed reading is tried again.
    retry: Option<Instant>,
}

#[derive(Default)]
struct Held {
    events: Vec<HostEvent>,
    /// True if it has ended, or runs another program.
    is_over: bool,
    /// Snapshot, while events from before its moment may still arrive.
    read: Option<Read>,
    /// Progress of the reading.
    progress: Arc<ReadProgress>,
    /// Modules called until now: they may be gone before the snapshot arrives.
    calls: CallPaths,
    /// Time of the last event that was left out, because the recording is over.
    left_out_until: TimeNs,
}

pub(super) enum Passed {
    On(HostEvent),
    /// Waiting for the names, or left out.
    Held,
    /// These go on, which waited.
    All(Vec<HostEvent>),
}

/// Names, and the consistency of the snapshot.
type Read = Result<(BlockLabels, Consistency)>;

pub(super) type Reading = (Tgid, Read);

/// Events released after a snapshot.
pub(super) struct Placed {
    pub(super) tgid: Tgid,
    /// Events held back, with the names at their moment.
    pub(super) events: Vec<HostEvent>,
    /// Outcome for people.
    pub(super) said: String,
    /// Time until a failed reading is tried again.
    pub(super) retry: Option<Duration>,
}

pub(super) struct NameReader {
    naming: Naming,
    manner: CaptureMode,
    allocators: Allocators,
    courses: HashMap<Tgid, Course>,
    held: HashMap<Tgid, Held>,
    /// Processes still being read whose events are no longer held back.
    given_up: HashSet<Tgid>,
    cutoff: Cutoff,
    send: mpsc::UnboundedSender<Reading>,
    read: mpsc::UnboundedReceiver<Reading>,
}

impl Course {
    const BEGINNING: Self = Self {
        steps: 0,
        next: STEP,
        has_called: false,
        has_names: false,
        failures: 0,
        retry: None,
    };

    fn is_due(&self, now: Instant) -> bool {
        self.has_called || self.steps >= self.next || self.is_retry_due(now)
    }

    fn is_retry_due(&self, now: Instant) -> bool {
        self.retry.is_some_and(|retry| retry <= now)
    }

    /// Marks the start of a snapshot.
    fn is_read(&mut self) {
        self.has_called = false;
        self.retry = None;
        if self.steps >= self.next {
            self.next = self.next.saturating_mul(AGAIN);
        }
    }

    /// Marks a snapshot that failed, but may succeed later. Returns the time until the next attempt; `None` without one.
    fn fail(&mut self, now: Instant) -> Option<Duration> {
        let has_retries = self.failures < MOST_RETRIES;
        let wait = has_retries.then(|| RETRY * RETRY_AGAIN.pow(self.failures));
        self.failures = self.failures.saturating_add(1);
        self.retry = wait.map(|wait| now + wait);
        wait
    }
}

impl Passed {
    pub(super) fn each(self, mut sink: impl FnMut(HostEvent) -> Result<()>) -> Result<()> {
        match self {
            Self::On(event) => sink(event),
            Self::Held => Ok(()),
            Self::All(events) => events.into_iter().try_for_each(sink),
        }
    }
}

impl NameReader {
    pub(super) fn new(naming: Naming, allocators: Allocators, manner: CaptureMode) -> Self {
        let (send, read) = mpsc::unbounded_channel();
        Self {
            naming,
            manner,
            allocators,
            courses: HashMap::new(),
            held: HashMap::new(),
            given_up: HashSet::new(),
            cutoff: Cutoff::default(),
            send,
            read,
        }
    }

    /// Leaves out events after this moment: the recording ends.
    pub(super) const fn end_at(&mut self, end: TimeNs) {
        self.cutoff.end_at(end);
    }

    /// Marks that the session has passed on all losses up to the end.
    pub(super) const fn is_over(&mut self) {
        self.cutoff.is_over();
    }

    /// True for an event of memory that [`Self::pass`] would return at once and alone.
    pub(super) fn passes(&self, event: &HostEvent) -> bool {
        self.held.is_empty() && self.cutoff.passes(event)
    }

    /// Takes the next of what a session tells; gives what is to be passed on now.
    pub(super) fn pass(&mut self, event: HostEvent) -> Passed {
        let tgid = event.tgid;
        let event = match self.cutoff.filter(event) {
            Filtered::Event(event) => event,
            Filtered::LeftOut(time) => {
                if let Some((held, time)) = self.held.get_mut(&tgid).zip(time) {
                    held.left_out_until = held.left_out_until.max(time);
                }
                return Passed::Held;
            }
        };
        let is_over = match &event.item {
            HostItem::SnapshotPoint(come) => {
                self.on_snapshot_point(tgid, *come);
                return Passed::On(event);
            }
            HostItem::Ended | HostItem::Executed(_) => true,
            _ => false,
        };
        let Some(held) = self.held.get_mut(&tgid) else {
            if is_over {
                self.courses.remove(&tgid);
            }
            return Passed::On(event);
        };
        held.is_over |= is_over;
        held.events.push(event);
        if held.events.len() < MOST {
            return Passed::Held;
        }
        let held = self.held.remove(&tgid).unwrap_or_default();
        if held.read.is_none() {
            self.given_up.insert(tgid);
        }
        Passed::All(held.events)
    }

    fn on_snapshot_point(&mut self, tgid: Tgid, come: SnapshotPoint) {
        if self.naming == Naming::Off {
            return;
        }
        let course = self.course(tgid);
        match come {
            SnapshotPoint::FirstCall => course.has_called = true,
            SnapshotPoint::Step => course.steps += 1,
            SnapshotPoint::OutOfMemory => {}
        }
        self.begin_if_due(tgid);
    }

    fn course(&mut self, tgid: Tgid) -> &mut Course {
        self.courses.entry(tgid).or_insert(Course::BEGINNING)
    }

    fn begin_if_due(&mut self, tgid: Tgid) {
        let now = Instant::now();
        let course = self.courses.get(&tgid);
        if course.is_some_and(|course| course.is_due(now)) {
            self.begin(tgid);
        }
    }

    /// Begins the readings that failed and are tried again now. To be called now and then.
    pub(super) fn begin_retries(&mut self) {
        for tgid in self.due_retries(Instant::now()) {
            self.begin(tgid);
        }
    }

    fn due_retries(&self, now: Instant) -> Vec<Tgid> {
        let courses = self.courses.iter();
        let due = courses.filter(|(_, course)| course.is_retry_due(now));
        due.map(|(tgid, _)| *tgid).collect()
    }

    fn begin(&mut self, tgid: Tgid) {
        if self.held.contains_key(&tgid) || self.given_up.contains(&tgid) {
            return;
        }
        let held = Held::default();
        let progress = Arc::clone(&held.progress);
        self.held.insert(tgid, held);
        self.course(tgid).is_read();
        let (send, manner, allocators) = (self.send.clone(), self.manner, self.allocators);
        tokio::task::spawn_blocking(move || {
            let taken = taken(tgid, manner, allocators, &progress);
            // Nobody listens where the recording has ended meanwhile.
            let read = taken.map(|snapshot| (named(&snapshot, tgid), snapshot.consistency));
            let _ = send.send((tgid, read));
        });
    }

    /// Begins to read those of these processes that are not being read, and nobody after them.
    pub(super) fn begin_last(&mut self, processes: impl Iterator<Item = Tgid>) {
        if self.naming == Naming::Off {
            return;
        }
        for tgid in processes {
            self.begin(tgid);
        }
        self.naming = Naming::Off;
    }

    pub(super) fn is_reading(&self) -> bool {
        !self.held.is_empty()
    }

    /// Number of processes whose names are not in the stream yet.
    pub(super) fn left(&self) -> usize {
        self.held.len()
    }

    /// Describes the readings under way, of `all` processes; `None` without any.
    pub(super) fn progress_line(&self, all: usize) -> Option<String> {
        let unread = self.held.iter().filter(|(_, held)| held.read.is_none());
        let Some((tgid, held)) = unread.min_by_key(|(tgid, _)| tgid.0) else {
            let is_over = self.held.is_empty();
            return (!is_over).then(|| "reading names: waiting for the last events".to_owned());
        };
        let done = match all {
            0 | 1 => String::new(),
            all => format!("{} of {all} processes, ", all.saturating_sub(self.left())),
        };
        let line = read_line(&held.progress);
        Some(format!("reading names: {done}PID {}: {line}", tgid.0))
    }

    /// Gives up all readings, and returns the events that waited for them.
    pub(super) fn abandon(&mut self, reason: &str) -> Vec<Placed> {
        let held = self.held.drain();
        let placed = held.map(|(tgid, held)| Placed {
            tgid,
            events: held.events,
            said: format!("its tensors have no names from the end of the recording: {reason}"),
            retry: None,
        });
        placed.collect()
    }

    /// Waits until a process was read; for ever where none is.
    pub(super) async fn next(&mut self) -> Reading {
        match self.read.recv().await {
            Some(reading) => reading,
            // It has a sender of its own.
            None => std::future::pending().await,
        }
    }

    /// Takes what was read of a process; says so where it is of no use.
    pub(super) fn take(&mut self, (tgid, read): Reading) -> Option<Placed> {
        if self.given_up.remove(&tgid) {
            self.begin_if_due(tgid);
            let said = "its tensors have no names: too many events during the reading".to_owned();
            return Some(Placed {
                tgid,
                events: Vec::new(),
                said,
                retry: None,
            });
        }
        self.held.get_mut(&tgid)?.read = Some(read);
        None
    }

    /// Puts names into their place once all earlier events are there; `is_settled` says that none is on its way.
    /// `add_calls` adds the modules that were called so far.
    pub(super) fn place(
        &mut self,
        is_settled: impl Fn(Tgid) -> bool,
        add_calls: impl Fn(Tgid, &mut CallPaths),
    ) -> Vec<Placed> {
        for (tgid, held) in &mut self.held {
            add_calls(*tgid, &mut held.calls);
        }
        let is_whole = |(tgid, held): &(&Tgid, &Held)| held.is_whole(|| is_settled(**tgid));
        let whole = self.held.iter().filter(is_whole);
        let whole: Vec<_> = whole.map(|(tgid, _)| *tgid).collect();
        let placed = whole.into_iter().filter_map(|tgid| {
            let mut held = self.held.remove(&tgid)?;
            if let Some(Ok((names, _))) = &mut held.read {
                names.resolve_calls(&held.calls);
                if let Err(error) = self.cutoff.restrict(names) {
                    held.read = Some(Err(error));
                }
            }
            let is_over = held.is_over;
            let placed = self.put(tgid, held)?;
            if is_over {
                self.courses.remove(&tgid);
            }
            self.begin_if_due(tgid);
            Some(placed)
        });
        placed.collect()
    }

    fn put(&mut self, tgid: Tgid, held: Held) -> Option<Placed> {
        let mut events = held.events;
        let course = self.courses.entry(tgid).or_insert(Course::BEGINNING);
        let mut retry = None;
        let said = match held.read? {
            Err(error) => {
                let may_pass = error.downcast_ref().is_some_and(NotTaken::may_pass);
                let is_last = held.is_over || self.naming == Naming::Off || !may_pass;
                retry = (!is_last).then(|| course.fail(Instant::now())).flatten();
                not_read(error, held.is_over, course.has_names)
            }
            Ok((names, how)) => {
                course.failures = 0;
                let how = in_words(how);
                let is_named = |block: &&LabeledBlock| block.kind.is_some();
                match names.blocks.iter().filter(is_named).count() {
                    // An empty list would say of what was named before that it is gone.
                    0 => format!(
                        "{}; {how}",
                        nothing_named(course.has_names, names.blocks.len())
                    ),
                    number => {
                        course.has_names = true;
                        insert(&mut events, tgid, names);
                        format!("{} named; {how}", counted(number as u64, "block"))
                    }
                }
            }
        };
        Some(Placed {
            tgid,
            events,
            said,
            retry,
        })
    }
}

impl Held {
    /// True if the snapshot and all events before it have arrived.
    fn is_whole(&self, is_settled: impl Fn() -> bool) -> bool {
        match &self.read {
            None => false,
            Some(Err(_)) => true,
            Some(Ok((names, _))) => {
                let last = self.events.iter().rev().find_map(time_of);
                let last = last.max(Some(self.left_out_until));
                self.is_over || last.is_some_and(|last| last > names.time) || is_settled()
            }
        }
    }
}

fn insert(events: &mut Vec<HostEvent>, tgid: Tgid, names: BlockLabels) {
    let is_behind = |event: &HostEvent| match &event.item {
        HostItem::Ended | HostItem::Executed(_) => true,
        _ => time_of(event).is_some_and(|time| time > names.time),
    };
    let place = events.iter().position(is_behind).unwrap_or(events.len());
    let event = HostEvent {
        tgid,
        item: HostItem::Event(Event::BlockLabels(names.into())),
    };
    events.insert(place, event);
}

fn in_words(how: Consistency) -> String {
    let in_vain = match how {
        Consistency::Paused { retries: 1.., .. } => {
            " (it was collecting garbage, or its objects were changing)"
        }
        _ => "",
    };
    format!("{}{in_vain}", consistency(how))
}

fn not_read(error: anyhow::Error, is_over: bool, has_names: bool) -> String {
    let is_over = is_over || error.downcast_ref().is_some_and(NotTaken::is_of_the_end);
    match (is_over, has_names) {
        (true, true) => "it ended before its objects could be read once more".to_owned(),
        (true, false) => {
            format!("its tensors have no names: it ended before they could be read. {LIVE_LONGER}")
        }
        (false, _) => format!("its tensors have no names: {error:#}"),
    }
}

fn nothing_named(has_names: bool, blocks: usize) -> String {
    let reason = match blocks {
        0 => "it had no live block when it was read".to_owned(),
        blocks => format!(
            "no tensor had one of its {} when it was read",
            counted(blocks as u64, "block")
        ),
    };
    match has_names {
        true => format!("no block named this time: {reason}"),
        false => format!("no block named: {reason}. {LIVE_LONGER}"),
    }
}

fn time_of(event: &HostEvent) -> Option<TimeNs> {
    match &event.item {
        HostItem::Event(Event::Memory(event)) => Some(event.time),
        HostItem::Event(Event::PhaseMark(mark)) => Some(mark.time),
        _ => None,
    }
}

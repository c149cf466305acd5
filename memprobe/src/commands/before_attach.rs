//! Labels for memory from before attach: reads the objects of a process once, soon after attach, and again when much of
//! that memory has been freed.
//!
//! A running process is read twice, and what both readings agree on counts. A block gets a label only if it has been
//! live since before attach: then it was the same block at every moment of the reading. The events until the end of
//! the reading are therefore awaited.
//!
//! The objects may also tag memory that sleeps (vLLM's sleep mode), so that they are read again when some has no tag.

mod live_baseline;
mod untagged;

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use hashbrown::HashMap;
use tokio::sync::oneshot;
use tokio::time::Instant;

use self::live_baseline::{BaselineBlocks, LiveBaseline};
use self::untagged::UntaggedMemory;
use super::Allocators;
use super::snapshot::{CaptureMode, NotTaken, taken};
use crate::event::bytes::human;
use crate::event::tensors::{Consistency, TensorSnapshot};
use crate::event::{Action, BlockLabels, Bytes, CallPaths, Event, LabeledBlock, Tgid, TimeNs};
use crate::ledger::Ledger;
use crate::ledger::snapshot::BaselineKind;
use crate::probe::heap::give_back_freed;
use crate::session::{HostEvent, HostItem, priority};
use crate::tensors::{LabelDigest, named};
use crate::torch::tensors::ReadProgress;
use crate::view::{consistency, count, percent};

/// Most readings until enough is explained.
const MAX_ATTEMPTS: u32 = 3;

/// Bytes are explained well enough if one of so many is not.
const UNEXPLAINED: u64 = 10;

/// Shortest time between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// Shortest time between two readings after enough is explained.
const REFRESH: Duration = Duration::from_secs(10);

/// A reading takes at most one of so many seconds.
const SHARE: u32 = 50;

/// One reading at a time: memprobe leaves the processors to the processes.
static READING: Mutex<()> = Mutex::new(());

/// Reading of the objects that hold memory from before attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BaselineReading {
    Off,
    /// While the process runs.
    #[default]
    Running,
    /// While the process is paused.
    Paused,
}

/// Reader of the objects of one process, for its blocks from before attach.
pub(super) struct BaselineLabeler {
    tgid: Tgid,
    reading: BaselineReading,
    /// Time of the last event.
    last: TimeNs,
    state: ReadingState,
    attempts: u32,
    /// Readings before this are too early.
    next: Option<Instant>,
    /// Live bytes from before attach when enough was explained; 0 before.
    labeled: u64,
    /// Sleeping memory, whose tags the objects may tell.
    untagged: UntaggedMemory,
    /// True if labels went to the stream, which frees them: a million take hundreds of megabytes.
    has_labeled: bool,
}

enum ReadingState {
    Idle,
    Reading(oneshot::Receiver<Result<ObjectsRead>>),
    /// Read; events before its end may still arrive.
    Read(Result<ObjectsRead>),
    /// The process cannot be read.
    Over,
}

struct ObjectsRead {
    labels: BlockLabels,
    consistency: Consistency,
    /// Reasons for which some of the objects are missing.
    missing: Vec<String>,
    /// True if a limit of memprobe is among them: another reading would miss as many.
    has_reached_limit: bool,
    /// The end of the reading.
    end: TimeNs,
    took: Duration,
}

/// Outcome of a reading.
pub(super) struct BaselineOutcome {
    /// Labels for the stream, after all events so far.
    pub(super) event: Option<Event>,
    /// Sentence for people; `None` if another reading follows.
    pub(super) said: Option<String>,
}

impl BaselineLabeler {
    pub(super) fn new(tgid: Tgid, reading: BaselineReading) -> Self {
        Self {
            tgid,
            reading,
            last: TimeNs(0),
            state: ReadingState::Idle,
            attempts: 0,
            next: None,
            labeled: 0,
            untagged: UntaggedMemory::default(),
            has_labeled: false,
        }
    }

    /// A reader that begins with the blocks of a ledger.
    pub(super) fn late(tgid: Tgid, reading: BaselineReading, ledger: &Ledger) -> Self {
        let mut late = Self::new(tgid, reading);
        late.last = ledger.last_event().unwrap_or_default();
        late.untagged = UntaggedMemory::of(ledger);
        late
    }

    /// Forgets everything: the process runs another program.
    pub(super) fn begin_anew(&mut self) {
        *self = Self::new(self.tgid, self.reading);
    }

    pub(super) fn apply(&mut self, event: &Event) {
        let Event::Memory(event) = event else {
            if matches!(event, Event::Loss(_)) {
                self.distrust();
            }
            return;
        };
        if event.device.is_none() || self.reading == BaselineReading::Off {
            return;
        }
        match event.action {
            Action::Held => return,
            Action::Alloc | Action::Free => {}
            _ => self.untagged.apply(event),
        }
        self.last = self.last.max(event.time);
    }

    /// Gives up the reading in progress: lost events may be frees of blocks that it names.
    fn distrust(&mut self) {
        if self.is_reading() {
            self.state = ReadingState::Idle;
            self.next = Some(Instant::now() + PAUSE);
        }
    }

    pub(super) const fn is_reading(&self) -> bool {
        matches!(self.state, ReadingState::Reading(_) | ReadingState::Read(_))
    }

    /// Begins a reading if there is something to read. To be called after events were applied.
    pub(super) fn begin_if_due(&mut self, baseline: &impl LiveBaseline) {
        if std::mem::take(&mut self.has_labeled) {
            give_back_aside();
        }
        let live = baseline.bytes();
        let is_idle = matches!(self.state, ReadingState::Idle);
        let is_early = || self.next.is_some_and(|next| Instant::now() < next);
        // Half of what was explained has been freed.
        let is_unlabeled = self.labeled == 0 || live < self.labeled / 2;
        let is_wanted = live > 0 && is_unlabeled || self.untagged.is_wanted();
        let mode = match self.reading {
            BaselineReading::Off => return,
            BaselineReading::Running => CaptureMode::Running,
            BaselineReading::Paused => CaptureMode::Paused,
        };
        if !is_idle || !is_wanted || is_early() {
            return;
        }
        let (send, receive) = oneshot::channel();
        let tgid = self.tgid;
        let read = move || {
            priority::take_turns();
            // Nobody listens where the process was closed meanwhile.
            let _ = send.send(read(tgid, mode));
        };
        self.attempts += 1;
        self.untagged.begin_reading();
        let thread = thread::Builder::new().name("objects".to_owned());
        self.state = match thread.spawn(read) {
            Ok(_) => ReadingState::Reading(receive),
            Err(error) => ReadingState::Read(Err(error).context("starting a thread")),
        };
    }

    /// Waits until the process was read; for ever where that is not being done.
    pub(super) async fn taken(&mut self) {
        let ReadingState::Reading(receive) = &mut self.state else {
            return std::future::pending().await;
        };
        let read = receive.await.context("reading the process");
        self.state = ReadingState::Read(read.and_then(|read| read));
    }

    /// Ends a reading once all events before its end were applied. `is_settled` is true if none is on its way,
    /// `add_calls` adds the modules that were called so far.
    pub(super) fn place(
        &mut self,
        baseline: &impl LiveBaseline,
        is_settled: bool,
        add_calls: impl FnOnce(&mut CallPaths),
    ) -> Option<BaselineOutcome> {
        let ReadingState::Read(read) = &self.state else {
            return None;
        };
        let end = read.as_ref().map_or(TimeNs(0), |read| read.end);
        if self.last <= end && !is_settled {
            return None;
        }
        match std::mem::replace(&mut self.state, ReadingState::Idle) {
            ReadingState::Read(Ok(read)) => Some(self.label(read, baseline, add_calls)),
            ReadingState::Read(Err(error)) => Some(self.fail(&error)),
            _ => None,
        }
    }

    fn label(
        &mut self,
        read: ObjectsRead,
        baseline: &impl LiveBaseline,
        add_calls: impl FnOnce(&mut CallPaths),
    ) -> BaselineOutcome {
        let how = in_words(&read);
        let mut labels = read.labels;
        labels
            .blocks
            .retain(|block| baseline.has(block.device, block.addr, block.size));
        let tags = self.untagged.end_reading(&mut labels);
        let mut calls = CallPaths::default();
        add_calls(&mut calls);
        labels.resolve_calls(&calls);
        labels.time = self.last.max(read.end);
        let is_explained = |block: &&LabeledBlock| BaselineKind::of(block).is_explained();
        let explained = labels.blocks.iter().filter(is_explained);
        let explained: u64 = explained.map(|block| block.size.0).sum();
        let live = baseline.bytes();
        let rest = live.saturating_sub(explained);
        let is_last = read.has_reached_limit || self.attempts >= MAX_ATTEMPTS;
        let is_enough = rest <= live / UNEXPLAINED || is_last;
        let wait = match is_enough {
            true => REFRESH.max(read.took * SHARE),
            false => PAUSE,
        };
        self.next = Some(Instant::now() + wait);
        let said = (is_enough && live > 0).then(|| {
            format!(
                "{} from before attach: {} explained; {how}",
                human(Bytes(live)),
                percent(explained.into(), live.into()),
            )
        });
        if is_enough {
            (self.labeled, self.attempts) = (live, 0);
        }
        self.has_labeled = true;
        BaselineOutcome {
            event: Some(Event::BaselineLabels(Arc::new(labels))),
            said: [said, tags]
                .into_iter()
                .flatten()
                .reduce(|one, other| format!("{one}; {other}")),
        }
    }

    fn fail(&mut self, error: &anyhow::Error) -> BaselineOutcome {
        let is_end = error.downcast_ref().is_some_and(NotTaken::is_of_the_end);
        let is_last = is_end || self.attempts >= MAX_ATTEMPTS;
        if is_last {
            self.state = ReadingState::Over;
        }
        self.next = Some(Instant::now() + PAUSE);
        let said = || format!("memory from before attach has no names: {error:#}");
        BaselineOutcome {
            event: None,
            said: (is_last && !is_end).then(said),
        }
    }
}

fn in_words(read: &ObjectsRead) -> String {
    let how = match read.consistency {
        Consistency::Running => "its objects were read while it ran".to_owned(),
        how @ Consistency::Paused { .. } => consistency(how),
    };
    match read.missing.as_slice() {
        [] => how,
        reasons => format!("{how}, but not all: {}", reasons.join(", and ")),
    }
}

/// Returns the reasons for which objects or tensors are missing, as text for people.
fn missing(snapshot: &TensorSnapshot) -> Vec<String> {
    let objects = snapshot.missing_objects.as_deref().map(str::to_owned);
    let tensors = snapshot.limit.map(|limit| {
        let limit = count(limit);
        format!("it has more than {limit} tensors, the most that are read")
    });
    objects.into_iter().chain(tensors).collect()
}

/// Gives freed memory back on a thread of its own: the reader of the ring waits for nothing.
fn give_back_aside() {
    let thread = thread::Builder::new().name("objects".to_owned());
    if let Err(error) = thread.spawn(give_back_freed) {
        log::debug!("freed memory was not given back: starting a thread: {error}");
    }
}

/// Reads the objects of a process for the labels of its blocks.
fn read(tgid: Tgid, mode: CaptureMode) -> Result<ObjectsRead> {
    let _alone = READING.lock().unwrap_or_else(PoisonError::into_inner);
    let begun = Instant::now();
    let once = || taken(tgid, mode, Allocators::Cuda, &ReadProgress::default());
    let first = once()?;
    let mut missing_objects = missing(&first);
    let mut has_reached_limit = first.has_reached_limit();
    let (labels, last, end) = if mode == CaptureMode::Running {
        let digest = LabelDigest::of(&first);
        // Two snapshots of a million tensors would be twice the memory.
        drop(first);
        give_back_freed();
        let again = once()?;
        let labels = digest.agreed(named(&again, tgid));
        (labels, again, crate::session::now())
    } else {
        let end = first.moment;
        (named(&first, tgid), first, end)
    };
    for reason in missing(&last) {
        if !missing_objects.contains(&reason) {
            missing_objects.push(reason);
        }
    }
    has_reached_limit |= last.has_reached_limit();
    let consistency = last.consistency;
    drop(last);
    give_back_freed();
    let took = begun.elapsed();
    log::debug!("objects of process {} read in {took:?}", tgid.0);
    Ok(ObjectsRead {
        labels,
        consistency,
        missing: missing_objects,
        has_reached_limit,
        end,
        took,
    })
}

/// Readers of the recorded processes that had memory before attach.
pub(super) struct BaselineLabelers {
    reading: BaselineReading,
    all: HashMap<Tgid, RecordedBaseline>,
}

struct RecordedBaseline {
    labeler: BaselineLabeler,
    blocks: BaselineBlocks,
}

impl RecordedBaseline {
    fn apply(&mut self, event: &Event) {
        if let Event::Memory(event) = event {
            self.blocks.apply(event);
        }
        self.labeler.apply(event);
    }
}

impl BaselineLabelers {
    pub(super) fn new(reading: BaselineReading) -> Self {
        Self {
            reading,
            all: HashMap::new(),
        }
    }

    pub(super) fn apply(&mut self, event: &HostEvent) {
        let tgid = event.tgid;
        match &event.item {
            HostItem::Event(event) => {
                if is_reason(event) && self.reading != BaselineReading::Off {
                    let new = || RecordedBaseline {
                        labeler: BaselineLabeler::new(tgid, self.reading),
                        blocks: BaselineBlocks::default(),
                    };
                    self.all.entry(tgid).or_insert_with(new).apply(event);
                } else if let Some(known) = self.all.get_mut(&tgid) {
                    known.apply(event);
                }
            }
            HostItem::Ended | HostItem::Executed(_) => {
                self.all.remove(&tgid);
            }
            _ => {}
        }
    }

    pub(super) fn begin_due(&mut self) {
        for recorded in self.all.values_mut() {
            recorded.labeler.begin_if_due(&recorded.blocks);
        }
    }

    /// Processes that are being read.
    pub(super) fn unread(&self) -> impl Iterator<Item = Tgid> {
        let is_read = |recorded: &RecordedBaseline| recorded.labeler.is_reading();
        let all = self
            .all
            .iter()
            .filter(move |(_, recorded)| is_read(recorded));
        all.map(|(tgid, _)| *tgid)
    }

    pub(super) fn is_reading(&self) -> bool {
        self.all.values().any(|it| it.labeler.is_reading())
    }

    /// Waits until one of them was read; for ever where none is being read.
    pub(super) async fn taken(&mut self) {
        poll_any(self.all.values_mut().map(|it| &mut it.labeler)).await;
    }

    pub(super) fn place(
        &mut self,
        is_settled: impl Fn(Tgid) -> bool,
        add_calls: impl Fn(Tgid, &mut CallPaths),
    ) -> Vec<(Tgid, BaselineOutcome)> {
        let all = self.all.iter_mut();
        let placed = all.filter_map(|(tgid, recorded)| {
            let RecordedBaseline { labeler, blocks } = recorded;
            let add_calls = |calls: &mut _| add_calls(*tgid, calls);
            let outcome = labeler.place(blocks, is_settled(*tgid), add_calls)?;
            Some((*tgid, outcome))
        });
        placed.collect()
    }
}

/// Returns true for memory from before attach, and for memory that sleeps.
fn is_reason(event: &Event) -> bool {
    let is_reason = |action| matches!(action, Action::Held | Action::SegmentSleep);
    matches!(event, Event::Memory(event) if is_reason(event.action))
}

/// Waits until one of these was read; for ever where none is being read.
pub(super) async fn poll_any<'a>(all: impl Iterator<Item = &'a mut BaselineLabeler>) {
    let mut all: Vec<_> = all.collect();
    std::future::poll_fn(|context| {
        let taken = |one: &mut &mut BaselineLabeler| pin!(one.taken()).poll(context).is_ready();
        match all.iter_mut().any(taken) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Address, DeviceIndex, MemoryEvent, PurposeId, StackId, Tid};

    fn event(action: Action, addr: u64, time: u64) -> Event {
        Event::Memory(MemoryEvent {
            time: TimeNs(time),
            tgid: Tgid(7),
            tid: Tid(7),
            action,
            addr: Address(addr),
            size: Bytes(512),
            device: Some(DeviceIndex(0)),
            totals: None,
            stack: StackId::NONE,
            shape: PurposeId::NONE,
            call: None,
        })
    }

    /// A process with two blocks, whose objects were read until the time 20.
    fn read() -> RecordedBaseline {
        let labeler = BaselineLabeler::new(Tgid(7), BaselineReading::Running);
        let mut recorded = RecordedBaseline {
            labeler,
            blocks: BaselineBlocks::default(),
        };
        for addr in [0x1000, 0x2000] {
            recorded.apply(&event(Action::Held, addr, 0));
        }
        let block = |addr| LabeledBlock::unlabeled(Address(addr), Bytes(512), DeviceIndex(0));
        recorded.labeler.state = ReadingState::Read(Ok(ObjectsRead {
            labels: BlockLabels {
                time: TimeNs(10),
                tgid: Tgid(7),
                blocks: [0x1000, 0x2000, 0x3000].map(block).into(),
                optimizers: Vec::new(),
                tags: Vec::new(),
            },
            consistency: Consistency::Running,
            missing: Vec::new(),
            has_reached_limit: false,
            end: TimeNs(20),
            took: Duration::from_millis(1),
        }));
        recorded
    }

    fn place(recorded: &mut RecordedBaseline, is_settled: bool) -> Option<BaselineOutcome> {
        recorded.labeler.place(&recorded.blocks, is_settled, |_| ())
    }

    fn labeled(outcome: Option<BaselineOutcome>) -> Vec<u64> {
        let Some(Event::BaselineLabels(labels)) = outcome.and_then(|it| it.event) else {
            panic!("labels");
        };
        labels.blocks.iter().map(|block| block.addr.0).collect()
    }

    #[test]
    fn labels_wait_for_all_events_up_to_the_end_of_the_reading() {
        let mut recorded = read();
        recorded.apply(&event(Action::Alloc, 0x4000, 15));
        assert!(place(&mut recorded, false).is_none());
        recorded.apply(&event(Action::Free, 0x2000, 21));
        assert_eq!(labeled(place(&mut recorded, false)), [0x1000]);
    }

    #[test]
    fn a_block_that_was_freed_during_the_reading_gets_no_label_though_its_address_is_used_again() {
        let mut recorded = read();
        recorded.apply(&event(Action::Free, 0x1000, 12));
        recorded.apply(&event(Action::Alloc, 0x1000, 13));
        assert_eq!(labeled(place(&mut recorded, true)), [0x2000]);
    }

    #[test]
    fn a_reading_that_lacks_objects_says_each_reason() {
        let words = |objects: Option<&str>, limit| {
            let mut recorded = read();
            let ReadingState::Read(Ok(read)) = &mut recorded.labeler.state else {
                panic!("a reading");
            };
            read.missing = missing(&TensorSnapshot {
                missing_objects: objects.map(Into::into),
                limit,
                ..TensorSnapshot::default()
            });
            in_words(read)
        };
        let whole = "its objects were read while it ran";
        assert_eq!(words(None, None), whole);
        let collecting = "Python's garbage collector is at work";
        let many = "it has more than 1,200 tensors, the most that are read";
        let both = format!("{collecting}, and {many}");
        for (read, reasons) in [
            (words(Some(collecting), None), collecting),
            (words(None, Some(1200)), many),
            (words(Some(collecting), Some(1200)), both.as_str()),
        ] {
            assert_eq!(read, format!("{whole}, but not all: {reasons}"));
        }
    }

    #[test]
    fn a_reading_that_reached_a_limit_is_the_last_until_memory_was_freed() {
        let outcome = |snapshot: &TensorSnapshot| {
            let mut recorded = read();
            recorded.labeler.attempts = 1;
            let ReadingState::Read(Ok(read)) = &mut recorded.labeler.state else {
                panic!("a reading");
            };
            read.labels.blocks.truncate(1);
            read.missing = missing(snapshot);
            read.has_reached_limit = snapshot.has_reached_limit();
            let said = place(&mut recorded, true).and_then(|placed| placed.said);
            (said, recorded.labeler.labeled)
        };
        // One of two blocks is explained: another attempt follows, unless it would find no more.
        let collecting = TensorSnapshot {
            missing_objects: Some("Python's garbage collector is at work".into()),
            ..TensorSnapshot::default()
        };
        assert_eq!(outcome(&collecting), (None, 0));
        let tensors = TensorSnapshot {
            limit: Some(1200),
            ..TensorSnapshot::default()
        };
        let objects = TensorSnapshot {
            missing_objects: Some("there are more than 1200 Python objects".into()),
            has_more_objects: true,
            ..TensorSnapshot::default()
        };
        for (snapshot, reason) in [(tensors, "1,200 tensors"), (objects, "1200 Python objects")] {
            let (said, labeled) = outcome(&snapshot);
            let said = said.expect("a sentence about the last reading");
            assert!(said.contains("50.0% explained"), "{said}");
            assert!(said.contains(reason), "{said}");
            assert_eq!(labeled, 1024);
        }
    }

    #[test]
    fn a_reading_during_which_events_were_lost_is_discarded() {
        let mut recorded = read();
        recorded.apply(&Event::Loss(crate::event::Losses::default()));
        assert!(place(&mut recorded, true).is_none() && !recorded.labeler.is_reading());
    }
}

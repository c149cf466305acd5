//! Writer of compact recordings (`.mprb`, [`crate::recording::compact`]).
//!
//! A thread encodes, compresses, writes, and adds keyframes: whoever drains the ring buffer only hands events over. It
//! waits for the disk no earlier than [`QUEUE`] batches are on the way.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::error::WriteError;
use super::sources::{ReadSource, SourceCollector};
use crate::event::{Action, Event, TimeNs};
use crate::output::OutputFile;
use crate::recording::compact::{
    CompactEncoder, GroupPolicy, KeyframeWriter, PlainFrame, SizeLimit, preamble,
};
use crate::recording::{EndReason, Header};

/// Events that are handed over together: a frame's worth of them would leave the processors' caches.
const BATCH: usize = 2048;

/// Events that are flushed at once.
const FEW: usize = 64;

/// Longest time between two flushes of fewer events.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Most batches between the two threads: 262,144 events.
const QUEUE: usize = 128;
const _: () = assert!(size_of::<Event>() * BATCH * QUEUE <= 32 << 20);

/// Most batches that wait to be filled again.
const EMPTY: usize = 2;

/// Further contents of a recording.
#[derive(Default)]
pub struct CompactOptions {
    /// Keeps the newest part of the events: the file and a copy of its end, which replaces it now and then, take at most
    /// so many bytes together.
    pub max_size: Option<u64>,
    /// Adds the source text of the lines that stacks name.
    pub sources: Option<ReadSource>,
}

/// Output whose beginning can be replaced while it is written.
pub trait ReplaceBeginning: Write {
    /// Replaces everything before an offset, so that a reader meets the old contents or the new ones.
    fn replace_beginning(&mut self, head: &[u8], from: u64) -> io::Result<()>;
}

impl ReplaceBeginning for OutputFile {
    fn replace_beginning(&mut self, head: &[u8], from: u64) -> io::Result<()> {
        Self::replace_beginning(self, head, from)
    }
}

/// Writes a compact recording in bounded memory. The file holds whole frames up to the last [`CompactWriter::flush`].
pub struct CompactWriter<W> {
    batch: Vec<Event>,
    jobs: SyncSender<WriteJob>,
    /// Batches whose events are written.
    emptied: Receiver<Vec<Event>>,
    thread: JoinHandle<W>,
    progress: Arc<WriteProgress>,
    /// Memory events so far.
    events: u64,
    has_reported: bool,
    /// Events since the last flush, and its time.
    unflushed: usize,
    flushed: Instant,
}

enum WriteJob {
    Events(Vec<Event>),
    Describe(Box<Header>),
    Flush,
    End(EndReason, Option<TimeNs>),
}

#[derive(Default)]
struct WriteProgress {
    bytes: AtomicU64,
    /// Memory events that the file has no more.
    dropped: AtomicU64,
    exceeds_limit: AtomicBool,
    failed: OnceLock<WriteError>,
}

/// Older part of a recording that `--max-size` dropped.
pub struct DroppedPart(Arc<WriteProgress>);

impl DroppedPart {
    /// Memory events of it so far.
    pub fn events(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// Returns true if the live blocks alone take so much that the file is larger than its limit.
    pub fn exceeds_limit(&self) -> bool {
        self.0.exceeds_limit.load(Ordering::Relaxed)
    }
}

impl<W: Write + Send + 'static> CompactWriter<W> {
    /// Starts a recording on `out`. `place` names it in errors.
    pub fn new(out: W, place: impl Into<String>, header: &Header) -> Result<Self, WriteError> {
        Self::with_groups(out, place, header, GroupPolicy::default())
    }

    /// Starts a recording with further contents.
    pub fn with_options(
        out: W,
        place: impl Into<String>,
        header: &Header,
        options: CompactOptions,
    ) -> Result<Self, WriteError>
    where
        W: ReplaceBeginning,
    {
        let limit = options.max_size.map(|bytes| SizeLimit {
            bytes,
            replace_beginning: W::replace_beginning,
        });
        let policy = options.max_size.map(GroupPolicy::within);
        let most = options.max_size.map_or(u64::MAX, |bytes| bytes / 16);
        let sources = options.sources.map(|read| SourceCollector::new(read, most));
        let parts = (limit, sources);
        Self::begin(out, place, header, policy.unwrap_or_default(), parts)
    }

    pub(in crate::recording) fn with_groups(
        out: W,
        place: impl Into<String>,
        header: &Header,
        policy: GroupPolicy,
    ) -> Result<Self, WriteError> {
        Self::begin(out, place, header, policy, (None, None))
    }

    fn begin(
        mut out: W,
        place: impl Into<String>,
        header: &Header,
        policy: GroupPolicy,
        (limit, sources): (Option<SizeLimit<W>>, Option<SourceCollector>),
    ) -> Result<Self, WriteError> {
        let place = place.into();
        let failed = |error| WriteError::new(&place, error);
        let (jobs, received) = sync_channel(QUEUE);
        let (empty, emptied) = sync_channel(EMPTY);
        let progress = Arc::new(WriteProgress::default());
        out.write_all(&preamble()).map_err(failed)?;
        let mut frames = KeyframeWriter::new(out, header.start, policy, limit).map_err(failed)?;
        if let Some(sources) = sources {
            frames.record_sources(sources);
        }
        let mut recording = RecordedFrames {
            encoder: CompactEncoder::with_groups(header, policy),
            frames,
        };
        recording.begin().map_err(failed)?;
        progress.note(&recording.frames);
        let thread = Builder::new().name("memprobe-write".to_owned()).spawn({
            let (progress, place) = (Arc::clone(&progress), place.clone());
            move || write_jobs(recording, &received, &empty, &progress, &place)
        });
        Ok(Self {
            batch: Vec::with_capacity(BATCH),
            jobs,
            emptied,
            thread: thread.map_err(failed)?,
            progress,
            events: 0,
            has_reported: false,
            unflushed: 0,
            flushed: Instant::now(),
        })
    }

    /// Writes the header again when more is known of the target, such as its version of torch. The start time stays.
    pub fn describe(&mut self, header: &Header) -> Result<(), WriteError> {
        self.hand_over();
        self.send(WriteJob::Describe(Box::new(header.clone())));
        self.failure()
    }

    #[inline]
    pub fn event(&mut self, event: &Event) -> Result<(), WriteError> {
        let is_counted = matches!(event, Event::Memory(memory) if memory.action != Action::Held);
        self.events += u64::from(is_counted);
        self.batch.push(event.clone());
        self.unflushed += 1;
        if self.batch.len() >= BATCH {
            self.hand_over();
        }
        self.failure()
    }

    /// Hands everything to the other thread, to be written at once. To be called about once a second.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        self.hand_over();
        self.send(WriteJob::Flush);
        self.unflushed = 0;
        self.failure()
    }

    /// Flushes, unless the last events are few and there was a flush just before: a frame for each event would take about
    /// 100 bytes an event. To be called about once a second.
    pub fn flush_when_due(&mut self, now: Instant) -> Result<(), WriteError> {
        let waited = now.saturating_duration_since(self.flushed);
        if self.unflushed == 0 || self.unflushed < FEW && waited < MAX_WAIT {
            return self.failure();
        }
        self.flushed = now;
        self.flush()
    }

    /// Writes the end and returns the output. Returns an earlier write error again.
    pub fn finish(self, reason: EndReason) -> Result<W, WriteError> {
        self.finish_at(reason, None)
    }

    /// Writes the end with its time and returns the output. Returns an earlier write error again.
    pub fn finish_at(mut self, reason: EndReason, time: Option<TimeNs>) -> Result<W, WriteError> {
        self.hand_over();
        self.send(WriteJob::End(reason, time));
        drop(self.jobs);
        let out = self.thread.join();
        if let Some(error) = self.progress.failed.get() {
            return Err(error.clone());
        }
        let panicked = || io::Error::other("the writing thread has panicked; report that");
        out.map_err(|_| WriteError::new("the recording", panicked()))
    }

    /// Memory events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Bytes of the file so far.
    pub fn bytes(&self) -> u64 {
        self.progress.bytes.load(Ordering::Relaxed)
    }

    /// Hands the batch to the other thread.
    fn hand_over(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let empty = self.emptied.try_recv();
        let empty = empty.unwrap_or_else(|_| Vec::with_capacity(BATCH));
        let batch = std::mem::replace(&mut self.batch, empty);
        self.send(WriteJob::Events(batch));
    }

    fn send(&self, job: WriteJob) {
        // The thread takes all jobs, also after an error. If it has panicked, `finish` says so.
        let _ = self.jobs.send(job);
    }

    /// Part that the file has no more; complete after [`Self::finish`].
    pub fn dropped(&self) -> DroppedPart {
        DroppedPart(Arc::clone(&self.progress))
    }

    /// Returns an error of the other thread, once.
    #[inline]
    fn failure(&mut self) -> Result<(), WriteError> {
        match self.progress.failed.get() {
            Some(error) if !self.has_reported => {
                self.has_reported = true;
                Err(error.clone())
            }
            _ => Ok(()),
        }
    }
}

impl WriteProgress {
    fn note<W: Write>(&self, frames: &KeyframeWriter<W>) {
        self.bytes.store(frames.bytes(), Ordering::Relaxed);
        self.dropped.store(frames.dropped(), Ordering::Relaxed);
        let exceeds = frames.exceeds_limit();
        self.exceeds_limit.store(exceeds, Ordering::Relaxed);
    }
}

/// A recording whose events become frames.
struct RecordedFrames<W> {
    encoder: CompactEncoder,
    frames: KeyframeWriter<W>,
}

impl<W: Write> RecordedFrames<W> {
    /// Writes the header.
    fn begin(&mut self) -> io::Result<()> {
        self.frames.write(&self.encoder.header_frame())?;
        self.frames.frames.out.flush()
    }

    fn write(&mut self, job: &WriteJob) -> io::Result<()> {
        match job {
            WriteJob::Events(events) => events.iter().try_for_each(|event| self.event(event)),
            WriteJob::Describe(header) => {
                self.write_frames(|encoder, mut emit| encoder.describe(header, &mut emit))
            }
            WriteJob::Flush => {
                self.write_frames(|encoder, mut emit| encoder.close(&mut emit))?;
                self.frames.frames.out.flush()
            }
            WriteJob::End(reason, time) => {
                self.write_frames(|encoder, mut emit| {
                    let end = encoder.end(*reason, *time, &mut emit);
                    emit(end);
                })?;
                self.frames.frames.out.flush()
            }
        }
    }

    #[inline]
    fn event(&mut self, event: &Event) -> io::Result<()> {
        // A keyframe has the state before the first event of its group.
        self.frames
            .begin_group(self.encoder.group(), self.encoder.events())?;
        self.frames.follow(event);
        self.write_frames(|encoder, mut emit| encoder.event(event, &mut emit))
    }

    /// Writes the frames that are emitted.
    #[inline]
    fn write_frames(
        &mut self,
        encode: impl FnOnce(&mut CompactEncoder, &mut dyn FnMut(PlainFrame)),
    ) -> io::Result<()> {
        let Self { encoder, frames } = self;
        let mut result = Ok(());
        encode(encoder, &mut |frame| {
            if result.is_ok() {
                result = frames.write(&frame);
            }
        });
        result
    }
}

/// Writes events until no more can come; returns the output. After an error it only takes them.
fn write_jobs<W: Write>(
    mut recording: RecordedFrames<W>,
    jobs: &Receiver<WriteJob>,
    empty: &SyncSender<Vec<Event>>,
    progress: &WriteProgress,
    place: &str,
) -> W {
    for job in jobs {
        if progress.failed.get().is_none() {
            if let Err(error) = recording.write(&job) {
                let _ = progress.failed.set(WriteError::new(place, error));
            }
            progress.note(&recording.frames);
        }
        if let WriteJob::Events(mut events) = job {
            events.clear();
            // Those of a queue that was full go back to the system.
            let _ = empty.try_send(events);
        }
    }
    recording.frames.frames.out
}

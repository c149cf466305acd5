//! Writer of compact recordings (`.mprb`, [`crate::recording::compact`]).
//!
//! A thread compresses, writes, and adds keyframes: whoever drains the ring buffer only encodes. It waits for the disk no earlier than
//! [`QUEUE`] frames are on the way.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::error::WriteError;
use super::sources::{ReadSource, SourceCollector};
use crate::event::{Event, TimeNs};
use crate::output::OutputFile;
use crate::recording::compact::{
    CompactEncoder, GroupPolicy, KeyframeWriter, PlainFrame, SizeLimit, preamble,
};
use crate::recording::{EndReason, Header};

/// Records that are flushed at once.
const FEW: usize = 64;

/// Longest time between two flushes of fewer records.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Most frames between the two threads.
const QUEUE: usize = 4;

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
    encoder: CompactEncoder,
    queue: FrameQueue,
    thread: JoinHandle<W>,
    has_reported: bool,
    /// Time of the last flush.
    flushed: Instant,
}

/// Way to the thread that writes.
struct FrameQueue {
    jobs: SyncSender<WriteJob>,
    progress: Arc<WriteProgress>,
}

enum WriteJob {
    Frame(PlainFrame),
    Flush,
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

impl FrameQueue {
    fn send(&self, job: WriteJob) {
        // The thread takes all jobs, also after an error. If it has panicked, `finish` says so.
        let _ = self.jobs.send(job);
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
        let progress = Arc::new(WriteProgress::default());
        progress
            .bytes
            .store(preamble().len() as u64, Ordering::Relaxed);
        out.write_all(&preamble()).map_err(failed)?;
        let mut frames = KeyframeWriter::new(out, header.start, policy, limit).map_err(failed)?;
        if let Some(sources) = sources {
            frames.record_sources(sources);
        }
        let thread = Builder::new().name("memprobe-write".to_owned()).spawn({
            let (progress, place) = (Arc::clone(&progress), place.clone());
            move || write_jobs(frames, &received, &progress, &place)
        });
        let mut writer = Self {
            encoder: CompactEncoder::with_groups(header, policy),
            queue: FrameQueue { jobs, progress },
            thread: thread.map_err(failed)?,
            has_reported: false,
            flushed: Instant::now(),
        };
        writer
            .queue
            .send(WriteJob::Frame(writer.encoder.header_frame()));
        writer.flush()?;
        Ok(writer)
    }

    /// Writes the header again when more is known of the target, such as its version of torch. The start time stays.
    pub fn describe(&mut self, header: &Header) -> Result<(), WriteError> {
        let Self { encoder, queue, .. } = self;
        encoder.describe(header, &mut |frame| queue.send(WriteJob::Frame(frame)));
        self.failure()
    }

    #[inline]
    pub fn event(&mut self, event: &Event) -> Result<(), WriteError> {
        let Self { encoder, queue, .. } = self;
        encoder.event(event, &mut |frame| queue.send(WriteJob::Frame(frame)));
        self.failure()
    }

    /// Hands everything to the other thread, to be written at once. To be called about once a second.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        let Self { encoder, queue, .. } = self;
        encoder.close(&mut |frame| queue.send(WriteJob::Frame(frame)));
        queue.send(WriteJob::Flush);
        self.failure()
    }

    /// Flushes, unless the last events are few and there was a flush just before: a frame for each event would take about
    /// 100 bytes an event. To be called about once a second.
    pub fn flush_when_due(&mut self, now: Instant) -> Result<(), WriteError> {
        let open = self.encoder.open_records();
        let waited = now.saturating_duration_since(self.flushed);
        if open == 0 || open < FEW && waited < MAX_WAIT {
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
    pub fn finish_at(self, reason: EndReason, time: Option<TimeNs>) -> Result<W, WriteError> {
        let Self {
            mut encoder,
            queue,
            thread,
            ..
        } = self;
        let end = encoder.end(reason, time, &mut |frame| {
            queue.send(WriteJob::Frame(frame))
        });
        queue.send(WriteJob::Frame(end));
        queue.send(WriteJob::Flush);
        let FrameQueue { jobs, progress } = queue;
        drop(jobs);
        let out = thread.join();
        if let Some(error) = progress.failed.get() {
            return Err(error.clone());
        }
        let panicked = || io::Error::other("the writing thread has panicked; report that");
        out.map_err(|_| WriteError::new("the recording", panicked()))
    }

    /// Memory events so far.
    pub fn events(&self) -> u64 {
        self.encoder.events()
    }

    /// Bytes of the file so far.
    pub fn bytes(&self) -> u64 {
        self.queue.progress.bytes.load(Ordering::Relaxed)
    }

    /// Part that the file has no more; complete after [`Self::finish`].
    pub fn dropped(&self) -> DroppedPart {
        DroppedPart(Arc::clone(&self.queue.progress))
    }

    /// Returns an error of the other thread, once.
    #[inline]
    fn failure(&mut self) -> Result<(), WriteError> {
        match self.queue.progress.failed.get() {
            Some(error) if !self.has_reported => {
                self.has_reported = true;
                Err(error.clone())
            }
            _ => Ok(()),
        }
    }
}

/// Writes frames until no more can come; returns the output. After an error it only takes them.
fn write_jobs<W: Write>(
    mut frames: KeyframeWriter<W>,
    jobs: &Receiver<WriteJob>,
    progress: &WriteProgress,
    place: &str,
) -> W {
    let mut write = |job: WriteJob| -> io::Result<()> {
        match job {
            WriteJob::Frame(frame) => frames.write(&frame)?,
            WriteJob::Flush => frames.frames.out.flush()?,
        }
        progress.bytes.store(frames.bytes(), Ordering::Relaxed);
        progress.dropped.store(frames.dropped(), Ordering::Relaxed);
        let exceeds = frames.exceeds_limit();
        progress.exceeds_limit.store(exceeds, Ordering::Relaxed);
        Ok(())
    };
    for job in jobs {
        if progress.failed.get().is_none()
            && let Err(error) = write(job)
        {
            let _ = progress.failed.set(WriteError::new(place, error));
        }
    }
    frames.frames.out
}

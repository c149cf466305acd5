//! Writer of compact recordings (`.mprb`, [`crate::recording::compact`]).
//!
//! A thread compresses, writes, and adds keyframes: whoever drains the ring buffer only encodes. It waits for the disk no earlier than
//! [`QUEUE`] frames are on the way.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};

use super::error::WriteError;
use crate::event::Event;
use crate::recording::compact::{
    CompactEncoder, GroupPolicy, KeyframeWriter, PlainFrame, preamble,
};
use crate::recording::{EndReason, Header};

/// Most frames between the two threads.
const QUEUE: usize = 4;

/// Writes a compact recording in bounded memory. The file holds whole frames up to the last [`CompactWriter::flush`].
pub struct CompactWriter<W> {
    encoder: CompactEncoder,
    queue: FrameQueue,
    thread: JoinHandle<W>,
    has_reported: bool,
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
    failed: OnceLock<WriteError>,
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

    pub(in crate::recording) fn with_groups(
        mut out: W,
        place: impl Into<String>,
        header: &Header,
        policy: GroupPolicy,
    ) -> Result<Self, WriteError> {
        let place = place.into();
        let failed = |error| WriteError::new(&place, error);
        let (jobs, received) = sync_channel(QUEUE);
        let progress = Arc::new(WriteProgress::default());
        progress
            .bytes
            .store(preamble().len() as u64, Ordering::Relaxed);
        out.write_all(&preamble()).map_err(failed)?;
        let frames = KeyframeWriter::new(out, header.start, policy).map_err(failed)?;
        let thread = Builder::new().name("memprobe-write".to_owned()).spawn({
            let (progress, place) = (Arc::clone(&progress), place.clone());
            move || write_jobs(frames, &received, &progress, &place)
        });
        let mut writer = Self {
            encoder: CompactEncoder::with_groups(header, policy),
            queue: FrameQueue { jobs, progress },
            thread: thread.map_err(failed)?,
            has_reported: false,
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

    /// Writes the end and returns the output. Returns an earlier write error again.
    pub fn finish(self, reason: EndReason) -> Result<W, WriteError> {
        let Self {
            mut encoder,
            queue,
            thread,
            ..
        } = self;
        let end = encoder.end(reason, &mut |frame| queue.send(WriteJob::Frame(frame)));
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

    /// Bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.queue.progress.bytes.load(Ordering::Relaxed)
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
    let mut write = |job: WriteJob| -> io::Result<usize> {
        match job {
            WriteJob::Frame(frame) => frames.write(&frame),
            WriteJob::Flush => frames.frames.out.flush().map(|()| 0),
        }
    };
    let note = |written: io::Result<usize>| match written {
        Ok(bytes) => drop(progress.bytes.fetch_add(bytes as u64, Ordering::Relaxed)),
        Err(error) => drop(progress.failed.set(WriteError::new(place, error))),
    };
    for job in jobs {
        if progress.failed.get().is_none() {
            note(write(job));
        }
    }
    frames.frames.out
}

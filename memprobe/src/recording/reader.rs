//! Reads a recording back as the stream of events that was written.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::compact::{CompactReader, MAGIC, PartInput, RecordingDamage, SeekIndex};
use super::json_reader::JsonReader;
use super::{End, Header, RecordedSources, RecordingError};
use crate::event::{Event, NoStack, Stack, StackKind, TimeNs};
use crate::ledger::keyframe::LedgerKeyframe;

/// Read buffer, in bytes.
const BUFFER: usize = 256 << 10;

/// Iterator over the events of a recording in any format, in the order written, or of a memory snapshot that PyTorch
/// pickled. The first byte tells the format.
///
/// A recording without its end yields all its whole records, and [`Reader::truncated`] is then true. Damage in the
/// middle of a compact recording is left out and counted ([`Reader::damage`]); in the other formats it is an error,
/// which ends the iteration. Memory is bounded by the distinct strings and stacks of the recording.
pub struct Reader<R> {
    source: RecordingSource<R>,
    /// The file, if the recording can be opened again.
    path: Option<PathBuf>,
}

enum RecordingSource<R> {
    Json(Box<JsonReader<R>>),
    Compact(Box<CompactReader<R>>),
    /// An error has ended the iteration.
    Failed(Box<FailedSource>),
}

/// Facts about a recording that an error ended.
struct FailedSource {
    header: Header,
    events: u64,
    damage: Option<RecordingDamage>,
}

impl Reader<BufReader<File>> {
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        let file = File::open(path)?;
        let is_file = file.metadata().is_ok_and(|data| data.is_file());
        let reader = Self::new(BufReader::with_capacity(BUFFER, file))?;
        let path = is_file.then(|| path.to_owned());
        Ok(Self { path, ..reader })
    }
}

impl<R: BufRead> Reader<R> {
    pub(super) fn of_compact(reader: CompactReader<R>) -> Self {
        Self {
            source: RecordingSource::Compact(Box::new(reader)),
            path: None,
        }
    }

    /// Path of the file, if it can be opened again.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Opens the same recording once more, from its beginning. Returns `None` for a source that is no file.
    pub fn reopened(&self) -> Option<Reader<BufReader<File>>> {
        Reader::open(self.path.as_ref()?).ok()
    }

    /// Reads the header of a recording from any source, such as a pipe.
    pub fn new(mut input: R) -> Result<Self, RecordingError> {
        let source = if first_byte(&mut input)? == Some(MAGIC[0]) {
            RecordingSource::Compact(Box::new(CompactReader::new(input)?))
        } else {
            RecordingSource::Json(Box::new(JsonReader::new(input)?))
        };
        Ok(Self { source, path: None })
    }

    /// Returns the state of the ledger, and the recording from there on, at the last keyframe with at most so many
    /// memory events before it. Returns `None` if the recording has none there.
    pub fn from_keyframe(&self, events: u64) -> Option<(LedgerKeyframe, Reader<PartInput>)> {
        self.at_last_keyframe(|before, _| before <= events)
    }

    /// Returns the same at the last keyframe without an event after a time.
    pub fn from_keyframe_at(&self, time: TimeNs) -> Option<(LedgerKeyframe, Reader<PartInput>)> {
        let found = self.at_last_keyframe(|_, last| last <= time);
        found.filter(|(state, _)| state.last_event.is_none_or(|last| last <= time))
    }

    /// Returns the same at the last keyframe for which `is_before` is true of the events before it and of their time.
    fn at_last_keyframe(
        &self,
        is_before: impl Fn(u64, TimeNs) -> bool,
    ) -> Option<(LedgerKeyframe, Reader<PartInput>)> {
        let path = self.path.as_ref()?;
        let index = SeekIndex::open(path).ok()??;
        let keyframes: Vec<(u64, TimeNs)> = index.keyframes().collect();
        let mut place = keyframes.partition_point(|(before, last)| is_before(*before, *last));
        // A damaged one is as good as none.
        while place > 0 {
            place -= 1;
            if let Some((state, reader)) = index.read_from(place, self.header()).ok()? {
                return Some((state, Reader::<PartInput>::of_compact(reader)));
            }
        }
        None
    }

    /// Returns the latest header; a later record of the file may add facts about the target.
    pub fn header(&self) -> &Header {
        match &self.source {
            RecordingSource::Json(reader) => reader.header(),
            RecordingSource::Compact(reader) => reader.header(),
            RecordingSource::Failed(source) => &source.header,
        }
    }

    /// Returns the end record; `None` before the last event, and for a truncated recording.
    pub fn end(&self) -> Option<&End> {
        match &self.source {
            RecordingSource::Json(reader) => reader.end(),
            RecordingSource::Compact(reader) => reader.end(),
            RecordingSource::Failed(_) => None,
        }
    }

    /// Returns true if the end of the recording is missing: memprobe was killed, the disk was full, or it is
    /// still recording. Known after the last event.
    pub fn truncated(&self) -> bool {
        match &self.source {
            RecordingSource::Json(reader) => reader.truncated(),
            RecordingSource::Compact(reader) => reader.truncated(),
            RecordingSource::Failed(_) => false,
        }
    }

    /// Returns the damage that was left out so far. Its events are also in the losses of the stream.
    pub fn damage(&self) -> Option<RecordingDamage> {
        match &self.source {
            RecordingSource::Json(_) => None,
            RecordingSource::Compact(reader) => reader.damage(),
            RecordingSource::Failed(source) => source.damage,
        }
    }

    /// Returns the source text that was read so far. Only compact recordings have any.
    pub fn sources(&self) -> Option<&RecordedSources> {
        match &self.source {
            RecordingSource::Compact(reader) => Some(reader.sources()),
            RecordingSource::Json(_) | RecordingSource::Failed(_) => None,
        }
    }

    /// Returns the number of events to come that restate the state behind a dropped beginning.
    pub fn restated(&self) -> usize {
        match &self.source {
            RecordingSource::Compact(reader) => reader.restated(),
            RecordingSource::Json(_) | RecordingSource::Failed(_) => 0,
        }
    }

    /// Returns the number of memory events so far.
    pub fn events(&self) -> u64 {
        match &self.source {
            RecordingSource::Json(reader) => reader.events(),
            RecordingSource::Compact(reader) => reader.events(),
            RecordingSource::Failed(source) => source.events,
        }
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Event, RecordingError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = match &mut self.source {
            RecordingSource::Json(reader) => reader.next_event(),
            RecordingSource::Compact(reader) => reader.next_event(),
            RecordingSource::Failed(_) => Ok(None),
        };
        if next.is_err() {
            self.source = RecordingSource::Failed(Box::new(FailedSource {
                header: self.header().clone(),
                events: self.events(),
                damage: self.damage(),
            }));
        }
        next.transpose()
    }
}

fn first_byte(input: &mut impl BufRead) -> io::Result<Option<u8>> {
    loop {
        match input.fill_buf() {
            Ok(first) => return Ok(first.first().copied()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns a stack that a recording refers to and does not define. `thread` is an empty name.
pub(super) fn lost_stack(thread: Arc<str>) -> Stack {
    let reason = NoStack::Lost;
    Stack::new(StackKind::Unknown { thread, reason }, Vec::new(), false)
}

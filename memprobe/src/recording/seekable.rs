//! Recordings of any format that can be read from many places.

use std::path::Path;

use super::compact::{GroupPolicy, PartInput, SeekIndex};
use super::reader::Reader;
use super::write::compact::CompactWriter;
use super::{EndReason, Header, KeyframePlace, RecordedCurve, RecordedSources, RecordingError};
use crate::ledger::keyframe::LedgerKeyframe;

/// Events of a group of a copy in memory, and no keyframes.
fn copy_policy() -> GroupPolicy {
    GroupPolicy {
        events: 1 << 16,
        bytes_per_keyframe_byte: u64::MAX,
        ..GroupPolicy::default()
    }
}

/// Events between two reports of progress.
const PROGRESS: u64 = 1 << 16;

/// Memory events of a cell of a curve that is read rather than recorded.
pub(crate) const CELL_EVENTS: u32 = super::compact::CELL_EVENTS;

/// A recording in groups of events. A trace, a pickle, and what comes through a pipe, become a compact copy in memory.
#[derive(Clone)]
pub struct SeekableRecording {
    index: SeekIndex,
    header: Header,
}

/// Events of one group.
pub type GroupReader = Reader<PartInput>;

impl SeekableRecording {
    /// Opens a recording. `progress` gets the number of events read so far of one that has to be copied; it ends the
    /// copy by an error.
    pub fn open(
        path: &Path,
        progress: impl FnMut(u64) -> Result<(), RecordingError>,
    ) -> Result<Self, RecordingError> {
        if let Some(index) = SeekIndex::open(path)? {
            let header = index.first_group()?.header().clone();
            return Ok(Self { index, header });
        }
        Self::copied(Reader::open(path)?, progress)
    }

    /// Opens a compact recording in memory; `None` for other bytes.
    pub fn of_bytes(bytes: Vec<u8>) -> Result<Option<Self>, RecordingError> {
        let Some(index) = SeekIndex::of_memory(bytes)? else {
            return Ok(None);
        };
        let header = index.first_group()?.header().clone();
        Ok(Some(Self { index, header }))
    }

    fn copied<R: std::io::BufRead>(
        mut reader: Reader<R>,
        mut progress: impl FnMut(u64) -> Result<(), RecordingError>,
    ) -> Result<Self, RecordingError> {
        let failed = |error: super::write::WriteError| {
            RecordingError::Io(std::io::Error::other(error.to_string()))
        };
        let header = reader.header().clone();
        let mut writer =
            CompactWriter::with_groups(Vec::new(), "a copy in memory", &header, copy_policy())
                .map_err(failed)?;
        while let Some(event) = reader.next() {
            writer.event(&event?).map_err(failed)?;
            if reader.events().is_multiple_of(PROGRESS) {
                progress(reader.events())?;
            }
        }
        let header = reader.header().clone();
        let bytes = writer.finish(EndReason::Interrupted).map_err(failed)?;
        let index = SeekIndex::of_memory(bytes)?.ok_or(RecordingError::Empty)?;
        Ok(Self { index, header })
    }

    /// Header as known so far: the version of torch may follow in a later group.
    pub fn header(&self) -> &Header {
        &self.header
    }

    pub fn groups(&self) -> usize {
        self.index.groups()
    }

    /// Keyframes at the begin of groups, in their order.
    pub fn keyframes(&self) -> Vec<KeyframePlace> {
        self.index.keyframe_places()
    }

    /// Reads a keyframe, by its place among all; `None` if it is damaged.
    pub fn keyframe(&self, place: usize) -> Result<Option<LedgerKeyframe>, RecordingError> {
        let keyframe = self.index.keyframe(place)?;
        Ok(keyframe.map(|(state, _)| state))
    }

    /// Reads the curve of the whole recording, or of all but the last part of a file that was cut off. Returns `None`
    /// without one, and if a part of it is damaged.
    pub fn curve(&self) -> Result<Option<RecordedCurve>, RecordingError> {
        let dropped = self.header.dropped.map_or(0, |dropped| dropped.events);
        Ok(self.index.curve(dropped)?)
    }

    /// Reads the source text in the recording.
    pub fn sources(&self) -> Result<RecordedSources, RecordingError> {
        Ok(self.index.sources()?)
    }

    /// Opens a group. It needs nothing of the groups before.
    pub fn group(&self, group: usize) -> Result<GroupReader, RecordingError> {
        let reader = match group {
            0 => self.index.first_group()?,
            _ => self.index.group(group, &self.header)?,
        };
        Ok(Reader::of_compact(reader))
    }
}

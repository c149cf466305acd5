//! Places in a compact recording from which it can be read without what came before.

use std::fs::File;
use std::io::{self, BufReader, Read, Take};
use std::path::Path;
use std::sync::Arc;

use zstd::bulk::Decompressor;

use super::decode::KeyframeDecoder;
use super::frame::{FrameHeader, FrameKind, HEADER, MAGIC, PREAMBLE, SYNC};
use super::index::{FrameIndex, FramePlace, PlaceKind};
use super::reader::CompactReader;
use super::{curve, source};
use crate::event::{Losses, TimeNs};
use crate::ledger::keyframe::LedgerKeyframe;
use crate::ledger::totals_curve::{CurvePart, TotalsCurve};
use crate::recording::{Header, RecordedSources, RecordingError};

/// Bytes at the end of a file in which the last frame is searched: it is a few hundred bytes long.
const TAIL: u64 = 4096;

/// Read buffer, in bytes.
const BUFFER: usize = 256 << 10;

/// Bytes of a recording that can be read from any place.
#[derive(Clone)]
enum RecordingBytes {
    File(Arc<File>),
    Memory(Arc<[u8]>),
}

impl RecordingBytes {
    fn length(&self) -> io::Result<u64> {
        match self {
            Self::File(file) => Ok(file.metadata()?.len()),
            Self::Memory(bytes) => Ok(bytes.len() as u64),
        }
    }

    /// Reads from an offset on. Readers of one file do not share their place.
    fn at(&self, offset: u64) -> RecordingPart {
        RecordingPart {
            bytes: self.clone(),
            offset,
        }
    }
}

/// Reader of a recording's bytes from a place on.
pub struct RecordingPart {
    bytes: RecordingBytes,
    offset: u64,
}

impl Read for RecordingPart {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = match &self.bytes {
            RecordingBytes::File(file) => {
                std::os::unix::fs::FileExt::read_at(&**file, out, self.offset)?
            }
            RecordingBytes::Memory(bytes) => {
                let start = usize::try_from(self.offset).unwrap_or(usize::MAX);
                let mut rest = bytes.get(start..).unwrap_or_default();
                rest.read(out)?
            }
        };
        self.offset += read as u64;
        Ok(read)
    }
}

/// Input of a part of a recording.
pub type PartInput = BufReader<Take<RecordingPart>>;

/// Keyframes, groups and further frames of a recording, from its index or from the headers of its frames.
#[derive(Clone)]
pub(in crate::recording) struct SeekIndex {
    bytes: RecordingBytes,
    length: u64,
    /// Memory events of a file with an end.
    all_events: Option<u64>,
    keyframes: Vec<FramePlace>,
    groups: Vec<FramePlace>,
    curves: Vec<FramePlace>,
    sources: Vec<FramePlace>,
}

/// Keyframe at the begin of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyframePlace {
    /// Memory events before it.
    pub events: u64,
    pub group: usize,
}

/// Curve of a recording up to the begin of a group.
pub struct RecordedCurve {
    pub curve: TotalsCurve,
    /// First group behind it, whose events it does not have; `None` if it has all.
    pub rest: Option<usize>,
}

impl SeekIndex {
    /// Reads the index of a file; `None` if it is no compact recording, or no file with places.
    pub(in crate::recording) fn open(path: &Path) -> io::Result<Option<Self>> {
        let file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Ok(None);
        }
        Self::of(RecordingBytes::File(Arc::new(file)))
    }

    /// Reads the index of a recording in memory; `None` if it is no compact one.
    pub(in crate::recording) fn of_memory(bytes: Vec<u8>) -> io::Result<Option<Self>> {
        Self::of(RecordingBytes::Memory(bytes.into()))
    }

    /// Without a whole index, as in a file that was cut off, reads the headers of all frames.
    fn of(bytes: RecordingBytes) -> io::Result<Option<Self>> {
        let mut preamble = [0; PREAMBLE];
        let length = bytes.length()?;
        if length < PREAMBLE as u64 {
            return Ok(None);
        }
        bytes.at(0).read_exact(&mut preamble)?;
        if preamble[..MAGIC.len()] != MAGIC {
            return Ok(None);
        }
        let (index, all_events) = match index_at_end(&bytes, length)? {
            Some((index, events)) => (index, Some(events)),
            None => (scanned(&bytes)?, None),
        };
        let of_kind = |kind| {
            let places = index.places.iter();
            places.filter(|place| place.kind == kind).copied().collect()
        };
        Ok(Some(Self {
            bytes,
            length,
            all_events,
            keyframes: of_kind(PlaceKind::Keyframe),
            groups: of_kind(PlaceKind::Group),
            curves: of_kind(PlaceKind::Curve),
            sources: of_kind(PlaceKind::Source),
        }))
    }

    /// Returns the keyframes at the begin of groups, in their order.
    pub(in crate::recording) fn keyframe_places(&self) -> Vec<KeyframePlace> {
        let keyframes = self.keyframes.iter();
        keyframes
            .map(|place| KeyframePlace {
                events: place.first_event,
                group: self
                    .groups
                    .partition_point(|group| group.offset < place.offset),
            })
            .collect()
    }

    /// Reads the curve from the begin of the file, behind so many dropped events, to its end, or of a file without an end
    /// to the begin of a group. Returns `None` without one, and if a part of it is damaged.
    pub(in crate::recording) fn curve(&self, dropped: u64) -> io::Result<Option<RecordedCurve>> {
        let mut curve = TotalsCurve::behind(dropped);
        let mut rest = 0;
        let mut parts = Vec::new();
        for place in &self.curves {
            let Some((frame, payload)) = frame_at(&self.bytes, place.offset)? else {
                return Ok(None);
            };
            let part = curve::decode(&payload, frame.first_event).ok();
            let before = parts.last().map_or(curve.events(), CurvePart::end_event);
            let part = part.filter(|it| frame.kind == FrameKind::Curve && it.first_event == before);
            let Some(part) = part else {
                return Ok(None);
            };
            let end = part.end_event();
            parts.push(part);
            // Parts within a group count with the last one of the group.
            let next = self.groups.partition_point(|it| it.offset < place.offset);
            let is_whole = match self.groups.get(next) {
                Some(group) => group.first_event == end,
                None => self.all_events == Some(end),
            };
            if is_whole {
                parts.drain(..).for_each(|part| curve.append(part));
                rest = next;
            }
        }
        let has_all = self.all_events == Some(curve.events());
        Ok(
            (rest > 0 || has_all && !self.curves.is_empty()).then_some(RecordedCurve {
                rest: (!has_all).then_some(rest),
                curve,
            }),
        )
    }

    /// Reads the source text.
    pub(in crate::recording) fn sources(&self) -> io::Result<RecordedSources> {
        let mut sources = RecordedSources::default();
        for place in &self.sources {
            let frame = frame_at(&self.bytes, place.offset)?;
            let frame = frame.filter(|(header, _)| header.kind == FrameKind::Source);
            let sections = frame.and_then(|(_, payload)| source::decode(&payload).ok());
            let sections = sections.into_iter().flatten();
            sections.for_each(|section| sources.add(section));
        }
        Ok(sources)
    }

    /// Returns the number of groups, at least 1: what comes before the first place belongs to it.
    pub(in crate::recording) fn groups(&self) -> usize {
        self.groups.len().max(1)
    }

    /// Opens the file from its begin up to the end of the first group.
    pub(in crate::recording) fn first_group(
        &self,
    ) -> Result<CompactReader<PartInput>, RecordingError> {
        CompactReader::new(self.part(0, self.end_of(0)))
    }

    /// Opens a group but the first.
    pub(in crate::recording) fn group(
        &self,
        group: usize,
        header: &Header,
    ) -> io::Result<CompactReader<PartInput>> {
        let place = self.groups.get(group).copied().unwrap_or_default();
        let input = self.part(place.offset, self.end_of(group));
        CompactReader::of_rest(
            input,
            header,
            place.offset,
            place.first_event,
            Losses::default(),
        )
    }

    fn end_of(&self, group: usize) -> u64 {
        let next = self.groups.get(group + 1);
        next.map_or(self.length, |place| place.offset)
    }

    fn part(&self, from: u64, to: u64) -> PartInput {
        let part = self.bytes.at(from).take(to.saturating_sub(from));
        BufReader::with_capacity(BUFFER, part)
    }

    /// Returns the number of events before each keyframe, and the time of the last of them.
    pub(in crate::recording) fn keyframes(&self) -> impl Iterator<Item = (u64, TimeNs)> {
        let keyframes = self.keyframes.iter();
        keyframes.map(|place| (place.first_event, TimeNs(place.time)))
    }

    /// Reads the keyframe at a place, and the recording from there on; `None` if it is damaged.
    pub(in crate::recording) fn read_from(
        &self,
        keyframe: usize,
        header: &Header,
    ) -> io::Result<Option<(LedgerKeyframe, CompactReader<PartInput>)>> {
        let Some((state, offset)) = self.keyframe(keyframe)? else {
            return Ok(None);
        };
        let input = self.part(offset, self.length);
        let (events, losses) = (state.events, state.losses);
        let reader = CompactReader::of_rest(input, header, offset, events, losses)?;
        Ok(Some((state, reader)))
    }

    /// Reads the keyframe at a place; returns it with the offset of its end, or `None` if it is damaged.
    pub(in crate::recording) fn keyframe(
        &self,
        keyframe: usize,
    ) -> io::Result<Option<(LedgerKeyframe, u64)>> {
        let Some(place) = self.keyframes.get(keyframe) else {
            return Ok(None);
        };
        let mut offset = place.offset;
        let mut decoder = KeyframeDecoder::default();
        let mut group = None;
        loop {
            let Some((frame, payload)) = frame_at(&self.bytes, offset)? else {
                return Ok(None);
            };
            let is_part =
                frame.kind == FrameKind::Keyframe && group.is_none_or(|of| of == frame.group);
            if !is_part || frame.first_event != place.first_event {
                break;
            }
            group = Some(frame.group);
            if decoder.frame(&payload).is_err() {
                return Ok(None);
            }
            offset += (HEADER + frame.stored) as u64;
        }
        let state = decoder.finish();
        let state = state.filter(|state| state.events == place.first_event);
        Ok(state.map(|state| (state, offset)))
    }
}

/// Returns the whole frame at an offset.
fn frame_at(bytes: &RecordingBytes, offset: u64) -> io::Result<Option<(FrameHeader, Vec<u8>)>> {
    let Some(header) = header_at(bytes, offset)? else {
        return Ok(None);
    };
    let mut stored = vec![0; header.stored];
    match bytes.at(offset + HEADER as u64).read_exact(&mut stored) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let payload = header.payload(&stored, &mut Decompressor::new()?);
    Ok(payload.ok().map(|payload| (header, payload)))
}

fn header_at(bytes: &RecordingBytes, offset: u64) -> io::Result<Option<FrameHeader>> {
    let mut head = [0; HEADER];
    match bytes.at(offset).read_exact(&mut head) {
        Ok(()) => Ok(FrameHeader::parse(&head)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the index that the end of a file points to, and the memory events up to the end.
fn index_at_end(bytes: &RecordingBytes, length: u64) -> io::Result<Option<(FrameIndex, u64)>> {
    let mut tail = Vec::new();
    let start = length.saturating_sub(TAIL);
    bytes.at(start).take(TAIL).read_to_end(&mut tail)?;
    let end = memchr::memmem::rfind_iter(&tail, &SYNC)
        .filter_map(|at| FrameHeader::parse(tail.get(at..)?.first_chunk()?))
        .find(|header| header.kind == FrameKind::End);
    let Some(end) = end.filter(|end| end.times[0] > 0) else {
        return Ok(None);
    };
    let frame = frame_at(bytes, end.times[0])?;
    let frame = frame.filter(|(header, _)| header.kind == FrameKind::Index);
    let index = frame.and_then(|(_, payload)| FrameIndex::decode(&payload).ok());
    Ok(index.map(|index| (index, end.first_event)))
}

/// Returns the places up to the end of a file, or to the first damage.
fn scanned(bytes: &RecordingBytes) -> io::Result<FrameIndex> {
    let mut index = FrameIndex::default();
    let mut offset = PREAMBLE as u64;
    let (mut group, mut keyframe_group) = (None, None);
    let mut time = 0;
    while let Some(header) = header_at(bytes, offset)? {
        let begins = |known: &mut Option<u16>, kind| {
            (known.replace(header.group) != Some(header.group)).then_some(kind)
        };
        let kind = match header.kind {
            FrameKind::Keyframe => begins(&mut keyframe_group, PlaceKind::Keyframe),
            FrameKind::Header | FrameKind::Records => begins(&mut group, PlaceKind::Group),
            FrameKind::Source => Some(PlaceKind::Source),
            FrameKind::Curve => Some(PlaceKind::Curve),
            FrameKind::End | FrameKind::Index | FrameKind::Other(_) => None,
        };
        if let Some(kind) = kind {
            index.push(FramePlace {
                offset,
                first_event: header.first_event,
                time,
                kind,
            });
        }
        time = time.max(header.times[1]);
        offset += (HEADER + header.stored) as u64;
    }
    Ok(index)
}

//! Keyframes and index of a recording that is being written.
//!
//! The writing thread follows the live blocks with a ledger of its own. A keyframe therefore never delays the reader of
//! the ring buffer.

use std::io::{self, Write};

use super::encode::encode_keyframe;
use super::frame::{FrameHeader, FrameKind, FrameWriter, HEADER, PREAMBLE, PlainFrame, preamble};
use super::index::{FrameIndex, FramePlace, PlaceKind};
use super::labels::LabelTracker;
use super::{GroupPolicy, MAX_PAYLOAD, SizeLimit, curve, source};
use crate::event::{Event, Target, TimeNs};
use crate::ledger::Ledger;
use crate::ledger::totals_curve::{CurveBuilder, TotalsCurve};
use crate::recording::write::sources::SourceCollector;

/// Most bytes of a place in the index: a flag and three numbers.
const PLACE: u64 = 31;

/// Bytes of the last frame, and of the header of the index, at most.
const END: u64 = 1024;

/// Writes the frames of a recording, with the curve and a keyframe at the begin of groups, and the index before the end.
pub(in crate::recording) struct KeyframeWriter<W> {
    pub(in crate::recording) frames: FrameWriter<W>,
    policy: GroupPolicy,
    limit: Option<SizeLimit<W>>,
    /// True if a keyframe was so large that the file exceeds its limit.
    exceeds_limit: bool,
    /// Memory events before the beginning of the file.
    dropped: u64,
    /// Payload of the latest header.
    header: Vec<u8>,
    buffer: Vec<u8>,
    /// Bytes of the file.
    offset: u64,
    index: FrameIndex,
    group: Option<u16>,
    ledger: Ledger,
    labels: LabelTracker,
    curve: CurveBuilder,
    sources: Option<SourceCollector>,
    /// Source text of new lines, for a frame behind that of their stacks.
    text: Vec<u8>,
    /// Frames of source text, to be written again behind a new beginning.
    source_frames: Vec<u8>,
    /// Bytes of frames since the last keyframe, and the bytes of that one.
    since_keyframe: u64,
    last_keyframe: u64,
}

impl<W: Write> KeyframeWriter<W> {
    /// Begins behind the preamble of a file.
    pub(in crate::recording) fn new(
        out: W,
        started: TimeNs,
        policy: GroupPolicy,
        limit: Option<SizeLimit<W>>,
    ) -> io::Result<Self> {
        Ok(Self {
            frames: FrameWriter::new(out)?,
            policy,
            limit,
            exceeds_limit: false,
            dropped: 0,
            header: Vec::new(),
            buffer: Vec::new(),
            offset: PREAMBLE as u64,
            index: FrameIndex::default(),
            group: None,
            ledger: Ledger::new(Target::default(), started),
            labels: LabelTracker::default(),
            curve: CurveBuilder::after(&TotalsCurve::default(), policy.cell_events),
            sources: None,
            text: Vec::new(),
            source_frames: Vec::new(),
            since_keyframe: 0,
            last_keyframe: 0,
        })
    }

    /// Adds the source text of the lines that stacks name.
    pub(in crate::recording) fn record_sources(&mut self, sources: SourceCollector) {
        self.sources = Some(sources);
    }

    /// Bytes of the file.
    pub(in crate::recording) fn bytes(&self) -> u64 {
        self.offset
    }

    /// Memory events that the file has no more.
    pub(in crate::recording) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(in crate::recording) fn exceeds_limit(&self) -> bool {
        self.exceeds_limit
    }

    /// Writes a frame, and what belongs before it. The events of its records must have been followed, and none behind it; a
    /// list that takes several frames is one event.
    pub(in crate::recording) fn write(&mut self, frame: &PlainFrame) -> io::Result<()> {
        if frame.kind == FrameKind::End {
            return self.write_end(frame);
        }
        if frame.kind == FrameKind::Header {
            self.header.clone_from(&frame.payload);
        }
        self.begin_group(frame.group, frame.first_event)?;
        self.encode([frame])?;
        self.reserve(self.buffer.len() as u64)?;
        self.since_keyframe += self.append()?;
        if frame.kind == FrameKind::Records {
            let text = std::mem::take(&mut self.text);
            if !text.is_empty() {
                self.write_sources(frame, text)?;
            }
            if self.curve.values() >= curve::FULL {
                self.write_curve(frame.group)?;
            }
        }
        Ok(())
    }

    /// Writes source text after a frame.
    fn write_sources(&mut self, after: &PlainFrame, payload: Vec<u8>) -> io::Result<()> {
        let frame = PlainFrame {
            kind: FrameKind::Source,
            group: after.group,
            first_event: after.first_event + u64::from(after.events),
            events: 0,
            times: [0, 0],
            payload,
        };
        self.encode([&frame])?;
        self.reserve(self.buffer.len() as u64)?;
        self.note_place(PlaceKind::Source, frame.first_event);
        self.since_keyframe += self.append()?;
        if self.limit.is_some() {
            self.source_frames.extend_from_slice(&self.buffer);
        }
        Ok(())
    }

    /// Writes the curve up to here.
    fn write_curve(&mut self, group: u16) -> io::Result<()> {
        let part = self.curve.take();
        if part.cells.is_empty() {
            return Ok(());
        }
        self.encode([&curve::frame(&part, group)])?;
        self.reserve(self.buffer.len() as u64)?;
        self.note_place(PlaceKind::Curve, part.first_event);
        self.since_keyframe += self.append()?;
        Ok(())
    }

    /// Adds the next frame to the index.
    fn note_place(&mut self, kind: PlaceKind, first_event: u64) {
        self.index.push(FramePlace {
            offset: self.offset,
            first_event,
            time: self.time(),
            kind,
        });
    }

    /// Encodes frames to the buffer.
    fn encode<'a>(&mut self, frames: impl IntoIterator<Item = &'a PlainFrame>) -> io::Result<()> {
        self.buffer.clear();
        let mut frames = frames.into_iter();
        frames.try_for_each(|frame| self.frames.encode(frame, &mut self.buffer))
    }

    /// Writes the buffer; returns its length.
    fn append(&mut self) -> io::Result<u64> {
        self.frames.out.write_all(&self.buffer)?;
        self.offset += self.buffer.len() as u64;
        Ok(self.buffer.len() as u64)
    }

    /// Drops the oldest part of the file if it has no room for so many bytes.
    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        let Some(limit) = &self.limit else {
            return Ok(());
        };
        if self.offset + bytes <= limit.file() {
            return Ok(());
        }
        let mut head = preamble().to_vec();
        let begin = PlainFrame {
            kind: FrameKind::Header,
            group: 0,
            first_event: 0,
            events: 0,
            times: [0, 0],
            payload: std::mem::take(&mut self.header),
        };
        let head_bytes = head.len() + HEADER + begin.payload.len() + self.source_frames.len();
        let needed = head_bytes as u64 + bytes;
        let cut = limit.cut(&self.index.places, self.offset, needed);
        let begin = PlainFrame {
            first_event: cut.map_or(0, |cut| cut.first_event),
            ..begin
        };
        self.frames.encode(&begin, &mut head)?;
        self.header = begin.payload;
        head.extend_from_slice(&self.source_frames);
        let Some(cut) = cut else {
            self.exceeds_limit = true;
            return Ok(());
        };
        self.exceeds_limit |= self.offset > limit.file();
        (limit.replace_beginning)(&mut self.frames.out, &head, cut.offset)?;
        let sources = self.source_offsets(&head);
        self.index.drop_before(cut, head.len() as u64, &sources);
        self.offset = self.offset - cut.offset + head.len() as u64;
        self.dropped = cut.first_event;
        Ok(())
    }

    /// Returns the offsets of the source text in a new beginning, which ends with it.
    fn source_offsets(&self, head: &[u8]) -> Vec<u64> {
        let mut offsets = Vec::new();
        let mut at = head.len() - self.source_frames.len();
        while let Some(header) = head.get(at..).and_then(|rest| rest.first_chunk()) {
            let Some(header) = FrameHeader::parse(header) else {
                break;
            };
            offsets.push(at as u64);
            at += HEADER + header.stored;
        }
        offsets
    }

    /// Begins a group behind so many events, unless it has begun: writes the curve, and a keyframe if it is due, and notes
    /// the place of the group. No event of the group may have been followed.
    #[inline]
    pub(in crate::recording) fn begin_group(
        &mut self,
        group: u16,
        first_event: u64,
    ) -> io::Result<()> {
        if self.group == Some(group) {
            return Ok(());
        }
        self.begin_next_group(group, first_event)
    }

    fn begin_next_group(&mut self, group: u16, first_event: u64) -> io::Result<()> {
        if let Some(group) = self.group {
            self.write_curve(group)?;
        }
        let is_first = self.group.replace(group).is_none();
        let due = self
            .last_keyframe
            .saturating_mul(self.policy.bytes_per_keyframe_byte)
            .min(self.policy.keyframe_bytes);
        if !is_first && self.since_keyframe >= due {
            self.write_keyframe(group, first_event)?;
        }
        self.note_place(PlaceKind::Group, first_event);
        Ok(())
    }

    fn time(&self) -> u64 {
        self.ledger.last_event().unwrap_or_default().0
    }

    fn write_keyframe(&mut self, group: u16, first_event: u64) -> io::Result<()> {
        let mut parts = Vec::new();
        let mut state = self.ledger.keyframe();
        state.labels = self.labels.live(&self.ledger);
        encode_keyframe(&state, group, first_event, &mut |part| {
            parts.push(part);
        });
        self.encode(&parts)?;
        self.reserve(self.buffer.len() as u64)?;
        self.note_place(PlaceKind::Keyframe, first_event);
        self.last_keyframe = self.append()?;
        self.since_keyframe = 0;
        Ok(())
    }

    fn write_end(&mut self, end: &PlainFrame) -> io::Result<()> {
        self.write_curve(end.group)?;
        // Nothing may move between the index and the end.
        let places = self.index.places.len() as u64;
        self.reserve(places * PLACE + END)?;
        let offset = self.offset;
        let index = self.index.frame(end.group, end.first_event);
        self.encode([&index])?;
        self.append()?;
        let end = PlainFrame {
            kind: end.kind,
            group: end.group,
            first_event: end.first_event,
            events: end.events,
            times: [offset, 0],
            payload: end.payload.clone(),
        };
        self.encode([&end])?;
        self.append().map(drop)
    }

    /// Follows an event, whose group has begun.
    #[inline]
    pub(in crate::recording) fn follow(&mut self, event: &Event) {
        self.ledger.apply(event);
        self.labels.apply(event);
        self.curve.apply(event, &self.ledger);
        if let Event::Stack(_, stack) = event
            && let Some(sources) = &mut self.sources
        {
            for section in sources.sections(stack) {
                if self.text.len() + section.text.len() < MAX_PAYLOAD / 2 {
                    source::encode(&section, &mut self.text);
                }
            }
        }
    }
}

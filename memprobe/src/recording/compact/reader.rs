//! Reader of a compact recording.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, BufRead};

use zstd::bulk::Decompressor;

use super::beginning::RestatedBeginning;
use super::decode::{CompactDecoder, KeyframeDecoder};
use super::frame::{FrameHeader, FrameKind, HEADER, MAGIC, PREAMBLE, SYNC};
use super::input::InputWindow;
use super::{COMPACT_FORMAT, source};
use crate::event::{Action, Event, Losses, TimeNs};
use crate::recording::{End, EndRecord, Header, RecordedSources, RecordingError};

/// Bytes searched at once for the next frame.
const SEARCHED: usize = 64 << 10;

/// Most bytes of payloads with a wrong checksum that are searched for frames. A hostile file could otherwise have the
/// same bytes checked again and again.
const MAX_SEARCHED: usize = 64 << 20;

const BEGINNING: &str = "the state at its beginning cannot be read";

/// Parts of a recording that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordingDamage {
    /// Number of the places.
    pub places: u64,
    /// Bytes of all places.
    pub bytes: u64,
    /// Memory events that are missing.
    pub events: u64,
    /// Offset of the first place in the file, in bytes.
    pub offset: u64,
    /// Fault of the first place.
    pub reason: &'static str,
}

impl RecordingDamage {
    /// Returns the events that were lost before they came into the file.
    pub fn losses_of_recording(damage: Option<Self>, losses: Losses) -> Losses {
        let missing = damage.map_or(0, |damage| damage.events);
        Losses {
            events: losses.events.saturating_sub(missing),
            ..losses
        }
    }
}

impl fmt::Display for RecordingDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            places,
            bytes,
            events,
            offset,
            reason,
        } = self;
        let s = if *places == 1 { "" } else { "s" };
        write!(
            f,
            "the recording is damaged in {places} place{s}, the first at byte {offset} ({reason}): {bytes} bytes with \
             {events} events cannot be read"
        )
    }
}

/// Iterator over the events of a compact recording. It leaves out damaged frames, and counts them.
pub(in crate::recording) struct CompactReader<R> {
    window: InputWindow<R>,
    decoder: CompactDecoder,
    header: Header,
    has_header: bool,
    end: Option<End>,
    /// True if nothing more is read.
    is_closed: bool,
    waiting: VecDeque<Event>,
    /// Events at the front of `waiting` that restate the state at the beginning.
    restated: usize,
    /// Keyframe at the beginning of a file whose older part was dropped, while it is read.
    beginning: Option<Box<KeyframeDecoder>>,
    /// Memory events that were returned.
    events: u64,
    /// Memory events before the next frame, read or missing.
    position: u64,
    losses: Losses,
    sources: RecordedSources,
    damage: Option<RecordingDamage>,
    /// Number of the group of the latest frame.
    group: u16,
    searched: usize,
    decompressor: Decompressor<'static>,
}

impl<R: BufRead> CompactReader<R> {
    /// Reads the preamble and the header.
    pub(in crate::recording) fn new(input: R) -> Result<Self, RecordingError> {
        let mut window = InputWindow::new(input);
        let preamble = window.fill(PREAMBLE)?;
        let begin = &preamble[..preamble.len().min(MAGIC.len())];
        if begin != &MAGIC[..begin.len()] {
            return Err(RecordingError::Foreign);
        }
        let Some(preamble) = preamble.first_chunk::<PREAMBLE>() else {
            return Err(RecordingError::Empty);
        };
        let format = u16::from_le_bytes([preamble[8], preamble[9]]);
        if format == 0 || format > COMPACT_FORMAT {
            return Err(RecordingError::Newer {
                format: format.into(),
                known: COMPACT_FORMAT.into(),
            });
        }
        window.skip(PREAMBLE);
        let mut reader = Self::of_window(window)?;
        // Without a whole header, the first records tell the time.
        while reader.beginning.is_some() || !reader.has_header && reader.waiting.is_empty() {
            if reader.read_frame()? {
                continue;
            }
            match reader.damage {
                Some(_) => break,
                None if reader.has_header => break,
                None => return Err(RecordingError::Empty),
            }
        }
        Ok(reader)
    }

    fn of_window(window: InputWindow<R>) -> io::Result<Self> {
        Ok(Self {
            window,
            decoder: CompactDecoder::default(),
            header: Header::default(),
            has_header: false,
            end: None,
            is_closed: false,
            waiting: VecDeque::new(),
            restated: 0,
            beginning: None,
            events: 0,
            position: 0,
            losses: Losses::default(),
            sources: RecordedSources::default(),
            damage: None,
            group: 0,
            searched: 0,
            decompressor: Decompressor::new()?,
        })
    }

    /// Reads a group and what follows, from `offset` of the file on, after so many events and with these losses.
    pub(super) fn of_rest(
        input: R,
        header: &Header,
        offset: u64,
        events: u64,
        losses: Losses,
    ) -> io::Result<Self> {
        Ok(Self {
            header: header.clone(),
            has_header: true,
            events,
            position: events,
            losses,
            ..Self::of_window(InputWindow::at(input, offset))?
        })
    }

    pub(in crate::recording) fn header(&self) -> &Header {
        &self.header
    }

    pub(in crate::recording) fn end(&self) -> Option<&End> {
        self.end.as_ref().filter(|_| self.waiting.is_empty())
    }

    /// Source text that was read so far.
    pub(in crate::recording) fn sources(&self) -> &RecordedSources {
        &self.sources
    }

    pub(in crate::recording) fn events(&self) -> u64 {
        self.events
    }

    /// Events to come that restate the state behind a dropped beginning.
    pub(in crate::recording) fn restated(&self) -> usize {
        self.restated
    }

    pub(in crate::recording) fn truncated(&self) -> bool {
        self.is_closed && self.waiting.is_empty() && self.end.is_none()
    }

    pub(in crate::recording) fn damage(&self) -> Option<RecordingDamage> {
        self.damage
    }

    pub(in crate::recording) fn next_event(&mut self) -> Result<Option<Event>, RecordingError> {
        loop {
            if let Some(mut event) = self.waiting.pop_front() {
                let is_restated = self.restated > 0;
                self.restated -= usize::from(is_restated);
                match &mut event {
                    Event::Memory(_) if is_restated => {}
                    Event::Memory(event) => self.events += u64::from(event.action != Action::Held),
                    Event::Loss(losses) => {
                        self.losses = *losses;
                        losses.events = losses.events.saturating_add(self.missing());
                    }
                    _ => {}
                }
                return Ok(Some(event));
            }
            if self.is_closed || !self.read_frame()? {
                return Ok(None);
            }
        }
    }

    fn missing(&self) -> u64 {
        self.damage.as_ref().map_or(0, |damage| damage.events)
    }

    /// Reads the next frame; returns false at the end of the file.
    fn read_frame(&mut self) -> Result<bool, RecordingError> {
        let is_first = self.window.offset() == PREAMBLE as u64;
        let Some((header, payload)) = self.next_frame()? else {
            self.end_beginning();
            self.is_closed = true;
            return Ok(false);
        };
        if !matches!(
            header.kind,
            FrameKind::Keyframe | FrameKind::Source | FrameKind::Curve | FrameKind::Other(_)
        ) {
            self.end_beginning();
        }
        match header.kind {
            FrameKind::Header => {
                self.accept_header(&payload)?;
                if is_first && header.first_event > 0 {
                    self.position = header.first_event;
                    self.beginning = Some(Box::default());
                }
            }
            FrameKind::Keyframe if self.beginning.is_some() => self.accept_beginning(&payload),
            FrameKind::Records => self.accept_records(&header, &payload),
            FrameKind::End => self.accept_end(&payload)?,
            FrameKind::Source => self.accept_sources(&payload),
            FrameKind::Keyframe | FrameKind::Index | FrameKind::Curve | FrameKind::Other(_) => {}
        }
        Ok(true)
    }

    fn accept_header(&mut self, payload: &[u8]) -> Result<(), RecordingError> {
        let Ok(header) = serde_json::from_slice::<Header>(payload) else {
            self.note_damage("a header that cannot be read", payload.len());
            return Ok(());
        };
        let mut header = header;
        let begun = self.header.dropped.map_or(self.header.start, |it| it.start);
        if self.has_header && header.start != begun {
            return Err(RecordingError::SecondRecording {
                offset: self.window.offset(),
            });
        }
        if let Some(dropped) = self.header.dropped {
            header.begin_later(self.header.start, dropped);
        }
        self.has_header = true;
        self.header = header;
        Ok(())
    }

    fn accept_sources(&mut self, payload: &[u8]) {
        match source::decode(payload) {
            Ok(sections) => sections.into_iter().for_each(|it| self.sources.add(it)),
            Err(reason) => self.note_damage(reason, payload.len()),
        }
    }

    /// Reads a frame of the state at the beginning.
    fn accept_beginning(&mut self, payload: &[u8]) {
        let Some(decoder) = &mut self.beginning else {
            return;
        };
        if decoder.frame(payload).is_err() {
            self.beginning = None;
            self.note_damage(BEGINNING, payload.len());
            return;
        }
        if !decoder.has_ended() {
            return;
        }
        let state = self.beginning.take().and_then(|decoder| decoder.finish());
        let restated = state.and_then(|state| RestatedBeginning::of(&state, &self.header));
        match restated {
            Some(restated) => {
                self.header.begin_later(restated.time, restated.dropped);
                self.restated = restated.events.len();
                self.waiting.extend(restated.events);
            }
            None => self.note_damage(BEGINNING, payload.len()),
        }
    }

    /// Notes that the state at the beginning is not whole.
    fn end_beginning(&mut self) {
        if self.beginning.take().is_some() {
            self.note_damage(BEGINNING, 0);
        }
    }

    fn accept_records(&mut self, header: &FrameHeader, payload: &[u8]) {
        if header.first_event < self.position {
            self.note_damage("a frame out of order", payload.len());
            return;
        }
        if self.group != header.group {
            self.group = header.group;
            self.decoder.begin_group();
        }
        self.count_missing_up_to(header.first_event);
        if !self.has_header && self.header.start == TimeNs(0) {
            self.header.start = TimeNs(header.times[0]);
        }
        let end = header.first_event.saturating_add(header.events.into());
        let before = self.waiting.len();
        let decoded = self.decoder.frame(payload, &mut self.waiting);
        if decoded.is_ok_and(|events| events == u64::from(header.events)) {
            self.position = end;
            return;
        }
        self.waiting.truncate(before);
        self.note_damage("records that cannot be decoded", payload.len());
        self.count_missing_up_to(end);
    }

    /// Counts the events between the last frame and this one, as losses.
    fn count_missing_up_to(&mut self, position: u64) {
        let missing = position - self.position;
        self.position = position;
        if missing == 0 {
            return;
        }
        if self.damage.is_none() {
            self.note_damage("frames are missing", 0);
        }
        self.decoder.skip_damage();
        if let Some(damage) = &mut self.damage {
            damage.events = damage.events.saturating_add(missing);
        }
        self.waiting.push_back(Event::Loss(self.losses));
    }

    fn accept_end(&mut self, payload: &[u8]) -> Result<(), RecordingError> {
        let record: Option<EndRecord> = serde_json::from_slice(payload).ok();
        let Some(end) = record.and_then(EndRecord::into_end) else {
            self.note_damage("an end that cannot be read", payload.len());
            return Ok(());
        };
        self.count_missing_up_to(end.events.max(self.position));
        self.end = Some(end);
        self.is_closed = true;
        let rest = self.window.fill(1)?.len();
        if rest > 0 {
            self.note_damage("something follows the end", 0);
        }
        Ok(())
    }

    /// Returns the next whole frame; `None` at the end of the file.
    fn next_frame(&mut self) -> io::Result<Option<(FrameHeader, Vec<u8>)>> {
        let mut is_searching = false;
        loop {
            let bytes = self.window.fill(HEADER)?;
            let Some(head) = bytes.first_chunk::<HEADER>() else {
                let begins_frame = bytes.starts_with(&SYNC[..bytes.len().min(SYNC.len())]);
                let rest = bytes.len();
                if !begins_frame {
                    self.note_search("no frame", rest, &mut is_searching);
                }
                self.window.skip(rest);
                return Ok(None);
            };
            let Some(header) = FrameHeader::parse(head) else {
                self.search("no frame", &mut is_searching)?;
                continue;
            };
            let length = HEADER + header.stored;
            let bytes = self.window.fill(length)?;
            let Some(stored) = bytes.get(HEADER..length) else {
                // Cut off while being written, unless whole frames follow.
                if memchr::memmem::find(&bytes[SYNC.len()..], &SYNC).is_none() {
                    return Ok(None);
                }
                self.search("a frame that is too short", &mut is_searching)?;
                continue;
            };
            match header.payload(stored, &mut self.decompressor) {
                Ok(payload) => {
                    self.window.skip(length);
                    return Ok(Some((header, payload)));
                }
                Err(reason) if self.searched < MAX_SEARCHED => {
                    self.searched += header.stored;
                    self.search(reason, &mut is_searching)?;
                }
                Err(reason) => {
                    self.note_search(reason, length, &mut is_searching);
                    self.window.skip(length);
                }
            }
        }
    }

    /// Leaves out bytes up to the next ones that may begin a frame, but at least one.
    fn search(&mut self, reason: &'static str, is_searching: &mut bool) -> io::Result<()> {
        self.note_search(reason, 1, is_searching);
        self.window.skip(1);
        loop {
            let bytes = self.window.fill(SEARCHED)?;
            let found = memchr::memmem::find(bytes, &SYNC);
            // The beginning of the mark may be at the end of the window.
            let partial = bytes.len().saturating_sub(SYNC.len() - 1);
            let is_last = bytes.len() < SEARCHED;
            let left_out = match found {
                Some(at) => at,
                None if is_last => bytes.len(),
                None => partial,
            };
            self.note_search(reason, left_out, is_searching);
            self.window.skip(left_out);
            if found.is_some() || is_last {
                return Ok(());
            }
        }
    }

    /// Counts bytes of one place.
    fn note_search(&mut self, reason: &'static str, bytes: usize, is_searching: &mut bool) {
        if !std::mem::replace(is_searching, true) {
            self.note_damage(reason, bytes);
        } else if let Some(damage) = &mut self.damage {
            damage.bytes += bytes as u64;
        }
    }

    fn note_damage(&mut self, reason: &'static str, bytes: usize) {
        self.decoder.skip_damage();
        let offset = self.window.offset();
        let damage = self.damage.get_or_insert(RecordingDamage {
            places: 0,
            bytes: 0,
            events: 0,
            offset,
            reason,
        });
        damage.places += 1;
        damage.bytes += bytes as u64;
    }
}

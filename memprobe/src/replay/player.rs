//! State of a recording at a cursor.

use crate::event::{Action, Event, TimeNs};
use crate::ledger::snapshot::Grouping;
use crate::ledger::{Analysis, AnalyzedLedger, CopySize, Ledger};
use crate::recording::{
    GroupReader, Header, RecordedSources, RecordingDamage, RecordingError, SeekableRecording,
};

use super::checkpoints::Checkpoints;
use super::keyframes::KeyframeStarts;
use super::overview::Overview;

/// Most states that are kept from the first reading.
const MAX_CHECKPOINTS: usize = 64;

/// Most bytes of the states that are kept from the first reading, by estimate: 192 MiB.
const MAX_CHECKPOINT_BYTES: u64 = 192 << 20;

/// Events between two states that are kept on the way to a moment, for the way back.
const NEAR: u64 = 1 << 13;

/// Most of them, and most of their bytes: 64 MiB.
const MAX_NEAR: usize = 8;
const MAX_NEAR_BYTES: u64 = 64 << 20;

/// Events between two reports of progress.
const PROGRESS: u64 = 1 << 16;

/// Progress of opening a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayProgress {
    /// Events copied of a recording that has no groups.
    Copied(u64),
    /// Events replayed.
    Replayed(u64),
}

/// A recording at a cursor. The cursor lies after a number of memory events, before the next one.
pub struct Player<A> {
    pub(super) recording: SeekableRecording,
    pub header: Header,
    pub overview: Overview,
    /// Damage of the file that was left out, as far as it was read.
    pub damage: Option<RecordingDamage>,
    /// Source text in the recording.
    pub sources: RecordedSources,
    checkpoints: Checkpoints<Position<A>>,
    /// States near the cursor with their bytes, in the order of their use.
    near: Vec<(u64, Position<A>)>,
    /// Keyframes to begin with, if the analyses follow nothing.
    pub(super) starts: Option<KeyframeStarts>,
    pub(super) cursor: Cursor<A>,
}

/// State between two events of a group.
#[derive(Clone)]
pub(super) struct Position<A> {
    pub(super) replay: AnalyzedLedger<A>,
    pub(super) group: usize,
    /// Events of the group's reader before it.
    pub(super) items: u64,
}

impl<A> Position<A> {
    fn events(&self) -> u64 {
        self.replay.ledger.health.events
    }
}

pub(super) struct Cursor<A> {
    pub(super) position: Position<A>,
    reader: GroupReader,
    /// Next event of the reader.
    next: Option<Event>,
    /// Damage of the groups that were left.
    damage: Option<RecordingDamage>,
}

impl<A: Analysis + Clone + CopySize> Player<A> {
    /// Opens a recording, and replays it once. `progress` may end that by an error.
    pub fn open(
        recording: SeekableRecording,
        analyses: A,
        mut progress: impl FnMut(ReplayProgress) -> Result<(), RecordingError>,
    ) -> Result<Self, RecordingError> {
        let mut player = Self::at_begin(recording, analyses)?;
        player.read_all(&mut progress)?;
        Ok(player)
    }

    /// Begins before the first event, and knows nothing of the recording.
    pub(super) fn at_begin(
        recording: SeekableRecording,
        analyses: A,
    ) -> Result<Self, RecordingError> {
        let header = recording.header().clone();
        let replay = AnalyzedLedger::new(header.target.clone(), header.start, analyses);
        let first = Position {
            replay,
            group: 0,
            items: 0,
        };
        let mut checkpoints = Checkpoints::within(MAX_CHECKPOINTS, MAX_CHECKPOINT_BYTES);
        checkpoints.keep(0, first.replay.copy_bytes(), first.clone());
        Ok(Self {
            header,
            overview: Overview::default(),
            damage: None,
            sources: RecordedSources::default(),
            checkpoints,
            near: Vec::new(),
            starts: None,
            cursor: Cursor::at(&recording, first)?,
            recording,
        })
    }

    fn read_all(
        &mut self,
        progress: &mut impl FnMut(ReplayProgress) -> Result<(), RecordingError>,
    ) -> Result<(), RecordingError> {
        for group in 0..self.recording.groups() {
            if group > 0 {
                self.cursor.enter(&self.recording, group)?;
                self.keep_checkpoint(group);
            }
            while let Some(event) = self.cursor.step()? {
                let ledger = self.cursor.ledger();
                self.overview.note(&event, ledger);
                let is_due = ledger.health.events.is_multiple_of(PROGRESS);
                if is_due && matches!(event, Event::Memory(_)) {
                    progress(ReplayProgress::Replayed(ledger.health.events))?;
                }
            }
            // The version of torch is often recorded later than the start.
            self.header = self.cursor.reader.header().clone();
            self.damage = self.damage.or(self.cursor.reader.damage());
            if let Some(sources) = self.cursor.reader.sources() {
                self.sources.merge(sources);
            }
        }
        let ledger = self.cursor.ledger();
        self.overview.events = ledger.health.events;
        self.overview.start = self.header.start;
        let end = ledger.last_event().unwrap_or(self.header.start);
        self.overview.end = end;
        let devices = ledger.snapshot(end, Grouping::default()).devices;
        let timelines = devices.into_iter();
        self.overview.timelines = timelines
            .map(|device| (device.index, device.timeline.all))
            .collect();
        Ok(())
    }

    /// Keeps the state at the begin of a group, if it is one to keep.
    fn keep_checkpoint(&mut self, group: usize) {
        if self.checkpoints.is_due(group) {
            let position = &self.cursor.position;
            let bytes = position.replay.copy_bytes();
            self.checkpoints.keep(group, bytes, position.clone());
        }
    }

    /// Estimated bytes of the states that are kept for the way back.
    pub fn state_bytes(&self) -> u64 {
        let near = self.near.iter().map(|(bytes, _)| bytes).sum::<u64>();
        self.checkpoints.bytes().saturating_add(near)
    }

    /// Ledger at the cursor.
    pub fn ledger(&self) -> &Ledger {
        self.cursor.ledger()
    }

    /// Analyses at the cursor.
    pub fn analyses(&self) -> &A {
        &self.cursor.position.replay.analyses
    }

    /// Memory events before the cursor.
    pub fn events(&self) -> u64 {
        self.cursor.position.events()
    }

    /// Goes to the moment after so many memory events, or to the end.
    pub fn seek(&mut self, events: u64) -> Result<(), RecordingError> {
        let events = events.min(self.overview.events);
        self.begin_at_keyframe(events)?;
        let near = self.near.iter().map(|(_, kept)| kept);
        let all = self.checkpoints.iter().chain(near);
        let before = all.filter(|kept| kept.events() <= events);
        let nearest = before.max_by_key(|kept| (kept.group, kept.items));
        let here = self.events();
        let is_ahead = here <= events && nearest.is_none_or(|kept| kept.events() <= here);
        if !is_ahead && let Some(nearest) = nearest {
            self.cursor = Cursor::at(&self.recording, nearest.clone())?;
        }
        while !self.cursor.is_before(events, &self.recording)? {
            self.advance()?;
        }
        if self.starts.is_some() {
            self.damage = self.damage.or(self.cursor.damage());
        }
        Ok(())
    }

    /// Goes to the last keyframe with at most so many events before it, if no state that is nearer is known.
    pub(super) fn begin_at_keyframe(&mut self, events: u64) -> Result<(), RecordingError> {
        let Some(starts) = &self.starts else {
            return Ok(());
        };
        let here = Some(&self.cursor.position);
        let near = self.near.iter().map(|(_, kept)| kept);
        let all = self.checkpoints.iter().chain(near).chain(here);
        let before = all.filter(|kept| kept.events() <= events);
        let known = before.map(Position::events).max().unwrap_or(0);
        let target = &self.header.target;
        let Some(start) = starts.restore(&self.recording, target, known..=events)? else {
            return Ok(());
        };
        let analyses = self.cursor.position.replay.analyses.clone();
        let position = Position {
            replay: AnalyzedLedger {
                ledger: start.ledger,
                analyses,
            },
            group: start.group,
            items: start.items,
        };
        self.keep(position.clone());
        self.cursor = Cursor::at(&self.recording, position)?;
        Ok(())
    }

    /// Keeps a state for the way back.
    fn keep(&mut self, position: Position<A>) {
        let bytes = position.replay.copy_bytes();
        if bytes > MAX_NEAR_BYTES {
            return;
        }
        self.near.push((bytes, position));
        let sum = |near: &[(u64, Position<A>)]| near.iter().map(|(bytes, _)| bytes).sum::<u64>();
        while self.near.len() > MAX_NEAR || sum(&self.near) > MAX_NEAR_BYTES {
            self.near.remove(0);
        }
    }

    /// Goes to the moment after the last event at or before a time.
    pub fn seek_time(&mut self, time: TimeNs) -> Result<(), RecordingError> {
        self.seek(self.overview.events_before(time))?;
        while let Some(next) = self.cursor.next_memory(&self.recording)?
            && next <= time
        {
            let events = self.events() + 1;
            self.seek(events)?;
        }
        Ok(())
    }

    fn advance(&mut self) -> Result<(), RecordingError> {
        self.cursor.step_over_groups(&self.recording)?;
        let position = &self.cursor.position;
        let events = position.events();
        let is_known = |(_, kept): &(u64, Position<A>)| kept.events() == events;
        let is_due = events.is_multiple_of(NEAR) && !self.near.iter().any(is_known);
        if is_due {
            self.keep(position.clone());
        }
        Ok(())
    }
}

impl<A: Analysis> Cursor<A> {
    /// Begins in the middle of a group: the events before are read and left out.
    fn at(recording: &SeekableRecording, position: Position<A>) -> Result<Self, RecordingError> {
        let mut reader = recording.group(position.group)?;
        for _ in 0..position.items {
            reader.next().transpose()?;
        }
        let next = reader.next().transpose()?;
        Ok(Self {
            position,
            reader,
            next,
            damage: None,
        })
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.position.replay.ledger
    }

    /// Latest header that was read.
    pub(super) fn header(&self) -> &Header {
        self.reader.header()
    }

    /// Damage of what was read.
    pub(super) fn damage(&self) -> Option<RecordingDamage> {
        self.damage.or(self.reader.damage())
    }

    fn enter(&mut self, recording: &SeekableRecording, group: usize) -> Result<(), RecordingError> {
        self.damage = self.damage();
        self.reader = recording.group(group)?;
        self.next = self.reader.next().transpose()?;
        (self.position.group, self.position.items) = (group, 0);
        Ok(())
    }

    /// Applies the next event of the group; `None` at its end.
    fn step(&mut self) -> Result<Option<Event>, RecordingError> {
        let Some(event) = self.next.take() else {
            return Ok(None);
        };
        self.position.replay.apply(&event);
        self.position.items += 1;
        self.next = self.reader.next().transpose()?;
        Ok(Some(event))
    }

    /// Applies the next event of this group or a later one.
    pub(super) fn step_over_groups(
        &mut self,
        recording: &SeekableRecording,
    ) -> Result<Option<Event>, RecordingError> {
        self.fetch(recording)?;
        self.step()
    }

    /// Enters the next group that has an event, if this one has no more.
    pub(super) fn fetch(&mut self, recording: &SeekableRecording) -> Result<(), RecordingError> {
        while self.next.is_none() && self.position.group + 1 < recording.groups() {
            self.enter(recording, self.position.group + 1)?;
        }
        Ok(())
    }

    /// True if so many memory events are applied, and the next event is a memory event or the end.
    fn is_before(
        &mut self,
        events: u64,
        recording: &SeekableRecording,
    ) -> Result<bool, RecordingError> {
        if self.position.events() < events {
            self.fetch(recording)?;
            return Ok(self.next.is_none());
        }
        Ok(self.next_memory(recording)?.is_some() || self.next.is_none())
    }

    /// Returns the time of the next event if it is a memory event that counts.
    fn next_memory(
        &mut self,
        recording: &SeekableRecording,
    ) -> Result<Option<TimeNs>, RecordingError> {
        self.fetch(recording)?;
        Ok(match &self.next {
            Some(Event::Memory(event)) if event.action != Action::Held => Some(event.time),
            _ => None,
        })
    }
}

//! Replay of a recording through the ledger and the analyses that a report needs.

use std::io::BufRead;

use super::preamble::push_beginning;
use super::{Colour, Outcome};
use crate::ledger::snapshot::{Grouping, Snapshot, TargetState};
use crate::ledger::{Analysis, AnalyzedLedger, Refused};
use crate::recording::{End, Header, Reader, RecordedSources, RecordingDamage, RecordingError};
use crate::view::table::Page;

/// State at the end of a recording.
pub struct RecordingReplay {
    pub header: Header,
    pub snapshot: Snapshot,
    pub end: Option<End>,
    pub refused: Refused,
    pub truncated: bool,
    pub damage: Option<RecordingDamage>,
    /// Source text in the recording.
    pub sources: RecordedSources,
}

impl RecordingReplay {
    /// Takes the state after the last event of a recording.
    pub fn of<R: BufRead, A>(
        replay: &mut AnalyzedLedger<A>,
        reader: &Reader<R>,
        grouping: Grouping,
    ) -> Self {
        // The version of torch is often recorded later than the start.
        let header = reader.header().clone();
        let ledger = &mut replay.ledger;
        ledger.target = header.target.clone();
        ledger.health.probes = header.probes.clone();
        ledger.health.state = TargetState::Recording;
        let now = ledger.last_event().unwrap_or(header.start);
        Self {
            snapshot: ledger.snapshot(now, grouping),
            end: reader.end().cloned(),
            refused: ledger.refused(),
            truncated: reader.truncated(),
            damage: reader.damage(),
            sources: reader.sources().cloned().unwrap_or_default(),
            header,
        }
    }

    /// Lines before the tables of a report: the process, the extent of the recording, warnings.
    pub fn beginning(&self) -> Vec<String> {
        let mut page = Page::new(usize::MAX, Colour::Plain);
        push_beginning(&mut page, self);
        page.into_text().lines().map(str::to_owned).collect()
    }

    pub(super) fn outcome(&self) -> Outcome {
        Outcome {
            events: self.snapshot.health.events,
            losses: self.snapshot.health.losses,
            truncated: self.truncated,
            damage: self.damage,
        }
    }

    /// Nanoseconds from the start to the last event.
    pub(super) fn duration(&self) -> u64 {
        self.snapshot.now.0.saturating_sub(self.snapshot.started.0)
    }
}

/// Replays a whole recording; returns the analyses at its end.
pub(super) fn run<R: BufRead, A: Analysis>(
    reader: Reader<R>,
    grouping: Grouping,
    analyses: A,
) -> Result<(RecordingReplay, A), RecordingError> {
    let (ended, replay) = run_to_end(reader, grouping, analyses)?;
    Ok((ended, replay.analyses))
}

/// Replays a whole recording; returns the ledger and the analyses at its end.
pub(super) fn run_to_end<R: BufRead, A: Analysis>(
    mut reader: Reader<R>,
    grouping: Grouping,
    analyses: A,
) -> Result<(RecordingReplay, AnalyzedLedger<A>), RecordingError> {
    let header = reader.header();
    let mut replay = AnalyzedLedger::new(header.target.clone(), header.start, analyses);
    for event in reader.by_ref() {
        replay.apply(&event?);
    }
    let ended = RecordingReplay::of(&mut replay, &reader, grouping);
    Ok((ended, replay))
}

/// Replays the first `events` events of a recording; returns the state after them.
pub(super) fn run_until<R: BufRead, A: Analysis>(
    mut reader: Reader<R>,
    events: u64,
    analyses: A,
) -> Result<AnalyzedLedger<A>, RecordingError> {
    let header = reader.header();
    let mut replay = AnalyzedLedger::new(header.target.clone(), header.start, analyses);
    for event in reader
        .by_ref()
        .take(usize::try_from(events).unwrap_or(usize::MAX))
    {
        replay.apply(&event?);
    }
    Ok(replay)
}

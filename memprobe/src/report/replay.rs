//! Replay of a recording through the model.

use std::io::BufRead;

use super::Outcome;
use crate::event::Event;
use crate::ledger::snapshot::{Grouping, Snapshot, TargetState};
use crate::ledger::{Applied, Model, Refused};
use crate::recording::{End, Header, Reader, RecordingError};

/// State at the end of a recording.
pub(super) struct Replay {
    pub header: Header,
    pub snapshot: Snapshot,
    pub end: Option<End>,
    pub refused: Refused,
    pub truncated: bool,
}

impl Replay {
    pub(super) fn outcome(&self) -> Outcome {
        Outcome {
            events: self.snapshot.health.events,
            losses: self.snapshot.health.losses,
            truncated: self.truncated,
        }
    }

    /// Nanoseconds from the start to the last event.
    pub(super) fn duration(&self) -> u64 {
        self.snapshot.now.0.saturating_sub(self.snapshot.started.0)
    }
}

/// Replays a whole recording.
pub(super) fn run<R: BufRead>(
    reader: Reader<R>,
    grouping: Grouping,
) -> Result<Replay, RecordingError> {
    run_with(reader, grouping, |_, _, _| {})
}

/// Replays a whole recording, and calls `observe` with each event, its effect on the ledger, and the
/// model.
pub(super) fn run_with<R: BufRead>(
    mut reader: Reader<R>,
    grouping: Grouping,
    mut observe: impl FnMut(&Event, &Applied, &Model),
) -> Result<Replay, RecordingError> {
    let header = reader.header();
    let mut model = Model::new(header.target.clone(), header.start);
    for event in reader.by_ref() {
        let event = event?;
        let applied = model.apply(&event);
        observe(&event, &applied, &model);
    }
    // The version of torch is often recorded later than the start.
    let header = reader.header().clone();
    model.set_target(header.target.clone());
    model.set_probes(header.probes.clone());
    model.set_state(TargetState::Recording);
    let now = model.last_event().unwrap_or(header.start);
    Ok(Replay {
        snapshot: model.snapshot(now, grouping),
        end: reader.end().cloned(),
        refused: model.refused(),
        truncated: reader.truncated(),
        header,
    })
}

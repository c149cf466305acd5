//! Times of a snapshot, and of the marks and labels in it.

use std::sync::Arc;

use super::history::MemoryPickle;
use crate::event::{Event, PhaseMark, Target, TimeNs};
use crate::recording::Header;

/// Times of a snapshot on the clock of the events.
pub(super) struct Times {
    /// Begin of the recording; 0 for the first event of PyTorch's history.
    pub(super) start: TimeNs,
    /// The same moment in microseconds since 1970.
    pub(super) start_us: Option<u64>,
}

impl Times {
    pub(super) fn of(snapshot: &MemoryPickle, header: Option<&Header>) -> Self {
        let entries = snapshot.traces.iter().flatten();
        let first_us = entries.filter_map(|entry| entry.time_us).min();
        match (first_us, header) {
            (Some(_), Some(header)) => Self {
                start: header.start,
                start_us: Some(header.wall_start_ms.unwrap_or(0).saturating_mul(1000)),
            },
            _ => Self {
                start: TimeNs(0),
                start_us: first_us,
            },
        }
    }

    /// Header of a history that PyTorch recorded.
    pub(super) fn header(&self) -> Header {
        Header {
            wall_start_ms: self.start_us.map(|start| start / 1000),
            target: Target {
                command: "PyTorch's own memory history".to_owned(),
                ..Target::default()
            },
            ..Header::default()
        }
    }

    /// Returns the time of an event: a microsecond after the previous one if none was recorded.
    pub(super) fn of_step(&self, time_us: Option<u64>, previous: TimeNs) -> TimeNs {
        match (time_us, self.start_us) {
            (Some(time), Some(_)) => self.since_start(time).unwrap_or(previous).max(previous),
            _ => TimeNs(previous.0.saturating_add(1000)),
        }
    }

    pub(super) fn since_start(&self, time_us: u64) -> Option<TimeNs> {
        let since = time_us.saturating_sub(self.start_us?);
        let since = since.saturating_mul(1000);
        Some(TimeNs(self.start.0.saturating_add(since)))
    }
}

/// Gives a mark or labels their time.
pub(super) fn at(event: Event, time: TimeNs) -> Event {
    match event {
        Event::PhaseMark(mark) => Event::PhaseMark(PhaseMark { time, ..mark }),
        Event::BlockLabels(mut labels) => {
            Arc::make_mut(&mut labels).time = time;
            Event::BlockLabels(labels)
        }
        Event::BaselineLabels(mut labels) => {
            Arc::make_mut(&mut labels).time = time;
            Event::BaselineLabels(labels)
        }
        other => other,
    }
}

//! Readings of a process's memory that wait for the records from before them.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::event::{DriverReading, Event, SegmentReading, TimeNs};

/// Claim of the allocator to the memory in its segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentClaim {
    /// Memory in the listed segments belongs to the allocator.
    Listed,
    /// The allocator's events are not observed: its memory is shown as calls of CUDA.
    None,
}

/// A reading of the running process, with a time.
#[derive(Clone, Debug)]
pub enum TimedReading {
    Driver(Arc<DriverReading>),
    Segments(Arc<SegmentReading>, SegmentClaim),
}

impl TimedReading {
    fn time(&self) -> TimeNs {
        match self {
            Self::Driver(reading) => reading.time,
            Self::Segments(reading, _) => reading.time,
        }
    }

    pub(super) fn event(self) -> Event {
        match self {
            Self::Driver(reading) => Event::Driver(reading),
            Self::Segments(reading, _) => Event::Segments(reading),
        }
    }
}

/// Readings in the order of their times.
#[derive(Default)]
pub(super) struct Readings(VecDeque<TimedReading>);

impl Readings {
    pub(super) fn push(&mut self, reading: TimedReading) {
        let time = reading.time();
        let at = self.0.partition_point(|earlier| earlier.time() <= time);
        self.0.insert(at, reading);
    }

    /// Takes the next reading from before a record; `None` for a record stands for the last one.
    pub(super) fn take_before(&mut self, record: Option<TimeNs>) -> Option<TimedReading> {
        let next = self.0.front()?;
        let is_before = record.is_none_or(|time| next.time() < time);
        is_before.then(|| self.0.pop_front()).flatten()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

//! Replay from keyframes: a long recording is opened without reading it.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::overview::{EventNumbers, Overview};
use super::player::Player;
use crate::event::{DeviceIndex, Target};
use crate::ledger::snapshot::Grouping;
use crate::ledger::totals_curve::{CurveBuilder, TotalsCurve};
use crate::ledger::{Analysis, CopySize, Ledger};
use crate::recording::{
    CELL_EVENTS, KeyframePlace, RecordedCurve, RecordingError, SeekableRecording,
};

/// Keyframes of a recording, and its curve, which they lack.
pub(super) struct KeyframeStarts {
    keyframes: Vec<KeyframePlace>,
    curve: Arc<TotalsCurve>,
    numbers: EventNumbers,
}

/// State at a keyframe.
pub(super) struct KeyframeStart {
    pub ledger: Ledger,
    pub group: usize,
    /// Events of the group's reader before it.
    pub items: u64,
}

impl KeyframeStarts {
    /// Restores the last whole keyframe with more events before it than the first number, and at most the other.
    pub(super) fn restore(
        &self,
        recording: &SeekableRecording,
        target: &Target,
        events: RangeInclusive<u64>,
    ) -> Result<Option<KeyframeStart>, RecordingError> {
        let number = |place: &KeyframePlace| self.numbers.of(place.events);
        let end = self
            .keyframes
            .partition_point(|place| number(place) <= *events.end());
        for (at, place) in self.keyframes.iter().enumerate().take(end).rev() {
            if number(place) <= *events.start() {
                break;
            }
            let state = recording.keyframe(at)?;
            let ledger = state.map(|state| Ledger::of_keyframe(target.clone(), &state));
            // A damaged one is as good as none.
            if let Some(Ok(mut ledger)) = ledger {
                let is_restated = place.group == 0 && self.is_beginning(place);
                if self.numbers.dropped > 0 {
                    ledger.begin_later(recording.header().start, number(place));
                }
                ledger.continue_timelines(&self.curve, place.events);
                return Ok(Some(KeyframeStart {
                    ledger,
                    group: place.group,
                    items: if is_restated { self.numbers.items } else { 0 },
                }));
            }
        }
        Ok(None)
    }

    /// True for the keyframe with which a file begins whose older part was dropped.
    fn is_beginning(&self, place: &KeyframePlace) -> bool {
        self.numbers.dropped > 0 && place.events == self.numbers.dropped
    }
}

impl<A: Analysis + Clone + CopySize> Player<A> {
    /// Opens a recording at its end without reading what keyframes and curve tell. `analyses` must follow nothing: a
    /// keyframe has none. Returns `None` for a recording without a keyframe or without a curve, and for one that is
    /// damaged where it was read. Peaks and counts of lines are those since the start of the recording, also if the file
    /// has only the newest part.
    pub fn from_keyframes(
        recording: &SeekableRecording,
        analyses: A,
    ) -> Result<Option<Self>, RecordingError> {
        let keyframes = recording.keyframes();
        if keyframes.is_empty() {
            return Ok(None);
        }
        let Some(RecordedCurve { curve, rest }) = recording.curve()? else {
            return Ok(None);
        };
        let mut player = Self::at_begin(recording.clone(), analyses)?;
        player.sources = recording.sources()?;
        let numbers = EventNumbers::of_recording(recording)?;
        let starts = |curve: TotalsCurve| KeyframeStarts {
            keyframes: keyframes.clone(),
            curve: Arc::new(curve),
            numbers,
        };
        player.starts = Some(starts(curve.clone()));
        let curve = match rest {
            Some(group) => player.read_rest(curve, group, numbers)?,
            None => curve,
        };
        player.overview = Overview::of_curve(&curve, numbers);
        player.starts = Some(starts(curve.clone()));
        player.seek(u64::MAX)?;
        Ok(player.complete(&curve).then_some(player))
    }

    /// Follows the groups that the curve lacks.
    fn read_rest(
        &mut self,
        mut curve: TotalsCurve,
        group: usize,
        numbers: EventNumbers,
    ) -> Result<TotalsCurve, RecordingError> {
        self.begin_at_keyframe(numbers.of(curve.events()))?;
        let mut builder = CurveBuilder::after(&curve, CELL_EVENTS);
        while let Some(event) = self.cursor.step_over_groups(&self.recording)? {
            if self.cursor.position.group >= group {
                builder.apply(&event, self.cursor.ledger());
            }
        }
        curve.append(builder.take());
        Ok(curve)
    }

    /// Adds what is known at the end. Returns false if the curve contradicts the ledger there, or lacks a device.
    fn complete(&mut self, curve: &TotalsCurve) -> bool {
        // The version of torch is often recorded later than the start.
        self.header = self.cursor.header().clone();
        let ledger = self.cursor.ledger();
        let end = ledger.last_event().unwrap_or(self.header.start);
        let snapshot = ledger.snapshot(end, Grouping::default());
        let overview = &mut self.overview;
        (overview.start, overview.end) = (self.header.start, end);
        overview.timelines = curve.timelines(snapshot.started);
        let known: Vec<DeviceIndex> = curve.devices().collect();
        let mut devices = snapshot.devices.iter().map(|device| device.index);
        self.damage.is_none()
            && ledger.health.events == overview.events
            && devices.all(|device| known.contains(&device))
    }
}

#[cfg(test)]
mod tests;

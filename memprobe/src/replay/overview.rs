//! Facts about a whole recording, collected as it is read for the first time, or from its curve.

use std::collections::BTreeMap;

use crate::event::{Action, Bytes, DeviceIndex, Event, TimeNs};
use crate::ledger::Ledger;
use crate::ledger::snapshot::Timeline;
use crate::ledger::totals_curve::TotalsCurve;
use crate::recording::{RecordingError, SeekableRecording};

/// Most samples of the time.
const MAX_SAMPLES: usize = 1 << 16;

/// Most out-of-memory errors that can be gone to.
const MAX_OOMS: usize = 1 << 16;

/// Facts about a recording that do not depend on the moment shown.
#[derive(Clone, Debug, Default)]
pub struct Overview {
    pub start: TimeNs,
    pub end: TimeNs,
    /// Memory events.
    pub events: u64,
    /// Peak of the allocated bytes of each device.
    pub peaks: BTreeMap<DeviceIndex, PeakMoment>,
    /// Events up to each out-of-memory error, with it.
    pub ooms: Vec<u64>,
    /// Totals of each device over all time.
    pub timelines: Vec<(DeviceIndex, Timeline)>,
    times: TimeSamples,
}

/// Numbers of events of a file whose older part was dropped: its reader restates the state there by further events.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EventNumbers {
    /// Memory events of the recording before the file.
    pub(super) dropped: u64,
    /// Memory events that restate the state.
    pub(super) restated: u64,
    /// All events that do.
    pub(super) items: u64,
}

impl EventNumbers {
    pub(super) fn of_recording(recording: &SeekableRecording) -> Result<Self, RecordingError> {
        let Some(dropped) = recording.header().dropped else {
            return Ok(Self::default());
        };
        let reader = recording.group(0)?;
        let items = reader.restated();
        let mut restated = 0;
        for event in reader.take(items) {
            let is_counted =
                matches!(event?, Event::Memory(memory) if memory.action != Action::Held);
            restated += u64::from(is_counted);
        }
        Ok(Self {
            dropped: dropped.events,
            restated,
            items: items as u64,
        })
    }

    /// Number of events for the reader of the file, after so many of the recording.
    pub(super) fn of(self, recorded: u64) -> u64 {
        recorded
            .saturating_sub(self.dropped)
            .saturating_add(self.restated)
    }
}

/// First moment with the most allocated bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeakMoment {
    pub allocated: Bytes,
    /// Events up to it, with it.
    pub events: u64,
}

/// Times after some numbers of events.
#[derive(Clone, Debug)]
struct TimeSamples {
    /// Numbers of events, and the latest time among them.
    samples: Vec<(u64, TimeNs)>,
    /// Events between two samples.
    stride: u64,
}

impl Default for TimeSamples {
    fn default() -> Self {
        Self {
            samples: Vec::new(),
            stride: 1,
        }
    }
}

impl TimeSamples {
    fn push(&mut self, events: u64, time: TimeNs) {
        if !events.is_multiple_of(self.stride) {
            return;
        }
        self.samples.push((events, time));
        if self.samples.len() > MAX_SAMPLES {
            self.stride *= 2;
            let stride = self.stride;
            self.samples
                .retain(|(events, _)| events.is_multiple_of(stride));
        }
    }

    /// Returns a number of events that all lie at or before a time, at most a stride below the highest.
    fn events_before(&self, time: TimeNs) -> u64 {
        let after = self.samples.partition_point(|(_, last)| *last <= time);
        let before = after.checked_sub(1).map(|at| self.samples[at].0);
        before.unwrap_or(0)
    }
}

impl Overview {
    pub(super) fn note(&mut self, event: &Event, ledger: &Ledger) {
        let Event::Memory(memory) = event else { return };
        if memory.action == Action::Held {
            return;
        }
        let events = ledger.health.events;
        let last = ledger.last_event().unwrap_or_default();
        self.times.push(events, last);
        if memory.action == Action::OutOfMemory && self.ooms.len() < MAX_OOMS {
            self.ooms.push(events);
        }
        if let Some((device, sample)) = ledger.moment(event) {
            let allocated = sample.totals.allocated;
            let now = PeakMoment { allocated, events };
            let peak = self.peaks.entry(device).or_insert(now);
            if allocated > peak.allocated {
                *peak = now;
            }
        }
    }

    /// Facts that a curve has: all but start, end and timelines.
    pub(super) fn of_curve(curve: &TotalsCurve, numbers: EventNumbers) -> Self {
        let mut overview = Self {
            events: numbers.restated,
            ooms: curve.ooms().iter().map(|oom| numbers.of(*oom)).collect(),
            ..Self::default()
        };
        if numbers.restated > 0 {
            let peaks = curve.first_totals().map(|(device, totals)| {
                let peak = PeakMoment {
                    allocated: totals.allocated,
                    events: numbers.restated,
                };
                (device, peak)
            });
            overview.peaks = peaks.collect();
        }
        let stride = curve.cells().len().div_ceil(MAX_SAMPLES).max(1);
        for (at, cell) in curve.cells().iter().enumerate() {
            for device in cell.devices.iter().filter(|device| device.peak > 0) {
                let allocated = Bytes(device.peak_allocated);
                let events = overview.events.saturating_add(device.peak);
                let now = PeakMoment { allocated, events };
                let peak = overview.peaks.entry(device.device).or_insert(now);
                if allocated > peak.allocated {
                    *peak = now;
                }
            }
            overview.events = overview.events.saturating_add(cell.events);
            if at % stride == 0 {
                let sample = (overview.events, cell.end);
                overview.times.samples.push(sample);
            }
        }
        overview
    }

    /// Returns a number of events that all lie at or before a time.
    pub(super) fn events_before(&self, time: TimeNs) -> u64 {
        self.times.events_before(time)
    }

    /// Returns the peak of the device with the most allocated bytes.
    pub fn highest_peak(&self) -> Option<PeakMoment> {
        let peaks = self.peaks.values().rev();
        peaks.max_by_key(|peak| peak.allocated).copied()
    }
}

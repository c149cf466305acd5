//! Flight recorder of one process: the newest events, and the live state before them.
//!
//! The ledger lags behind the stream: it has applied the events that left the window. A dump restates it, and the events
//! of the window follow. Memory is bounded by the caps of the ledger and by [`MAX_EVENTS`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::commands::record::recorder;
use crate::event::{Bytes, CaptureLevel, DeviceIndex, Event, ProbeStatus, Target, TimeNs, Totals};
use crate::ledger::Ledger;
use crate::recording::Header;

/// Most events of the window; about 100 bytes each.
const MAX_EVENTS: usize = 1 << 16;

/// Longest window before the newest event.
const WINDOW: Duration = Duration::from_secs(60);

/// Most live blocks that a dump restates one by one.
const MAX_BLOCKS: usize = 100_000;

pub(super) struct FlightRecorder {
    pub(super) target: Target,
    pub(super) probes: Vec<ProbeStatus>,
    /// State before the first event of the window.
    base: Ledger,
    window: VecDeque<Event>,
    devices: BTreeSet<DeviceIndex>,
    /// The allocator's totals after the last event of each device.
    totals: BTreeMap<DeviceIndex, Totals>,
    last: TimeNs,
    is_paused: bool,
}

/// Contents of a dump: live blocks as allocations, then the events of the window.
#[derive(Clone)]
pub(super) struct FrozenFlight {
    pub(super) header: Header,
    pub(super) events: Vec<Event>,
    pub(super) devices: Vec<DeviceIndex>,
    pub(super) blocks_left_out: u64,
}

impl FlightRecorder {
    pub(super) fn new(target: Target, now: TimeNs) -> Self {
        Self {
            base: Ledger::new(target.clone(), now),
            target,
            probes: Vec::new(),
            window: VecDeque::new(),
            devices: BTreeSet::new(),
            totals: BTreeMap::new(),
            last: now,
            is_paused: false,
        }
    }

    pub(super) fn record(&mut self, event: Event) {
        if let Some(time) = time_of(&event) {
            self.last = self.last.max(time);
        }
        self.devices.extend(device_of(&event));
        self.totals.extend(totals_of(&event));
        if let Event::Capture(change) = &event {
            self.is_paused = change.level == CaptureLevel::Paused;
        }
        self.window.push_back(event);
        let window = u64::try_from(WINDOW.as_nanos()).unwrap_or(u64::MAX);
        let start = TimeNs(self.last.0.saturating_sub(window));
        while let Some(first) = self.window.front() {
            let is_old = time_of(first).is_none_or(|time| time < start);
            if !is_old && self.window.len() <= MAX_EVENTS {
                break;
            }
            if let Some(event) = self.window.pop_front() {
                self.base.apply(&event);
            }
        }
    }

    /// True if a device of CUDA was seen.
    pub(super) fn has_devices(&self) -> bool {
        !self.devices.is_empty()
    }

    /// Bytes that the allocator of PyTorch caches, by device.
    pub(super) fn cached(&self) -> impl Iterator<Item = (DeviceIndex, Bytes)> {
        let totals = self.totals.iter();
        totals.map(|(device, totals)| (*device, totals.cached()))
    }

    /// True while the probes are off, so that the live blocks are out of date.
    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Copies the present state, as of the last event.
    pub(super) fn freeze(&self) -> FrozenFlight {
        let start = self.window.iter().find_map(time_of);
        let start = start.unwrap_or(self.last);
        let restated = self.base.restate(start, MAX_BLOCKS);
        let mut events = restated.events;
        events.extend(self.window.iter().cloned());
        let now = crate::session::now();
        let age = Duration::from_nanos(now.0.saturating_sub(start.0));
        let begun = SystemTime::now().checked_sub(age);
        let since_1970 = begun.and_then(|begun| begun.duration_since(UNIX_EPOCH).ok());
        FrozenFlight {
            header: Header {
                start,
                wall_start_ms: since_1970.and_then(|time| u64::try_from(time.as_millis()).ok()),
                probes: self.probes.clone(),
                ..recorder::header(self.target.clone())
            },
            events,
            devices: self.devices.iter().copied().collect(),
            blocks_left_out: restated.left_out,
        }
    }

    /// Time of the last event.
    pub(super) fn last(&self) -> TimeNs {
        self.last
    }
}

/// Time of an event, if it has one.
pub(super) fn time_of(event: &Event) -> Option<TimeNs> {
    match event {
        Event::Memory(event) => Some(event.time),
        Event::PhaseMark(mark) => Some(mark.time),
        Event::AtAttach(found) => Some(found.time),
        Event::BlockLabels(labels) | Event::BaselineLabels(labels) => Some(labels.time),
        Event::Segments(reading) => Some(reading.time),
        Event::Driver(reading) => Some(reading.time),
        Event::Capture(change) => Some(change.time),
        Event::Stack(..) | Event::BlockPurpose(..) | Event::Thread(..) | Event::Loss(_) => None,
    }
}

fn totals_of(event: &Event) -> Option<(DeviceIndex, Totals)> {
    match event {
        Event::Memory(event) => Some((event.device?, event.totals?)),
        Event::AtAttach(found) => Some((found.device?, found.totals)),
        _ => None,
    }
}

fn device_of(event: &Event) -> Option<DeviceIndex> {
    let device = match event {
        Event::Memory(event) => event.device,
        Event::AtAttach(found) => found.device,
        _ => None,
    };
    device.filter(|device| ![DeviceIndex::CPU, DeviceIndex::UNKNOWN].contains(device))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribution::allocation_groups::samples::learning_for;
    use crate::ledger::snapshot::Grouping;

    /// Live bytes by line and the total of the first device.
    fn lines(ledger: &Ledger, now: TimeNs) -> (BTreeMap<String, u64>, u64) {
        let snapshot = ledger.snapshot(now, Grouping::User);
        let device = &snapshot.devices[0];
        let lines = device.lines.iter().filter(|line| line.live.0 > 0);
        let lines = lines.map(|line| (format!("{:?}", line.site), line.live.0));
        (lines.collect(), device.totals.allocated.0)
    }

    #[test]
    fn a_dump_leads_to_the_present_state_though_the_window_is_short() {
        let events = learning_for(40, |_| true).events;
        let times = events.iter().filter_map(time_of);
        let span = times.clone().max().unwrap().0 - times.min().unwrap().0;
        // Stretched, so that most events leave the window.
        let factor = 5 * u64::try_from(WINDOW.as_nanos()).unwrap() / span.max(1) + 1;
        let mut flight = FlightRecorder::new(Target::default(), TimeNs(0));
        let mut whole = Ledger::new(Target::default(), TimeNs(0));
        for mut event in events {
            match &mut event {
                Event::Memory(event) => event.time.0 *= factor,
                Event::PhaseMark(mark) => mark.time.0 *= factor,
                Event::AtAttach(found) => found.time.0 *= factor,
                _ => {}
            }
            whole.apply(&event);
            flight.record(event);
        }
        assert!(
            flight.base.last_event().is_some(),
            "nothing left the window"
        );
        let frozen = flight.freeze();
        let mut copy = Ledger::new(Target::default(), frozen.header.start);
        for event in &frozen.events {
            copy.apply(event);
        }
        assert_eq!(lines(&copy, flight.last()), lines(&whole, flight.last()));
        assert_eq!(
            copy.snapshot(flight.last(), Grouping::User)
                .health
                .disagreements,
            0
        );
        assert_eq!(frozen.devices, [DeviceIndex(0)]);
    }

    #[test]
    fn the_window_has_no_more_events_than_its_limit() {
        let mut flight = FlightRecorder::new(Target::default(), TimeNs(0));
        let event = learning_for(2, |_| true).events.into_iter();
        let event = event
            .clone()
            .find(|event| matches!(event, Event::Memory(_)));
        let event = event.expect("a memory event");
        for _ in 0..MAX_EVENTS + 7 {
            flight.record(event.clone());
        }
        assert_eq!(flight.window.len(), MAX_EVENTS);
    }
}

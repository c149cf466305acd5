//! Curve of a recording: the lowest and highest totals of each device in short cells of events, so that a whole
//! recording is drawn without its events.

use std::collections::BTreeMap;

use super::Ledger;
use super::snapshot::{Timeline, TimelineMarks, TotalsPoint};
use super::timeline::TotalsRecorder;
use crate::event::{Action, DeviceIndex, Event, TimeNs, Totals};

/// Longest silence within a cell, in nanoseconds (10 ms): a cell is not drawn over a pause.
const MAX_PAUSE: u64 = 10_000_000;

/// Most values of devices in the cells of a part. When they are full, pairs of cells are merged.
pub const MAX_PART_VALUES: usize = 1 << 14;

/// Most cells of a curve. When they are full, pairs are merged.
const MAX_CELLS: usize = 1 << 18;

/// Most out-of-memory errors that a curve knows.
const MAX_OOMS: usize = 1 << 16;

/// Totals of all devices in a span of events.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CurveCell {
    /// Memory events, without those of blocks from before attach.
    pub events: u64,
    /// Latest event time at its begin and at its end.
    pub begin: TimeNs,
    pub end: TimeNs,
    /// Marks, without out-of-memory errors.
    pub marks: TimelineMarks,
    /// Devices that had an event, in the order of their index.
    pub devices: Vec<DeviceCell>,
}

/// Totals of one device in a cell, after each of its events there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceCell {
    pub device: DeviceIndex,
    pub low: Totals,
    pub high: Totals,
    pub last: Totals,
    /// Events of the cell up to the first one with the most allocated bytes, with it; 0 without a memory event.
    pub peak: u64,
    /// Allocated bytes after that event; 0 without one.
    pub peak_allocated: u64,
    pub ooms: u32,
}

/// Consecutive cells.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CurvePart {
    /// Memory events of the recording before the first cell.
    pub first_event: u64,
    /// Totals of each device of these cells before its first event in them.
    pub before: BTreeMap<DeviceIndex, Totals>,
    pub cells: Vec<CurveCell>,
    /// Events of the recording up to each out-of-memory error, with it.
    pub ooms: Vec<u64>,
}

impl CurvePart {
    /// Memory events of the recording up to its end.
    pub fn end_event(&self) -> u64 {
        let events = self.cells.iter().map(|cell| cell.events);
        events.fold(self.first_event, u64::saturating_add)
    }
}

impl CurveCell {
    /// Adds the cell that follows.
    fn append(&mut self, next: Self) {
        for mut device in next.devices {
            if device.peak > 0 {
                device.peak = device.peak.saturating_add(self.events);
            }
            match self.place(device.device) {
                Ok(at) => self.devices[at].append(device),
                Err(at) => self.devices.insert(at, device),
            }
        }
        self.events = self.events.saturating_add(next.events);
        self.end = next.end;
        self.marks.add(next.marks);
    }

    fn place(&self, device: DeviceIndex) -> Result<usize, usize> {
        self.devices
            .binary_search_by_key(&device, |known| known.device)
    }
}

impl DeviceCell {
    fn append(&mut self, next: Self) {
        self.low = self.low.lower(next.low);
        self.high = self.high.higher(next.high);
        self.last = next.last;
        self.ooms = self.ooms.saturating_add(next.ooms);
        let is_higher = self.peak == 0 || next.peak_allocated > self.peak_allocated;
        if next.peak > 0 && is_higher {
            (self.peak, self.peak_allocated) = (next.peak, next.peak_allocated);
        }
    }
}

/// Cuts a stream of events into cells.
#[derive(Clone, Debug)]
pub struct CurveBuilder {
    cell_events: u64,
    /// Latest time of an event.
    now: TimeNs,
    open: Option<CurveCell>,
    /// Devices so far, with their totals before the open cell; before their first event where that lies in it.
    last: BTreeMap<DeviceIndex, Totals>,
    part: CurvePart,
}

impl CurveBuilder {
    /// Goes on behind a curve, with cells of so many events.
    pub fn after(curve: &TotalsCurve, cell_events: u32) -> Self {
        Self {
            cell_events: cell_events.max(1).into(),
            now: curve.end(),
            open: None,
            last: curve.last.clone(),
            part: CurvePart {
                first_event: curve.events(),
                ..CurvePart::default()
            },
        }
    }

    /// Most values of devices in the cells since the last [`Self::take`].
    pub fn values(&self) -> usize {
        self.part.cells.len().saturating_mul(self.last.len().max(1))
    }

    /// Applies an event, and the ledger after it.
    pub fn apply(&mut self, event: &Event, ledger: &Ledger) {
        match event {
            Event::Memory(memory) if memory.action != Action::Held => {
                let totals = ledger.totals_after(memory);
                self.advance(memory.time, totals.map(|(device, _)| device));
                if let Some(cell) = &mut self.open {
                    cell.events += 1;
                }
                if memory.action == Action::OutOfMemory {
                    self.note_out_of_memory();
                }
                if let Some((device, totals)) = totals {
                    self.note(device, memory.undo(totals), totals, event);
                }
                self.close_when_full();
            }
            Event::AtAttach(found) => {
                if let Some((device, sample)) = ledger.moment(event) {
                    self.advance(found.time, Some(device));
                    self.note(device, sample.totals, sample.totals, event);
                }
            }
            Event::PhaseMark(mark) => self.mark(mark.time, TimelineMarks::of_phase(mark.phase)),
            Event::BlockLabels(labels) => self.mark(labels.time, TimelineMarks::of_reading()),
            _ => {}
        }
    }

    /// Returns the cells since the last call.
    pub fn take(&mut self) -> CurvePart {
        self.close();
        let next = CurvePart {
            first_event: self.part.end_event(),
            ..CurvePart::default()
        };
        std::mem::replace(&mut self.part, next)
    }

    /// Goes on to a time, in a new cell behind a pause and for a new device.
    fn advance(&mut self, time: TimeNs, device: Option<DeviceIndex>) {
        let is_late = time.0.saturating_sub(self.now.0) > MAX_PAUSE;
        let is_new = device.is_some_and(|device| !self.knows(device));
        if is_late || is_new {
            self.close();
        }
        self.now = self.now.max(time);
        let now = self.now;
        let cell = self.open.get_or_insert_with(|| CurveCell {
            begin: now,
            ..CurveCell::default()
        });
        cell.end = now;
    }

    /// True for a device that has had an event. Nearly all events are of a device of the open cell.
    fn knows(&self, device: DeviceIndex) -> bool {
        let is_open = |cell: &CurveCell| cell.place(device).is_ok();
        self.open.as_ref().is_some_and(is_open) || self.last.contains_key(&device)
    }

    fn note(&mut self, device: DeviceIndex, before: Totals, totals: Totals, event: &Event) {
        let Some(cell) = &mut self.open else { return };
        let is_event = matches!(event, Event::Memory(_));
        let is_oom = matches!(event, Event::Memory(memory) if memory.action == Action::OutOfMemory);
        let noted = DeviceCell {
            device,
            low: totals,
            high: totals,
            last: totals,
            peak: if is_event { cell.events } else { 0 },
            peak_allocated: if is_event { totals.allocated.0 } else { 0 },
            ooms: is_oom.into(),
        };
        match cell.place(device) {
            Ok(at) => cell.devices[at].append(noted),
            Err(at) => {
                let before = *self.last.entry(device).or_insert(before);
                self.part.before.entry(device).or_insert(before);
                cell.devices.insert(at, noted);
            }
        }
    }

    fn note_out_of_memory(&mut self) {
        let open = self.open.as_ref().map_or(0, |cell| cell.events);
        if self.part.ooms.len() < MAX_OOMS {
            let events = self.part.end_event().saturating_add(open);
            self.part.ooms.push(events);
        }
    }

    fn mark(&mut self, time: TimeNs, marks: TimelineMarks) {
        self.advance(time, None);
        if let Some(cell) = &mut self.open {
            cell.marks.add(marks);
        }
    }

    fn close_when_full(&mut self) {
        let is_full = |cell: &CurveCell| cell.events >= self.cell_events;
        if self.open.as_ref().is_some_and(is_full) {
            self.close();
        }
    }

    fn close(&mut self) {
        if let Some(cell) = self.open.take() {
            let devices = cell.devices.iter();
            self.last
                .extend(devices.map(|device| (device.device, device.last)));
            self.part.cells.push(cell);
        }
        if self.values() > MAX_PART_VALUES {
            merge_pairs(&mut self.part.cells);
        }
    }
}

/// Makes one cell of each two.
fn merge_pairs(cells: &mut Vec<CurveCell>) {
    let mut old = std::mem::take(cells).into_iter();
    while let Some(mut first) = old.next() {
        if let Some(second) = old.next() {
            first.append(second);
        }
        cells.push(first);
    }
}

/// Curve of a recording up to an event.
#[derive(Clone, Debug, Default)]
pub struct TotalsCurve {
    /// Totals of each device before its first event, and the index of the cell with that.
    first: BTreeMap<DeviceIndex, (usize, Totals)>,
    /// Totals of each device after its last event.
    last: BTreeMap<DeviceIndex, Totals>,
    cells: Vec<CurveCell>,
    /// Events and cells up to the end of each part: a keyframe stands there.
    parts: Vec<(u64, usize)>,
    ooms: Vec<u64>,
    events: u64,
}

impl TotalsCurve {
    /// Makes a curve that begins behind so many events.
    pub fn behind(events: u64) -> Self {
        Self {
            events,
            ..Self::default()
        }
    }

    /// Totals of each device before the first cell.
    pub fn first_totals(&self) -> impl Iterator<Item = (DeviceIndex, Totals)> {
        let first = self.first.iter().filter(|(_, (at, _))| *at == 0);
        first.map(|(index, (_, totals))| (*index, *totals))
    }

    /// Appends the cells that follow.
    pub fn append(&mut self, part: CurvePart) {
        self.events = part.end_event();
        let free = MAX_OOMS.saturating_sub(self.ooms.len());
        self.ooms.extend(part.ooms.into_iter().take(free));
        for cell in part.cells {
            let at = self.cells.len();
            for device in &cell.devices {
                let before = part.before.get(&device.device);
                let before = before.copied().unwrap_or(device.last);
                self.first.entry(device.device).or_insert((at, before));
                self.last.insert(device.device, device.last);
            }
            self.cells.push(cell);
            if self.cells.len() > MAX_CELLS {
                self.merge();
            }
        }
        self.parts.push((self.events, self.cells.len()));
    }

    /// Merges pairs of cells.
    fn merge(&mut self) {
        merge_pairs(&mut self.cells);
        for (at, _) in self.first.values_mut() {
            *at /= 2;
        }
        for (_, cells) in &mut self.parts {
            *cells = cells.div_ceil(2);
        }
    }

    /// Memory events up to its end.
    pub fn events(&self) -> u64 {
        self.events
    }

    pub fn cells(&self) -> &[CurveCell] {
        &self.cells
    }

    /// Events up to each out-of-memory error, with it.
    pub fn ooms(&self) -> &[u64] {
        &self.ooms
    }

    pub fn devices(&self) -> impl Iterator<Item = DeviceIndex> {
        self.first.keys().copied()
    }

    /// Latest time of an event; 0 without one.
    pub fn end(&self) -> TimeNs {
        self.cells.last().map_or(TimeNs(0), |cell| cell.end)
    }

    /// Returns the totals over all time from `start` on, as a ledger that followed each event would have them, to the
    /// accuracy of a cell.
    pub fn timelines(&self, start: TimeNs) -> Vec<(DeviceIndex, Timeline)> {
        let recorders = self.recorders(start, u64::MAX).into_iter();
        let end = self.end();
        recorders
            .map(|(device, recorder)| (device, recorder.up_to(end).all))
            .collect()
    }

    /// Returns the state of the timelines at the end of the last part with at most so many events before it.
    fn recorders(&self, start: TimeNs, events: u64) -> BTreeMap<DeviceIndex, TotalsRecorder> {
        let mut recorders: BTreeMap<DeviceIndex, TotalsRecorder> = BTreeMap::new();
        let parts = self.parts.partition_point(|(end, _)| *end <= events);
        let cells = parts.checked_sub(1).map_or(0, |at| self.parts[at].1);
        for (at, cell) in self.cells.iter().enumerate().take(cells) {
            for device in &cell.devices {
                let first = self.first.get(&device.device);
                let first = first.filter(|(place, _)| *place == at);
                let totals = first.map_or(device.low, |(_, totals)| *totals);
                let recorder = || TotalsRecorder::new(start, totals);
                recorders.entry(device.device).or_insert_with(recorder);
            }
            for (index, recorder) in &mut recorders {
                recorder.mark(cell.begin, cell.marks);
                if let Ok(place) = cell.place(*index) {
                    let device = &cell.devices[place];
                    let point = TotalsPoint {
                        low: device.low,
                        high: device.high,
                        marks: TimelineMarks::of_ooms(device.ooms),
                    };
                    recorder.record_span([cell.begin, cell.end], point, device.last);
                }
            }
        }
        recorders
    }
}

impl Ledger {
    /// Replaces the timelines, which begin at a keyframe, by those of a curve up to there: so many recorded events.
    pub fn continue_timelines(&mut self, curve: &TotalsCurve, events: u64) {
        for (index, recorder) in curve.recorders(self.started, events) {
            if let Some(device) = self.devices.get_mut(&index) {
                device.continue_timeline(recorder);
            }
        }
    }
}

#[cfg(test)]
mod tests;

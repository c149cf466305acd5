//! Frames of the curve: the lowest, highest and last totals of each device in cells of events.

use std::collections::BTreeMap;

use super::frame::{FrameKind, PlainFrame};
use super::varint::{VarintReader, push, push_bytes, push_difference};
use crate::event::{DeviceIndex, TimeNs, Totals};
use crate::ledger::snapshot::TimelineMarks;
use crate::ledger::totals_curve::{CurveCell, CurvePart, DeviceCell, MAX_PART_VALUES};

/// Most cells of a frame, and most values of devices in all of them. A writer may have one cell more before it merges.
const MAX_CELLS: usize = MAX_PART_VALUES + 1;

/// Values of devices after which a frame is written.
pub(super) const FULL: usize = 1 << 12;

/// Columns of a frame, in their order.
#[derive(Default)]
struct CurveColumns {
    /// Devices, with their totals before the first event in the frame.
    devices: Vec<u8>,
    events: Vec<u8>,
    times: Vec<u8>,
    marks: Vec<u8>,
    /// Devices of each cell, by their place among the devices.
    places: Vec<u8>,
    totals: Vec<u8>,
    peaks: Vec<u8>,
    ooms: Vec<u8>,
}

impl CurveColumns {
    fn cell(&mut self, cell: &CurveCell, end: &mut TimeNs, last: &mut BTreeMap<u8, (u64, Totals)>) {
        push(&mut self.events, cell.events);
        push_difference(&mut self.times, end.0, cell.begin.0);
        push(&mut self.times, cell.end.0.saturating_sub(cell.begin.0));
        *end = cell.end;
        let marks = cell.marks;
        for count in [marks.steps, marks.zero_grads, marks.batches, marks.readings] {
            push(&mut self.marks, count.into());
        }
        push(&mut self.places, cell.devices.len() as u64);
        for device in &cell.devices {
            let Some((place, before)) = last.get_mut(&device.device.0) else {
                continue;
            };
            push(&mut self.places, *place);
            self.totals(device, *before);
            *before = device.last;
            push(&mut self.peaks, device.peak);
            if device.peak > 0 {
                push_difference(
                    &mut self.peaks,
                    device.high.allocated.0,
                    device.peak_allocated,
                );
            }
            push(&mut self.peaks, device.ooms.into());
        }
    }

    fn totals(&mut self, device: &DeviceCell, before: Totals) {
        let fields: [fn(Totals) -> u64; 2] = [|it| it.allocated.0, |it| it.reserved.0];
        for field in fields {
            push_difference(&mut self.totals, field(before), field(device.last));
            push(&mut self.totals, field(device.last) - field(device.low));
            push(&mut self.totals, field(device.high) - field(device.last));
        }
    }
}

/// Returns the frame of a part.
pub(super) fn frame(part: &CurvePart, group: u16) -> PlainFrame {
    let mut columns = CurveColumns::default();
    let mut last = BTreeMap::new();
    for (place, (device, before)) in part.before.iter().enumerate() {
        push(&mut columns.devices, device.0.into());
        push(&mut columns.devices, before.allocated.0);
        push(&mut columns.devices, before.reserved.0);
        last.insert(device.0, (place as u64, *before));
    }
    let mut end = TimeNs(0);
    for cell in &part.cells {
        columns.cell(cell, &mut end, &mut last);
    }
    let mut before = part.first_event;
    for oom in &part.ooms {
        push(&mut columns.ooms, oom - before);
        before = *oom;
    }
    let mut payload = Vec::new();
    let CurveColumns {
        devices,
        events,
        times,
        marks,
        places,
        totals,
        peaks,
        ooms,
    } = columns;
    for column in [devices, events, times, marks, places, totals, peaks, ooms] {
        push_bytes(&mut payload, &column);
    }
    let begin = part.cells.first().map_or(0, |cell| cell.begin.0);
    PlainFrame {
        kind: FrameKind::Curve,
        group,
        first_event: part.first_event,
        events: 0,
        times: [begin, end.0],
        payload,
    }
}

/// Reader of the columns.
struct CurveReader<'a> {
    times: VarintReader<'a>,
    marks: VarintReader<'a>,
    places: VarintReader<'a>,
    totals: VarintReader<'a>,
    peaks: VarintReader<'a>,
    /// Devices with their totals before the next cell.
    devices: Vec<(DeviceIndex, Totals)>,
    end: TimeNs,
    values: usize,
}

/// Decodes a payload, which may come from a hostile file, behind so many memory events.
///
/// # Errors
///
/// If the payload is cut, too long, or contradicts itself. The error describes the fault in a few words.
pub fn decode(payload: &[u8], first_event: u64) -> Result<CurvePart, &'static str> {
    let mut reader = VarintReader(payload);
    let mut column = || reader.bytes().map(VarintReader);
    let (mut devices, mut events) = (column()?, column()?);
    let mut reader = CurveReader {
        times: column()?,
        marks: column()?,
        places: column()?,
        totals: column()?,
        peaks: column()?,
        devices: Vec::new(),
        end: TimeNs(0),
        values: 0,
    };
    let mut ooms = column()?;
    let mut part = CurvePart {
        first_event,
        ..CurvePart::default()
    };
    while !devices.is_empty() {
        let device = devices.number()?;
        let device = DeviceIndex(u8::try_from(device).map_err(|_| "a device of a high number")?);
        let before = Totals::of(devices.number()?, devices.number()?);
        if part.before.insert(device, before).is_some() {
            return Err("a device twice in a curve");
        }
        reader.devices.push((device, before));
    }
    while !events.is_empty() {
        if part.cells.len() >= MAX_CELLS {
            return Err("a curve of too many cells");
        }
        part.cells.push(reader.cell(events.number()?)?);
    }
    let mut before = first_event;
    while !ooms.is_empty() {
        before = before.checked_add(ooms.number()?).ok_or(SUM)?;
        part.ooms.push(before);
    }
    let is_outside = |oom: &u64| *oom <= first_event || *oom > part.end_event();
    match part.ooms.iter().any(is_outside) {
        true => Err("an out-of-memory error outside of its curve"),
        false => Ok(part),
    }
}

const SUM: &str = "a curve of impossible numbers";

impl CurveReader<'_> {
    fn cell(&mut self, events: u64) -> Result<CurveCell, &'static str> {
        let begin = self.times.after(self.end.0)?;
        if begin < self.end.0 {
            return Err("cells out of order");
        }
        let end = begin.checked_add(self.times.number()?).ok_or(SUM)?;
        self.end = TimeNs(end);
        let marks = TimelineMarks {
            steps: self.marks.u32()?,
            zero_grads: self.marks.u32()?,
            batches: self.marks.u32()?,
            ooms: 0,
            readings: self.marks.u32()?,
        };
        let mut cell = CurveCell {
            events,
            begin: TimeNs(begin),
            end: TimeNs(end),
            marks,
            devices: Vec::new(),
        };
        for _ in 0..self.places.count()? {
            let device = self.device(events)?;
            if cell
                .devices
                .last()
                .is_some_and(|last| last.device >= device.device)
            {
                return Err("devices out of order");
            }
            cell.devices.push(device);
        }
        self.values += cell.devices.len();
        match self.values > MAX_CELLS {
            true => Err("a curve of too many values"),
            false => Ok(cell),
        }
    }

    fn device(&mut self, events: u64) -> Result<DeviceCell, &'static str> {
        let place = usize::try_from(self.places.number()?).unwrap_or(usize::MAX);
        let (device, before) = self.devices.get_mut(place).ok_or("an unknown device")?;
        let [allocated, reserved] = [before.allocated.0, before.reserved.0].map(|before| {
            let last = self.totals.after(before)?;
            let low = last.checked_sub(self.totals.number()?).ok_or(SUM)?;
            let high = last.checked_add(self.totals.number()?).ok_or(SUM)?;
            Ok::<_, &'static str>([low, high, last])
        });
        let (allocated, reserved) = (allocated?, reserved?);
        let of = |at: usize| Totals::of(allocated[at], reserved[at]);
        *before = of(2);
        let peak = self.peaks.number()?;
        let peak_allocated = match peak {
            0 => 0,
            _ => self.peaks.after(of(1).allocated.0)?,
        };
        if peak > events || peak_allocated > of(1).allocated.0 {
            return Err(SUM);
        }
        Ok(DeviceCell {
            device: *device,
            low: of(0),
            high: of(1),
            last: of(2),
            peak,
            peak_allocated,
            ooms: self.peaks.u32()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part() -> CurvePart {
        let device = |index, low, high, last, peak| DeviceCell {
            device: DeviceIndex(index),
            low: Totals::of(low, 1 << 30),
            high: Totals::of(high, 2 << 30),
            last: Totals::of(last, 2 << 30),
            peak,
            peak_allocated: if peak > 0 { high } else { 0 },
            ooms: u32::from(peak == 2),
        };
        let cell = |at: u64, devices| CurveCell {
            events: 3,
            begin: TimeNs(at * 1000),
            end: TimeNs(at * 1000 + 7),
            marks: TimelineMarks {
                steps: at as u32,
                ..TimelineMarks::default()
            },
            devices,
        };
        CurvePart {
            first_event: 70,
            before: BTreeMap::from([
                (DeviceIndex(0), Totals::of(5, 1 << 30)),
                (DeviceIndex::CPU, Totals::default()),
            ]),
            cells: vec![
                cell(5, vec![device(0, 3, 900, 40, 2)]),
                cell(6, vec![device(0, 1, 41, 1, 1), device(254, 0, 8, 8, 0)]),
                cell(7, Vec::new()),
            ],
            ooms: vec![72, 79],
        }
    }

    #[test]
    fn a_part_comes_back() {
        for part in [part(), CurvePart::default()] {
            let frame = frame(&part, 3);
            assert_eq!(decode(&frame.payload, part.first_event), Ok(part));
        }
    }

    #[test]
    fn a_part_that_is_cut_or_contradicts_itself_is_refused() {
        let payload = frame(&part(), 3).payload;
        for end in 0..payload.len() {
            assert!(decode(&payload[..end], 70).is_err(), "{end}");
        }
        for byte in 0..payload.len() {
            for change in [1, 0x40, 0x80, 0xff] {
                let mut damaged = payload.clone();
                damaged[byte] ^= change;
                let Ok(part) = decode(&damaged, 70) else {
                    continue;
                };
                for device in part.cells.iter().flat_map(|cell| &cell.devices) {
                    assert_eq!(device.low, device.low.lower(device.last));
                    assert_eq!(device.high, device.high.higher(device.last));
                }
            }
        }
    }
}

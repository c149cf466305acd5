use proptest::prelude::*;

use super::*;
use crate::event::{Address, Bytes, MarkedPhase, MemoryEvent, PhaseMark, StackId, Target, Tid};
use crate::ledger::snapshot::Grouping;
use crate::recording::samples::{MIB, memory, totals};

/// Events of two devices with pauses, marks and out-of-memory errors. Each step is a device, an action, a size and a
/// time since the one before.
fn stream(steps: &[(bool, u8, u64, u64)]) -> Vec<Event> {
    let mut micros = 0;
    let mut live: [Vec<(u64, u64)>; 2] = Default::default();
    let mut allocated = [3 * MIB, 0];
    let mut events = Vec::new();
    for (number, (device, action, size, passed)) in (1..).zip(steps) {
        micros += passed;
        let at = usize::from(*device);
        let device = DeviceIndex(at as u8);
        let (action, addr, size) = match action {
            0 | 1 => (Action::Alloc, number * MIB, size + 1),
            2 => match live[at].pop() {
                Some((addr, size)) => (Action::Free, addr, size),
                None => continue,
            },
            3 => (Action::OutOfMemory, 0, *size),
            _ => {
                events.push(Event::PhaseMark(PhaseMark {
                    time: memory(Action::Alloc, micros, 0, 0).time,
                    tgid: memory(Action::Alloc, micros, 0, 0).tgid,
                    tid: Tid(1),
                    phase: MarkedPhase::Step,
                    class: "SGD".into(),
                    stack: StackId::NONE,
                }));
                continue;
            }
        };
        match action {
            Action::Alloc => {
                live[at].push((addr, size));
                allocated[at] += size;
            }
            Action::Free => allocated[at] -= size,
            _ => {}
        }
        events.push(Event::Memory(MemoryEvent {
            addr: Address(addr),
            size: Bytes(size),
            device: Some(device),
            totals: totals(allocated[at], allocated[at].next_multiple_of(16 * MIB)),
            ..memory(action, micros, addr, size)
        }));
    }
    events
}

fn any_events() -> impl Strategy<Value = Vec<Event>> {
    let pause = prop_oneof![9 => 0_u64..3000, 1 => 0_u64..60_000_000];
    let step = (any::<bool>(), 0_u8..5, 0..64 * MIB, pause);
    prop::collection::vec(step, 0..300).prop_map(|steps| stream(&steps))
}

/// Curve of a stream in parts, and the ledger at its end.
fn followed(events: &[Event], cell_events: u32, part: usize) -> (TotalsCurve, Ledger) {
    let mut ledger = Ledger::new(Target::default(), TimeNs(5_000_000_000));
    let mut curve = TotalsCurve::default();
    let mut builder = CurveBuilder::after(&curve, cell_events);
    for events in events.chunks(part.max(1)) {
        for event in events {
            ledger.apply(event);
            builder.apply(event, &ledger);
        }
        curve.append(builder.take());
    }
    (curve, ledger)
}

/// Totals of a device after each event, as the events have them.
fn totals_of(events: &[Event]) -> Vec<(DeviceIndex, Totals)> {
    let memory = events.iter().filter_map(|event| match event {
        Event::Memory(event) => Some((event.device?, event.totals?)),
        _ => None,
    });
    memory.collect()
}

proptest! {
    #[test]
    fn cells_have_the_lowest_highest_and_last_totals_of_their_events(
        events in any_events(),
        cell_events in 1_u32..20,
        part in 1_usize..100,
    ) {
        let (curve, ledger) = followed(&events, cell_events, part);
        let mut totals = totals_of(&events).into_iter();
        prop_assert_eq!(curve.events(), ledger.health.events);
        let mut end = TimeNs(0);
        for cell in curve.cells() {
            prop_assert!(cell.events <= cell_events.into());
            prop_assert!(end <= cell.begin && cell.begin <= cell.end);
            end = cell.end;
            let own: Vec<_> = totals.by_ref().take(cell.events as usize).collect();
            for device in &cell.devices {
                let own = (1..).zip(&own).filter(|(_, (index, _))| *index == device.device);
                let own: Vec<(u64, Totals)> = own.map(|(at, (_, totals))| (at, *totals)).collect();
                let all = || own.iter().map(|(_, totals)| *totals);
                prop_assert_eq!(all().reduce(Totals::lower), Some(device.low));
                prop_assert_eq!(all().reduce(Totals::higher), Some(device.high));
                prop_assert_eq!(all().next_back(), Some(device.last));
                let highest = all().map(|totals| totals.allocated).max();
                let peak = own.iter().find(|(_, totals)| Some(totals.allocated) == highest);
                prop_assert_eq!(peak.map(|(at, _)| *at), Some(device.peak));
            }
            let devices = own.iter().map(|(device, _)| *device);
            let devices: std::collections::BTreeSet<_> = devices.collect();
            prop_assert!(cell.devices.iter().map(|it| it.device).eq(devices));
        }
        prop_assert!(totals.next().is_none());
    }

    #[test]
    fn a_timeline_of_cells_encloses_the_one_of_events(
        events in any_events(),
        cell_events in 1_u32..20,
        part in 1_usize..100,
    ) {
        let (curve, ledger) = followed(&events, cell_events, part);
        let end = ledger.last_event().unwrap_or_default().max(curve.end());
        let snapshot = ledger.snapshot(end, Grouping::default());
        let timelines = curve.timelines(snapshot.started);
        prop_assert_eq!(timelines.len(), snapshot.devices.len());
        for ((index, timeline), device) in timelines.iter().zip(&snapshot.devices) {
            prop_assert_eq!(*index, device.index);
            let exact = &device.timeline.all;
            prop_assert_eq!((exact.start, exact.step), (timeline.start, timeline.step));
            prop_assert_eq!(exact.points.len(), timeline.points.len());
            for (exact, drawn) in exact.points.iter().zip(&timeline.points) {
                prop_assert_eq!(exact.low, exact.low.higher(drawn.low));
                prop_assert_eq!(exact.high, exact.high.lower(drawn.high));
            }
            let sum = |timeline: &Timeline| {
                let points = timeline.points.iter();
                points.fold((0, 0), |sum, it| (sum.0 + it.marks.steps, sum.1 + it.marks.ooms))
            };
            prop_assert_eq!(sum(exact), sum(timeline));
            let whole = |timeline: &Timeline| {
                let points = timeline.points.iter().copied();
                points.reduce(TotalsPoint::with).map(|it| (it.low, it.high))
            };
            prop_assert_eq!(whole(exact), whole(timeline));
        }
    }
}

#[test]
fn a_curve_of_more_cells_than_fit_keeps_its_peak_and_its_events() {
    let mut curve = TotalsCurve::default();
    let cells = MAX_CELLS as u64 * 3;
    let peak = cells / 2 + 1;
    let mut events = 0;
    while events < cells {
        let all = (events..cells.min(events + 1000)).map(|at| {
            let totals = Totals::of(if at == peak { 1 << 40 } else { at % 100 }, 1 << 30);
            let device = DeviceCell {
                device: DeviceIndex(0),
                low: totals,
                high: totals,
                last: totals,
                peak: 1,
                peak_allocated: totals.allocated.0,
                ooms: 0,
            };
            CurveCell {
                events: 1,
                begin: TimeNs(at),
                end: TimeNs(at),
                devices: vec![device],
                ..CurveCell::default()
            }
        });
        let part = CurvePart {
            first_event: events,
            cells: all.collect(),
            ..CurvePart::default()
        };
        events = part.end_event();
        curve.append(part);
    }
    assert!(curve.cells().len() <= MAX_CELLS);
    assert_eq!(curve.events(), cells);
    let mut before = 0;
    let found = curve.cells().iter().find_map(|cell| {
        let at = before + cell.devices[0].peak;
        before += cell.events;
        (cell.devices[0].peak_allocated == 1 << 40).then_some(at)
    });
    assert_eq!(found, Some(peak + 1));
    let timelines = curve.timelines(TimeNs(0));
    assert_eq!(timelines[0].1.points[0].high.allocated, Bytes(1 << 40));
}

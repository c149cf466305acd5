//! Tests of the processes of a host, each from a short stream of events.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::event::{
    Action, Address, AtAttach, Bytes, CaptureChange, CaptureLevel, Context, DeviceIndex, Frame,
    MemoryEvent, PurposeId, Stack, StackId, StackKind, Tid, TimeShare, Totals,
};
use crate::ledger::snapshot::host::{DriverDevice, Holder, ProcessRow};
use crate::ledger::snapshot::{Site, TargetState};

const SECOND: u64 = 1_000_000_000;

fn target(tgid: u32) -> Target {
    Target {
        tgid: Some(Tgid(tgid)),
        command: format!("python train.py {tgid}"),
        ..Target::default()
    }
}

fn at(seconds: u64) -> TimeNs {
    TimeNs(seconds * SECOND)
}

fn small() -> HostCaps {
    HostCaps {
        processes: 3,
        ..HostCaps::default()
    }
}

/// A host with these processes, probed at second 0.
fn host(tgids: &[u32]) -> Host {
    let mut host = Host::with_caps(at(0), small());
    for tgid in tgids {
        assert!(host.start(target(*tgid), ProcessFacts::default(), at(0)));
        let found = Attached {
            target: target(*tgid),
            ..Attached::default()
        };
        host.attach(Tgid(*tgid), found);
    }
    host
}

fn frame(line: u32) -> Frame {
    Frame {
        library: None,
        file: "train.py".into(),
        line,
        function: "step".into(),
    }
}

fn stack(line: u32) -> Event {
    let stack = Stack {
        kind: StackKind::Python,
        frames: vec![frame(line)],
        truncated: false,
        context: Context::default(),
    };
    Event::Stack(StackId(line), Arc::new(stack))
}

/// Process `tgid` allocates `size` bytes at `addr` on `device`, which then has `allocated`.
fn alloc(second: u64, tgid: u32, device: u8, addr: u64, size: u64, allocated: u64) -> Event {
    Event::Memory(MemoryEvent {
        shape: PurposeId::NONE,
        call: None,
        time: at(second),
        tgid: Tgid(tgid),
        tid: Tid(tgid),
        action: Action::Alloc,
        addr: Address(addr),
        size: Bytes(size),
        device: Some(DeviceIndex(device)),
        totals: Some(Totals {
            allocated: Bytes(allocated),
            reserved: Bytes(allocated + 7),
        }),
        stack: StackId(3),
    })
}

fn free(second: u64, tgid: u32, device: u8, addr: u64, size: u64, allocated: u64) -> Event {
    let Event::Memory(event) = alloc(second, tgid, device, addr, size, allocated) else {
        unreachable!("made above")
    };
    Event::Memory(MemoryEvent {
        shape: PurposeId::NONE,
        call: None,
        action: Action::Free,
        stack: StackId::NONE,
        ..event
    })
}

fn totals(bytes: u64) -> Totals {
    Totals {
        allocated: Bytes(bytes),
        reserved: Bytes(bytes + 7),
    }
}

/// Device 0 had `bytes` at attach, and at most `peak` before.
fn at_attach(bytes: u64, peak: u64) -> AtAttach {
    AtAttach {
        time: at(1),
        tgid: Tgid(1),
        device: Some(DeviceIndex(0)),
        totals: totals(bytes),
        peak: totals(peak),
        unread: None,
    }
}

fn row(host: &mut Host, tgid: u32, second: u64) -> ProcessRow {
    let rows = host.snapshot(at(second)).processes;
    rows.into_iter()
        .find(|row| row.tgid == Tgid(tgid))
        .expect("it has a row")
}

fn tgids(host: &mut Host) -> Vec<u32> {
    let rows = host.snapshot(at(0)).processes;
    rows.iter().map(|row| row.tgid.0).collect()
}

/// The probes of process 1 go to a level.
fn capture(second: u64, level: CaptureLevel) -> Event {
    Event::Capture(CaptureChange {
        time: at(second),
        tgid: Tgid(1),
        level,
        overhead: TimeShare::default(),
        budget: TimeShare::default(),
    })
}

#[test]
fn totals_have_an_age_while_the_probes_are_off_and_after_an_end_without_them() {
    let mut host = host(&[1]);
    let age = |host: &mut Host, second| row(host, 1, second).totals_age.map(|age| age.as_secs());
    host.apply(Tgid(1), &alloc(1, 1, 0, 64, 100, 100));
    assert_eq!(age(&mut host, 2), None);
    host.apply(Tgid(1), &capture(2, CaptureLevel::Paused));
    assert_eq!(age(&mut host, 5), Some(3));
    host.apply(Tgid(1), &capture(6, CaptureLevel::Full));
    assert_eq!(age(&mut host, 7), None);
    host.apply(Tgid(1), &capture(8, CaptureLevel::Paused));
    host.end(Tgid(1), at(10));
    assert_eq!(age(&mut host, 14), Some(2));
}

#[test]
fn a_row_shows_memory_on_all_devices_and_the_top_line() {
    let mut host = host(&[1, 2]);
    host.apply(Tgid(1), &stack(3));
    host.apply(Tgid(1), &alloc(1, 1, 0, 64, 100, 100));
    host.apply(Tgid(1), &alloc(1, 1, 1, 64, 30, 30));
    let row = row(&mut host, 1, 2);
    let totals = row.totals().expect("heard of");
    assert_eq!(
        (totals.allocated, totals.reserved),
        (Bytes(130), Bytes(144))
    );
    assert_eq!(row.devices.len(), 2);
    let top = row.top.expect("somebody");
    assert_eq!(
        (top.holder, top.live),
        (Holder::Site(Site::Line(frame(3))), Bytes(100))
    );
    assert_eq!((row.events, row.trend.points), (2, vec![Bytes(130)]));
}

#[test]
fn a_process_that_was_not_heard_says_nothing_rather_than_zero() {
    let row = row(&mut host(&[1]), 1, 2);
    assert_eq!(
        (row.totals(), row.driver_total(), row.top),
        (None, None, None)
    );
}

#[test]
fn the_peak_is_that_of_the_sum_and_not_the_sum_of_the_peaks() {
    let mut host = host(&[1]);
    host.apply(Tgid(1), &alloc(1, 1, 0, 64, 100, 100));
    host.apply(Tgid(1), &free(2, 1, 0, 64, 100, 0));
    host.apply(Tgid(1), &alloc(3, 1, 1, 64, 90, 90));
    let row = row(&mut host, 1, 3);
    assert_eq!(row.peak.allocated, Bytes(100));
    assert_eq!(row.totals().map(|totals| totals.allocated), Some(Bytes(90)));
}

#[test]
fn totals_at_attach_are_known_before_the_first_event() {
    let mut host = host(&[1]);
    host.apply(Tgid(1), &Event::AtAttach(at_attach(1000, 5000)));
    let row = row(&mut host, 1, 2);
    assert_eq!(row.totals(), Some(totals(1000)));
    assert_eq!((row.peak, row.events), (totals(5000), 0));
    assert_eq!(row.trend.points, [Bytes(1000)]);
}

#[test]
fn memory_from_before_attach_can_be_what_is_held_most() {
    let mut host = host(&[1]);
    host.apply(Tgid(1), &stack(3));
    host.apply(Tgid(1), &alloc(1, 1, 0, 64, 10, 1010));
    let top = row(&mut host, 1, 2).top.expect("somebody");
    assert_eq!((top.holder, top.live), (Holder::BeforeAttach, Bytes(1000)));
}

#[test]
fn a_process_that_has_ended_keeps_its_last_state_for_a_while_and_then_goes() {
    let mut host = host(&[1, 2]);
    host.apply(Tgid(1), &alloc(1, 1, 0, 64, 100, 100));
    host.end(Tgid(1), at(10));
    host.wait(Tgid(1), "something that comes too late");
    host.tick(at(14));
    let last = row(&mut host, 1, 14);
    assert_eq!(last.state, ProcessState::Ended);
    assert_eq!(
        last.totals().map(|totals| totals.allocated),
        Some(Bytes(100))
    );
    assert!(!host.is_live(Tgid(1)) && host.is_live(Tgid(2)));
    host.tick(at(15));
    assert_eq!(tgids(&mut host), [2]);
    assert_eq!(host.snapshot(at(15)).health.events, 1);
}

#[test]
fn a_process_that_somebody_looks_at_does_not_go() {
    let mut host = host(&[1]);
    host.open(Some(Tgid(1)));
    host.end(Tgid(1), at(10));
    host.tick(at(1000));
    let shown = host.process(Tgid(1), at(1000), Grouping::User);
    let shown = shown.expect("it is kept");
    assert_eq!(shown.health.state, TargetState::Exited);
    assert_eq!(shown.now, at(10));
    host.open(None);
    host.tick(at(1001));
    assert_eq!(host.process(Tgid(1), at(1001), Grouping::User), None);
}

#[test]
fn a_number_that_is_used_again_is_another_process() {
    let mut host = host(&[1]);
    host.apply(Tgid(1), &alloc(1, 1, 0, 64, 100, 100));
    host.end(Tgid(1), at(2));
    assert!(host.start(target(1), ProcessFacts::default(), at(3)));
    let row = row(&mut host, 1, 3);
    assert_eq!((row.totals(), row.events), (None, 0));
    assert_eq!(row.state, ProcessState::Found);
    assert_eq!(host.snapshot(at(3)).health.events, 1);
}

#[test]
fn a_process_that_is_found_twice_keeps_its_ledger_and_gets_the_new_facts() {
    let mut host = host(&[1]);
    host.apply(Tgid(1), &alloc(1, 1, 0, 64, 100, 100));
    let facts = ProcessFacts {
        user: Some("ada".to_owned()),
        ..ProcessFacts::default()
    };
    assert!(host.start(target(1), facts.clone(), at(2)));
    let row = row(&mut host, 1, 2);
    assert_eq!((row.facts, row.events), (facts, 1));
}

#[test]
fn a_full_host_drops_ended_processes_and_counts_untracked_ones() {
    let mut host = host(&[1, 2, 3]);
    assert!(!host.start(target(4), ProcessFacts::default(), at(1)));
    assert_eq!(host.snapshot(at(1)).health.untracked, 1);
    assert_eq!(host.apply(Tgid(4), &alloc(1, 4, 0, 64, 1, 1)), None);
    host.end(Tgid(2), at(1));
    assert!(host.start(target(4), ProcessFacts::default(), at(1)));
    assert_eq!(tgids(&mut host), [1, 3, 4]);
}

#[test]
fn driver_figures_appear_on_the_row_of_their_process() {
    let mut host = host(&[1, 2]);
    let use_of = |device, bytes: Option<u64>| DriverUse {
        device,
        bytes: bytes.map(Bytes),
    };
    let held = BTreeMap::from([
        (Tgid(1), vec![use_of(0, Some(5)), use_of(3, Some(6))]),
        (Tgid(2), vec![use_of(0, None)]),
        (Tgid(77), vec![use_of(0, Some(9))]),
    ]);
    host.set_driver(DriverSnapshot::Devices(Vec::new()), &held);
    assert_eq!(row(&mut host, 1, 1).driver_total(), Some(Bytes(11)));
    assert_eq!(row(&mut host, 2, 1).driver_total(), None);
    host.end(Tgid(1), at(1));
    host.set_driver(DriverSnapshot::Silent("gone".to_owned()), &BTreeMap::new());
    assert_eq!(row(&mut host, 1, 1).driver_total(), Some(Bytes(11)));
}

#[test]
fn a_sum_of_which_the_driver_says_a_part_is_unknown() {
    let mut host = host(&[1, 2, 3]);
    let use_of = |device, bytes: Option<u64>| DriverUse {
        device,
        bytes: bytes.map(Bytes),
    };
    let held = BTreeMap::from([
        (Tgid(1), vec![use_of(0, Some(5)), use_of(1, None)]),
        (Tgid(2), vec![use_of(0, Some(6))]),
    ]);
    host.set_driver(DriverSnapshot::Devices(Vec::new()), &held);
    assert_eq!(row(&mut host, 1, 1).driver_total(), None);
    assert_eq!(row(&mut host, 1, 1).driver_at_least(), Some(Bytes(5)));
    assert_eq!(row(&mut host, 2, 1).driver_total(), Some(Bytes(6)));
    assert_eq!(idle(&mut host), [3]);
    // Of a second device nobody knows who holds memory there.
    let unlisted = DriverDevice {
        index: 1,
        name: String::new(),
        uuid: None,
        pci_bus_id: None,
        memory: Err("unknown".to_owned()),
        mig_devices: None,
        processes: Err("unknown".to_owned()),
        others: None,
    };
    host.set_driver(DriverSnapshot::Devices(vec![unlisted]), &held);
    assert_eq!(row(&mut host, 2, 1).driver_total(), None);
    assert_eq!(row(&mut host, 2, 1).driver_at_least(), Some(Bytes(6)));
    assert_eq!(idle(&mut host), [0; 0]);
}

#[test]
fn losses_reported_to_every_process_count_once_for_the_host() {
    let mut host = host(&[1, 2]);
    let losses = Losses {
        events: 4,
        ..Losses::default()
    };
    host.count_loss(losses);
    for tgid in [1, 2] {
        host.apply(Tgid(tgid), &Event::Loss(losses));
    }
    host.apply(Tgid(2), &alloc(1, 2, 0, u64::MAX, 100, 100));
    let health = host.snapshot(at(1)).health;
    assert_eq!((health.losses.events, health.losses.malformed), (4, 1));
    let one = host.process(Tgid(1), at(1), Grouping::User).expect("there");
    assert_eq!(one.health.losses, losses);
}

#[test]
fn a_process_that_runs_another_program_begins_anew() {
    let mut host = host(&[1]);
    host.apply(Tgid(1), &alloc(1, 1, 0, 64, 100, 100));
    host.forget(Tgid(1));
    assert_eq!(tgids(&mut host), [0; 0]);
    assert!(host.start(target(1), ProcessFacts::default(), at(2)));
    assert_eq!(row(&mut host, 1, 2).events, 0);
    assert_eq!(host.snapshot(at(2)).health.events, 1);
}

/// Processes known to hold nothing.
fn idle(host: &mut Host) -> Vec<u32> {
    let snapshot = host.snapshot(at(1));
    let rows = snapshot.processes.iter();
    let rows = rows.filter(|row| snapshot.holds_nothing(row));
    rows.map(|row| row.tgid.0).collect()
}

#[test]
fn only_who_is_unheard_and_untold_of_is_known_to_hold_nothing() {
    let mut host = host(&[1, 2, 3]);
    host.apply(Tgid(1), &alloc(1, 1, 0, 64, 100, 100));
    assert_eq!(idle(&mut host), [0; 0]);
    let bytes = Some(Bytes(5));
    let held = BTreeMap::from([(Tgid(2), vec![DriverUse { device: 0, bytes }])]);
    host.set_driver(DriverSnapshot::Devices(Vec::new()), &held);
    assert_eq!(idle(&mut host), [3]);
}

#[test]
fn a_copy_of_a_process_does_not_hold_what_that_one_wrote_down() {
    let mut host = host(&[1]);
    let facts = ProcessFacts {
        forked_from: Some(Tgid(1)),
        ..ProcessFacts::default()
    };
    assert!(host.start(target(2), facts, at(1)));
    let found = at_attach(1000, 1000);
    for tgid in [1, 2] {
        host.apply(Tgid(tgid), &Event::AtAttach(found.clone()));
    }
    assert_eq!(row(&mut host, 2, 1).totals(), None);
    assert_eq!(idle(&mut host), [2]);
    host.apply(Tgid(2), &alloc(1, 2, 0, 64, 100, 100));
    assert_eq!(idle(&mut host), [0; 0]);
}

#[test]
fn a_silent_host_makes_no_row_anew_and_its_trends_go_on() {
    let mut host = host(&[1]);
    host.apply(Tgid(1), &alloc(1, 1, 0, 64, 100, 100));
    host.tick(at(1));
    let before = row(&mut host, 1, 1);
    host.tick(at(4));
    let after = row(&mut host, 1, 4);
    assert_eq!(after.trend.points, vec![Bytes(100); 4]);
    assert_eq!((after.devices, after.top), (before.devices, before.top));
}

proptest! {
    // Each step makes the table of a host and of each process.
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Processes allocate, free, end and return in random order.
    #[test]
    fn rows_add_up_to_the_ledgers(steps in proptest::collection::vec((0..4_u32, 0..3_u8, 1..1000_u64, 0..10_u8), 1..200)) {
        let mut host = Host::with_caps(at(0), HostCaps::default());
        let mut held: BTreeMap<(u32, u8), Vec<u64>> = BTreeMap::new();
        for (second, (tgid, device, size, what)) in (1..).zip(steps) {
            host.start(target(tgid), ProcessFacts::default(), at(second));
            let blocks = held.entry((tgid, device)).or_default();
            match what {
                0 => {
                    host.end(Tgid(tgid), at(second));
                    held.retain(|(owner, _), _| *owner != tgid);
                }
                1..=3 if !blocks.is_empty() => {
                    let freed = blocks.pop().unwrap_or(0);
                    let sum: u64 = blocks.iter().sum();
                    let addr = 4096 * (blocks.len() as u64 + 1);
                    host.apply(Tgid(tgid), &free(second, tgid, device, addr, freed, sum));
                }
                _ => {
                    blocks.push(size);
                    let sum: u64 = blocks.iter().sum();
                    let addr = 4096 * blocks.len() as u64;
                    host.apply(Tgid(tgid), &alloc(second, tgid, device, addr, size, sum));
                }
            }
            let snapshot = host.snapshot(at(second));
            for row in snapshot.processes.iter().filter(|row| row.state != ProcessState::Ended) {
                let ledger = host.process(row.tgid, at(second), Grouping::User).expect("it has a row");
                let own = |pick: fn(&Totals) -> Bytes| -> u64 {
                    ledger.devices.iter().map(|device| pick(&device.totals).0).sum()
                };
                let totals = row.totals().unwrap_or_default();
                prop_assert_eq!(totals.allocated.0, own(|totals| totals.allocated));
                prop_assert_eq!(totals.reserved.0, own(|totals| totals.reserved));
                let truth: u64 = held.iter().filter(|((owner, _), _)| *owner == row.tgid.0).flat_map(|(_, blocks)| blocks).sum();
                prop_assert_eq!(totals.allocated.0, truth);
                prop_assert!(row.peak.allocated >= totals.allocated);
            }
        }
    }
}

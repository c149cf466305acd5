use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::event::{Action, Event, TimeNs};
use crate::ledger::snapshot::{Grouping, Snapshot};
use crate::ledger::{Analysis, AnalyzedLedger, Change, CopySize, Ledger};
use crate::recording::samples::{late_attach, on_the_cpu, recording, small_groups, story, tensors};
use crate::recording::{Reader, SeekableRecording};

fn player(path: &Path) -> Player<()> {
    let recording = SeekableRecording::open(path, |_| Ok(())).unwrap();
    Player::open(recording, (), |_| Ok(())).unwrap()
}

fn snapshot(ledger: &Ledger) -> Snapshot {
    ledger.snapshot(ledger.last_event().unwrap_or_default(), Grouping::User)
}

/// State after each number of memory events, as a report of the recording cut there would have it.
fn cut_everywhere(path: &Path) -> Vec<Snapshot> {
    let reader = Reader::open(path).unwrap();
    let mut replay = AnalyzedLedger::new(reader.header().target.clone(), reader.header().start, ());
    let mut states = Vec::new();
    for event in reader {
        let event = event.unwrap();
        let is_counted = matches!(&event, Event::Memory(event) if event.action != Action::Held);
        if is_counted {
            states.push(snapshot(&replay.ledger));
        }
        replay.apply(&event);
    }
    states.push(snapshot(&replay.ledger));
    states
}

/// A long story, as a recording of small groups and as a trace.
fn files(folder: &Path) -> [std::path::PathBuf; 2] {
    let mut events = late_attach();
    for part in [story(), tensors(), on_the_cpu(), story()] {
        events.extend(part);
    }
    let (compact, trace) = (folder.join("a.mprb"), folder.join("a.json"));
    fs::write(&compact, small_groups(&events)).unwrap();
    fs::write(&trace, recording(&events)).unwrap();
    [compact, trace]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn at_any_cursor_the_state_is_that_of_the_recording_cut_there(
        cursors in prop::collection::vec(0..80_u64, 1..30),
    ) {
        let folder = tempfile::tempdir().unwrap();
        for path in files(folder.path()) {
            let states = cut_everywhere(&path);
            let mut player = player(&path);
            prop_assert_eq!(player.overview.events as usize, states.len() - 1);
            for cursor in &cursors {
                player.seek(*cursor).unwrap();
                let events = (*cursor as usize).min(states.len() - 1);
                prop_assert_eq!(player.events() as usize, events);
                prop_assert_eq!(&snapshot(player.ledger()), &states[events], "at {}", events);
            }
        }
    }
}

#[test]
fn a_time_leads_behind_its_last_event() {
    let folder = tempfile::tempdir().unwrap();
    let [path, _] = files(folder.path());
    let mut player = player(&path);
    let end = player.overview.end;
    player.seek_time(end).unwrap();
    assert_eq!(player.events(), player.overview.events);
    player.seek_time(TimeNs(0)).unwrap();
    assert_eq!(player.events(), 0);
    for events in 1..=player.overview.events {
        player.seek(events).unwrap();
        let time = player.ledger().last_event().unwrap();
        player.seek_time(time).unwrap();
        assert!(player.events() >= events);
        assert_eq!(player.ledger().last_event(), Some(time));
    }
}

#[test]
fn the_peak_and_errors_are_known_by_their_events() {
    let folder = tempfile::tempdir().unwrap();
    for path in files(folder.path()) {
        let states = cut_everywhere(&path);
        let mut player = player(&path);
        let end = states.last().unwrap();
        for (device, peak) in player.overview.peaks.clone() {
            let at_end = end
                .devices
                .iter()
                .find(|found| found.index == device)
                .unwrap();
            player.seek(peak.events).unwrap();
            let there = player.ledger().device_rows();
            let there = there.iter().find(|row| row.index == device).unwrap();
            assert_eq!(there.totals.allocated, peak.allocated);
            assert!(peak.allocated <= at_end.peak.allocated);
        }
        let ooms: u64 = end.devices.iter().map(|device| device.ooms).sum();
        assert_eq!(player.overview.ooms.len() as u64, ooms);
    }
}

#[test]
fn analyses_go_back_too() {
    let folder = tempfile::tempdir().unwrap();
    let [path, _] = files(folder.path());
    let open = || {
        let recording = SeekableRecording::open(&path, |_| Ok(())).unwrap();
        let analyses = crate::attribution::AttributionLedger::new(None);
        Player::open(recording, analyses, |_| Ok(())).unwrap()
    };
    let (mut back, mut forward) = (open(), open());
    let text = |player: &Player<crate::attribution::AttributionLedger>| {
        let ledger = player.analyses();
        let devices = ledger.devices().filter_map(|index| ledger.device(index));
        let rows = devices.map(|device| format!("{:?}", device.categories()));
        rows.collect::<Vec<_>>()
    };
    let events = back.overview.events;
    let expected: Vec<_> = (0..=events)
        .map(|at| {
            forward.seek(at).unwrap();
            text(&forward)
        })
        .collect();
    for at in (0..=events).rev() {
        back.seek(at).unwrap();
        assert_eq!(text(&back), expected[at as usize], "at {at}");
    }
}

/// An analysis so large that only the first state may be kept.
#[derive(Clone)]
struct LargeState;

impl Analysis for LargeState {
    fn apply(&mut self, _: &Event, _: &Change, _: &Ledger) {}
}

impl CopySize for LargeState {
    fn copy_bytes(&self) -> u64 {
        100 << 20
    }
}

#[test]
fn states_that_are_too_large_to_keep_are_replayed_from_the_begin() {
    let folder = tempfile::tempdir().unwrap();
    let [path, _] = files(folder.path());
    let states = cut_everywhere(&path);
    let recording = SeekableRecording::open(&path, |_| Ok(())).unwrap();
    assert!(recording.groups() > 4);
    let mut player = Player::open(recording, LargeState, |_| Ok(())).unwrap();
    assert!(player.state_bytes() < 256 << 20, "{}", player.state_bytes());
    for events in (0..states.len()).rev() {
        player.seek(events as u64).unwrap();
        assert_eq!(&snapshot(player.ledger()), &states[events], "at {events}");
        assert!(player.state_bytes() < 256 << 20);
    }
}

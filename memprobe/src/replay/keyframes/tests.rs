//! Replays from keyframes show what a replay of everything shows.

use std::fs;
use std::path::Path;

use proptest::prelude::*;

use crate::attribution::allocation_groups::samples::{Program, called};
use crate::event::{DeviceIndex, Event, TimeNs, Totals};
use crate::ledger::snapshot::{DeviceTimeline, Grouping, Snapshot, Timeline, TotalsPoint};
use crate::recording::SeekableRecording;
use crate::recording::generated::any_stream;
use crate::recording::samples::{
    late_attach, newest_part, on_the_cpu, small_groups, story, tensors,
};
use crate::replay::*;

fn recording(path: &Path) -> SeekableRecording {
    SeekableRecording::open(path, |_| Ok(())).unwrap()
}

fn whole(path: &Path) -> Player<()> {
    Player::open(recording(path), (), |_| Ok(())).unwrap()
}

fn from_keyframes(path: &Path) -> Option<Player<()>> {
    Player::from_keyframes(&recording(path), ()).unwrap()
}

fn long_story() -> Vec<Event> {
    let mut events = late_attach();
    for part in [story(), tensors(), on_the_cpu(), story()] {
        events.extend(part);
    }
    events
}

/// State at the cursor, without timelines: those of cells are less exact.
fn state(player: &Player<()>) -> Snapshot {
    let ledger = player.ledger();
    let mut snapshot = ledger.snapshot(ledger.last_event().unwrap_or_default(), Grouping::User);
    for device in &mut snapshot.devices {
        device.timeline = DeviceTimeline::default();
    }
    snapshot
}

/// Lowest and highest totals of all time, and the number of steps and errors.
fn extremes(timelines: &[(DeviceIndex, Timeline)]) -> Vec<(DeviceIndex, TotalsPoint, TimeNs, u64)> {
    let of = |(device, timeline): &(DeviceIndex, Timeline)| {
        let points = timeline.points.iter().copied();
        let all = points.reduce(TotalsPoint::with).unwrap();
        (*device, all, timeline.start, timeline.step)
    };
    timelines.iter().map(of).collect()
}

fn assert_same_overview(one: &Player<()>, other: &Player<()>) {
    let of = |player: &Player<()>| {
        let overview = &player.overview;
        let numbers = (overview.events, overview.start, overview.end);
        let moments = (overview.peaks.clone(), overview.ooms.clone());
        (numbers, moments, extremes(&overview.timelines))
    };
    assert_eq!(of(one), of(other));
    assert_eq!(one.header, other.header);
    assert_eq!(format!("{:?}", one.sources), format!("{:?}", other.sources));
}

#[test]
fn a_long_story_opens_from_its_keyframes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mprb");
    fs::write(&path, small_groups(&long_story())).unwrap();
    let (mut whole, mut quick) = (whole(&path), from_keyframes(&path).unwrap());
    assert_same_overview(&quick, &whole);
    assert_eq!(state(&quick), state(&whole));
    let events = whole.overview.events;
    for at in (0..=events).chain((0..=events).rev()) {
        whole.seek(at).unwrap();
        quick.seek(at).unwrap();
        assert_eq!(state(&quick), state(&whole), "at {at}");
        let time = whole.ledger().last_event().unwrap_or_default();
        whole.seek_time(time).unwrap();
        quick.seek_time(time).unwrap();
        assert_eq!(quick.events(), whole.events(), "at {time:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_recording_is_the_same_from_its_keyframes(
        events in any_stream(),
        cursors in prop::collection::vec(0..80_u64, 1..20),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.mprb");
        fs::write(&path, small_groups(&events)).unwrap();
        let mut whole = whole(&path);
        if let Some(mut quick) = from_keyframes(&path) {
            assert_same_overview(&quick, &whole);
            for cursor in cursors {
                whole.seek(cursor).unwrap();
                quick.seek(cursor).unwrap();
                prop_assert_eq!(quick.events(), whole.events());
                prop_assert_eq!(state(&quick), state(&whole), "at {}", cursor);
            }
        }
    }
}

#[test]
fn a_file_cut_at_any_byte_opens_to_the_same_state() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mprb");
    let mut events = late_attach();
    events.extend(story());
    let file = small_groups(&events);
    let mut from = 0;
    for length in (0..file.len()).rev() {
        fs::write(&path, &file[..length]).unwrap();
        let Ok(recording) = SeekableRecording::open(&path, |_| Ok(())) else {
            continue;
        };
        let Some(quick) = Player::from_keyframes(&recording, ()).unwrap() else {
            continue;
        };
        from += 1;
        let whole = Player::open(recording, (), |_| Ok(())).unwrap();
        assert_same_overview(&quick, &whole);
        assert_eq!(state(&quick), state(&whole), "cut at {length}");
    }
    assert!(from * 2 > file.len(), "{from} of {}", file.len());
}

#[test]
fn a_damaged_file_shows_the_truth_or_its_damage() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mprb");
    let file = small_groups(&long_story());
    fs::write(&path, &file).unwrap();
    let mut undamaged = whole(&path);
    let events = undamaged.overview.events;
    let states: Vec<Snapshot> = (0..=events)
        .map(|at| {
            undamaged.seek(at).unwrap();
            state(&undamaged)
        })
        .collect();
    let (mut shown, mut said) = (0, 0);
    for byte in (0..file.len()).step_by(41) {
        let mut damaged = file.clone();
        damaged[byte] ^= 0x55;
        fs::write(&path, &damaged).unwrap();
        let Ok(recording) = SeekableRecording::open(&path, |_| Ok(())) else {
            continue;
        };
        let Some(mut quick) = Player::from_keyframes(&recording, ()).unwrap() else {
            continue;
        };
        for at in (0..=events).step_by(5) {
            quick.seek(at).unwrap();
            if quick.damage.is_some() {
                said += 1;
                break;
            }
            shown += 1;
            assert_eq!(
                state(&quick),
                states[at as usize],
                "byte {byte}, event {at}"
            );
        }
    }
    assert!(shown > 100 && said > 10, "{shown} shown, {said} damaged");
}

#[test]
fn a_recording_without_keyframes_is_read() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in [
        (
            "a.mprb",
            crate::recording::samples::compact_recording(&story()),
        ),
        ("a.json", crate::recording::samples::recording(&story())),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        assert!(from_keyframes(&path).is_none(), "{name}");
    }
}

/// Live bytes and blocks of a line.
type LiveLine = (String, u64, u64);

/// Totals of each device, and its live memory by line.
fn live(player: &Player<()>) -> Vec<(Totals, Vec<LiveLine>)> {
    let devices = state(player).devices.into_iter().map(|device| {
        let lines = device.lines.iter().filter(|line| line.live.0 > 0);
        let lines = lines.map(|line| {
            let site = format!("{:?}", line.site);
            (site, line.live.0, line.live_blocks)
        });
        let mut lines: Vec<_> = lines.collect();
        lines.sort();
        (device.totals, lines)
    });
    devices.collect()
}

/// A loop that keeps a block now and then, and fails at times.
fn growing_loop(rounds: u64) -> Vec<Event> {
    let mut program = Program::attached_at(3 << 20);
    let stacks: Vec<_> = (1..=6)
        .map(|line| program.stack(called(line, "Net")))
        .collect();
    for round in 0..rounds {
        let stack = stacks[round as usize % stacks.len()];
        let block = program.alloc(stack, (round % 40 + 1) * 512);
        if round % 500 == 0 {
            program.fail(stack, 1 << 30);
        }
        if round % 200 != 0 {
            program.free(block);
        }
    }
    program.events
}

#[test]
fn the_newest_part_of_a_recording_opens_from_its_keyframes_with_the_numbers_of_its_events() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mprb");
    let file = newest_part(&growing_loop(20_000), 64 << 10);
    // With its index, and cut off before it.
    for bytes in [&file[..], &file[..file.len() - 200]] {
        fs::write(&path, bytes).unwrap();
        let (mut whole, mut quick) = (whole(&path), from_keyframes(&path).expect("keyframes"));
        assert!(quick.header.dropped.is_some());
        assert_eq!(quick.header, whole.header);
        let of = |player: &Player<()>| {
            let overview = &player.overview;
            let highest = extremes(&overview.timelines).into_iter();
            let highest: Vec<_> = highest
                .map(|(device, all, start, step)| (device, all.high, all.marks, start, step))
                .collect();
            let moments = (overview.peaks.clone(), overview.ooms.clone());
            (
                overview.events,
                overview.start,
                overview.end,
                moments,
                highest,
            )
        };
        assert_eq!(of(&quick), of(&whole));
        assert!(!whole.overview.ooms.is_empty());
        assert_eq!(live(&quick), live(&whole));
        let events = whole.overview.events;
        assert!(events > 2000, "{events}");
        let moments = (0..=events).step_by(97).chain(0..200);
        for at in moments.chain((0..=events).rev().step_by(211)) {
            whole.seek(at).unwrap();
            quick.seek(at).unwrap();
            assert_eq!(quick.events(), whole.events(), "at {at}");
            assert_eq!(live(&quick), live(&whole), "at {at}");
            let time = whole.ledger().last_event().unwrap_or_default();
            assert_eq!(
                quick.ledger().last_event().unwrap_or_default(),
                time,
                "at {at}"
            );
            whole.seek_time(time).unwrap();
            quick.seek_time(time).unwrap();
            assert_eq!(quick.events(), whole.events(), "at {time:?}");
        }
    }
}

//! Keyframes and the index: a reader that begins anywhere has the state of one that read everything.

use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::super::GroupPolicy;
use super::super::decode::KeyframeDecoder;
use super::*;
use crate::cuda::calls::function_named;
use crate::event::{CudaCall, CudaMemoryKind, DriverCount, DriverReading, Target};
use crate::ledger::Ledger;
use crate::ledger::keyframe::{DriverMemories, SegmentMemory};
use crate::ledger::snapshot::{DeviceTimeline, Grouping, Snapshot};

/// Groups of three events, each with a keyframe.
fn small() -> GroupPolicy {
    GroupPolicy {
        events: 3,
        bytes_per_keyframe_byte: 0,
        cell_events: 2,
        ..GroupPolicy::default()
    }
}

fn written_with(policy: GroupPolicy, events: &[Event]) -> Vec<u8> {
    let mut writer = CompactWriter::with_groups(Vec::new(), "memory", &header(), policy).unwrap();
    for event in events {
        writer.event(event).unwrap();
        writer.flush().unwrap();
    }
    writer.finish(EndReason::Interrupted).unwrap()
}

/// Snapshots in both groupings, without what begins anew at a keyframe: timelines.
fn snapshots(ledger: &Ledger) -> [Snapshot; 2] {
    let now = ledger.last_event().unwrap_or_default();
    [Grouping::User, Grouping::Innermost].map(|grouping| {
        let mut snapshot = ledger.snapshot(now, grouping);
        for device in &mut snapshot.devices {
            device.timeline = DeviceTimeline::default();
        }
        snapshot
    })
}

/// State of a ledger at a moment.
type LedgerState = ([Snapshot; 2], Vec<SegmentState>, DriverMemories);

/// Memory of a segment, and its tag.
type SegmentState = (SegmentMemory, Option<Arc<str>>);

fn state(ledger: &Ledger) -> LedgerState {
    let segments = ledger.segment_memory();
    let segments = segments.map(|memory| (*memory, ledger.segment_tag(memory.addr).cloned()));
    (
        snapshots(ledger),
        segments.collect(),
        ledger.driver().clone(),
    )
}

/// States after each number of memory events, of a replay that goes on from a ledger.
fn replayed(mut ledger: Ledger, events: impl Iterator<Item = Event>) -> Vec<(u64, LedgerState)> {
    let mut all = Vec::new();
    for event in events {
        ledger.apply(&event);
        if matches!(event, Event::Memory(_)) {
            all.push((ledger.health.events, state(&ledger)));
        }
    }
    all.push((u64::MAX, state(&ledger)));
    all
}

/// Compares replays from each keyframe of a file with the one from its begin. Returns the number of keyframes.
fn check_all_keyframes(path: &Path) -> usize {
    let reader = Reader::open(path).unwrap();
    let start = reader.header().start;
    let whole = replayed(
        Ledger::new(Target::default(), start),
        reader.map(|event| event.unwrap()),
    );
    let reader = Reader::open(path).unwrap();
    let index = SeekIndex::open(path).unwrap().unwrap();
    let keyframes: Vec<u64> = index.keyframes().map(|(events, _)| events).collect();
    for before in &keyframes {
        let (state, rest) = reader.from_keyframe(*before).unwrap();
        assert_eq!(state.events, *before);
        let ledger = Ledger::of_keyframe(Target::default(), &state).unwrap();
        let part = replayed(ledger, rest.map(|event| event.unwrap()));
        let tail = &whole[whole.len() - part.len()..];
        assert_eq!(part, tail, "from {before}");
    }
    keyframes.len()
}

/// A loop that allocates for PyTorch and CUDA, with blocks from before attach.
fn mixed(choices: &[(u8, u8, u8)]) -> Vec<Event> {
    let mut events = late_attach();
    events.extend(story());
    let call = CudaCall {
        function: function_named("cudaMalloc").unwrap().name,
        space: CudaMemoryKind::Device,
    };
    for (at, (kind, place, stack)) in (0..).zip(choices) {
        let action = match kind % 9 {
            0 | 1 => Action::Alloc,
            2 => Action::Free,
            3 => Action::CudaAlloc,
            4 => Action::CudaFree,
            5 => Action::SegmentAlloc,
            6 => Action::SegmentSleep,
            7 => Action::SegmentWake,
            _ => Action::SegmentFree,
        };
        let is_cuda = kind % 9 >= 3;
        let size = MIB * u64::from(stack % 3 + 1);
        let event = memory(
            action,
            1000 + at,
            0x7f00_0000_0000 + u64::from(place % 8) * MIB,
            size,
        );
        events.push(Event::Memory(MemoryEvent {
            stack: match action {
                Action::Free | Action::CudaFree | Action::SegmentSleep | Action::SegmentFree => {
                    StackId::NONE
                }
                _ => StackId(u32::from(stack % 4)),
            },
            totals: event.totals.filter(|_| !is_cuda),
            call: is_cuda.then_some(call),
            ..event
        }));
        if place % 4 == 0 {
            events.push(Event::Driver(Arc::new(DriverReading {
                time: event.time,
                asked: TimeNs(event.time.0.saturating_sub(u64::from(*stack) % 2000)),
                tgid: event.tgid,
                devices: vec![DriverCount {
                    device: DeviceIndex(0),
                    total: Bytes(1 << 34),
                    used: Bytes(size * 9),
                    process: (place % 8 != 0).then_some(Bytes(size * 7)),
                }],
                unread: (place % 16 == 0).then(|| "no driver".into()),
            })));
        }
    }
    events
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_replay_from_any_keyframe_equals_the_one_from_the_begin(
        choices in prop::collection::vec(any::<(u8, u8, u8)>(), 20..80),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.mprb");
        fs::write(&path, written_with(small(), &mixed(&choices))).unwrap();
        prop_assert!(check_all_keyframes(&path) > 5);
    }

    #[test]
    fn keyframes_of_any_stream_restore_its_state(events in any_stream()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.mprb");
        fs::write(&path, written_with(small(), &events)).unwrap();
        check_all_keyframes(&path);
    }
}

#[test]
fn readers_of_the_whole_file_do_not_count_keyframes() {
    let events = mixed(&[(0, 1, 1); 40]);
    let (plain, _) = read(&compact_recording(&events)).unwrap();
    let file = written_with(small(), &events);
    let (back, reader) = read(&file).unwrap();
    assert_eq!(back, plain);
    assert!(reader.damage().is_none() && !reader.truncated());
    assert_eq!(reader.end().unwrap().events, reader.events());
}

#[test]
fn without_its_index_the_keyframes_are_found_by_their_frames() {
    let file = written_with(small(), &mixed(&[(0, 1, 1); 40]));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mprb");
    let keyframes = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let index = SeekIndex::open(&path).unwrap().unwrap();
        index.keyframes().collect::<Vec<_>>()
    };
    let indexed = keyframes(&file);
    assert!(indexed.len() > 5);
    let all = frames(&file);
    let index = all
        .iter()
        .find(|(_, header)| header.kind == FrameKind::Index);
    assert_eq!(keyframes(&file[..index.unwrap().0]), indexed);
}

#[test]
fn a_damaged_keyframe_gives_way_to_the_one_before() {
    let mut file = written_with(small(), &mixed(&[(0, 1, 1); 40]));
    let all = frames(&file);
    let keyframes = all
        .iter()
        .filter(|(_, header)| header.kind == FrameKind::Keyframe);
    let [.., (_, before), (at, last)] = keyframes.collect::<Vec<_>>()[..] else {
        panic!("two keyframes");
    };
    file[at + HEADER] ^= 1;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mprb");
    fs::write(&path, &file).unwrap();
    let reader = Reader::open(&path).unwrap();
    let (state, _) = reader.from_keyframe(last.first_event).unwrap();
    assert_eq!(state.events, before.first_event);
}

#[test]
fn keyframes_take_a_bounded_share_of_the_file() {
    let events = training(30_000);
    let policy = GroupPolicy {
        events: 500,
        ..GroupPolicy::default()
    };
    let mut writer = CompactWriter::with_groups(Vec::new(), "memory", &header(), policy).unwrap();
    for (at, event) in events.iter().enumerate() {
        writer.event(event).unwrap();
        if at % 100 == 0 {
            writer.flush().unwrap();
        }
    }
    let file = writer.finish(EndReason::Interrupted).unwrap();
    let all = frames(&file);
    let keyframes = all
        .iter()
        .filter(|(_, header)| header.kind == FrameKind::Keyframe);
    let bytes: usize = keyframes
        .clone()
        .map(|(_, header)| HEADER + header.stored)
        .sum();
    assert!(
        keyframes.count() > 3 && bytes * 8 < file.len(),
        "{bytes} of {}",
        file.len()
    );
}

#[test]
fn a_changed_keyframe_never_panics() {
    let file = written_with(small(), &mixed(&[(0, 1, 1), (3, 2, 2), (2, 1, 0)]));
    let all = frames(&file);
    let is_keyframe = |(_, header): &&(usize, FrameHeader)| header.kind == FrameKind::Keyframe;
    let (at, header) = all.iter().rfind(is_keyframe).unwrap();
    let stored = &file[at + HEADER..][..header.stored];
    let payload = header.payload(stored, &mut Decompressor::new().unwrap());
    let payload = payload.unwrap();
    let restored = |payload: &[u8]| {
        let mut decoder = KeyframeDecoder::default();
        decoder.frame(payload).ok()?;
        let state = decoder.finish()?;
        let mut ledger = Ledger::of_keyframe(Target::default(), &state).ok()?;
        for event in story() {
            ledger.apply(&event);
        }
        Some(snapshots(&ledger))
    };
    assert!(restored(&payload).is_some());
    let mut refused = 0;
    for place in 0..payload.len() {
        for value in [0, 1, 0x7f, 0xff, payload[place] ^ 1] {
            let mut changed = payload.clone();
            changed[place] = value;
            refused += u32::from(restored(&changed).is_none());
        }
    }
    assert!(refused > 100, "{refused}");
}

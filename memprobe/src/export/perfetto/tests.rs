use std::collections::{BTreeMap, BTreeSet};

use prost::Message;

use super::super::ExportFormat;
use super::super::tests::exported_file;
use super::messages::{
    COUNTER, INSTANT, NEEDS_STATE, SLICE_BEGIN, SLICE_END, STATE_CLEARED, TracePacket,
};
use crate::event::{Action, Event, MarkedPhase, PhaseMark, StackId, Tgid, Tid, TimeNs};
use crate::recording::samples::{memory, story, totals};

/// `trace.proto`.
#[derive(Clone, PartialEq, Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

fn exported(events: &[Event]) -> Vec<TracePacket> {
    let (out, _) = exported_file(events, ExportFormat::Perfetto);
    let packets = Trace::decode(&out[..]).expect("a trace").packet;
    check_sequence(&packets);
    check_tracks(&packets);
    packets
}

/// Everything is defined before it is used, on one sequence that begins cleared.
fn check_sequence(packets: &[TracePacket]) {
    assert_eq!(packets[0].sequence_flags, Some(STATE_CLEARED));
    assert_eq!(packets[0].first_packet_on_sequence, Some(true));
    let (mut names, mut functions, mut files) = (ids(), ids(), ids());
    let (mut paths, mut mappings, mut frames, mut stacks) = (ids(), ids(), ids(), ids());
    let mut frames_of_stacks = BTreeSet::new();
    for packet in packets {
        assert_eq!(packet.trusted_packet_sequence_id, Some(1));
        let data = packet.interned_data.clone().unwrap_or_default();
        names.extend(data.event_names.iter().map(|it| it.iid));
        functions.extend(data.function_names.iter().map(|it| it.iid));
        files.extend(data.source_paths.iter().map(|it| it.iid));
        paths.extend(data.mapping_paths.iter().map(|it| it.iid));
        for mapping in &data.mappings {
            let mut of = mapping.path_string_ids.iter();
            assert!(of.all(|id| paths.contains(&Some(*id))));
            mappings.insert(mapping.iid);
        }
        for frame in &data.frames {
            assert!(functions.contains(&frame.function_name_id));
            assert!(mappings.contains(&frame.mapping_id) && frame.rel_pc.is_some());
            assert!(frame.source_path_iid.is_none() || files.contains(&frame.source_path_iid));
            frames.insert(frame.iid);
        }
        for stack in &data.callstacks {
            let mut of = stack.frame_ids.iter();
            assert!(!stack.frame_ids.is_empty() && of.all(|id| frames.contains(&Some(*id))));
            assert!(stacks.insert(stack.iid), "defined twice");
            assert!(
                frames_of_stacks.insert(stack.frame_ids.clone()),
                "the same frames twice"
            );
        }
        if let Some(event) = &packet.track_event {
            assert_eq!(packet.sequence_flags, Some(NEEDS_STATE));
            assert!(event.name_iid.is_none() || names.contains(&event.name_iid));
            assert!(event.callstack_iid.is_none() || stacks.contains(&event.callstack_iid));
        }
        for sample in samples(packet) {
            assert!(stacks.contains(&sample.callstack_id));
        }
    }
}

fn ids() -> BTreeSet<Option<u64>> {
    BTreeSet::new()
}

/// Events lie on tracks that are defined before, in the order of time, and slices nest.
fn check_tracks(packets: &[TracePacket]) {
    let mut tracks = ids();
    let mut open: BTreeMap<Option<u64>, u32> = BTreeMap::new();
    let mut now = 0;
    for packet in packets {
        if let Some(track) = &packet.track_descriptor {
            assert!(track.parent_uuid.is_none() || tracks.contains(&track.parent_uuid));
            assert!(tracks.insert(track.uuid), "defined twice");
        }
        let Some(event) = &packet.track_event else {
            continue;
        };
        assert!(tracks.contains(&event.track_uuid));
        let time = packet.timestamp.expect("a time");
        assert!(time >= now);
        now = time;
        let depth = open.entry(event.track_uuid).or_default();
        match event.r#type {
            Some(SLICE_BEGIN) => *depth += 1,
            Some(SLICE_END) => *depth = depth.checked_sub(1).expect("an open slice"),
            _ => {}
        }
        assert!(*depth <= 1);
    }
    assert!(open.values().all(|depth| *depth == 0), "{open:?}");
}

fn samples(packet: &TracePacket) -> impl Iterator<Item = &super::messages::HeapSample> {
    let dumps = packet.profile_packet.iter();
    dumps
        .flat_map(|packet| &packet.process_dumps)
        .flat_map(|dump| &dump.samples)
}

/// Live bytes of each device in a packet.
fn live(packet: &TracePacket) -> BTreeMap<&str, u64> {
    let dumps = &packet.profile_packet.as_ref().expect("heaps").process_dumps;
    let live = dumps.iter().map(|dump| {
        let of_all = dump.samples.iter();
        let bytes = of_all
            .map(|sample| sample.self_allocated.unwrap_or(0) - sample.self_freed.unwrap_or(0));
        (dump.heap_name.as_deref().expect("a name"), bytes.sum())
    });
    live.collect()
}

/// Names and values of tracks by their number.
fn track_names(packets: &[TracePacket]) -> BTreeMap<Option<u64>, String> {
    let tracks = packets
        .iter()
        .filter_map(|packet| packet.track_descriptor.as_ref());
    tracks
        .filter_map(|track| Some((track.uuid, track.name.clone()?)))
        .collect()
}

#[test]
fn counters_are_the_allocators_totals() {
    let packets = exported(&story());
    let names = track_names(&packets);
    let mut last: BTreeMap<&str, i64> = BTreeMap::new();
    for event in packets.iter().filter_map(|it| it.track_event.as_ref()) {
        if event.r#type == Some(COUNTER) {
            let value = event.counter_value.expect("a value");
            last.insert(&names[&event.track_uuid], value);
        }
    }
    let recording = crate::recording::samples::recording(&story());
    let mut reader = crate::recording::Reader::new(&recording[..]).expect("a recording");
    let mut ledger = crate::ledger::Ledger::new(crate::event::Target::default(), TimeNs(0));
    for event in reader.by_ref() {
        ledger.apply(&event.expect("an event"));
    }
    let mut compared = 0;
    for (device, sample) in ledger.moments(TimeNs(0)) {
        let of = |what| last.get(&*format!("{device} {what}")).copied();
        let expected = |bytes: u64| i64::try_from(bytes).ok();
        assert_eq!(of("allocated"), expected(sample.totals.allocated.0));
        assert_eq!(of("reserved"), expected(sample.totals.reserved.0));
        compared += 1;
    }
    assert!(compared >= 2);
}

#[test]
fn heap_profiles_add_up_to_the_counters_at_each_keyframe() {
    let packets = exported(&story());
    let names = track_names(&packets);
    let mut counters: BTreeMap<String, u64> = BTreeMap::new();
    let mut before: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut keyframes = 0;
    for packet in &packets {
        if let Some(event) = &packet.track_event
            && event.r#type == Some(COUNTER)
        {
            let name = names[&event.track_uuid].clone();
            let value = event.counter_value.expect("a value");
            counters.insert(name, u64::try_from(value).expect("bytes"));
        }
        for sample in samples(packet) {
            let now = (
                sample.self_allocated.expect("bytes"),
                sample.self_freed.expect("bytes"),
            );
            let last = before.insert(sample.callstack_id.expect("a stack"), now);
            let last = last.unwrap_or_default();
            assert!(last.0 <= now.0 && last.1 <= now.1, "totals only grow");
        }
        if packet.profile_packet.is_some() {
            for (device, bytes) in live(packet) {
                let counter = counters.get(&format!("{device} allocated"));
                assert_eq!(Some(&bytes), counter, "{device}");
            }
            keyframes += 1;
        }
    }
    assert!(keyframes >= 3, "{keyframes}");
}

#[test]
fn the_heap_profile_of_the_peak_has_its_time_and_bytes() {
    let packets = exported(&story());
    let names = track_names(&packets);
    let event_names: BTreeMap<_, _> = packets
        .iter()
        .filter_map(|packet| packet.interned_data.as_ref())
        .flat_map(|data| &data.event_names)
        .map(|it| (it.iid, it.name.clone().unwrap_or_default()))
        .collect();
    let mut found = 0;
    for (index, packet) in packets.iter().enumerate() {
        let Some(event) = &packet.track_event else {
            continue;
        };
        let is_peak = event.r#type == Some(INSTANT)
            && event_names
                .get(&event.name_iid)
                .is_some_and(|it| it == "peak");
        if !is_peak {
            continue;
        }
        let allocated = event.debug_annotations[0].uint_value.expect("bytes");
        let device = names[&event.track_uuid].replace(" events", "");
        let profile = packets[index..]
            .iter()
            .find(|packet| packet.profile_packet.is_some());
        let profile = profile.expect("a keyframe");
        assert_eq!(profile.timestamp, packet.timestamp);
        assert_eq!(live(profile)[&*device], allocated);
        found += 1;
    }
    assert!(found >= 2, "{found}");
}

#[test]
fn steps_separate_iterations_and_a_failed_request_has_its_stack() {
    let mut events = story();
    let step = |micros: u64| {
        Event::PhaseMark(PhaseMark {
            time: TimeNs(5_000_000_000 + micros * 1000),
            tgid: Tgid(1234),
            tid: Tid(1234),
            phase: MarkedPhase::Step,
            class: "Adam".into(),
            stack: StackId(1),
        })
    };
    for at in [70, 80, 90] {
        events.push(step(at));
        let block = memory(Action::Alloc, at + 1, 0x7f00_0000_0000 + at * 4096, 512);
        events.push(Event::Memory(crate::event::MemoryEvent {
            stack: StackId(1),
            totals: totals(at * 512, 22 << 20),
            ..block
        }));
    }
    let packets = exported(&events);
    let names = track_names(&packets);
    let of_track = |track: &str, kind: i32| {
        let events = packets.iter().filter_map(|it| it.track_event.as_ref());
        events
            .filter(|event| names[&event.track_uuid] == track && event.r#type == Some(kind))
            .count()
    };
    assert!(of_track("iterations", SLICE_BEGIN) >= 3);
    assert!(of_track("phases (inferred)", SLICE_BEGIN) >= 1);
    let stacked = packets.iter().filter_map(|it| it.track_event.as_ref());
    let mut instants = stacked.filter(|event| event.r#type == Some(INSTANT));
    assert!(instants.any(|event| event.callstack_iid.is_some()));
}

use super::samples::{Plain, block, event, segment, snapshot};
use super::*;
use crate::event::{Action, Bytes, MemoryEvent};

use super::history::MAX_DEVICES;

const MIB: i64 = 1 << 20;

fn read_plain(plain: &Plain) -> History {
    read(&*plain.pickled()).expect("a snapshot")
}

fn memory(history: &History) -> Vec<MemoryEvent> {
    let events = history.events.iter();
    let events = events.filter_map(|event| match event {
        Event::Memory(event) => Some(*event),
        _ => None,
    });
    events.collect()
}

/// Returns each event as its action, address, size and the totals after it.
fn shown(history: &History) -> String {
    let mut lines = Vec::new();
    for event in &history.events {
        match event {
            Event::Stack(id, stack) => {
                let frames: Vec<_> = (stack.frames.iter())
                    .map(|frame| format!("{}:{}", frame.file, frame.line))
                    .collect();
                lines.push(format!("stack {} {:?} {frames:?}", id.0, stack.kind));
            }
            Event::AtAttach(found) => lines.push(format!(
                "begin {:?} allocated {} reserved {}",
                found.device, found.totals.allocated.0, found.totals.reserved.0
            )),
            Event::Memory(event) => {
                let totals = event.totals.map_or("-".to_owned(), |totals| {
                    format!("{}/{}", totals.allocated.0, totals.reserved.0)
                });
                lines.push(format!(
                    "{:>6} {:<14} {} {:>8} stack {} {totals}",
                    event.time.0 / 1000,
                    event.action.as_str(),
                    event.addr,
                    event.size.0,
                    event.stack.0,
                ));
            }
            _ => lines.push("other".to_owned()),
        }
    }
    lines.join("\n")
}

/// A history that begins with three blocks: one is freed, one stays with its stack, one stays without.
fn story() -> Plain {
    let blocks = vec![
        block(0x10000, 1024, "active_allocated", Some(3)),
        block(0x10400, 512, "active_allocated", None),
        block(0x10600, 512, "inactive", None),
        block(0x20000, 2 * MIB, "active_allocated", Some(9)),
        block(0x300000, 512, "active_pending_free", None),
    ];
    snapshot(
        vec![segment(0x10000, 20 * MIB, blocks)],
        vec![
            event("free_requested", 0x10600, 500, 0, None),
            event("free_completed", 0x10600, 500, 1, None),
            event("segment_alloc", 0x10000, 20 * MIB, 2, Some(9)),
            event("alloc", 0x20000, 2 * MIB - 12, 3, Some(9)),
            event("alloc", 0x300000, 400, 4, Some(3)),
            event("free_requested", 0x300000, 400, 5, None),
            event("oom", 0, 90 * MIB, 6, Some(9)),
            event("snapshot", 0, 0, 7, None),
        ],
    )
}

#[test]
fn a_history_becomes_the_events_from_its_begin() {
    let history = read_plain(&story());
    insta::assert_snapshot!(shown(&history));
    assert_eq!(history.memory_events, 7);
    assert_eq!(history.header.wall_start_ms, Some(1_700_000_000_000));
    assert_eq!(
        history.facts,
        HistoryFacts {
            restated: 1,
            before: 2,
            inferred_sizes: 2,
            ..HistoryFacts::default()
        }
    );
}

#[test]
fn the_settings_of_the_allocator_are_those_of_the_process() {
    let with = |settings: Plain| {
        let history = read_plain(&story().with([("allocator_settings", settings)]));
        history.header.target.allocator_conf
    };
    let text = |text| Plain::dict([(SETTINGS_TEXT_KEY, Plain::Text(text))]);
    let conf = with(text("max_split_size_mb:64"));
    assert_eq!(conf.as_deref(), Some("max_split_size_mb:64"));
    for other in [
        text(""),
        Plain::Int(3),
        Plain::None,
        Plain::list([text("max_split_size_mb:64")]),
        Plain::dict([(SETTINGS_TEXT_KEY, Plain::Int(3))]),
        Plain::dict([(SETTINGS_TEXT_KEY, Plain::List(Vec::new()))]),
        Plain::dict([(SETTINGS_TEXT_KEY, Plain::long(MAX_CONTEXT + 1))]),
    ] {
        assert_eq!(with(other), None);
    }
    let twice = text("max_split_size_mb:64").with([(SETTINGS_TEXT_KEY, Plain::Text("backend:x"))]);
    assert_eq!(with(twice).as_deref(), Some("backend:x"));
}

#[test]
fn a_list_that_several_segments_or_devices_have_is_refused() {
    let trace = vec![event("alloc", 0x10000, 512, 0, Some(1)); 100];
    let traces = Plain::same(MAX_DEVICES, Plain::List(trace));
    let blocks = vec![block(0x10000, 512, "active_allocated", Some(1)); 100];
    let segments = Plain::same(100, segment(0x10000, 2 << 20, blocks));
    for snapshot in [
        snapshot(Vec::new(), Vec::new()).with([("device_traces", traces)]),
        snapshot(Vec::new(), Vec::new()).with([("segments", segments.clone())]),
        segments,
    ] {
        let pickled = snapshot.pickled();
        let error = read(&*pickled).expect_err("refused");
        assert!(matches!(error, PickleError::Repeated), "{error:?}");
        let copied = copy_pickle(&*pickled, &mut Vec::new()).expect_err("refused");
        assert!(copied.to_string().contains("the same list"), "{copied}");
    }
    // One entry of a list any number of times is as long as the list.
    let entries = Plain::same(1000, event("alloc", 0x10000, 512, 0, Some(1)));
    let traces = [("device_traces", Plain::list([entries]))];
    let history = read_plain(&snapshot(Vec::new(), Vec::new()).with(traces));
    assert_eq!(history.facts.missing_events, 1000);
}

#[test]
fn a_dict_of_many_keys_is_searched_no_further_than_a_snapshot_needs() {
    let keys = |count: usize| (0..count).map(|_| ("another key", Plain::Int(1)));
    let few = read_plain(&story().with(keys(20)));
    assert_eq!(shown(&few), shown(&read_plain(&story())));
    let error = read(&*story().with(keys(1000)).pickled()).expect_err("no segments");
    assert!(matches!(error, PickleError::Foreign), "{error:?}");
}

#[test]
fn segments_alone_are_blocks_without_a_history() {
    let blocks = vec![block(0x10000, 1024, "active_allocated", None)];
    let segments = Plain::list([segment(0x10000, 2 * MIB, blocks)]);
    let history = read_plain(&segments);
    assert!(history.facts.lacks_history);
    let events = memory(&history);
    assert_eq!(events.len(), 1);
    assert_eq!(
        (events[0].action, events[0].size),
        (Action::Held, Bytes(1024))
    );
}

#[test]
fn events_that_were_not_recorded_are_added_where_they_must_have_happened() {
    let blocks = vec![
        block(0x10000, 512, "active_allocated", Some(1)),
        block(0x10200, 512, "active_allocated", Some(2)),
    ];
    let history = read_plain(&snapshot(
        vec![segment(0x10000, 2 * MIB, blocks)],
        vec![
            event("alloc", 0x10000, 512, 0, Some(1)),
            // Its free is missing.
            event("alloc", 0x10000, 512, 1, Some(1)),
            event("alloc", 0x10200, 512, 2, Some(2)),
            // Its later allocation is missing.
            event("free_requested", 0x10200, 512, 3, None),
            // Its free is missing too.
            event("alloc", 0x10400, 512, 4, Some(2)),
        ],
    ));
    assert_eq!(history.facts.missing_events, 3);
    insta::assert_snapshot!(shown(&history));
}

#[test]
fn a_pickle_of_something_else_is_no_snapshot() {
    for plain in [
        Plain::Int(1),
        Plain::List(Vec::new()),
        Plain::dict([("state_dict", Plain::Int(1))]),
        Plain::dict([("segments", Plain::list([Plain::Int(1)]))]),
    ] {
        let error = read(&*plain.pickled()).unwrap_err();
        assert!(matches!(error, PickleError::Foreign), "{error:?}");
    }
}

#[test]
fn numbers_of_a_hostile_file_are_no_sums_that_overflow() {
    let blocks = vec![
        block(i64::MAX, i64::MAX, "active_allocated", Some(1)),
        block(i64::MAX - 1, i64::MAX, "active_allocated", None),
    ];
    let history = read_plain(&snapshot(
        vec![
            segment(1, i64::MAX, blocks.clone()),
            segment(1, i64::MAX, blocks),
        ],
        vec![
            event("alloc", i64::MAX, i64::MAX, 0, Some(1)),
            event("alloc", 2, i64::MAX, -5, Some(1)),
            event("free_requested", 3, i64::MAX, i64::MAX >> 1, None),
            event("segment_map", 3, i64::MAX, 9, None),
        ],
    ));
    assert!(history.memory_events > 3);
}

#[test]
fn a_stack_without_python_and_one_that_was_not_recorded_say_so() {
    let native = Plain::list([Plain::dict([
        ("filename", Plain::Text("??")),
        ("line", Plain::Int(0)),
        ("name", Plain::Text("start_thread")),
    ])]);
    let with = |frames: Option<Plain>| {
        let event = event("alloc", 0x10000, 512, 0, None);
        event.with(frames.map(|frames| ("frames", frames)))
    };
    let trace = vec![with(Some(native)), with(None)];
    let text = shown(&read_plain(&snapshot(Vec::new(), trace)));
    assert!(text.contains("NoPythonFrames"), "{text}");
    assert!(text.contains("NotRecorded"), "{text}");
}

/// Pickles a snapshot with values of every kind, copies it, and compares what the two decode to.
#[test]
fn a_copy_has_the_values_of_the_snapshot_in_protocol_2() {
    let mut protocol_5 = story().pickled();
    protocol_5[1] = 5;
    let mut copied = Vec::new();
    copy_pickle(&protocol_5[..], &mut copied).expect("a copy");
    assert_eq!(copied[..2], [0x80, 2]);
    assert!(copied.len() < protocol_5.len());
    let (copied, original) = (read(&*copied), read(&*protocol_5));
    let (copied, original) = (copied.expect("read"), original.expect("read"));
    assert_eq!(shown(&copied), shown(&original));
    assert_eq!(copied.facts, original.facts);
}

#[test]
fn a_copy_ends_at_values_that_nest_without_end_or_are_no_plain_data() {
    let copy = |pickle: &[u8]| {
        let error = copy_pickle(pickle, &mut Vec::new()).expect_err("no copy");
        error.to_string()
    };
    // A snapshot whose list of segments is empty, and `x` is a list with a tuple that holds the list.
    let circle = b"\x80\x02}(X\x08\x00\x00\x00segments]X\x01\x00\x00\x00x]q\x00(h\x00tau.";
    assert!(copy_pickle(&circle[..], &mut Vec::new()).is_ok());
    let bytes = b"\x80\x02}(X\x08\x00\x00\x00segments]X\x01\x00\x00\x00xC\x02abu.";
    assert!(copy(bytes).contains("bytes"), "{}", copy(bytes));
    let set = b"\x80\x04}(X\x08\x00\x00\x00segments]X\x01\x00\x00\x00x\x8fu.";
    assert!(copy(set).contains("a set"), "{}", copy(set));
    let mut deep = b"\x80\x02}(X\x08\x00\x00\x00segments]X\x01\x00\x00\x00x".to_vec();
    deep.extend([b'('; 70]);
    deep.extend([b't'; 70]);
    deep.extend(b"u.");
    assert!(copy(&deep).contains("64 levels"), "{}", copy(&deep));
    assert!(copy(b"\x80\x02K\x01.").contains("not of PyTorch's memory"));
}

#[test]
fn numbers_are_written_in_the_fewest_bytes_and_read_back() {
    let numbers = [
        0,
        1,
        255,
        256,
        65_535,
        65_536,
        -1,
        -128,
        -129,
        1 << 31,
        (1 << 31) - 1,
        -(1 << 31),
        1 << 47,
        -(1 << 40),
        i64::MAX,
        i64::MIN,
        0x80,
        0x8000,
        0x80_0000_0000,
        -0x80_0000_0000,
    ];
    for number in numbers {
        let mut bytes = Vec::new();
        let mut writer = PickleWriter::new(&mut bytes).unwrap();
        writer.int(number).unwrap();
        writer.finish().unwrap();
        let document = machine::decode(&*bytes).unwrap();
        assert_eq!(document.root, machine::Value::Int(number));
    }
}

#[test]
fn long_lists_come_in_batches_and_equal_texts_once() {
    let mut bytes = Vec::new();
    let mut writer = PickleWriter::new(&mut bytes).unwrap();
    writer.empty_list().unwrap();
    let mut items = PickleItems::default();
    for number in 0..2500 {
        items.next(&mut writer).unwrap();
        match number % 2 {
            0 => writer.text("an equal text").unwrap(),
            _ => writer.int(number).unwrap(),
        }
    }
    items.end(&mut writer).unwrap();
    writer.finish().unwrap();
    assert!(bytes.len() < 10_000, "{}", bytes.len());
    let document = machine::decode(&*bytes).unwrap();
    let machine::Value::List(list) = document.root else {
        panic!("no list");
    };
    let items = document.list(list);
    assert_eq!(
        (items.len(), items[2499]),
        (2500, machine::Value::Int(2499))
    );
    assert_eq!(items[0], items[2498]);
}

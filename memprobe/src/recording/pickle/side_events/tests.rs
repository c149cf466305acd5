use super::super::samples::{Plain, block, event, segment, snapshot};
use super::super::{History, machine, read};
use super::*;
use crate::event::{Action, Address, BlockLabels, Module, PurposeId};

const START: i64 = 1_700_000_000_000_000;

fn text(text: &'static str) -> Plain {
    Plain::Text(text)
}

/// A snapshot as memprobe writes it: two allocations, between them a mark, after them labels.
fn exported(more: Vec<(&'static str, Plain)>) -> Plain {
    let facts = Plain::dict([
        ("module", text("Net.first")),
        ("grad", text("enabled")),
        ("purpose", text("no tensor")),
        ("tid", text("77")),
    ]);
    exported_with(facts, more)
}

/// The same with other metadata of both allocations.
fn exported_with(facts: Plain, more: Vec<(&'static str, Plain)>) -> Plain {
    let with = |event: Plain| event.with([("user_metadata", facts.clone())]);
    let trace = vec![
        with(event("alloc", 0x10000, 512, 10, Some(3))),
        with(event("alloc", 0x10200, 512, 20, Some(4))),
        event("snapshot", 0, 0, 30, None),
    ];
    let blocks = vec![
        block(0x10000, 512, "active_allocated", Some(3)),
        block(0x10200, 512, "active_allocated", Some(4)),
        block(0x10400, 512, "active_allocated", Some(5)),
    ];
    snapshot(vec![segment(0x10000, 2 << 20, blocks)], trace).with(more)
}

fn place(position: i64, more: Vec<(&'static str, Plain)>) -> Plain {
    let mut pairs = vec![
        ("device", Plain::Int(0)),
        ("position", Plain::Int(position)),
        ("time_us", Plain::Int(START + 12)),
    ];
    pairs.extend(more);
    Plain::Dict(pairs)
}

fn mark(phase: &'static str) -> Vec<(&'static str, Plain)> {
    let mark = [
        ("tid", Plain::Int(77)),
        ("phase", text(phase)),
        ("class", text("Adam")),
    ];
    vec![("mark", Plain::dict(mark))]
}

fn labels(count: i64) -> Vec<(&'static str, Plain)> {
    let block = [
        ("addr", Plain::Int(0x10200)),
        ("size", Plain::Int(512)),
        ("device", Plain::Int(0)),
        ("kind", text("parameter")),
        ("name", text("first.weight")),
    ];
    labels_of_blocks(Plain::list([Plain::dict(block)]), count)
}

fn labels_of_blocks(blocks: Plain, count: i64) -> Vec<(&'static str, Plain)> {
    vec![
        ("scope", text("all_blocks")),
        (BLOCKS_KEY, blocks),
        (LABELS_END_KEY, Plain::dict([("blocks", Plain::Int(count))])),
    ]
}

fn own(events: Vec<Plain>) -> Vec<(&'static str, Plain)> {
    vec![
        (WRITER_KEY, text("0.1.0")),
        (SIDE_EVENTS_KEY, Plain::List(events)),
        (
            THREADS_KEY,
            Plain::list([Plain::dict([
                ("tid", Plain::Int(77)),
                ("name", text("trainer")),
            ])]),
        ),
    ]
}

fn history(more: Vec<(&'static str, Plain)>) -> History {
    read(&*exported(more).pickled()).expect("a snapshot")
}

/// Kinds of the events after the definitions.
fn kinds(history: &History) -> Vec<&'static str> {
    let events = history.events.iter();
    let kinds = events.filter_map(|event| match event {
        Event::Memory(event) if event.action == Action::Held => Some("held"),
        Event::Memory(event) if event.action == Action::Alloc => Some("alloc"),
        Event::PhaseMark(_) => Some("mark"),
        Event::BlockLabels(_) => Some("labels"),
        _ => None,
    });
    kinds.collect()
}

fn labels_of(history: &History) -> Option<&BlockLabels> {
    history.events.iter().find_map(|event| match event {
        Event::BlockLabels(labels) => Some(&**labels),
        _ => None,
    })
}

#[test]
fn marks_and_labels_stand_between_the_same_events_again() {
    let events = vec![place(2, labels(1)), place(1, mark("step"))];
    let history = history(own(events));
    assert_eq!(
        kinds(&history),
        ["held", "alloc", "mark", "alloc", "labels"]
    );
    assert_eq!(history.facts.refused_side_events, 0);
    let labels = labels_of(&history).expect("labels");
    assert_eq!(labels.blocks[0].addr, Address(0x10200));
    let name = labels.blocks[0].name.as_ref().expect("a name");
    assert_eq!(&*name.text, "first.weight");
    assert!(
        history
            .events
            .contains(&Event::Thread(Tid(77), "trainer".into()))
    );
    let memory = history.events.iter().find_map(|event| match event {
        Event::Memory(event) if event.action == Action::Alloc => Some(*event),
        _ => None,
    });
    let memory = memory.expect("an allocation");
    assert_eq!((memory.tid, memory.shape), (Tid(77), PurposeId::NO_TENSOR));
}

#[test]
fn a_snapshot_of_another_tool_has_neither() {
    let events = vec![place(1, mark("step")), place(2, labels(1))];
    let foreign = own(events).split_off(1);
    let history = history(foreign);
    // Its stacks are PyTorch's, and its oldest block is not from before attach.
    assert_eq!(kinds(&history), ["alloc", "alloc", "alloc"]);
    assert!(!history.facts.is_exported);
    for event in &history.events {
        match event {
            Event::Stack(_, stack) => assert_eq!(stack.context.module, Module::Outside),
            Event::Memory(event) => assert_eq!(event.tid, Tid::UNKNOWN),
            Event::AtAttach(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn records_that_memprobe_does_not_write_are_counted() {
    let wrong = vec![
        Plain::Int(3),
        place(1, Vec::new()),
        place(1, mark("lunch")),
        place(1, [mark("step"), labels(1)].concat()),
        place(1, labels(2)),
        place(-1, mark("step")),
        place(1, vec![("scope", text("all_blocks"))]),
        place(1, vec![("mark", text("step"))]),
        place(2, labels(i64::MAX)),
        place(2, labels(-1)),
        place(2, labels_of_blocks(Plain::Int(3), 0)),
        place(2, labels_of_blocks(Plain::list([Plain::Int(3)]), 1)),
        place(1, mark("step")).with([("device", Plain::Int(256))]),
        place(1, mark("step")).with([("device", text("0"))]),
        // Of a device without a trace.
        place(1, mark("step")).with([("device", Plain::Int(200))]),
        place(1, mark("step")).with([("position", Plain::None)]),
    ];
    let count = wrong.len() as u64;
    let history = history(own(wrong));
    assert_eq!(history.facts.refused_side_events, count);
    assert_eq!(kinds(&history), ["held", "alloc", "alloc"]);
}

#[test]
fn positions_and_times_beyond_the_trace_are_its_end() {
    let events = vec![place(i64::MAX, mark("step")), place(i64::MAX, labels(1))];
    let history = history(own(events));
    assert_eq!(
        kinds(&history),
        ["held", "alloc", "alloc", "mark", "labels"]
    );
    let end = labels_of(&history).expect("labels").time;
    assert!(history.events.iter().all(|event| match event {
        Event::Memory(event) => event.time <= end,
        _ => true,
    }));
}

#[test]
fn a_header_of_another_kind_counts_as_none() {
    for header in [Plain::Int(1), Plain::Dict(Vec::new()), text("x")] {
        let mut more = own(Vec::new());
        more.push((HEADER_KEY, header));
        let history = history(more);
        assert_eq!(
            history.header.target.command,
            "PyTorch's own memory history"
        );
    }
}

/// A short file that refers to one long text very often is no large one in memory.
#[test]
fn a_record_of_one_text_very_often_is_refused() {
    let tag = Plain::dict([
        ("addr", Plain::Int(1)),
        ("size", Plain::Int(1)),
        ("tag", Plain::long(MAX_CONTEXT)),
    ]);
    let tagged = |count| {
        let end = [
            ("blocks", Plain::Int(0)),
            ("tags", Plain::same(count, tag.clone())),
        ];
        let labels = labels_of_blocks(Plain::List(Vec::new()), 0);
        place(2, labels).with([(LABELS_END_KEY, Plain::dict(end))])
    };
    let few = history(own(vec![tagged(2)]));
    assert_eq!(few.facts.refused_side_events, 0);
    let tags = &labels_of(&few).expect("labels").tags;
    assert!(Arc::ptr_eq(&tags[0].tag, &tags[1].tag));
    let many = history(own(vec![tagged(30_000)]));
    assert_eq!(many.facts.refused_side_events, 1);
}

#[test]
fn all_records_together_have_a_limit() {
    let document = machine::decode(&*Plain::same(9, text("a text")).pickled()).expect("decoded");
    let mut records = RecordReader::default();
    let cost = 10 * VALUE_BYTES + 9 * "a text".len();
    records.left = 2 * cost;
    assert!(records.read(&document, document.root).is_some());
    assert!(records.read(&document, document.root).is_some());
    assert_eq!(records.left, 0);
    assert!(records.read(&document, document.root).is_none());
}

#[test]
fn threads_that_memprobe_does_not_write_are_left_out() {
    let thread = |tid: Plain, name: Plain| Plain::dict([("tid", tid), ("name", name)]);
    let threads = Plain::list([
        Plain::Int(3),
        Plain::Dict(Vec::new()),
        thread(Plain::Int(-1), text("a")),
        thread(Plain::Int(1 << 32), text("b")),
        thread(text("77"), text("c")),
        thread(Plain::Int(1), Plain::None),
        thread(Plain::Int(2), Plain::long(MAX_CONTEXT + 1)),
        thread(Plain::Int(3), text("left")),
    ]);
    let mut more = own(Vec::new());
    more.push((THREADS_KEY, threads));
    let named = |history: History| {
        let events = history.events.into_iter();
        let threads = events.filter_map(|event| match event {
            Event::Thread(tid, name) => Some((tid.0, name.to_string())),
            _ => None,
        });
        threads.collect::<Vec<_>>()
    };
    assert_eq!(named(history(more)), [(3, "left".to_owned())]);
    for other in [Plain::Int(1), text("x"), Plain::Dict(Vec::new())] {
        let mut more = own(Vec::new());
        more.push((THREADS_KEY, other));
        assert!(named(history(more)).is_empty());
    }
}

#[test]
fn the_last_of_two_values_of_a_key_counts() {
    let events = vec![place(2, labels(1)), place(1, mark("step"))];
    let mut more = own(events);
    more.push((SIDE_EVENTS_KEY, Plain::list([place(1, mark("step"))])));
    assert_eq!(kinds(&history(more)), ["held", "alloc", "mark", "alloc"]);
    let mut more = own(vec![place(1, mark("step"))]);
    more.push((SIDE_EVENTS_KEY, Plain::Int(7)));
    assert_eq!(kinds(&history(more)), ["held", "alloc", "alloc"]);
}

/// Tids and stacks of the allocations.
fn origins(facts: Plain) -> Vec<(Tid, u64, PurposeId)> {
    let snapshot = exported_with(facts, own(Vec::new()));
    let history = read(&*snapshot.pickled()).expect("a snapshot");
    let events = history.events.iter();
    let allocations = events.filter_map(|event| match event {
        Event::Memory(event) if event.action == Action::Alloc => {
            Some((event.tid, event.size.0, event.shape))
        }
        _ => None,
    });
    allocations.collect()
}

#[test]
fn metadata_that_memprobe_does_not_write_is_unknown() {
    let unknown = [(Tid::UNKNOWN, 512, PurposeId::NONE); 2];
    let facts = |value: Plain| {
        let keys = [
            "tid",
            "tensor",
            "purpose",
            "module",
            "autograd node",
            "operation at",
            "thread",
            "grad",
            "block bytes",
        ];
        Plain::dict(keys.map(|key| (key, value.clone())))
    };
    for value in [
        Plain::None,
        Plain::Int(7),
        Plain::List(vec![text("7")]),
        Plain::dict([("tid", Plain::Int(7))]),
        text(""),
        text("-1"),
        text("1e3"),
        text("0x10"),
        text("99999999999999999999999999"),
        text("0000000000000000000000007"),
        Plain::long(MAX_CONTEXT + 1),
    ] {
        assert_eq!(origins(facts(value.clone())), unknown);
        assert_eq!(origins(value), unknown);
    }
    let largest = Plain::dict([("block bytes", text("18446744073709551615"))]);
    // The blocks of the end have their sizes there.
    assert_eq!(origins(largest), unknown);
}

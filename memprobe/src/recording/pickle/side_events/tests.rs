use super::super::samples::{Plain, block, event, segment, snapshot};
use super::super::{History, read};
use super::*;
use crate::event::{Action, Address, BlockLabels, Module, PurposeId};

const START: i64 = 1_700_000_000_000_000;

fn text(text: &'static str) -> Plain {
    Plain::Text(text)
}

/// A snapshot as memprobe writes it: two allocations, between them a mark, after them labels.
fn exported(more: Vec<(&'static str, Plain)>) -> Plain {
    let with = |event: Plain, facts: Vec<(&'static str, Plain)>| {
        let Plain::Dict(mut pairs) = event else {
            unreachable!("an event is a dict");
        };
        pairs.push(("user_metadata", Plain::Dict(facts)));
        Plain::Dict(pairs)
    };
    let facts = || {
        vec![
            ("module", text("Net.first")),
            ("grad", text("enabled")),
            ("purpose", text("no tensor")),
            ("tid", text("77")),
        ]
    };
    let trace = vec![
        with(event("alloc", 0x10000, 512, 10, Some(3)), facts()),
        with(event("alloc", 0x10200, 512, 20, Some(4)), facts()),
        event("snapshot", 0, 0, 30, None),
    ];
    let blocks = vec![
        block(0x10000, 512, "active_allocated", Some(3)),
        block(0x10200, 512, "active_allocated", Some(4)),
        block(0x10400, 512, "active_allocated", Some(5)),
    ];
    let Plain::Dict(mut pairs) = snapshot(vec![segment(0x10000, 2 << 20, blocks)], trace) else {
        unreachable!("a snapshot is a dict");
    };
    pairs.extend(more);
    Plain::Dict(pairs)
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
    vec![
        ("scope", text("all_blocks")),
        (BLOCKS_KEY, Plain::list([Plain::dict(block)])),
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

use std::collections::HashMap as Slices;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value;

use super::*;
use crate::attribution::tables::samples::categories;
use crate::event::{Address, Bytes, StackKind};
use crate::ledger::snapshot::Grouping;
use crate::output::OutputPlan;
use crate::recording::samples::{MIB, frame, header, late_attach, memory, recording, stack, story};
use crate::recording::{MAX_LINE, Reader};

fn records(file: &[u8]) -> Vec<Value> {
    serde_json::from_slice(file).expect("strict JSON")
}

/// Checks a file against the rules of the trace-event format.
fn check_format(file: &[u8]) {
    let mut open: Slices<(String, String), (String, f64)> = Slices::new();
    for record in records(file) {
        let text = |key: &str| record[key].as_str().map(str::to_owned);
        let phase = text("ph").expect("every record has a phase");
        let name = text("name").expect("every record has a name");
        // Blocks found at attach have no known thread.
        let has_thread = record["tid"].is_u64() || record["args"]["live_at_attach"] == true;
        assert!(record["pid"].is_u64() && has_thread, "{record}");
        assert!(record["args"].is_object(), "{record}");
        if phase == "M" {
            continue;
        }
        let ts = record["ts"].as_f64().expect("every event has a time");
        match &*phase {
            "b" | "e" => {
                let key = (
                    text("cat").unwrap(),
                    record["id2"]["local"].as_str().unwrap().to_owned(),
                );
                if phase == "b" {
                    assert_eq!(
                        open.insert(key, (name, ts)),
                        None,
                        "no slice is opened twice"
                    );
                } else {
                    let (opened, since) = open.remove(&key).expect("every end has its begin");
                    assert_eq!(opened, name, "an end is named like its begin");
                    assert!(since <= ts);
                }
            }
            "i" => assert!(["g", "p", "t"].contains(&record["s"].as_str().unwrap())),
            "C" => assert!(
                record["args"]
                    .as_object()
                    .unwrap()
                    .values()
                    .all(Value::is_number)
            ),
            other => panic!("unexpected phase {other}"),
        }
    }
}

#[test]
fn a_recording_follows_the_rules_of_the_trace_event_format() {
    check_format(&recording(&story()));
    check_format(&recording(&late_attach()));
    check_format(&recording(&[]));
}

#[test]
fn a_recording_looks_like_this() {
    insta::assert_snapshot!(String::from_utf8(recording(&story())).unwrap());
}

#[test]
fn what_was_found_at_attach_looks_like_this() {
    insta::assert_snapshot!(String::from_utf8(recording(&late_attach())).unwrap());
}

#[test]
fn perfetto_knows_the_file_by_its_first_characters() {
    let file = String::from_utf8(recording(&[])).unwrap();
    let start: String = file.split_whitespace().collect();
    assert!(start.starts_with("[{\""));
}

#[test]
fn a_block_whose_free_was_lost_ends_where_its_address_is_used_again() {
    let events: Vec<Event> = [
        memory(Action::Alloc, 1, 0x1000, 512),
        memory(Action::Alloc, 2, 0x1000, 1024),
        memory(Action::Free, 3, 0x1000, 1024),
    ]
    .map(Event::Memory)
    .into();
    let file = recording(&events);
    check_format(&file);
    let ends = records(&file)
        .into_iter()
        .filter(|record| record["ph"] == "e");
    assert_eq!(
        ends.map(|end| end["args"]["unseen_free"] == true)
            .collect::<Vec<_>>(),
        [true, false]
    );
    let back: Vec<Event> = Reader::new(&*file).unwrap().map(Result::unwrap).collect();
    assert_eq!(back, events);
}

#[test]
fn a_stack_number_that_is_used_again_leaves_open_slices_their_names() {
    let alloc = |micros, addr| {
        let event = memory(Action::Alloc, micros, addr, 512);
        Event::Memory(MemoryEvent {
            stack: StackId(1),
            ..event
        })
    };
    let events = [
        stack(1, StackKind::Python, vec![frame("old.py", 1, "f")]),
        alloc(1, 0x1000),
        stack(1, StackKind::Python, vec![frame("new.py", 2, "g")]),
        alloc(2, 0x2000),
        Event::Memory(memory(Action::Free, 3, 0x1000, 512)),
        Event::Memory(memory(Action::Free, 4, 0x2000, 512)),
    ];
    let file = recording(&events);
    check_format(&file);
    let ends = records(&file)
        .into_iter()
        .filter(|record| record["ph"] == "e");
    assert_eq!(
        ends.map(|end| end["name"].clone()).collect::<Vec<_>>(),
        ["old.py:1 f", "new.py:2 g"]
    );
    let back: Vec<Event> = Reader::new(&*file).unwrap().map(Result::unwrap).collect();
    assert_eq!(back, events);
}

#[test]
fn blocks_beyond_what_can_be_drawn_are_still_recorded() {
    let mut writer = TraceWriter::new(Vec::new(), "x", &header(), Grouping::User).unwrap();
    writer.open(&BLOCK).most = 1;
    let events = [
        memory(Action::Alloc, 1, 0x1000, 512),
        memory(Action::Alloc, 2, 0x2000, 512),
        memory(Action::Free, 3, 0x2000, 512),
        memory(Action::Free, 4, 0x1000, 512),
    ]
    .map(Event::Memory);
    for event in &events {
        writer.event(event).unwrap();
    }
    let file = writer.finish(EndReason::Duration).unwrap();
    check_format(&file);
    let phases: Vec<Value> = records(&file)
        .into_iter()
        .filter(|record| record["cat"].is_string())
        .map(|record| record["ph"].clone())
        .collect();
    assert_eq!(phases, ["b", "i", "i", "e"]);
    let back: Vec<Event> = Reader::new(&*file).unwrap().map(Result::unwrap).collect();
    assert_eq!(back, events);
}

#[test]
fn what_memory_was_for_is_a_counter_whose_series_add_up_to_what_was_allocated() {
    let devices = categories();
    let mut writer = TraceWriter::new(Vec::new(), "memory", &header(), Grouping::User).unwrap();
    for event in story() {
        writer.event(&event).unwrap();
    }
    writer.last = TimeNs(u64::MAX / 2);
    writer.categories(&devices).unwrap();
    let file = writer.finish(EndReason::Interrupted).unwrap();
    check_format(&file);
    let drawn: Vec<i64> = records(&file)
        .iter()
        .filter(|record| record["name"] == "cuda:0 by category (inferred)")
        .map(|record| {
            let series = record["args"].as_object().unwrap();
            assert!(series.contains_key("optimizer state"), "{record}");
            series.values().map(|bytes| bytes.as_i64().unwrap()).sum()
        })
        .collect();
    let [device] = devices.as_slice() else {
        panic!("one device is looked at");
    };
    let mut points: Vec<_> = device.points.clone();
    points.dedup();
    let sums: Vec<i64> = points.iter().map(|point| point.iter().sum()).collect();
    assert_eq!(drawn[..sums.len()], sums);
    assert!(drawn.len() > 10 && sums.iter().any(|sum| *sum > 0));
    let back: Vec<Event> = Reader::new(&*file).unwrap().map(Result::unwrap).collect();
    assert_eq!(back, story());
}

#[test]
fn counters_are_written_when_they_change() {
    let file = recording(&story());
    let counters: Vec<(String, u64)> = records(&file)
        .into_iter()
        .filter(|record| record["ph"] == "C")
        .map(|record| {
            (
                record["name"].as_str().unwrap().into(),
                record["args"]["bytes"].as_u64().unwrap() / MIB,
            )
        })
        .collect();
    let counters: Vec<(&str, u64)> = counters
        .iter()
        .map(|(name, value)| (&**name, *value))
        .collect();
    assert_eq!(
        counters,
        [
            ("cuda:0 allocated", 12),
            ("cuda:0 reserved", 22),
            ("cuda:0 allocated", 14),
            ("cuda:0 allocated", 11),
            ("cuda:0 allocated", 15),
            ("cuda:0 allocated", 13),
            ("cuda:1 allocated", 1),
            ("cuda:1 reserved", 2),
            // Repeated at the end, so that they are drawn up to there.
            ("cuda:0 allocated", 13),
            ("cuda:0 reserved", 22),
            ("cuda:1 allocated", 1),
            ("cuda:1 reserved", 2),
        ]
    );
}

#[test]
fn what_is_live_at_the_end_is_drawn_up_to_the_last_event_and_read_as_live() {
    let events = [
        memory(Action::SegmentAlloc, 1, 0x1000, 4096),
        memory(Action::Alloc, 2, 0x3000, 512),
        memory(Action::Alloc, 3, 0x1000, 512),
        memory(Action::Alloc, 4, 0x2000, 512),
        memory(Action::Free, 7, 0x2000, 512),
    ]
    .map(Event::Memory);
    let file = recording(&events);
    check_format(&file);
    let records = records(&file);
    let last = &records
        .iter()
        .rfind(|record| record["args"]["free"].is_object())
        .unwrap()["ts"];
    let live: Vec<_> = records
        .iter()
        .filter(|record| record["args"]["live_at_end"] == true)
        .map(|end| {
            assert_eq!((&end["ph"], &end["ts"]), (&"e".into(), last));
            assert_eq!(end["pid"], 1234);
            [&end["cat"], &end["id2"]["local"]].map(|text| text.as_str().unwrap())
        })
        .collect();
    assert_eq!(
        live,
        [
            ["alloc", "0x1000"],
            ["alloc", "0x3000"],
            ["segment", "0x1000"]
        ]
    );
    let back: Vec<Event> = Reader::new(&*file).unwrap().map(Result::unwrap).collect();
    assert_eq!(back, events, "nothing live is read as freed");
}

#[test]
fn a_stack_too_large_for_a_line_loses_outer_frames_and_says_so() {
    let frames = vec![frame(&"\u{1}".repeat(10_000), 1, "f"); 300];
    let events = [stack(1, StackKind::Python, frames)];
    let file = recording(&events);
    assert!(
        file.split(|byte| *byte == b'\n')
            .all(|line| line.len() <= MAX_LINE)
    );
    let back: Vec<Event> = Reader::new(&*file).unwrap().map(Result::unwrap).collect();
    let Event::Stack(_, stack) = &back[0] else {
        panic!("a stack comes back")
    };
    assert!(stack.truncated);
    assert!(
        (50..300).contains(&stack.frames.len()),
        "{}",
        stack.frames.len()
    );
}

/// Accepts `capacity` bytes, then fails for good and counts further calls.
struct Disk {
    capacity: usize,
    calls_when_full: usize,
    held: Vec<u8>,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.capacity - self.held.len());
        if taken == 0 {
            self.calls_when_full += 1;
            return Err(ErrorKind::StorageFull.into());
        }
        self.held.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_said_once_and_what_fits_can_be_read() {
    let disk = Disk {
        capacity: 3000,
        calls_when_full: 0,
        held: Vec::new(),
    };
    let mut writer = TraceWriter::new(disk, "/tmp/t.json", &header(), Grouping::User).unwrap();
    let mut errors = Vec::new();
    for _ in 0..3 {
        for event in story() {
            errors.extend(writer.event(&event).err());
        }
        errors.extend(writer.flush().err());
    }
    assert_eq!(errors.len(), 1);
    assert_eq!(
        errors[0].to_string(),
        "cannot write /tmp/t.json: no storage space; what was recorded so far can be read: \
         free some space or record to another disk"
    );
    assert_eq!(writer.get_ref().calls_when_full, 1);
    let held = writer.get_ref().held.clone();
    assert!(
        writer.finish(EndReason::Failed).is_err(),
        "an incomplete recording is never finished"
    );
    let mut reader = Reader::new(&*held).unwrap();
    let back: Vec<Event> = reader.by_ref().map(Result::unwrap).collect();
    assert!(!back.is_empty() && reader.truncated());
    assert_eq!(back[..], story()[..back.len()]);
}

#[test]
fn a_full_device_is_an_error_of_the_operating_system() {
    let full = OutputPlan::check(Path::new("/dev/full"))
        .unwrap()
        .create()
        .unwrap();
    let place = full.name();
    let error = TraceWriter::new(full, place, &header(), Grouping::User)
        .err()
        .unwrap();
    assert_eq!(error.source.kind(), ErrorKind::StorageFull);
    assert!(
        error
            .to_string()
            .starts_with("cannot write /dev/full: No space left"),
        "{error}"
    );
}

#[test]
fn a_recording_that_fails_leaves_the_file_that_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.json");
    std::fs::write(&path, recording(&story())).unwrap();
    let out = OutputPlan::check(&path).unwrap().create().unwrap();
    let mut writer = TraceWriter::new(out, "x", &header(), Grouping::User).unwrap();
    for event in story() {
        writer.event(&event).unwrap();
    }
    writer.flush().unwrap();
    let partial = writer.get_ref().lies_at().unwrap().to_owned();
    drop(writer);
    assert_eq!(std::fs::read(&path).unwrap(), recording(&story()));
    let mut reader = Reader::open(&partial).unwrap();
    assert_eq!(
        reader.by_ref().filter_map(Result::ok).count(),
        story().len()
    );
    assert!(reader.truncated());
}

#[test]
fn what_was_flushed_is_there_if_memprobe_is_killed() {
    let mut writer = TraceWriter::new(Vec::new(), "x", &header(), Grouping::User).unwrap();
    for event in story() {
        writer.event(&event).unwrap();
    }
    writer.flush().unwrap();
    let back: Vec<Event> = Reader::new(&**writer.get_ref())
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(back, story());
    assert_eq!(writer.bytes(), writer.get_ref().len() as u64);
    assert_eq!(writer.events(), 10);
}

#[test]
fn memory_does_not_grow_with_what_was_written() {
    let mut writer = TraceWriter::new(io::sink(), "x", &header(), Grouping::User).unwrap();
    for time in 0..20_000 {
        for action in [Action::Alloc, Action::Free] {
            let event = memory(action, time, 0x1000 + time * 512, 512);
            writer
                .event(&Event::Memory(MemoryEvent {
                    addr: Address(event.addr.0),
                    size: Bytes(1),
                    ..event
                }))
                .unwrap();
        }
    }
    assert!(writer.lines.capacity() <= 2 * BUFFER);
    assert!(writer.open(&BLOCK).live.capacity() < 100);
    assert_eq!(writer.events(), 40_000);
}

use proptest::prelude::*;

use super::*;
use crate::event::{
    CaptureChange, CaptureLevel, Losses, NoStack, StackId, StackKind, Tgid, TimeShare,
};
use crate::recording::generated::{any_header, any_stream};
use crate::recording::samples::{
    header, late_attach, on_the_cpu, purposes, recording, story, tensors,
};
use crate::recording::{EndReason, Reader};

/// Returns the events, the error, and whether the recording is truncated.
fn read(file: &[u8]) -> (Vec<Event>, Option<RecordingError>, bool) {
    let mut reader = match Reader::new(file) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error), false),
    };
    let mut events = Vec::new();
    for event in reader.by_ref() {
        match event {
            Ok(event) => events.push(event),
            Err(error) => return (events, Some(error), reader.truncated()),
        }
    }
    (events, None, reader.truncated())
}

fn error(file: &[u8]) -> String {
    read(file).1.expect("reading fails").to_string()
}

/// Returns the recording of [`story`] with `from` replaced by `to`. Panics if `from` is absent.
fn edited(from: &str, to: &str) -> Vec<u8> {
    let file = String::from_utf8(recording(&story())).unwrap();
    assert!(file.contains(from), "{file}");
    file.replacen(from, to, 1).into_bytes()
}

#[test]
fn a_recording_gives_back_exactly_what_was_written() {
    let file = recording(&story());
    let mut reader = Reader::new(&*file).unwrap();
    let events: Vec<Event> = reader.by_ref().map(Result::unwrap).collect();
    assert_eq!(events, story());
    assert_eq!(reader.header(), &header());
    let end = reader.end().unwrap();
    assert_eq!((end.reason, end.events), (EndReason::Interrupted, 10));
    assert_eq!(
        end.losses,
        Losses {
            events: 3,
            stacks: 1,
            malformed: 0,
            uses: 0
        }
    );
    assert!(!reader.truncated());
}

#[test]
fn tensors_come_back_as_they_were_written() {
    let file = recording(&tensors());
    let (events, error, truncated) = read(&file);
    assert!(error.is_none() && !truncated, "{error:?}");
    assert_eq!(events, tensors());
}

#[test]
fn memory_of_the_cpu_comes_back_as_it_was_written() {
    let (events, error, truncated) = read(&recording(&on_the_cpu()));
    assert!(error.is_none() && !truncated, "{error:?}");
    assert_eq!(events, on_the_cpu());
}

#[test]
fn a_device_is_a_number_or_the_cpu() {
    let cpu = String::from_utf8(recording(&on_the_cpu())).unwrap();
    for wrong in [r#""gpu""#, "254", "256", "-1"] {
        let file = cpu.replacen(r#""device":"cpu""#, &format!(r#""device":{wrong}"#), 1);
        assert!(error(file.as_bytes()).contains("expected the ordinal of a device"));
    }
}

#[test]
fn a_tensor_that_makes_no_sense_is_damage() {
    let edited = |from: &str, to: &str| {
        let file = String::from_utf8(recording(&tensors())).unwrap();
        assert!(file.contains(from), "{file}");
        error(file.replacen(from, to, 1).as_bytes())
    };
    assert!(edited(r#""dtype":"float32","#, "").contains("`shape` without `dtype`"));
    assert!(edited(r#""float32""#, r#""float33""#).contains("no `dtype`"));
    let many = format!("[1024{}]", ",1".repeat(64));
    assert!(edited("[32,1024]", &many).contains("a tensor of 65 dimensions"));
}

#[test]
fn what_blocks_without_a_tensor_are_for_comes_back_as_it_was_written() {
    let (events, error, truncated) = read(&recording(&purposes()));
    assert!(error.is_none() && !truncated, "{error:?}");
    assert_eq!(events, purposes());
}

#[test]
fn a_purpose_that_makes_no_sense_is_damage() {
    let edited = |from: &str, to: &str| {
        let file = String::from_utf8(recording(&purposes())).unwrap();
        assert!(file.contains(from), "{file}");
        error(file.replacen(from, to, 1).as_bytes())
    };
    let nowhere = r#""inferred":{"purpose":"cuBLAS workspace","#;
    assert!(edited(&format!(r#""tensor":false,{nowhere}"#), nowhere).contains("`inferred`"));
    assert!(edited(r#","library":"libtorch_cuda.so""#, "").contains("missing field `library`"));
    let long = "a".repeat(crate::recording::MAX_PURPOSE + 1);
    assert!(edited("at::native::foo", &long).contains("an `inferred` text of 4097 bytes"));
}

#[test]
fn a_recording_cut_anywhere_gives_all_its_whole_records_and_says_that_it_was_cut() {
    let file = recording(&story());
    let header_ends = file
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n')
        .nth(1)
        .unwrap()
        .0;
    let end_begins = file
        .windows(14)
        .position(|part| part == b"\"memprobe_end\"")
        .unwrap();
    for cut in header_ends..file.len() {
        let (events, error, truncated) = read(&file[..cut]);
        assert!(error.is_none(), "cut at {cut}: {error:?}");
        assert_eq!(events[..], story()[..events.len()]);
        assert!(truncated || cut > end_begins, "cut at {cut}");
        let whole = file[..cut].iter().filter(|byte| **byte == b'\n').count();
        let memory = file[..cut].split(|byte| *byte == b'\n').take(whole);
        let memory = memory
            .filter(|line| line.windows(7).any(|part| part == b"\"addr\":"))
            .count();
        let read = events
            .iter()
            .filter(|event| matches!(event, Event::Memory(_)))
            .count();
        assert!(
            read == memory || read == memory + 1,
            "cut at {cut}: {read} of {memory}"
        );
    }
}

#[test]
fn a_recording_that_never_began_says_so() {
    for file in [
        &b""[..],
        b"[\n",
        b"[\n{\"ph\":\"M\",\"name\":\"memprobe\",\"pid\":12",
    ] {
        assert!(error(file).contains("ends before its first record"));
    }
}

#[test]
fn another_kind_of_file_is_refused() {
    let long = vec![b'['; MAX_LINE + 10];
    for file in [
        &b"hello"[..],
        b"\0\0\0",
        b"{\"traceEvents\":[]}",
        b"[\n{\"ph\":\"X\",\"name\":\"other\",\"args\":{}},\n]\n",
        b"[]",
        &long,
    ] {
        assert!(
            error(file).starts_with("not a recording of memprobe"),
            "{:?}",
            error(file)
        );
    }
}

#[test]
fn a_recording_of_a_later_memprobe_asks_for_an_update() {
    let file = edited("\"format\":7", "\"format\":8");
    assert!(error(&file).contains("(format 8, this one reads up to 7): update memprobe"));
}

#[test]
fn a_recording_of_an_earlier_memprobe_is_read() {
    for earlier in [1, 2, 3, 4, 5, 6] {
        let (events, error, _) = read(&edited("\"format\":7", &format!("\"format\":{earlier}")));
        assert!(error.is_none(), "{error:?}");
        assert_eq!(events, story());
    }
}

#[test]
fn what_was_found_at_attach_comes_back() {
    let events = late_attach();
    let file = recording(&events);
    let mut reader = Reader::new(&*file).unwrap();
    let back: Vec<Event> = reader.by_ref().map(Result::unwrap).collect();
    assert_eq!(back, events);
    assert_eq!(reader.events(), 1, "nothing happened to what was found");
}

#[test]
fn what_was_given_up_for_the_budget_comes_back() {
    let mut events = late_attach();
    events.extend(CaptureLevel::ALL.map(|level| {
        Event::Capture(CaptureChange {
            time: TimeNs(3_000_000_000),
            tgid: Tgid(1234),
            level,
            overhead: TimeShare(8_250),
            budget: TimeShare(10_000),
        })
    }));
    let file = recording(&events);
    let reader = Reader::new(&*file).unwrap();
    assert_eq!(reader.map(Result::unwrap).collect::<Vec<_>>(), events);
}

#[test]
fn damage_in_the_middle_is_named_by_line_and_byte_with_what_to_do() {
    let file = edited("\"addr\":\"0x7f0000200000\"", "\"addr\":\"7f0000200000\"");
    assert_eq!(
        error(&file),
        "line 10 (at byte 1706) is damaged: `addr` is no address: \"7f0000200000\"; \
         2 events before it can be read: cut the file there with \
         `head -n 9 FILE > whole.json` and report that"
    );
    let (line, offset) = (file.split(|byte| *byte == b'\n').nth(9).unwrap(), 1706);
    assert_eq!(&file[offset..offset + line.len()], line);
    let head = &file[..offset];
    let (events, error, truncated) = read(head);
    assert!(
        error.is_none() && truncated && events.len() == 4,
        "the advice works"
    );
}

#[test]
fn a_missing_line_is_noticed() {
    let file = recording(&story());
    let lines: Vec<&[u8]> = file.split_inclusive(|byte| *byte == b'\n').collect();
    let free = lines
        .iter()
        .position(|line| line.starts_with(b"{\"ph\":\"e\""))
        .unwrap();
    let file = [&lines[..free], &lines[free + 1..]].concat().concat();
    assert!(
        error(&file).contains("10 events were written, but 9 are there"),
        "{}",
        error(&file)
    );
}

#[test]
fn two_recordings_in_one_file_are_refused() {
    let file = recording(&story());
    assert!(error(&[&file[..], &file].concat()).contains("something follows the end"));
    let cut = &file[..file.len() - b"]\n".len()];
    let begun = edited(
        "{\"ph\":\"M\",\"name\":\"memprobe_end\"",
        "{\"ph\":\"M\",\"name\":\"other\"",
    );
    let begun = &begun[..begun.len() - b"]\n".len()];
    let later = String::from_utf8(cut[2..].to_vec())
        .unwrap()
        .replace("5000000000", "6000000000");
    let text = error(&[begun, later.as_bytes()].concat());
    assert!(text.contains("a second recording begins here"), "{text}");
}

#[test]
fn a_stack_that_is_nowhere_defined_is_an_unknown_one() {
    let file = edited("\"args\":{\"id\":1,", "\"args\":{\"id\":9,");
    let (events, error, _) = read(&file);
    assert!(error.is_none());
    let stack = events.iter().find_map(|event| match event {
        Event::Stack(StackId(1), stack) => Some(stack),
        _ => None,
    });
    assert!(matches!(
        stack.unwrap().kind,
        StackKind::Unknown {
            reason: NoStack::Lost,
            ..
        }
    ));
    assert_eq!(events.len(), story().len() + 1);
}

#[test]
fn a_line_without_end_does_not_fill_the_memory() {
    let mut file = recording(&story());
    file.truncate(file.len() - 3);
    file.extend(std::iter::repeat_n(b'x', MAX_LINE * 2));
    assert!(error(&file).contains("longer than"));
}

#[test]
fn a_recording_reads_the_same_in_parts_of_any_length() {
    let file = recording(&story());
    for capacity in [1, 7, 100, 1000] {
        let parts = std::io::BufReader::with_capacity(capacity, &file[..]);
        let events: Vec<Event> = Reader::new(parts).unwrap().map(Result::unwrap).collect();
        assert_eq!(events, story(), "{capacity} bytes at once");
    }
}

#[test]
fn damage_after_counters_is_named_by_its_line() {
    let file = String::from_utf8(recording(&story())).unwrap();
    let counter = file
        .lines()
        .position(|line| line.starts_with("{\"ph\":\"C\""))
        .unwrap();
    let mut lines: Vec<&str> = file.lines().collect();
    lines.insert(counter + 1, "damage");
    let place = lines[..=counter]
        .iter()
        .map(|line| line.len() + 1)
        .sum::<usize>();
    let error = error(lines.join("\n").as_bytes());
    assert!(error.contains(&format!("line {}", counter + 2)), "{error}");
    assert!(error.contains(&place.to_string()), "{error}");
}

#[test]
fn more_that_is_learned_of_the_target_is_there_at_the_end() {
    let mut early = header();
    early.target.torch = None;
    let site = crate::ledger::snapshot::Grouping::User;
    let mut writer =
        crate::recording::write::trace_event::TraceWriter::new(Vec::new(), "x", &early, site)
            .unwrap();
    writer.describe(&header()).unwrap();
    let file = writer.finish(EndReason::Duration).unwrap();
    let mut reader = Reader::new(&*file).unwrap();
    assert_eq!(reader.header(), &early);
    assert!(reader.next().is_none());
    assert_eq!(reader.header(), &header());
}

proptest! {
    #[test]
    fn whatever_is_written_comes_back(header in any_header(), events in any_stream()) {
        let site = crate::ledger::snapshot::Grouping::User;
        let mut writer =
            crate::recording::write::trace_event::TraceWriter::new(Vec::new(), "x", &header, site).unwrap();
        for event in &events {
            writer.event(event).unwrap();
        }
        let file = writer.finish(EndReason::TargetExited).unwrap();
        let strict: Vec<serde_json::Value> = serde_json::from_slice(&file).unwrap();
        prop_assert!(strict.iter().all(|record| record["ph"].is_string()));
        let reader = Reader::new(&*file).unwrap();
        prop_assert_eq!(reader.header(), &header);
        let back: Vec<Event> = reader.map(Result::unwrap).collect();
        prop_assert_eq!(back, events);
    }

    #[test]
    fn a_recording_with_flipped_bytes_never_panics(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut file = recording(&story());
        for (place, byte) in flips {
            let place = place.index(file.len());
            file[place] = byte;
        }
        let (events, error, _) = read(&file);
        prop_assert!(events.len() <= 3 * story().len());
        if let Some(error) = error {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in any::<Vec<u8>>()) {
        let mut file = b"[\n".to_vec();
        file.extend(bytes);
        prop_assert!(read(&file).1.is_some());
    }
}

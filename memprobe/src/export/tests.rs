use std::collections::BTreeMap;

use super::*;
use crate::attribution::allocation_groups::samples::{called, learning};
use crate::event::{Action, Event, StackKind, Target, TimeNs};
use crate::ledger::Ledger;
use crate::ledger::snapshot::Grouping;
use crate::recording::samples::{recording, story};

fn request(format: ExportFormat, moment: ExportMoment) -> ExportRequest {
    ExportRequest {
        format,
        moment,
        rank: Some(3),
    }
}

/// Exports the sample recording; returns it with the notes on it.
fn exported(format: ExportFormat, moment: ExportMoment) -> (Vec<u8>, Vec<String>) {
    let recording = recording(&story());
    let reader = Reader::new(&recording[..]).expect("a recording");
    let mut out = Vec::new();
    let progress = AtomicU64::new(0);
    let notes =
        write_export(reader, request(format, moment), &progress, &mut out).expect("an export");
    assert!(progress.into_inner() > 10);
    (out, notes)
}

fn text(format: ExportFormat, moment: ExportMoment) -> String {
    let (out, notes) = exported(format, moment);
    let out = String::from_utf8(out).expect("UTF-8");
    format!("{out}\n{}", notes.join("\n"))
}

#[test]
fn folded_stacks_at_the_end_have_memory_from_before_attach_and_backward_passes() {
    insta::assert_snapshot!(text(ExportFormat::Folded, ExportMoment::End));
}

#[test]
fn folded_stacks_at_the_peak_are_of_each_device_at_its_own() {
    insta::assert_snapshot!(text(ExportFormat::Folded, ExportMoment::Peak));
}

#[test]
fn a_failed_request_is_one_moment_of_all_devices() {
    insta::assert_snapshot!(text(ExportFormat::Folded, ExportMoment::OutOfMemory));
}

#[test]
fn speedscope_gets_a_profile_of_each_device() {
    insta::assert_snapshot!(text(ExportFormat::Speedscope, ExportMoment::Peak));
}

#[test]
fn a_recording_without_a_failed_request_says_so_and_what_to_give_instead() {
    let mut events = story();
    events.retain(|event| !matches!(event, Event::Memory(it) if it.addr.0 == 0));
    let recording = recording(&events);
    let reader = Reader::new(&recording[..]).expect("a recording");
    let progress = AtomicU64::new(0);
    let failed = write_export(
        reader,
        request(ExportFormat::Folded, ExportMoment::OutOfMemory),
        &progress,
        &mut Vec::new(),
    );
    let error = failed.expect_err("no such moment").to_string();
    assert!(error.ends_with("or give --at peak"), "{error}");
}

/// Exports a file, which formats with every event read twice.
pub(super) fn exported_file(events: &[Event], format: ExportFormat) -> (Vec<u8>, Vec<String>) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), recording(events)).expect("written");
    let reader = Reader::open(file.path()).expect("a recording");
    let (mut out, progress) = (Vec::new(), AtomicU64::new(0));
    let end = ExportMoment::End;
    let notes = write_export(reader, request(format, end), &progress, &mut out).expect("an export");
    (out, notes)
}

#[test]
fn csv_has_a_row_for_each_allocation_with_its_free() {
    let (out, _) = exported_file(&story(), ExportFormat::Csv);
    insta::assert_snapshot!(String::from_utf8(out).expect("UTF-8"));
}

#[test]
fn a_snapshot_says_what_the_recording_lacks_and_has_the_same_live_memory() {
    let (out, notes) = exported_file(&story(), ExportFormat::MemoryViz);
    insta::assert_snapshot!(notes.join("\n"));
    let mut reader = Reader::new(&out[..]).expect("a snapshot of PyTorch");
    let mut again = Ledger::new(Target::default(), reader.header().start);
    for event in reader.by_ref() {
        again.apply(&event.expect("an event"));
    }
    assert_eq!(reader.header().wall_start_ms, Some(1_790_000_000_000));
    let mut first = Ledger::new(Target::default(), TimeNs(0));
    for event in story() {
        first.apply(&event);
    }
    // PyTorch's format does not tell a backward pass from a line.
    let lines = |ledger: &Ledger| {
        let snapshot = ledger.snapshot(TimeNs(u64::MAX), Grouping::User);
        let mut allocs = BTreeMap::<_, u64>::new();
        for row in &snapshot.devices[0].lines {
            let frame = row
                .site
                .frame()
                .map(|frame| (frame.file.clone(), frame.line));
            *allocs.entry(frame).or_default() += row.allocs;
        }
        allocs
    };
    assert!(lines(&first).values().sum::<u64>() >= 3);
    assert_eq!(lines(&again), lines(&first));
}

/// Allocations by the kind of their stack, line, module and tensor. The module of a backward pass is the export's own.
fn allocations(events: impl Iterator<Item = Event>) -> BTreeMap<[String; 4], u64> {
    let mut ledger = Ledger::new(Target::default(), TimeNs(0));
    let mut counts = BTreeMap::new();
    for event in events {
        ledger.apply(&event);
        let Event::Memory(event) = event else {
            continue;
        };
        if event.action != Action::Alloc {
            continue;
        }
        let stack = ledger.stack(ledger.stack_ref(event.stack));
        let (kind, module) = match &stack.kind {
            StackKind::Waiting { thread } => (format!("waiting {thread}"), None),
            _ => ("line".to_owned(), stack.context.module.path()),
        };
        let line = stack.frames.first();
        let line = line.map_or(String::new(), |frame| {
            format!("{}:{}", frame.file, frame.line)
        });
        let module = module.map_or(String::new(), ToString::to_string);
        let tensor = ledger
            .purpose(event.shape)
            .and_then(|it| it.tensor().cloned());
        let tensor = tensor.map_or(String::new(), |tensor| format!("{tensor:?}"));
        *counts.entry([kind, line, module, tensor]).or_default() += 1;
    }
    counts
}

#[test]
fn a_snapshot_read_again_has_the_modules_and_tensors_of_the_recording() {
    let mut program = learning();
    let stack = program.stack(called(50, "GPT.head"));
    program.alloc_tensor(stack, 5 << 20);
    let (out, _) = exported_file(&program.events, ExportFormat::MemoryViz);
    let reader = Reader::new(&out[..]).expect("a snapshot");
    let again = allocations(reader.map(|event| event.expect("an event")));
    let first = allocations(program.events.iter().cloned());
    assert!(first.len() >= 7, "{first:#?}");
    assert_eq!(again, first);
    // Another writer's metadata is text for people.
    let key = b"X\x08\0\0\0memprobe";
    let at = memchr::memmem::rfind(&out, key).expect("the writer's name");
    let mut other = out.clone();
    other[at + key.len() - 1] = b'X';
    let reader = Reader::new(&other[..]).expect("a snapshot");
    let plain = allocations(reader.map(|event| event.expect("an event")));
    assert!(
        plain
            .keys()
            .all(|[_, _, module, tensor]| module.is_empty() && tensor.is_empty())
    );
    assert_eq!(plain.values().sum::<u64>(), first.values().sum::<u64>());
}

#[test]
fn a_pipe_cannot_be_exported_with_every_event() {
    let recording = recording(&story());
    let reader = Reader::new(&recording[..]).expect("a recording");
    let (format, progress) = (ExportFormat::Csv, AtomicU64::new(0));
    let error = write_export(
        reader,
        request(format, ExportMoment::End),
        &progress,
        &mut Vec::new(),
    );
    let error = error.expect_err("no file").to_string();
    assert!(error.ends_with("give a file"), "{error}");
}

#[test]
fn samples_of_pprof_have_the_rank_of_the_process() {
    let (out, _) = exported(ExportFormat::Pprof, ExportMoment::End);
    let mut text = Vec::new();
    let mut unpacked = flate2::read::GzDecoder::new(&out[..]);
    std::io::Read::read_to_end(&mut unpacked, &mut text).expect("gzip");
    let has = |word: &[u8]| text.windows(word.len()).any(|part| part == word);
    // A string of the table: its field, its length, and the text.
    assert!(has(b"\x32\x04rank") && has(b"\x32\x013"));
}

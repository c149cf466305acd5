mod keyframes;
mod limit;

use std::io::{self, Write};
use std::sync::Arc;

use proptest::prelude::*;
use zstd::bulk::Decompressor;

use super::columns::FrameColumn;
use super::frame::{FrameHeader, FrameKind, FrameWriter, HEADER, PREAMBLE, PlainFrame, preamble};
use super::*;
use crate::event::{
    Action, Address, BlockLabels, Bytes, DeviceIndex, Event, LabeledBlock, Losses, MemoryEvent,
    NoStack, PurposeId, StackId, StackKind, Tgid, TimeNs,
};
use crate::recording::generated::{any_header, any_stream};
use crate::recording::samples::{
    MIB, compact_recording, frame, header, late_attach, memory, on_the_cpu, purposes, recording,
    stack, story, tensors, totals,
};
use crate::recording::write::compact::CompactWriter;
use crate::recording::{EndReason, Header, Reader, RecordingError};

/// Reads all that a file gives.
fn read(file: &[u8]) -> Result<(Vec<Event>, Reader<&[u8]>), RecordingError> {
    let mut reader = Reader::new(file)?;
    let events = reader.by_ref().collect::<Result<_, _>>()?;
    Ok((events, reader))
}

fn written(header: &Header, events: &[Event]) -> Vec<u8> {
    let mut writer = CompactWriter::new(Vec::new(), "memory", header).unwrap();
    for event in events {
        writer.event(event).unwrap();
    }
    writer.finish(EndReason::TargetExited).unwrap()
}

/// A file with a frame for each event.
fn many_frames(events: &[Event]) -> Vec<u8> {
    let mut writer = CompactWriter::new(Vec::new(), "memory", &header()).unwrap();
    for event in events {
        writer.event(event).unwrap();
        writer.flush().unwrap();
    }
    writer.finish(EndReason::Interrupted).unwrap()
}

/// Offsets of the frames of a whole file, each with its header.
fn frames(file: &[u8]) -> Vec<(usize, FrameHeader)> {
    let mut frames = Vec::new();
    let mut at = PREAMBLE;
    while at < file.len() {
        let header = FrameHeader::parse(file[at..].first_chunk().unwrap()).unwrap();
        frames.push((at, header));
        at += HEADER + header.stored;
    }
    frames
}

fn memory_events(events: &[Event]) -> Vec<MemoryEvent> {
    let memory = events.iter().filter_map(|event| match event {
        Event::Memory(event) => Some(*event),
        _ => None,
    });
    memory.collect()
}

/// A training loop of two stacks, in which each block is freed by the next event.
fn training(events: u64) -> Vec<Event> {
    let train = frame("/home/me/train.py", 31, "<module>");
    let model = frame("/home/me/model.py", 88, "forward");
    let mut stream = vec![
        stack(1, StackKind::Python, vec![train.clone()]),
        stack(2, StackKind::Python, vec![model, train]),
    ];
    stream.extend((0..events).map(|at| {
        let is_free = at % 2 == 1;
        let block = at / 2;
        let action = if is_free { Action::Free } else { Action::Alloc };
        let (addr, size) = (0x7f00_0000_0000 + block % 50 * MIB, MIB);
        Event::Memory(MemoryEvent {
            stack: StackId(if is_free { 0 } else { block as u32 % 2 + 1 }),
            totals: totals(if is_free { 0 } else { size }, 50 * MIB),
            ..memory(action, at * 3, addr, size)
        })
    }));
    stream
}

#[test]
fn every_kind_of_record_comes_back() {
    for events in [story(), tensors(), purposes(), on_the_cpu(), late_attach()] {
        for file in [compact_recording(&events), many_frames(&events)] {
            let (back, reader) = read(&file).unwrap();
            assert_eq!(back, events);
            assert_eq!(reader.header(), &header());
            let end = reader.end().unwrap();
            assert_eq!(
                (end.reason, end.events),
                (EndReason::Interrupted, reader.events())
            );
            assert!(!reader.truncated() && reader.damage().is_none());
        }
    }
}

#[test]
fn a_trace_becomes_the_same_compact_recording() {
    for events in [story(), tensors(), purposes(), on_the_cpu(), late_attach()] {
        let (from_json, _) = read(&recording(&events)).unwrap();
        let (back, _) = read(&compact_recording(&from_json)).unwrap();
        assert_eq!(back, from_json);
    }
}

#[test]
fn a_training_loop_takes_few_bytes_an_event() {
    let events = training(100_000);
    let (compact, json) = (compact_recording(&events), recording(&events));
    assert!(compact.len() < 400_000, "{} bytes", compact.len());
    assert!(json.len() > 40 * compact.len(), "{} bytes", json.len());
}

#[test]
fn a_slow_program_takes_few_bytes_an_event_too() {
    use std::time::{Duration, Instant};
    // Events a second, seconds between two looks of the recorder, and the most bytes an event.
    for (rate, most) in [(1.0, 16.0), (10.0, 8.0), (1.0 / 60.0, 140.0)] {
        let events = training(600);
        let mut writer = CompactWriter::new(Vec::new(), "memory", &header()).unwrap();
        let start = Instant::now();
        let definitions = events.len() - 600;
        for event in &events[..definitions] {
            writer.event(event).unwrap();
        }
        writer.flush().unwrap();
        let mut now = 0.0;
        for event in &events[definitions..] {
            writer.event(event).unwrap();
            let next = now + 1.0 / rate;
            while now < next {
                now += 1.0_f64.min(next - now);
                let now = start + Duration::from_secs_f64(now);
                writer.flush_when_due(now).unwrap();
            }
        }
        let file = writer.finish(EndReason::Interrupted).unwrap();
        let empty = written(&header(), &events[..definitions]).len();
        let bytes = (file.len() - empty) as f64 / 600.0;
        println!("{rate} events a second: {bytes:.1} bytes an event");
        assert!(bytes < most, "{rate} events a second: {bytes:.1} bytes");
    }
}

#[test]
fn more_that_is_learned_of_the_target_is_there_at_the_end() {
    let mut early = header();
    early.target.torch = None;
    let mut writer = CompactWriter::new(Vec::new(), "x", &early).unwrap();
    writer.event(&story()[0]).unwrap();
    writer.describe(&header()).unwrap();
    let file = writer.finish(EndReason::Duration).unwrap();
    let mut reader = Reader::new(&*file).unwrap();
    assert_eq!(reader.header(), &early);
    assert_eq!(reader.by_ref().count(), 1);
    assert_eq!(reader.header(), &header());
}

#[test]
fn a_file_cut_anywhere_gives_all_its_whole_frames_and_says_that_it_was_cut() {
    let file = many_frames(&story());
    let ends: Vec<usize> = frames(&file)[1..].iter().map(|(at, _)| *at).collect();
    for cut in 0..file.len() {
        let begun = match read(&file[..cut]) {
            Ok(begun) => begun,
            Err(error) => {
                assert!(
                    cut < ends[0]
                        && matches!(error, RecordingError::Empty | RecordingError::Foreign),
                    "cut at {cut}: {error}"
                );
                continue;
            }
        };
        let (events, reader) = begun;
        // Before the end stands the index, which has no event.
        let whole = ends[1..].iter().filter(|end| **end <= cut).count();
        let whole = whole.min(story().len());
        assert_eq!(events[..], story()[..whole], "cut at {cut}");
        assert!(
            reader.truncated() && reader.damage().is_none(),
            "cut at {cut}"
        );
    }
}

#[test]
fn a_changed_byte_costs_one_frame_and_is_said() {
    let whole = many_frames(&story());
    let memory = memory_events(&story());
    for at in 0..whole.len() {
        for change in [1, 0xff] {
            let mut file = whole.clone();
            file[at] ^= change;
            let (events, reader) = match read(&file) {
                Ok(read) => read,
                Err(error) => {
                    assert!(at < PREAMBLE, "byte {at}: {error}");
                    continue;
                }
            };
            let left = memory_events(&events);
            assert!(left.len() + 1 >= memory.len(), "byte {at}: {}", left.len());
            let is_whole = at < PREAMBLE || reader.damage().is_some() || reader.truncated();
            assert!(is_whole, "byte {at} is not missed");
            let missing = reader.damage().map_or(0, |damage| damage.events);
            assert_eq!(
                left.len() as u64 + missing,
                memory.len() as u64,
                "byte {at}"
            );
        }
    }
}

#[test]
fn lost_frames_count_as_lost_events() {
    let events = training(40);
    let file = many_frames(&events);
    let frames = frames(&file);
    // The header and the two stacks come first.
    let (from, to) = (frames[13].0, frames[20].0);
    for damaged in [
        [&file[..from], &file[to..]].concat(),
        [&file[..from + 9], &file[to - 9..]].concat(),
        [&file[..from], &vec![0; 100_000], &file[to..]].concat(),
    ] {
        let (back, reader) = read(&damaged).unwrap();
        assert_eq!(memory_events(&back).len(), 33);
        let damage = reader.damage().unwrap();
        assert_eq!((damage.events, damage.places), (7, 1), "{damage}");
        assert!(!reader.truncated());
        let losses = back.iter().filter_map(|event| match event {
            Event::Loss(losses) => Some(losses.events),
            _ => None,
        });
        assert_eq!(losses.collect::<Vec<_>>(), [7]);
        assert_eq!(
            reader.events() + damage.events,
            reader.end().unwrap().events
        );
    }
}

#[test]
fn later_losses_include_the_events_of_damaged_frames() {
    let mut events = training(4);
    let lost = Losses {
        events: 5,
        ..Losses::default()
    };
    events.push(Event::Loss(lost));
    let file = many_frames(&events);
    let frames = frames(&file);
    let damaged = [&file[..frames[4].0], &file[frames[5].0..]].concat();
    let (back, _) = read(&damaged).unwrap();
    let last = Losses { events: 6, ..lost };
    assert_eq!(back.last(), Some(&Event::Loss(last)));
}

#[test]
fn damage_to_the_header_leaves_the_events() {
    let mut file = many_frames(&story());
    file[PREAMBLE + HEADER + 3] ^= 1;
    let (events, reader) = read(&file).unwrap();
    assert_eq!(events, story());
    assert!(reader.damage().is_some() && reader.header().target.command.is_empty());
}

#[test]
fn a_group_repeats_the_definitions_that_it_needs() {
    let events = training((1 << 18) + 120_000);
    let file = compact_recording(&events);
    assert_eq!(read(&file).unwrap().0, events);
    let frames = frames(&file);
    let groups: Vec<u16> = frames
        .iter()
        .filter(|(_, frame)| frame.kind == FrameKind::Records)
        .map(|(_, frame)| frame.group)
        .collect();
    assert!(
        groups.is_sorted() && *groups.last().unwrap() == 1,
        "{groups:?}"
    );

    // Nothing of the first group is left but its header.
    let second = frames.iter().find(|(_, frame)| frame.group == 1).unwrap().0;
    let damaged = [&file[..frames[1].0], &file[second..]].concat();
    let (back, reader) = read(&damaged).unwrap();
    let stacks = |events: &[Event]| {
        let mut stacks: Vec<_> = events
            .iter()
            .filter_map(|event| match event {
                Event::Stack(id, stack) => Some((*id, Arc::clone(stack))),
                _ => None,
            })
            .collect();
        stacks.sort_by_key(|(id, _)| *id);
        stacks
    };
    assert_eq!(stacks(&back), stacks(&events));
    let memory = memory_events(&back);
    assert!(memory_events(&events).ends_with(&memory) && !memory.is_empty());
    assert!(reader.damage().unwrap().events >= 1 << 18);
}

#[test]
fn definitions_of_a_damaged_frame_are_unknown() {
    let mut events = training(4);
    events.push(Event::Memory(MemoryEvent {
        shape: PurposeId(2),
        stack: StackId(2),
        ..memory(Action::Alloc, 100, 0x7e00_0000_0000, MIB)
    }));
    events.splice(
        0..0,
        purposes()
            .into_iter()
            .filter(|event| matches!(event, Event::BlockPurpose(..))),
    );
    let file = many_frames(&events);
    let frames = frames(&file);
    let mut damaged = file.clone();
    // The purposes, and the second stack.
    for place in [1, 2, 4] {
        damaged[frames[place].0 + HEADER] ^= 1;
    }
    let (back, reader) = read(&damaged).unwrap();
    assert_eq!(memory_events(&back).len(), 5);
    let Some(Event::Memory(last)) = back.last() else {
        panic!("{back:?}");
    };
    assert_eq!((last.shape, last.stack), (PurposeId::NONE, StackId(2)));
    let lost = back.iter().any(|event| {
        matches!(event, Event::Stack(StackId(2), stack)
            if matches!(stack.kind, StackKind::Unknown { reason: NoStack::Lost, .. }))
    });
    // The first two follow each other.
    assert!(lost && reader.damage().unwrap().places == 2);
}

fn labels(blocks: u64) -> Event {
    let block = |at: u64| LabeledBlock::unlabeled(Address(at * 512), Bytes(512), DeviceIndex(0));
    Event::BlockLabels(Arc::new(BlockLabels {
        time: TimeNs(5_000_000_100),
        tgid: Tgid(1234),
        blocks: (0..blocks).map(block).collect(),
        optimizers: Vec::new(),
        tags: Vec::new(),
    }))
}

#[test]
fn labels_of_many_blocks_take_several_frames() {
    let events = [labels(200_000), labels(1)];
    let file = compact_recording(&events);
    assert!(frames(&file).len() > 4);
    assert_eq!(read(&file).unwrap().0, events);
    // Without one of their frames, the labels of that moment are left out.
    let mut damaged = file.clone();
    damaged[frames(&file)[2].0 + HEADER] ^= 1;
    assert_eq!(read(&damaged).unwrap().0, events[1..]);
}

#[test]
fn a_recording_of_a_later_memprobe_asks_for_an_update() {
    let mut file = compact_recording(&story());
    file[8] = COMPACT_FORMAT as u8 + 1;
    let error = read(&file).err().unwrap().to_string();
    assert!(
        error.contains("(format 6, this one reads up to 5): update memprobe"),
        "{error}"
    );
}

#[test]
fn a_second_recording_in_the_file_is_named() {
    let first = compact_recording(&story());
    let twice = [&*first, &first].concat();
    let (events, reader) = read(&twice).unwrap();
    assert_eq!(events, story());
    assert!(
        reader
            .damage()
            .unwrap()
            .to_string()
            .contains("something follows the end")
    );
    let end = frames(&first).last().unwrap().0;
    let other = Header {
        start: TimeNs(1),
        ..header()
    };
    let both = [&first[..end], &written(&other, &story())].concat();
    let error = read(&both);
    assert!(
        error
            .err()
            .unwrap()
            .to_string()
            .contains("a second recording begins")
    );
}

#[test]
fn a_recording_reads_the_same_in_parts_of_any_length() {
    let file = many_frames(&story());
    for capacity in [1, 7, 100, 1000] {
        let parts = io::BufReader::with_capacity(capacity, &file[..]);
        let events: Vec<Event> = Reader::new(parts).unwrap().map(Result::unwrap).collect();
        assert_eq!(events, story(), "{capacity} bytes at once");
    }
}

/// A disk of this many bytes.
struct FullDisk(usize);

impl Write for FullDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0 -= bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_reported_once_and_again_at_the_end() {
    let mut writer = CompactWriter::new(FullDisk(2000), "/tmp/t.mprb", &header()).unwrap();
    let mut errors = Vec::new();
    let story = story();
    let mut events = story.iter().cycle();
    for event in events.by_ref().take(1000) {
        errors.extend(writer.event(event).err());
        errors.extend(writer.flush().err());
    }
    // The other thread meets the error.
    while errors.is_empty() {
        errors.extend(writer.flush().err());
    }
    assert!(
        errors[0].to_string().contains("free some space"),
        "{}",
        errors[0]
    );
    assert_eq!(errors.len(), 1);
    assert!(writer.finish(EndReason::Failed).is_err());
}

/// A file with one frame of records.
fn file_of(payload: Vec<u8>, events: u32) -> Vec<u8> {
    let mut frames = FrameWriter::new(preamble().to_vec()).unwrap();
    frames
        .write(&PlainFrame {
            kind: FrameKind::Records,
            group: 0,
            first_event: 0,
            events,
            times: [0, 0],
            payload,
        })
        .unwrap();
    frames.out
}

#[test]
fn hostile_counts_take_no_memory() {
    for column in [
        FrameColumn::Strings,
        FrameColumn::Lines,
        FrameColumn::Classes,
        FrameColumn::Details,
    ] {
        let mut columns = super::columns::ColumnWriter::default();
        columns.of(FrameColumn::Kinds).push(record::STACK as u8);
        columns.of(column).extend([0xff; 9]);
        columns.of(column).push(1);
        let file = file_of(columns.take(), 0);
        let (events, reader) = read(&file).unwrap();
        assert!(events.is_empty() && reader.truncated());
    }
    // More records than a frame may have.
    let mut columns = super::columns::ColumnWriter::default();
    columns
        .of(FrameColumn::Kinds)
        .extend(vec![record::LOSS as u8; MAX_RECORDS + 1]);
    columns
        .of(FrameColumn::Details)
        .extend(vec![0; 4 * MAX_RECORDS + 4]);
    let file = file_of(columns.take(), 0);
    let (events, reader) = read(&file).unwrap();
    assert!(events.is_empty() && reader.damage().is_some());
}

proptest! {
    #[test]
    fn whatever_is_written_comes_back(header in any_header(), events in any_stream()) {
        let file = written(&header, &events);
        let (back, reader) = read(&file).unwrap();
        prop_assert_eq!(reader.header(), &header);
        prop_assert_eq!(back, events);
        prop_assert!(reader.damage().is_none());
    }

    #[test]
    fn payloads_with_a_right_checksum_never_panic(payload: Vec<u8>, events in 0_u32..3) {
        let _ = read(&file_of(payload, events));
    }

    /// Changes the columns before the checksum is made.
    #[test]
    fn changed_columns_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let file = compact_recording(&story());
        let (at, header) = frames(&file)[1];
        let stored = &file[at + HEADER..at + HEADER + header.stored];
        let mut payload = header
            .payload(stored, &mut Decompressor::new().unwrap())
            .unwrap();
        for (place, byte) in changes {
            let place = place.index(payload.len());
            payload[place] = byte;
        }
        let _ = read(&file_of(payload, header.events));
    }

    #[test]
    fn random_bytes_never_panic(bytes in any::<Vec<u8>>()) {
        let mut file = preamble().to_vec();
        file.extend(bytes);
        let _ = read(&file);
    }
}

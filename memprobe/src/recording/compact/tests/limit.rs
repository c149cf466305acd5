//! Recordings that drop their oldest part.

use std::fs;
use std::sync::{Arc, Mutex};

use super::super::index::{FrameIndex, PlaceKind};
use super::*;
use crate::cuda::calls::function_named;
use crate::event::{CudaCall, CudaMemoryKind, Target};
use crate::ledger::Ledger;
use crate::ledger::snapshot::{DeviceSnapshot, Grouping, Snapshot};
use crate::recording::SeekableRecording;
use crate::recording::write::compact::{CompactOptions, ReplaceBeginning};
use crate::recording::write::sources::SourceOfProcess;

const LIMIT: u64 = 64 << 10;

/// A file in memory, with all contents that a reader could have met.
#[derive(Clone, Default)]
struct Watched(Arc<Mutex<Contents>>);

#[derive(Default)]
struct Contents {
    file: Vec<u8>,
    /// Most bytes of the file and its copy.
    most: usize,
    replaced: usize,
    /// File just before and after each replacement.
    seen: Vec<Vec<u8>>,
}

impl Write for Watched {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut contents = self.0.lock().unwrap();
        contents.file.extend_from_slice(bytes);
        contents.most = contents.most.max(contents.file.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ReplaceBeginning for Watched {
    fn replace_beginning(&mut self, head: &[u8], from: u64) -> io::Result<()> {
        let mut contents = self.0.lock().unwrap();
        let copy = [head, &contents.file[from as usize..]].concat();
        contents.most = contents.most.max(contents.file.len() + copy.len());
        contents.replaced += 1;
        if contents.seen.len() < 12 {
            let before = contents.file.clone();
            contents.seen.extend([before, copy.clone()]);
        }
        contents.file = copy;
        Ok(())
    }
}

/// A loop with blocks that live through all of it, blocks from before attach, CUDA memory and labels.
fn long_loop(rounds: u64) -> Vec<Event> {
    let mut events = late_attach();
    // Earlier than the start in the header.
    let early = MemoryEvent {
        time: TimeNs(4_999_000_000),
        ..memory(Action::OutOfMemory, 0, 0, MIB)
    };
    events.insert(0, Event::Memory(early));
    let frames = (1..=6).map(|line| frame("/home/me/train.py", line * 10, "step"));
    events.extend(
        (1..)
            .zip(frames)
            .map(|(id, line)| stack(id, StackKind::Python, vec![line])),
    );
    let mut time = 10_000;
    let mut allocated = live(&events).devices[0].totals.allocated.0;
    let mut push = |events: &mut Vec<Event>, action, addr, size, id| {
        time += 7;
        let is_cuda = matches!(action, Action::CudaAlloc | Action::CudaFree);
        let call = CudaCall {
            function: function_named("cudaMalloc").unwrap().name,
            space: CudaMemoryKind::Device,
        };
        match action {
            Action::Alloc => allocated += size,
            Action::Free => allocated -= size,
            _ => {}
        }
        events.push(Event::Memory(MemoryEvent {
            stack: StackId(id),
            totals: totals(allocated, 1 << 30).filter(|_| !is_cuda),
            call: is_cuda.then_some(call),
            ..memory(action, time, addr, size)
        }));
    };
    for block in 0..8 {
        push(
            &mut events,
            Action::Alloc,
            0x7e00_0000_0000 + block * MIB,
            MIB,
            1,
        );
    }
    push(&mut events, Action::CudaAlloc, 0x7d00_0000_0000, 3 * MIB, 2);
    events.push(Event::BlockLabels(Arc::new(BlockLabels {
        time: TimeNs(5_010_000_000),
        tgid: Tgid(1234),
        blocks: (0..8)
            .map(|block| LabeledBlock {
                module: Some(format!("layers.{block}").into()),
                ..LabeledBlock::unlabeled(
                    Address(0x7e00_0000_0000 + block * MIB),
                    Bytes(MIB),
                    DeviceIndex(0),
                )
            })
            .collect(),
        optimizers: Vec::new(),
        tags: Vec::new(),
    })));
    // One of the labelled blocks ends, and its address is used again.
    push(&mut events, Action::Free, 0x7e00_0000_0000, MIB, 0);
    push(&mut events, Action::Alloc, 0x7e00_0000_0000, MIB, 1);
    for round in 0..rounds {
        let addr = 0x7f00_0000_0000 + (round * 0x9e37_79b9 % 65_536) * 512;
        push(
            &mut events,
            Action::Alloc,
            addr,
            512,
            (round % 6) as u32 + 1,
        );
        push(&mut events, Action::Free, addr, 512, 0);
    }
    events
}

fn writer(out: Watched, limit: u64) -> CompactWriter<Watched> {
    let options = CompactOptions {
        max_size: Some(limit),
        sources: Some(Box::new(|file: &str| {
            (file == "/home/me/train.py").then(|| SourceOfProcess {
                text: "import torch\n".to_owned(),
                modified_ms: None,
            })
        })),
    };
    CompactWriter::with_options(out, "memory", &header(), options).unwrap()
}

fn limited(events: &[Event], limit: u64) -> Watched {
    let out = Watched::default();
    let mut writer = writer(out.clone(), limit);
    for (at, event) in events.iter().enumerate() {
        writer.event(event).unwrap();
        if at % 50 == 0 {
            writer.flush().unwrap();
        }
    }
    writer.finish(EndReason::Interrupted).unwrap();
    out
}

/// Live bytes of each line and owner, the totals, and the CUDA memory.
fn live(events: &[Event]) -> Snapshot {
    let mut ledger = Ledger::new(Target::default(), header().start);
    events.iter().for_each(|event| drop(ledger.apply(event)));
    ledger.snapshot(ledger.last_event().unwrap_or_default(), Grouping::User)
}

fn lines(snapshot: &Snapshot) -> Vec<(String, u64, u64)> {
    let devices = snapshot.devices.iter();
    let mut lines: Vec<_> = devices
        .flat_map(|device| &device.lines)
        .filter(|line| line.live.0 > 0)
        .map(|line| (format!("{:?}", line.site), line.live.0, line.live_blocks))
        .collect();
    let outside = snapshot.cuda.rows.iter();
    lines.extend(outside.map(|row| (format!("{:?}", row.space), row.live.0, row.live_blocks)));
    lines.sort();
    lines
}

#[test]
fn a_file_keeps_its_newest_part_within_its_limit_and_adds_up() {
    let events = long_loop(40_000);
    let all = live(&events);
    let out = limited(&events, LIMIT);
    let contents = out.0.lock().unwrap();
    assert!(contents.most as u64 <= LIMIT, "{} bytes", contents.most);
    assert!(contents.replaced > 5, "{}", contents.replaced);
    let (kept, reader) = read(&contents.file).unwrap();
    assert!(reader.damage().is_none() && !reader.truncated());
    let dropped = reader.header().dropped.unwrap();
    assert_eq!(dropped.start, header().start);
    assert!(reader.header().start > header().start);
    let later = (reader.header().start.0 - header().start.0) / 1_000_000;
    let wall = header().wall_start_ms.map(|wall| wall + later);
    assert_eq!(reader.header().wall_start_ms, wall);
    assert!(dropped.events > 0 && reader.events() > 1000);
    assert_eq!(
        reader.events() + dropped.events,
        reader.end().unwrap().events
    );
    assert_eq!(reader.end().unwrap().events, memory_count(&events));
    let source = reader.sources().unwrap().file("/home/me/train.py");
    assert_eq!(source.unwrap().text(), Some("import torch\n"));
    let end = live(&kept);
    assert_eq!(lines(&end), lines(&all));
    for (one, other) in end.devices.iter().zip(&all.devices) {
        assert_eq!(one.totals, other.totals);
        // What was unaccounted then counts as memory from before.
        let without_line = |device: &DeviceSnapshot| {
            device.unaccounted + device.before_attach.live.0.cast_signed()
        };
        assert_eq!(without_line(one), without_line(other));
    }
    let labels = kept.iter().filter_map(|event| match event {
        Event::BlockLabels(labels) => Some(labels.blocks.len()),
        _ => None,
    });
    assert_eq!(
        labels.collect::<Vec<_>>(),
        [7],
        "labels of the blocks that live on"
    );
}

fn memory_count(events: &[Event]) -> u64 {
    let memory = memory_events(events).into_iter();
    memory.filter(|event| event.action != Action::Held).count() as u64
}

#[test]
fn whoever_reads_it_while_it_is_written_meets_a_whole_file() {
    let events = long_loop(20_000);
    let out = limited(&events, LIMIT);
    let contents = out.0.lock().unwrap();
    assert!(contents.seen.len() >= 10);
    for file in &contents.seen {
        // Killed there, or in the middle of the next frame.
        for cut in [file.len(), file.len() - 1, file.len() - 40] {
            let (kept, reader) = read(&file[..cut]).unwrap();
            assert!(reader.truncated() && reader.damage().is_none());
            let dropped = reader.header().dropped.map_or(0, |dropped| dropped.events);
            let until = (dropped + reader.events()) as usize;
            let mut counted = 0;
            let is_before = |event: &&Event| {
                counted += usize::from(
                    matches!(event, Event::Memory(event) if event.action != Action::Held),
                );
                counted <= until
            };
            let whole: Vec<Event> = events.iter().take_while(is_before).cloned().collect();
            assert_eq!(lines(&live(&kept)), lines(&live(&whole)));
        }
    }
}

#[test]
fn what_is_left_reads_the_same_from_its_groups_and_keyframes() {
    let events = long_loop(20_000);
    let out = limited(&events, LIMIT);
    let file = out.0.lock().unwrap().file.clone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.mprb");
    // With its index, and cut off before it.
    for bytes in [&file[..], &file[..file.len() - 200]] {
        fs::write(&path, bytes).unwrap();
        let (kept, reader) = read(bytes).unwrap();
        let recording = SeekableRecording::open(&path, |_| Ok(())).unwrap();
        assert_eq!(recording.header().dropped, reader.header().dropped);
        assert_eq!(recording.header().start, reader.header().start);
        assert!(recording.groups() > 2);
        let groups = (0..recording.groups()).flat_map(|at| recording.group(at).unwrap());
        let in_groups: Vec<Event> = groups.map(|event| event.unwrap()).collect();
        assert_eq!(memory_count(&in_groups), memory_count(&kept));
        let end = live(&in_groups);
        assert_eq!(lines(&end), lines(&live(&kept)));
        // Its keyframes lead to the same end.
        let reader = Reader::open(&path).unwrap();
        let (state, rest) = reader.from_keyframe(u64::MAX).unwrap();
        let mut ledger = Ledger::of_keyframe(Target::default(), &state).unwrap();
        rest.for_each(|event| drop(ledger.apply(&event.unwrap())));
        let now = ledger.last_event().unwrap();
        assert_eq!(lines(&ledger.snapshot(now, Grouping::User)), lines(&end));
    }
}

#[test]
fn the_index_of_a_file_without_its_oldest_part_leads_to_its_frames() {
    let out = limited(&long_loop(30_000), LIMIT);
    let file = std::mem::take(&mut out.0.lock().unwrap().file);
    let all = frames(&file);
    let of_kind = |kind| {
        all.iter()
            .filter(|(_, it)| it.kind == kind)
            .collect::<Vec<_>>()
    };
    let index = of_kind(FrameKind::Index)[0];
    let stored = &file[index.0 + HEADER..][..index.1.stored];
    let payload = index.1.payload(stored, &mut Decompressor::new().unwrap());
    let places = FrameIndex::decode(&payload.unwrap()).unwrap().places;
    for (kind, frame) in [
        (PlaceKind::Source, FrameKind::Source),
        (PlaceKind::Curve, FrameKind::Curve),
    ] {
        let places = places.iter().filter(|place| place.kind == kind);
        let found: Vec<_> = places
            .map(|it| (it.offset as usize, it.first_event))
            .collect();
        let expected = of_kind(frame).into_iter();
        let expected: Vec<_> = expected
            .map(|(at, header)| (*at, header.first_event))
            .collect();
        assert!(!expected.is_empty(), "{kind:?}");
        let offsets = |all: &[(usize, u64)]| all.iter().map(|it| it.0).collect::<Vec<_>>();
        assert_eq!(offsets(&found), offsets(&expected));
        if kind == PlaceKind::Curve {
            assert_eq!(found, expected);
        }
    }
    let index = SeekIndex::of_memory(file.clone()).unwrap().unwrap();
    let (_, reader) = read(&file).unwrap();
    let sources = index.sources().unwrap();
    assert_eq!(
        Some(format!("{sources:?}")),
        reader.sources().map(|it| format!("{it:?}"))
    );
}

#[test]
fn a_damaged_beginning_leaves_the_events_and_is_said() {
    let out = limited(&long_loop(20_000), LIMIT);
    let mut file = out.0.lock().unwrap().file.clone();
    let whole = read(&file).unwrap().1.events();
    let all = frames(&file);
    assert_eq!(all[2].1.kind, FrameKind::Keyframe);
    file[all[2].0 + HEADER] ^= 1;
    let (_, reader) = read(&file).unwrap();
    assert!(reader.damage().is_some());
    assert_eq!(reader.events(), whole);
}

#[test]
fn a_limit_below_the_live_blocks_is_exceeded_and_said() {
    let blocks = (0..20_000).map(|block: u64| {
        let size = 512 * (block * 0x9e37_79b9 % 1000 + 1);
        let addr = 0x7f00_0000_0000 + block * MIB;
        Event::Memory(memory(Action::Alloc, block * 3, addr, size))
    });
    let out = Watched::default();
    let mut writer = writer(out.clone(), LIMIT);
    for (at, event) in blocks.enumerate() {
        writer.event(&event).unwrap();
        if at % 50 == 0 {
            writer.flush().unwrap();
        }
    }
    while out.0.lock().unwrap().most < 40_000 {
        writer.flush().unwrap();
    }
    let events = writer.events();
    writer.finish(EndReason::Interrupted).unwrap();
    let contents = out.0.lock().unwrap();
    let (kept, reader) = read(&contents.file).unwrap();
    assert_eq!(reader.end().unwrap().events, events);
    assert_eq!(live(&kept).devices[0].live_blocks, 20_000);
    assert!(
        contents.most < 6 * LIMIT as usize,
        "{} bytes",
        contents.most
    );
}

#[test]
fn a_hostile_beginning_with_right_checksums_never_panics() {
    let out = limited(&long_loop(12_000), LIMIT);
    let file = out.0.lock().unwrap().file.clone();
    let all = frames(&file);
    let mut decompressor = Decompressor::new().unwrap();
    let mut changed_to = |at: usize, change: &dyn Fn(&mut Vec<u8>)| {
        let mut writer = FrameWriter::new(preamble().to_vec()).unwrap();
        for (number, (offset, header)) in all.iter().take(6).enumerate() {
            let stored = &file[offset + HEADER..][..header.stored];
            let mut payload = header.payload(stored, &mut decompressor).unwrap();
            if number == at {
                change(&mut payload);
            }
            let frame = PlainFrame {
                kind: header.kind,
                group: header.group,
                first_event: header.first_event,
                events: header.events,
                times: header.times,
                payload,
            };
            writer.write(&frame).unwrap();
        }
        read(&writer.out).map(|(events, reader)| (events.len(), reader.damage().is_some()))
    };
    let kinds: Vec<FrameKind> = all.iter().take(3).map(|(_, header)| header.kind).collect();
    assert_eq!(
        kinds,
        [FrameKind::Header, FrameKind::Source, FrameKind::Keyframe]
    );
    let (_, is_damaged) = changed_to(9, &|_| {}).unwrap();
    assert!(!is_damaged);
    let mut refused = 0;
    for (at, (_, header)) in all.iter().enumerate().take(3).skip(1) {
        let step = header.length / 150 + 1;
        for place in (0..header.length).step_by(step) {
            for value in [0, 1, 0x7f, 0xff] {
                let found = changed_to(at, &|payload| payload[place] = value);
                refused += u32::from(found.is_ok_and(|(_, is_damaged)| is_damaged));
            }
        }
    }
    assert!(refused > 50, "{refused}");
}

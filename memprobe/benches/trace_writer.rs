//! Benchmarks of recordings: events written and read per second.

use std::io;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};

use memprobe::event::{
    Action, Address, Bytes, Context, DeviceIndex, Event, Frame, MemoryEvent, PurposeId, Stack,
    StackId, StackKind, Tgid, Tid, TimeNs, Totals,
};
use memprobe::ledger::snapshot::Grouping;
use memprobe::recording::write::compact::CompactWriter;
use memprobe::recording::write::trace_event::TraceWriter;
use memprobe::recording::{EndReason, Header, Reader};
use memprobe::report::{By, ReportFormat, ReportOptions};

const EVENTS: u64 = 100_000;
const STACKS: u64 = 500;

/// Environment variable with the path of a recording to use instead of the events made here.
const RECORDING: &str = "MEMPROBE_BENCH_RECORDING";

/// A training loop: many stacks allocate in turn, and each block is freed some events later.
fn stream() -> Vec<Event> {
    let define = |id: u64| {
        let frame = |depth: u64| Frame {
            file: format!("/home/me/project/package/module_{}.py", (id + depth) % 40).into(),
            line: (id * 7 + depth) as u32 % 900 + 1,
            function: format!("function_{depth}").into(),
            library: None,
        };
        let frames = (0..20).map(frame).collect();
        let stack = Stack {
            kind: StackKind::Python,
            frames,
            truncated: false,
            context: Context::default(),
        };
        Event::Stack(StackId(id as u32 + 1), Arc::new(stack))
    };
    let step = |index: u64| {
        let (pair, freed) = (index / 2, index % 2 == 1);
        let block = if freed {
            pair.saturating_sub(1000)
        } else {
            pair
        };
        Event::Memory(MemoryEvent {
            time: TimeNs(1_000_000_000 + index * 3_000),
            tgid: Tgid(1234),
            tid: Tid(1234),
            action: if freed { Action::Free } else { Action::Alloc },
            addr: Address(0x7f00_0000_0000 + block * 4096),
            size: Bytes(4096),
            device: Some(DeviceIndex(0)),
            totals: Some(Totals {
                allocated: Bytes((1 << 30) + index % 2 * 4096),
                reserved: Bytes(2 << 30),
            }),
            stack: if freed {
                StackId::NONE
            } else {
                StackId((pair % STACKS) as u32 + 1)
            },
            shape: PurposeId::NONE,
            call: None,
        })
    };
    (0..STACKS)
        .map(define)
        .chain((0..EVENTS).map(step))
        .collect()
}

fn header() -> Header {
    Header {
        start: TimeNs(1_000_000_000),
        ..Header::default()
    }
}

fn trace<W: io::Write>(events: &[Event], out: W) -> W {
    let mut writer =
        TraceWriter::new(out, "bench", &header(), Grouping::User).expect("memory has room");
    for event in events {
        writer.event(event).expect("memory has room");
    }
    writer.finish(EndReason::Duration).expect("memory has room")
}

fn compact<W: io::Write + Send + 'static>(events: &[Event], out: W) -> W {
    let mut writer = CompactWriter::new(out, "bench", &header()).expect("memory has room");
    for event in events {
        writer.event(event).expect("memory has room");
    }
    writer.finish(EndReason::Duration).expect("memory has room")
}

/// Events of the recording named by [`RECORDING`]; those of [`stream`] without it.
fn events() -> Vec<Event> {
    let Some(file) = std::env::var_os(RECORDING) else {
        return stream();
    };
    let reader = Reader::open(file.as_ref()).expect("a recording");
    reader.map(Result::unwrap).collect()
}

fn recording(c: &mut Criterion) {
    let events = events();
    let memory = events.iter();
    let memory = memory.filter(|event| matches!(event, Event::Memory(_)));
    let count = memory.count() as u64;
    let files = [
        ("json", trace(&events, Vec::new())),
        ("mprb", compact(&events, Vec::new())),
    ];
    let mut group = c.benchmark_group("recording");
    group
        .throughput(Throughput::Elements(count))
        .sample_size(20);
    group.bench_function("write json", |b| b.iter(|| trace(&events, io::sink())));
    // With the time of the thread that compresses.
    group.bench_function("write mprb", |b| b.iter(|| compact(&events, io::sink())));
    for (format, file) in &files {
        let bytes = file.len() as f64 / count as f64;
        eprintln!("{format}: {count} events, {bytes:.2} bytes an event");
        group.bench_function(format!("read {format}"), |b| {
            b.iter(|| {
                Reader::new(&**file)
                    .expect("a recording")
                    .map(Result::unwrap)
                    .count()
            });
        });
    }
    for (name, by, format) in [
        ("table of lines", By::Line, ReportFormat::Text),
        ("events as jsonl", By::Event, ReportFormat::Jsonl),
    ] {
        let options = ReportOptions {
            by,
            format,
            ..ReportOptions::default()
        };
        for (ending, file) in &files {
            group.bench_function(format!("{name} of {ending}"), |b| {
                b.iter(|| {
                    let reader = Reader::new(&**file).expect("a recording");
                    memprobe::report::write(reader, &options, &mut io::sink()).expect("whole")
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, recording);
criterion_main!(benches);

//! Benchmarks of recordings: events written and read per second.

use std::io;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};

use memprobe::event::{
    Action, Address, Bytes, Context, DeviceIndex, Event, Frame, MemoryEvent, PurposeId, Stack,
    StackId, StackKind, Tgid, Tid, TimeNs, Totals,
};
use memprobe::ledger::snapshot::Grouping;
use memprobe::recording::write::trace_event::TraceWriter;
use memprobe::recording::{EndReason, Header, Reader};
use memprobe::report::{By, ReportFormat, ReportOptions};

const EVENTS: u64 = 100_000;
const STACKS: u64 = 500;

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

fn record<W: io::Write>(events: &[Event], out: W) -> W {
    let header = Header {
        start: TimeNs(1_000_000_000),
        ..Header::default()
    };
    let mut writer =
        TraceWriter::new(out, "bench", &header, Grouping::User).expect("memory has room");
    for event in events {
        writer.event(event).expect("memory has room");
    }
    writer.finish(EndReason::Duration).expect("memory has room")
}

fn recording(c: &mut Criterion) {
    let events = stream();
    let file = record(&events, Vec::new());
    let mut group = c.benchmark_group("recording");
    group
        .throughput(Throughput::Elements(EVENTS))
        .sample_size(20);
    group.bench_function("write", |b| b.iter(|| record(&events, io::sink())));
    group.bench_function("read", |b| {
        b.iter(|| {
            Reader::new(&*file)
                .expect("a recording")
                .map(Result::unwrap)
                .count()
        });
    });
    for (name, by, format) in [
        ("table of lines", By::Line, ReportFormat::Text),
        ("events as jsonl", By::Event, ReportFormat::Jsonl),
    ] {
        let options = ReportOptions {
            by,
            format,
            ..ReportOptions::default()
        };
        group.bench_function(name, |b| {
            b.iter(|| {
                let reader = Reader::new(&*file).expect("a recording");
                memprobe::report::write(reader, &options, &mut io::sink()).expect("whole")
            });
        });
    }
    group.finish();
}

criterion_group!(benches, recording);
criterion_main!(benches);

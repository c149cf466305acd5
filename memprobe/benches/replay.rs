//! Benchmarks of a replay: opening, the jump to the peak, and moves of the cursor.
//!
//! `cargo bench -p memprobe --bench replay`. A test runs each once, on a shorter recording.

use std::fs::File;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};

use memprobe::attribution::AttributionLedger;
use memprobe::event::{
    Action, Address, Bytes, Context, DeviceIndex, Event, Frame, MarkedPhase, MemoryEvent,
    PhaseMark, PurposeId, Stack, StackId, StackKind, Tgid, Tid, TimeNs, Totals,
};
use memprobe::ledger::{Analysis, CopySize};
use memprobe::recording::write::compact::CompactWriter;
use memprobe::recording::{EndReason, Header, SeekableRecording};
use memprobe::replay::Player;

#[path = "../tests/counting_allocator/mod.rs"]
mod counting_allocator;

/// Memory events of the recording; of a shorter one that has a keyframe: a group ends with its third full frame.
const EVENTS: u64 = 1_000_000;
const TESTED_EVENTS: u64 = 420_000;

const STACKS: u64 = 300;

/// Blocks that an iteration allocates and frees.
const BLOCKS: u64 = 94;

/// Bytes of a block.
const SIZE: u64 = 4096;

fn stack(id: u32) -> Arc<Stack> {
    let frame = Frame {
        file: "/home/me/train.py".into(),
        line: id,
        function: "step".into(),
        library: None,
    };
    Arc::new(Stack {
        kind: StackKind::Python,
        frames: vec![frame],
        truncated: false,
        context: Context::default(),
    })
}

/// Number of memory events, by cargo's argument to benchmarks.
fn events() -> u64 {
    match std::env::args().any(|argument| argument == "--bench") {
        true => EVENTS,
        false => TESTED_EVENTS,
    }
}

/// Writes a training loop; the live blocks are most in its middle.
fn record(path: &Path) {
    let header = Header {
        start: TimeNs(1),
        ..Header::default()
    };
    let file = File::create(path).expect("a file");
    let mut writer = CompactWriter::new(file, "the benchmark", &header).expect("begun");
    for id in 1..=STACKS as u32 {
        writer
            .event(&Event::Stack(StackId(id), stack(id)))
            .expect("written");
    }
    let (mut time, mut allocated, mut kept) = (1, 0, 0);
    let iterations = events() / (2 * BLOCKS);
    for iteration in 0..iterations {
        let mut memory = |action, block: u64| {
            time += 2_000;
            match action {
                Action::Alloc => allocated += SIZE,
                _ => allocated -= SIZE,
            }
            Event::Memory(MemoryEvent {
                time: TimeNs(time),
                tgid: Tgid(1),
                tid: Tid(1),
                action,
                addr: Address(0x7f00_0000_0000 + block * SIZE),
                size: Bytes(SIZE),
                device: Some(DeviceIndex(0)),
                totals: Some(Totals::of(allocated, 1 << 33)),
                stack: match action {
                    Action::Alloc => StackId((block % STACKS) as u32 + 1),
                    _ => StackId::NONE,
                },
                shape: PurposeId::NONE,
                call: None,
            })
        };
        // One block more stays in the first half, and goes in the second.
        let change = match iteration < iterations / 2 {
            true => {
                kept += 1;
                memory(Action::Alloc, kept)
            }
            false if kept > 0 => {
                kept -= 1;
                memory(Action::Free, kept + 1)
            }
            false => continue,
        };
        writer.event(&change).expect("written");
        for action in [Action::Alloc, Action::Free] {
            for block in 0..BLOCKS {
                let event = memory(action, (1 << 20) + block);
                writer.event(&event).expect("written");
            }
        }
        let mark = PhaseMark {
            time: TimeNs(time),
            tgid: Tgid(1),
            tid: Tid(1),
            phase: MarkedPhase::Step,
            class: "Adam".into(),
            stack: StackId::NONE,
        };
        writer.event(&Event::PhaseMark(mark)).expect("written");
    }
    writer.finish(EndReason::Interrupted).expect("ended");
}

fn moves<A: Analysis + Clone + CopySize>(
    criterion: &mut Criterion,
    name: &str,
    mut player: Player<A>,
) {
    let peak = player.overview.highest_peak().expect("a peak").events;
    let all = player.overview.events;
    criterion.bench_function(
        &format!("replay, {name}: from the end to the peak"),
        |bencher| {
            bencher.iter(|| {
                player.seek(all).expect("the end");
                player.seek(peak).expect("the peak");
                black_box(player.events())
            });
        },
    );
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    criterion.bench_function(&format!("replay, {name}: to any event"), |bencher| {
        bencher.iter(|| {
            // xorshift64, so that every run goes to the same moments.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            player.seek(random % all).expect("a moment");
            black_box(player.events())
        });
    });
    criterion.bench_function(&format!("replay, {name}: an event back"), |bencher| {
        bencher.iter(|| {
            let back = player.events().checked_sub(1).unwrap_or(all);
            player.seek(back).expect("a moment");
            black_box(player.events())
        });
    });
}

/// Opens a player, and prints the memory that it takes.
fn opened<A: Analysis + Clone + CopySize>(
    name: &str,
    open: impl FnOnce() -> Player<A>,
) -> Player<A> {
    let counter = counting_allocator::Counter::start();
    let player = open();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let memory = counter.memory();
    println!(
        "memory of a replay of {} events, {name}: {:.1} MiB, {:.1} MiB at most, of which {:.1} MiB are states by estimate",
        events(),
        mib(memory.allocated as u64),
        mib(memory.peak as u64),
        mib(player.state_bytes())
    );
    player
}

fn replay(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("loop.mprb");
    record(&path);
    let open = || SeekableRecording::open(&path, |_| Ok(())).expect("a recording");
    criterion.bench_function("replay, from keyframes: opening", |bencher| {
        bencher.iter(|| {
            Player::from_keyframes(&open(), ())
                .expect("read")
                .expect("keyframes")
        });
    });
    let (name, all) = ("from keyframes", "with categories");
    let player = opened(name, || {
        let player = Player::from_keyframes(&open(), ()).expect("read");
        player.expect("keyframes")
    });
    moves(criterion, name, player);
    let player = opened(all, || {
        let analyses = AttributionLedger::new(None);
        Player::open(open(), analyses, |_| Ok(())).expect("read")
    });
    moves(criterion, all, player);
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(Duration::from_secs(5));
    targets = replay
}
criterion_main!(benches);

//! Benchmarks of the ledger: time per event, memory per live block, time per snapshot.
//!
//! `cargo bench -p memprobe --bench ledger`. Goals: 1,000,000 events/s on one core and 100 MB for
//! 1,000,000 live blocks.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput};

use memprobe::attribution::AttributionLedger;
use memprobe::event::Target;
use memprobe::event::{
    Action, Address, Bytes, Context, DeviceIndex, Event, Frame, MarkedPhase, MemoryEvent,
    PhaseMark, PurposeId, Stack, StackId, StackKind, Tgid, Tid, TimeNs, Totals,
};
use memprobe::ledger::snapshot::Grouping;
use memprobe::ledger::{AnalyzedLedger, Ledger};

#[path = "../tests/counting_allocator/mod.rs"]
mod counting_allocator;

const LINES: u32 = 300;

/// A simulated target that allocates from `stacks` stacks over 300 source lines, in random order.
struct Program {
    allocated: u64,
    time: u64,
    live: Vec<u64>,
    given_back: Vec<u64>,
    stacks: u32,
    random: u64,
}

impl Program {
    fn new(stacks: u32) -> Self {
        let (live, given_back) = (Vec::new(), Vec::new());
        Self {
            allocated: 0,
            time: 0,
            live,
            given_back,
            stacks,
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Returns a ledger that already knows the stacks.
    fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::new(Target::default(), TimeNs(0));
        for id in 1..=self.stacks {
            ledger.apply(&Event::Stack(StackId(id), stack(id)));
        }
        ledger
    }

    /// xorshift64, so that every run replays the same program.
    fn below(&mut self, limit: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % limit as u64) as usize
    }

    fn event(&mut self, action: Action, addr: u64, stack: u32) -> Event {
        // The address encodes the size, so a free needs no table.
        let size = 512 * (1 + (addr >> 12) % 8);
        self.time += 50_000;
        match action {
            Action::Free => self.allocated -= size,
            _ => self.allocated += size,
        }
        let totals = Totals {
            allocated: Bytes(self.allocated),
            reserved: Bytes(1 << 34),
        };
        Event::Memory(MemoryEvent {
            time: TimeNs(self.time),
            tgid: Tgid(1),
            tid: Tid(1),
            action,
            addr: Address(addr),
            size: Bytes(size),
            device: Some(DeviceIndex(0)),
            totals: Some(totals),
            stack: StackId(stack),
            shape: PurposeId::NONE,
            call: None,
        })
    }

    fn alloc(&mut self) -> Event {
        let fresh = 0x7f00_0000_0000 + ((self.live.len() as u64) << 12);
        let addr = self.given_back.pop().unwrap_or(fresh);
        self.live.push(addr);
        let stack = 1 + self.below(self.stacks as usize) as u32;
        self.event(Action::Alloc, addr, stack)
    }

    fn free(&mut self) -> Event {
        let pick = self.below(self.live.len());
        let addr = self.live.swap_remove(pick);
        self.given_back.push(addr);
        self.event(Action::Free, addr, 0)
    }

    /// Allocates until `blocks` are live.
    fn fill(&mut self, ledger: &mut Ledger, blocks: usize) {
        while self.live.len() < blocks {
            ledger.apply(&self.alloc());
        }
    }

    /// Returns at least `count` events in rounds of 64 frees and 64 allocations, as in a training
    /// step.
    fn events(&mut self, count: usize) -> Vec<Event> {
        let mut events = Vec::with_capacity(count);
        while events.len() < count {
            for _ in 0..64 {
                events.push(self.free());
            }
            for _ in 0..64 {
                events.push(self.alloc());
            }
        }
        events
    }
}

/// A stack of 24 frames whose user frame is one of 300 lines.
fn stack(id: u32) -> Arc<Stack> {
    let frame = |file: &str, line| Frame {
        file: file.into(),
        line,
        function: "forward".into(),
        library: None,
    };
    let mut frames = vec![frame(
        "/usr/lib/python3.12/site-packages/torch/nn/functional.py",
        id,
    )];
    frames.push(frame("/home/user/model.py", id % LINES));
    frames.extend((0..22).map(|depth| frame("/home/user/train.py", id / LINES + depth)));
    Arc::new(Stack {
        kind: StackKind::Python,
        frames,
        truncated: false,
        context: Context::default(),
    })
}

fn bench_apply(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("apply");
    for live in [20_000, 1_000_000] {
        let mut program = Program::new(300);
        let mut ledger = program.ledger();
        program.fill(&mut ledger, live);
        let count = 128 * 1024;
        group.throughput(Throughput::Elements(count));
        group.bench_function(format!("{live} live blocks, 300 stacks"), |bencher| {
            bencher.iter_batched_ref(
                || program.events(count as usize),
                |events| {
                    for event in events.iter() {
                        black_box(ledger.apply(event));
                    }
                },
                BatchSize::PerIteration,
            );
        });
        let health = ledger.snapshot(TimeNs(0), Grouping::User).health;
        assert_eq!(
            health.disagreements, 0,
            "the program of the benchmark is consistent"
        );
    }
    group.finish();
}

/// A stack of a training loop: forward, backward or optimizer step, with 100 lines of each.
fn training_stack(id: u32) -> Arc<Stack> {
    let mut stack = Stack::clone(&stack(id));
    let torch = |file: &str, function: &str| Frame {
        file: format!("/usr/lib/python3.12/site-packages/torch/{file}").into(),
        line: 1,
        function: function.into(),
        library: None,
    };
    match id % 3 {
        0 => stack
            .frames
            .insert(2, torch("nn/modules/module.py", "_call_impl")),
        1 => {
            stack.kind = StackKind::Waiting {
                thread: "pt_autograd_0".into(),
            }
        }
        _ => stack
            .frames
            .insert(2, torch("optim/optimizer.py", "wrapper")),
    }
    Arc::new(stack)
}

/// Appends one iteration: 300 saved blocks, 300 gradients that replace them, and an optimizer step
/// with 100 temporaries, after which the gradients are freed.
fn train(program: &mut Program, events: &mut Vec<Event>) {
    let alloc = |program: &mut Program, kind: u32| {
        let stack = 3 * (1 + program.below(100) as u32) + kind;
        let addr = 0x7f00_0000_0000 + ((program.live.len() as u64) << 12);
        program.live.push(addr);
        (addr, program.event(Action::Alloc, addr, stack))
    };
    let (mut saved, mut gradients) = (Vec::new(), Vec::new());
    for _ in 0..300 {
        let (addr, event) = alloc(program, 0);
        saved.push(addr);
        events.push(event);
    }
    for addr in saved {
        let (gradient, event) = alloc(program, 1);
        gradients.push(gradient);
        events.push(event);
        events.push(program.event(Action::Free, addr, 0));
    }
    events.push(Event::PhaseMark(PhaseMark {
        time: TimeNs(program.time),
        tgid: Tgid(1),
        tid: Tid(1),
        phase: MarkedPhase::Step,
        class: "Adam".into(),
        stack: StackId(2),
    }));
    for _ in 0..100 {
        let (addr, event) = alloc(program, 2);
        events.push(event);
        events.push(program.event(Action::Free, addr, 0));
    }
    for addr in gradients {
        events.push(program.event(Action::Free, addr, 0));
    }
    program.live.clear();
}

/// Compares the attribution ledger with the ledger of lines on the same events.
fn bench_attribution(criterion: &mut Criterion) {
    let mut program = Program::new(0);
    let mut events: Vec<Event> = (1..=303)
        .map(|id| Event::Stack(StackId(id), training_stack(id)))
        .collect();
    for _ in 0..100 {
        train(&mut program, &mut events);
    }
    let mut group = criterion.benchmark_group("training loop");
    group.throughput(Throughput::Elements(events.len() as u64));
    group.bench_function("lines", |bencher| {
        bencher.iter(|| {
            let mut ledger = Ledger::new(Target::default(), TimeNs(0));
            for event in &events {
                black_box(ledger.apply(event));
            }
        });
    });
    group.bench_function("lines and what for", |bencher| {
        bencher.iter(|| {
            let attribution = AttributionLedger::new(None);
            let mut ledgers = AnalyzedLedger::new(Target::default(), TimeNs(0), attribution);
            for event in &events {
                ledgers.apply(event);
            }
            black_box(ledgers.analyses.intervals_ended());
        });
    });
    group.finish();
}

fn bench_snapshot(criterion: &mut Criterion) {
    let mut program = Program::new(3000);
    let mut ledger = program.ledger();
    program.fill(&mut ledger, 20_000);
    let mut now = TimeNs(program.time);
    let mut group = criterion.benchmark_group("snapshot");
    group.bench_function("300 lines, 3000 stacks", |bencher| {
        bencher.iter(|| black_box(ledger.snapshot(now, Grouping::User)));
    });
    group.bench_function("tick of the rates, 300 lines in each grouping", |bencher| {
        bencher.iter(|| {
            now.0 += 200_000_000;
            ledger.tick(now);
        });
    });
    group.finish();
}

/// Prints the bytes that the ledger uses per block, for a million live blocks.
fn report_memory() {
    const BLOCKS: usize = 1_000_000;
    let mut program = Program::new(300);
    program.live.reserve_exact(BLOCKS);
    let mut ledger = program.ledger();
    let counter = counting_allocator::Counter::start();
    program.fill(&mut ledger, BLOCKS);
    let filled = counter.memory();
    println!(
        "memory of {BLOCKS} live blocks, allocated in order of address: {} bytes, peak {}",
        filled.allocated, filled.peak
    );
    let random = 4 * BLOCKS;
    for _ in 0..random / 2 {
        let free = program.free();
        ledger.apply(&free);
        let alloc = program.alloc();
        ledger.apply(&alloc);
    }
    let changed = counter.memory().allocated;
    println!("after {random} more events, in random order: {changed} bytes");
}

fn main() {
    report_memory();
    let mut criterion = Criterion::default().configure_from_args();
    bench_apply(&mut criterion);
    bench_attribution(&mut criterion);
    bench_snapshot(&mut criterion);
    criterion.final_summary();
}

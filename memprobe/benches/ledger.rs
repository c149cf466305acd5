//! What the ledger costs: time for each event, memory for each live block, time for a snapshot.
//!
//! `cargo bench -p memprobe --bench ledger`. Goals: 1,000,000 events a second on one core and
//! 100 MB for 1,000,000 live blocks.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use criterion::{BatchSize, Criterion, Throughput};

use memprobe::event::{
    Action, Address, Bytes, Context, DeviceIndex, Event, Frame, Grad, MemoryEvent, Module, ShapeId,
    Stack, StackId, StackKind, Tgid, Tid, TimeNs, Totals,
};
use memprobe::model::Model;
use memprobe::model::snapshot::{Grouping, Target};
use memprobe::model::why::WhyLedger;
use memprobe::model::why::modules::ModuleLedger;

/// Counts the bytes that are allocated.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged; the counters are atomics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let allocated = ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(allocated, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the block came from `alloc` above, that is, from the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const LINES: u32 = 300;

/// A target whose allocations come from `stacks` stacks of 300 lines, in random order.
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

    /// A model that knows the stacks.
    fn model(&self) -> Model {
        let mut model = Model::new(Target::default(), TimeNs(0));
        for id in 1..=self.stacks {
            model.apply(&Event::Stack(StackId(id), stack(id)));
        }
        model
    }

    /// xorshift64: the same program in every run.
    fn below(&mut self, limit: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % limit as u64) as usize
    }

    fn event(&mut self, action: Action, addr: u64, stack: u32) -> Event {
        // The address says the size, so that a free needs no table.
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
            shape: ShapeId::NONE,
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
    fn fill(&mut self, model: &mut Model, blocks: usize) {
        while self.live.len() < blocks {
            model.apply(&self.alloc());
        }
    }

    /// As many events, half of them frees; rounds of 64 as a training step would have them.
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

/// Who listens beside the ledger of lines.
#[derive(Clone, Copy, PartialEq)]
enum Listeners {
    Nobody,
    Modules,
    Categories,
    Both,
}

/// The ledger of lines, and those beside it.
struct Beside {
    listeners: Listeners,
    model: Model,
    modules: ModuleLedger,
    categories: WhyLedger,
}

impl Beside {
    fn new(program: &Program, listeners: Listeners) -> Self {
        let mut beside = Self {
            listeners,
            model: Model::new(Target::default(), TimeNs(0)),
            modules: ModuleLedger::default(),
            categories: WhyLedger::new(None),
        };
        for id in 1..=program.stacks {
            beside.apply(&Event::Stack(StackId(id), stack(id)));
        }
        beside
    }

    fn apply(&mut self, event: &Event) {
        let applied = self.model.apply(event);
        if matches!(self.listeners, Listeners::Modules | Listeners::Both) {
            self.modules.apply(event, &applied, &self.model);
        }
        if matches!(self.listeners, Listeners::Categories | Listeners::Both) {
            self.categories.apply(event, &applied);
        }
    }
}

/// A stack of 24 frames; its user's line is one of 300, its module one of 72.
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
        context: Context {
            module: Module::Called(format!("GPT.layers.{}.mlp.{}", id % 24, id % 3).into()),
            grad: Grad::Enabled,
            node: None,
        },
    })
}

fn bench_apply(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("apply");
    for live in [20_000, 1_000_000] {
        let mut program = Program::new(300);
        let mut model = program.model();
        program.fill(&mut model, live);
        let count = 128 * 1024;
        group.throughput(Throughput::Elements(count));
        group.bench_function(format!("{live} live blocks, 300 stacks"), |bencher| {
            bencher.iter_batched_ref(
                || program.events(count as usize),
                |events| {
                    for event in events.iter() {
                        black_box(model.apply(event));
                    }
                },
                BatchSize::PerIteration,
            );
        });
        let health = model.snapshot(TimeNs(0), Grouping::User).health;
        assert_eq!(
            health.disagreements, 0,
            "the program of the benchmark is consistent"
        );
    }
    group.finish();
}

/// What the ledgers of modules and of categories add to an event.
fn bench_beside(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("apply, 20000 live blocks, with");
    for (name, listeners) in [
        ("nobody beside", Listeners::Nobody),
        ("modules", Listeners::Modules),
        ("categories", Listeners::Categories),
        ("modules and categories", Listeners::Both),
    ] {
        let mut program = Program::new(300);
        let mut beside = Beside::new(&program, listeners);
        while program.live.len() < 20_000 {
            beside.apply(&program.alloc());
        }
        let count = 128 * 1024;
        group.throughput(Throughput::Elements(count));
        group.bench_function(name, |bencher| {
            bencher.iter_batched_ref(
                || program.events(count as usize),
                |events| events.iter().for_each(|event| beside.apply(event)),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

fn bench_snapshot(criterion: &mut Criterion) {
    let mut program = Program::new(3000);
    let mut model = program.model();
    program.fill(&mut model, 20_000);
    let mut now = TimeNs(program.time);
    let mut group = criterion.benchmark_group("snapshot");
    group.bench_function("300 lines, 3000 stacks", |bencher| {
        bencher.iter(|| black_box(model.snapshot(now, Grouping::User)));
    });
    group.bench_function("tick of the rates, 300 lines in each grouping", |bencher| {
        bencher.iter(|| {
            now.0 += 200_000_000;
            model.tick(now);
        });
    });
    group.finish();
}

/// Prints the bytes that the model takes for each of a million live blocks.
fn report_memory() {
    const BLOCKS: usize = 1_000_000;
    let mut program = Program::new(300);
    program.live.reserve_exact(BLOCKS);
    let mut model = program.model();
    let before = ALLOCATED.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    program.fill(&mut model, BLOCKS);
    let now = ALLOCATED.load(Ordering::Relaxed) - before;
    let peak = PEAK.load(Ordering::Relaxed) - before;
    println!(
        "memory of {BLOCKS} live blocks, allocated in order of address: {now} bytes, peak {peak}"
    );
    PEAK.store(ALLOCATED.load(Ordering::Relaxed), Ordering::Relaxed);
    let random = 4 * BLOCKS;
    for _ in 0..random / 2 {
        let free = program.free();
        model.apply(&free);
        let alloc = program.alloc();
        model.apply(&alloc);
    }
    let now = ALLOCATED.load(Ordering::Relaxed) - before;
    println!("after {random} more events, in random order: {now} bytes");
}

fn main() {
    report_memory();
    let mut criterion = Criterion::default().configure_from_args();
    bench_apply(&mut criterion);
    bench_beside(&mut criterion);
    bench_snapshot(&mut criterion);
    criterion.final_summary();
}

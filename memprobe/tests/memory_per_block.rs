//! Memory that `attach` takes for each live block and for each iteration, counted by an allocator.

mod counting_allocator;

use std::sync::Arc;

use memprobe::attribution::breakdown::BreakdownLedgers;
use memprobe::attribution::modules::ModuleLedger;
use memprobe::attribution::{AttributionLedger, PeakAnalysis as _};
use memprobe::event::{
    Action, Address, AtAttach, Bytes, Context, DeviceIndex, Event, Frame, MarkedPhase, MemoryEvent,
    PhaseMark, PurposeId, Stack, StackId, StackKind, Target, Tgid, Tid, TimeNs, Totals,
};
use memprobe::ledger::{Analysis as _, CopySize as _, Ledger};

/// Live blocks. A power of two fills every vector to its capacity: memory beyond the length of a vector is not
/// resident.
const BLOCKS: u64 = 1 << 16;

/// Iterations of a training loop; of these too every vector is full.
const ITERATIONS: u64 = 1 << 14;

const DEVICE: DeviceIndex = DeviceIndex(0);
const SIZE: u64 = 512;

/// State of the live screen of one process: the ledger, and the analyses of modules, categories and breakdowns.
#[derive(Clone)]
struct Screen {
    ledger: Ledger,
    modules: ModuleLedger,
    categories: AttributionLedger,
    breakdowns: BreakdownLedgers,
}

impl Screen {
    fn new() -> Self {
        let ledger = Ledger::new(Target::default(), TimeNs(0));
        Self {
            modules: ModuleLedger::late(&ledger, TimeNs(0)),
            categories: AttributionLedger::new(None)
                .with_latest_layers()
                .with_known(&ledger, TimeNs(0)),
            breakdowns: BreakdownLedgers::late(&ledger, TimeNs(0)),
            ledger,
        }
    }

    fn apply(&mut self, event: &Event) {
        let change = self.ledger.apply(event);
        self.categories.apply(event, &change, &self.ledger);
        self.modules
            .apply(event, &change, &self.ledger, &self.categories);
        self.breakdowns
            .apply(event, &change, &self.ledger, &self.categories);
    }

    /// Estimated bytes of a copy.
    fn copy_bytes(&self) -> u64 {
        let analyses = self.modules.copy_bytes() + self.categories.copy_bytes();
        self.ledger.copy_bytes() + analyses + self.breakdowns.copy_bytes()
    }

    fn live_blocks(&self) -> u64 {
        self.ledger.blocks().count() as u64
    }
}

fn memory(action: Action, number: u64, allocated: u64) -> Event {
    Event::Memory(MemoryEvent {
        time: TimeNs(number),
        tgid: Tgid(1),
        tid: Tid(1),
        action,
        // Rising addresses, as a leak gets them.
        addr: Address((1 << 40) + number * SIZE),
        size: Bytes(SIZE),
        device: Some(DEVICE),
        totals: Some(totals(allocated)),
        stack: match action {
            Action::Held => StackId::NONE,
            _ => StackId(1),
        },
        shape: PurposeId::NO_TENSOR,
        call: None,
    })
}

fn totals(allocated: u64) -> Totals {
    Totals {
        allocated: Bytes(allocated),
        reserved: Bytes(1 << 40),
    }
}

fn stack() -> Event {
    let frame = Frame {
        file: "train.py".into(),
        line: 1,
        function: "main".into(),
        library: None,
    };
    let stack = Stack {
        kind: StackKind::Python,
        frames: vec![frame],
        truncated: false,
        context: Context::default(),
    };
    Event::Stack(StackId(1), Arc::new(stack))
}

/// Returns the bytes that each of [`BLOCKS`] blocks takes after these events.
fn bytes_per_block(events: impl Iterator<Item = Event>) -> usize {
    let mut screen = Screen::new();
    screen.apply(&stack());
    let counter = counting_allocator::Counter::start();
    events.for_each(|event| screen.apply(&event));
    assert_eq!(screen.live_blocks(), BLOCKS);
    let memory = counter.memory();
    let [bytes, peak] = [memory.allocated, memory.peak].map(|bytes| bytes / BLOCKS as usize);
    println!("{bytes} bytes a block, at most {peak}");
    assert_copy_is_as_estimated(&screen);
    bytes
}

/// Compares a copy of a state with the estimate of its bytes.
fn assert_copy_is_as_estimated(screen: &Screen) {
    let estimate = screen.copy_bytes();
    let counter = counting_allocator::Counter::start();
    let copy = screen.clone();
    let bytes = counter.memory().allocated as u64;
    println!("a copy takes {bytes} bytes, {estimate} by estimate");
    assert_eq!(copy.live_blocks(), screen.live_blocks());
    assert!((estimate / 2..=estimate * 2).contains(&bytes));
}

/// State after many iterations, each with a few blocks and a step.
fn trained(iterations: u64) -> Screen {
    let mut screen = Screen::new();
    screen.apply(&stack());
    for iteration in 0..iterations {
        for action in [Action::Alloc, Action::Free] {
            let number = iteration * 4;
            screen.apply(&memory(action, number, SIZE));
        }
        screen.apply(&Event::PhaseMark(PhaseMark {
            time: TimeNs(iteration * 1_000_000),
            tgid: Tgid(1),
            tid: Tid(1),
            phase: MarkedPhase::Step,
            class: "Adam".into(),
            stack: StackId::NONE,
        }));
    }
    screen
}

/// A single test, so that no other one allocates meanwhile.
#[test]
fn a_million_live_blocks_take_100_megabytes_an_iteration_1_kb_and_copies_what_is_estimated() {
    let counter = counting_allocator::Counter::start();
    let screen = trained(ITERATIONS);
    let bytes = counter.memory().allocated / ITERATIONS as usize;
    println!("{bytes} bytes an iteration");
    assert!(bytes <= 1000);
    assert_copy_is_as_estimated(&screen);
    drop(screen);

    let leaked = (0..BLOCKS).map(|number| memory(Action::Alloc, number, (number + 1) * SIZE));
    assert!(bytes_per_block(leaked) <= 100);

    let all = BLOCKS * SIZE;
    let attached = Event::AtAttach(AtAttach {
        time: TimeNs(0),
        tgid: Tgid(1),
        device: Some(DEVICE),
        totals: totals(all),
        peak: totals(all),
        unread: None,
    });
    let held = (0..BLOCKS).map(|number| memory(Action::Held, number, all));
    assert!(bytes_per_block(std::iter::once(attached).chain(held)) <= 100);
}

//! Property tests: the ledger against a naive allocator, with random programs, losses and garbage.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::snapshot::{DeviceSnapshot, LineRow, Site, StackRow};
use super::*;
use crate::event::{
    Address, AtAttach, Bytes, Context, Frame, PurposeId, Stack, StackId, StackKind, Tgid, Tid,
    Totals,
};

const STACKS: u32 = 6;
const PAGE: u64 = 512;

/// Random action of a program.
#[derive(Clone, Debug)]
enum Step {
    /// Allocates pages at the first free address from page `from` on.
    Alloc { from: u64, pages: u64, stack: u32 },
    /// Frees a live block.
    Free { pick: usize },
    /// Requests more than the allocator has.
    OutOfMemory,
}

/// Delivery of a step's event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Delivery {
    Arrives,
    Lost,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        10 => (0..64_u64, 1..6_u64, 1..=STACKS)
            .prop_map(|(from, pages, stack)| Step::Alloc { from, pages, stack }),
        9 => any::<usize>().prop_map(|pick| Step::Free { pick }),
        1 => Just(Step::OutOfMemory),
    ];
    prop::collection::vec(step, 0..200)
}

fn deliveries() -> impl Strategy<Value = Vec<Delivery>> {
    let delivery = prop_oneof![4 => Just(Delivery::Arrives), 1 => Just(Delivery::Lost)];
    prop::collection::vec(delivery, 200)
}

/// A live block of the naive allocator.
#[derive(Clone, Copy, Debug)]
struct Truth {
    size: u64,
    stack: u32,
    /// True if memprobe got the event of its allocation.
    seen: bool,
}

/// The naive allocator, which knows the true state.
#[derive(Default)]
struct Reference {
    live: BTreeMap<u64, Truth>,
    time: u64,
}

impl Reference {
    fn allocated(&self) -> u64 {
        self.live.values().map(|block| block.size).sum()
    }

    fn live_where(&self, condition: impl Fn(&Truth) -> bool) -> u64 {
        self.live
            .values()
            .filter(|block| condition(block))
            .map(|block| block.size)
            .sum()
    }

    fn live_by_stack(&self) -> ByNumber {
        let mut live = ByNumber::new();
        for block in self.live.values().filter(|block| block.seen) {
            *live.entry(block.stack).or_default() += block.size;
        }
        live
    }

    fn totals(&self) -> Totals {
        Totals {
            allocated: Bytes(self.allocated()),
            reserved: Bytes(1 << 20),
        }
    }

    /// Sends all live blocks to a ledger, as at an attach with readable allocator tables.
    fn send_live_blocks(&self, ledger: &mut Ledger) {
        ledger.apply(&Event::AtAttach(AtAttach {
            time: TimeNs(self.time),
            tgid: Tgid(1),
            device: Some(DeviceIndex(0)),
            totals: self.totals(),
            peak: self.totals(),
            unread: None,
        }));
        for (addr, block) in &self.live {
            let change = ledger.apply(&Event::Memory(MemoryEvent {
                time: TimeNs(self.time),
                tgid: Tgid(1),
                tid: Tid::UNKNOWN,
                action: Action::Held,
                addr: Address(*addr),
                size: Bytes(block.size),
                device: Some(DeviceIndex(0)),
                totals: Some(self.totals()),
                stack: StackId::NONE,
                shape: PurposeId::NONE,
                call: None,
            }));
            assert!(matches!(change, Change::Held(Some(_))));
            check_sums(ledger);
        }
    }

    fn is_free(&self, addr: u64, size: u64) -> bool {
        self.live
            .iter()
            .all(|(start, block)| start + block.size <= addr || addr + size <= *start)
    }

    /// Executes the step; returns its event and the block that it freed. An impossible step (a free
    /// without live blocks) does nothing.
    fn take(&mut self, step: &Step, seen: bool) -> Option<(MemoryEvent, Option<Truth>)> {
        self.time += 1_000;
        let (action, addr, size, stack, freed) = match *step {
            Step::Alloc { from, pages, stack } => {
                let size = pages * PAGE;
                let mut places = (from..).map(|page| page * PAGE);
                let addr = places.find(|addr| self.is_free(*addr, size))?;
                self.live.insert(addr, Truth { size, stack, seen });
                (Action::Alloc, addr, size, stack, None)
            }
            Step::Free { pick } => {
                let pick = pick.checked_rem(self.live.len())?;
                let addr = *self.live.keys().nth(pick)?;
                let block = self.live.remove(&addr)?;
                (Action::Free, addr, block.size, 0, Some(block))
            }
            Step::OutOfMemory => (Action::OutOfMemory, 0, 1 << 40, 1, None),
        };
        let event = MemoryEvent {
            time: TimeNs(self.time),
            tgid: Tgid(1),
            tid: Tid(1),
            action,
            addr: Address(addr),
            size: Bytes(size),
            device: Some(DeviceIndex(0)),
            totals: Some(self.totals()),
            stack: StackId(stack),
            shape: PurposeId::NONE,
            call: None,
        };
        Some((event, freed))
    }
}

fn ledger() -> Ledger {
    let mut ledger = Ledger::new(Target::default(), TimeNs(0));
    for id in 1..=STACKS {
        ledger.apply(&Event::Stack(StackId(id), stack(id)));
    }
    ledger
}

/// Each stack has its own innermost line; each two share a line of the user.
fn stack(id: u32) -> Arc<Stack> {
    let frame = |file: &str, line| Frame {
        file: file.into(),
        line,
        function: "f".into(),
        library: None,
    };
    let torch = frame("/lib/python3.11/site-packages/torch/functional.py", id);
    let frames = vec![torch, frame("train.py", id / 2)];
    Arc::new(Stack {
        kind: StackKind::Python,
        frames,
        truncated: false,
        context: Context::default(),
    })
}

fn live_of_lines(device: &DeviceSnapshot) -> i128 {
    device
        .lines
        .iter()
        .map(|line| i128::from(line.live.0))
        .sum()
}

/// Checks the invariants of every device, which must hold after every event.
fn check_sums(ledger: &Ledger) {
    for grouping in [Grouping::User, Grouping::Innermost] {
        for device in ledger.snapshot(TimeNs(0), grouping).devices {
            let before = i128::from(device.before_attach.live.0);
            let sum = before + i128::from(device.unaccounted) + live_of_lines(&device);
            assert_eq!(sum, i128::from(device.totals.allocated.0));
            assert!(device.peak.allocated >= device.totals.allocated);
            assert!(device.timeline.all.points.len() <= MAX_POINTS);
            let blocks: u64 = device.lines.iter().map(|line| line.live_blocks).sum();
            assert_eq!(
                blocks + device.before_attach.known_blocks,
                device.live_blocks
            );
            assert!(device.before_attach.unknown <= device.before_attach.live);
            for line in &device.lines {
                assert_eq!(
                    line.live.0,
                    line.stacks.iter().map(|stack| stack.live.0).sum::<u64>()
                );
                assert!(line.peak >= line.live);
                assert!(
                    line.stacks
                        .is_sorted_by(|first, second| first.live >= second.live)
                );
            }
        }
    }
}

/// Bytes and stack of a freed block that was seen being allocated.
fn known_block(ledger: &Ledger, change: &Change) -> Option<(Bytes, StackRef)> {
    match change {
        Change::Freed(Freed::Known(id)) => {
            let block = ledger.block(*id);
            Some((block.size, block.stack))
        }
        _ => None,
    }
}

/// Bytes by the number of a stack or of a user's line.
type ByNumber = BTreeMap<u32, u64>;

fn nonzero(mut bytes: ByNumber) -> ByNumber {
    bytes.retain(|_, bytes| *bytes > 0);
    bytes
}

/// A figure of each stack's row.
fn rows_by_stack(device: &DeviceSnapshot, figure: impl Fn(&StackRow) -> Bytes) -> ByNumber {
    let rows = device.lines.iter().flat_map(|line| &line.stacks);
    nonzero(
        rows.map(|row| (row.stack.frames[0].line, figure(row).0))
            .collect(),
    )
}

/// Number of the user's line of a row.
fn line_of(row: &LineRow) -> u32 {
    match &row.site {
        Site::Line(frame) => frame.line,
        other => panic!("all stacks end in a line, not in {other:?}"),
    }
}

/// The true peaks.
#[derive(Default)]
struct Peaks {
    by_stack: ByNumber,
    by_line: ByNumber,
}

impl Peaks {
    fn grow(&mut self, live: &ByNumber) {
        let mut lines = ByNumber::new();
        for (stack, bytes) in live {
            *lines.entry(stack / 2).or_default() += bytes;
        }
        for (peaks, now) in [(&mut self.by_stack, live), (&mut self.by_line, &lines)] {
            for (number, bytes) in now {
                let peak = peaks.entry(*number).or_default();
                *peak = (*peak).max(*bytes);
            }
        }
    }
}

proptest! {
    #[test]
    fn without_losses_the_ledger_is_the_truth_wherever_attached(
        steps in steps(),
        attach in 0..100_usize,
        found in any::<bool>(),
    ) {
        let (mut reference, mut ledger) = (Reference::default(), ledger());
        let mut peaks = Peaks::default();
        for (index, step) in steps.iter().enumerate() {
            let attached = index >= attach;
            if found && index == attach {
                reference.send_live_blocks(&mut ledger);
            }
            let Some((event, freed)) = reference.take(step, attached) else { continue };
            if !attached {
                continue;
            }
            let change = ledger.apply(&Event::Memory(event));
            if let Some(block) = freed {
                prop_assert!(matches!(change, Change::Freed(_)));
                let known = Some((event.size, ledger.stack_ref(StackId(block.stack))));
                let expected = if block.seen { known } else { None };
                prop_assert_eq!(known_block(&ledger, &change), expected);
            } else if event.action == Action::Alloc {
                let Change::Allocated { replaced, is_tracked, .. } = change else {
                    panic!("not an allocation: {change:?}");
                };
                prop_assert!(replaced.is_empty() && is_tracked);
            }
            check_sums(&ledger);
            let snapshot = ledger.snapshot(TimeNs(reference.time), Grouping::User);
            let device = &snapshot.devices[0];
            prop_assert_eq!(device.unaccounted, 0);
            prop_assert_eq!(device.before_attach.live.0, reference.live_where(|block| !block.seen));
            if found {
                let unseen = reference.live.values().filter(|block| !block.seen).count();
                prop_assert_eq!(device.before_attach.live_blocks(), Some(unseen as u64));
            }
            let live = reference.live_by_stack();
            peaks.grow(&live);
            prop_assert_eq!(rows_by_stack(device, |row| row.live), nonzero(live));
            prop_assert_eq!(rows_by_stack(device, |row| row.peak), nonzero(peaks.by_stack.clone()));
            let lines = device.lines.iter().map(|row| (line_of(row), row.peak.0)).collect();
            prop_assert_eq!(nonzero(lines), nonzero(peaks.by_line.clone()));
            prop_assert_eq!(snapshot.health.disagreements, 0);
        }
    }

    #[test]
    fn after_losses_sums_stay_right_and_no_live_block_is_forgotten(
        steps in steps(),
        deliveries in deliveries(),
        attach in 0..50_usize,
        report_late in any::<bool>(),
    ) {
        let (mut reference, mut ledger) = (Reference::default(), ledger());
        let mut lost = 0;
        for (index, (step, delivery)) in steps.iter().zip(deliveries).enumerate() {
            let arrives = index >= attach && delivery == Delivery::Arrives;
            let Some((event, freed)) = reference.take(step, arrives) else { continue };
            if !arrives {
                lost += u64::from(index >= attach);
                if !report_late {
                    ledger.apply(&Event::Loss(Losses { events: lost, ..Losses::default() }));
                }
                continue;
            }
            let change = ledger.apply(&Event::Memory(event));
            if let Some(block) = freed {
                // A missed free and alloc of an equal block leave no trace. An unseen block may
                // then pass for a seen one, but never the reverse.
                let known = Some((event.size, ledger.stack_ref(StackId(block.stack))));
                prop_assert!(!block.seen || known_block(&ledger, &change) == known);
            }
            check_sums(&ledger);
            let device = ledger.snapshot(TimeNs(0), Grouping::User).devices.remove(0);
            prop_assert_eq!(device.totals.allocated.0, reference.allocated());
            let seen = reference.live_where(|block| block.seen);
            prop_assert!(live_of_lines(&device) >= i128::from(seen));
        }
        if lost > 0 {
            ledger.apply(&Event::Loss(Losses { events: lost, ..Losses::default() }));
        }
        prop_assert_eq!(ledger.snapshot(TimeNs(0), Grouping::User).health.disagreements, 0);
    }

    #[test]
    fn arbitrary_events_neither_panic_nor_break_the_sums(
        events in prop::collection::vec(garbage(), 0..100),
        blocks in 0..4_usize,
        holders in 0..4_usize,
    ) {
        let caps = Caps { blocks, holders, stacks: 3, frames: 8, threads: 2 };
        let mut ledger = Ledger::with_caps(Target::default(), TimeNs(1 << 40), caps);
        for (index, event) in events.iter().enumerate() {
            ledger.apply(event);
            ledger.tick(TimeNs(index as u64 * 1_000_000));
            check_sums(&ledger);
            ledger.snapshot(TimeNs(u64::MAX), Grouping::User);
        }
    }
}

/// Numbers at and near limits.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => (0..16_u64).prop_map(|pages| pages * PAGE),
        1 => prop::sample::select(vec![1, u64::MAX, u64::MAX - 1, 1 << 63, 1 << 60, (1 << 60) - 1]),
        1 => any::<u64>(),
    ]
}

fn garbage() -> impl Strategy<Value = Event> {
    let action = prop::sample::select(vec![
        Action::Alloc,
        Action::Free,
        Action::SegmentAlloc,
        Action::SegmentFree,
        Action::OutOfMemory,
        Action::CudaOutOfMemory,
        Action::Held,
    ]);
    let totals = prop::option::weighted(0.9, (number(), number()));
    let device = prop::option::weighted(0.9, prop_oneof![Just(0), any::<u8>()]);
    let memory = (
        action,
        number(),
        number(),
        number(),
        totals,
        device,
        0..6_u32,
        0..4_u32,
    )
        .prop_map(|(action, time, addr, size, totals, device, stack, tid)| {
            let totals = totals.map(|(allocated, reserved)| Totals {
                allocated: Bytes(allocated),
                reserved: Bytes(reserved),
            });
            Event::Memory(MemoryEvent {
                time: TimeNs(time),
                tgid: Tgid(1),
                tid: Tid(tid),
                action,
                addr: Address(addr),
                size: Bytes(size),
                device: device.map(DeviceIndex),
                totals,
                stack: StackId(stack),
                shape: PurposeId::NONE,
                call: None,
            })
        });
    let found = (number(), 0..2_u8, number(), number(), number(), number()).prop_map(
        |(time, device, allocated, reserved, peak, other)| {
            let totals = |allocated, reserved| Totals {
                allocated: Bytes(allocated),
                reserved: Bytes(reserved),
            };
            Event::AtAttach(AtAttach {
                time: TimeNs(time),
                tgid: Tgid(1),
                device: Some(DeviceIndex(device)),
                totals: totals(allocated, reserved),
                peak: totals(peak, other),
                unread: None,
            })
        },
    );
    let losses =
        (number(), number(), number(), number()).prop_map(|(events, stacks, malformed, uses)| {
            Event::Loss(Losses {
                events,
                stacks,
                malformed,
                uses,
            })
        });
    prop_oneof![
        20 => memory,
        2 => (0..6_u32, 0..6_u32).prop_map(|(id, other)| Event::Stack(StackId(id), stack(other))),
        1 => (0..4_u32, "[a-z]{0,3}").prop_map(|(tid, name)| Event::Thread(Tid(tid), name.into())),
        1 => losses,
        1 => found,
    ]
}

//! Properties of random allocators: exact reading, corrupt memory, and processes that keep running.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::fake::{self, Counting, FakeBlock};
use super::layout::{BlockLayout, CounterLayout, LAYOUTS, Layout, STAT_ARRAY, TableLayout};
use super::reconcile::Reconciler;
use super::tables::{self, AllocatorTables, DeviceCounters, HeldBlock};
use crate::event::{
    Action, Address, Bytes, DeviceIndex, Event, MemoryEvent, PurposeId, StackId, Tgid, Tid, TimeNs,
    Totals,
};

const DEVICES: u8 = 3;

/// Strategy: blocks that do not overlap, on a few devices.
fn live() -> impl Strategy<Value = Vec<FakeBlock>> {
    let block = (
        1..5000_u64,
        0..20_u64,
        0..DEVICES,
        prop_oneof![Just(0), any::<u64>()],
    );
    prop::collection::vec(block, 0..200).prop_map(|blocks| {
        let mut addr = 0x7f00_0000_0000;
        let blocks = blocks.into_iter().map(|(requested, gap, device, stream)| {
            let block = FakeBlock {
                addr,
                requested,
                device,
                stream,
            };
            addr += block.size() + gap * 512;
            block
        });
        blocks.collect()
    })
}

/// Strategy: a layout that no version has.
fn foreign() -> impl Strategy<Value = Layout> {
    (1..500_u64, 1..80_u64, 1..500_u64, 1..12_usize, 48..80_u64).prop_map(
        |(tables, shards, devices, size, allocated)| {
            let tables = TableLayout {
                offset: tables * 8,
                shards,
            };
            Layout {
                versions: [(0, 0); 2],
                tables,
                block: BlockLayout { size: 8 + size * 8 },
                counters: CounterLayout {
                    devices: tables.offset + shards * 32 + devices * 8,
                    allocated: allocated * 8,
                    reserved: allocated * 8 + STAT_ARRAY,
                },
            }
        },
    )
}

fn expected(live: &[FakeBlock]) -> Vec<HeldBlock> {
    let blocks = live.iter().map(|block| HeldBlock {
        addr: Address(block.addr),
        size: Bytes(block.size()),
        requested: Bytes(block.requested),
        device: DeviceIndex(block.device),
        stream: block.stream,
    });
    blocks.collect()
}

proptest! {
    #[test]
    fn the_blocks_of_every_known_layout_are_read_exactly(
        live in live(),
        layout in prop::sample::select(LAYOUTS.to_vec()),
    ) {
        let (memory, variable) = fake::process(&layout, DEVICES, &live);
        let version = format!("{}.{}.1", layout.versions[1].0, layout.versions[1].1);
        let tables = tables::read(&memory, variable, Some(&version)).unwrap();
        prop_assert_eq!(&tables.blocks, &expected(&live));
        prop_assert!(tables.gone.is_empty());
        for counters in &tables.devices {
            prop_assert!(counters.steady);
            prop_assert_eq!(counters.totals.allocated.0, tables.bytes_on(counters.device));
        }
        prop_assert_eq!(tables.devices.len(), usize::from(DEVICES));
    }

    #[test]
    fn an_unknown_layout_is_calibrated_or_refused_but_never_guessed(
        live in live(),
        layout in foreign(),
    ) {
        let (memory, variable) = fake::process(&layout, DEVICES, &live);
        match tables::read(&memory, variable, Some("3.1.0")) {
            Ok(tables) => {
                prop_assert_eq!(&tables.blocks, &expected(&live));
                for counters in &tables.devices {
                    prop_assert_eq!(counters.totals.allocated.0, tables.bytes_on(counters.device));
                }
            }
            Err(_) => prop_assert!(live.len() < 8, "{} blocks", live.len()),
        }
    }

    #[test]
    fn memory_that_lies_is_read_in_bounds(
        live in live(),
        lies in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>()), 1..20),
    ) {
        let (mut memory, variable) = fake::process(&LAYOUTS[0], DEVICES, &live);
        let words: Vec<u64> = fake::words_of_interest(&LAYOUTS[0], live.len()).collect();
        for (at, lie) in lies {
            memory.write(words[at.index(words.len())], &lie.to_le_bytes());
        }
        let counting = Counting::of(&memory);
        let read = tables::read(&counting, variable, Some("2.15.0"));
        prop_assert!(counting.reads.get() < 200_000, "{} reads", counting.reads.get());
        prop_assert!(counting.bytes.get() < 1 << 30, "{} bytes", counting.bytes.get());
        if let Ok(tables) = read {
            prop_assert!(tables.blocks.len() <= live.len());
        }
    }

    #[test]
    fn tables_read_while_the_process_runs_give_what_was_live_at_attach(
        steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>(), 1..8_u64), 0..120),
        attach in 0..60_usize,
        moments in prop::collection::vec(any::<prop::sample::Index>(), 64),
    ) {
        let mut program = Program::default();
        for step in steps.iter().take(attach) {
            program.take(step);
        }
        let truth = program.live.clone();
        let mut reconciler = Reconciler::new(Tgid(1), TimeNs(0));
        let mut states = vec![truth.clone()];
        for step in steps.iter().skip(attach) {
            if let Some(event) = program.take(step) {
                reconciler.push(Event::Memory(event));
            }
            states.push(program.live.clone());
        }
        // Each address is read at a moment of its own.
        let mut tables = AllocatorTables::default();
        for (place, moment) in (0..PLACES).zip(&moments) {
            let state = &states[moment.index(states.len())];
            if let Some(size) = state.get(&(place * 4096)) {
                tables.blocks.push(block(place * 4096, *size));
            }
        }
        let allocated = Bytes(truth.values().sum());
        let totals = Totals { allocated, reserved: Bytes(1 << 21) };
        tables.devices.push(DeviceCounters {
            device: DeviceIndex(0),
            totals,
            peak: totals,
            steady: states.len() == 1,
        });
        let silent = reconciler.latest() == TimeNs(0);
        let settled = reconciler.settle(&tables);
        if silent && states.len() > 1 {
            prop_assert!(settled.is_err());
            return Ok(());
        }
        prop_assert_eq!(settled, Ok(()));
        let held: BTreeMap<u64, u64> = std::iter::from_fn(|| reconciler.pop())
            .filter_map(|event| match event {
                Event::Memory(held) if held.action == Action::Held => Some((held.addr.0, held.size.0)),
                _ => None,
            })
            .collect();
        prop_assert_eq!(held, truth);
    }
}

const PLACES: u64 = 64;

fn block(addr: u64, size: u64) -> HeldBlock {
    HeldBlock {
        addr: Address(addr),
        size: Bytes(size),
        requested: Bytes(size),
        device: DeviceIndex(0),
        stream: 0,
    }
}

/// A program that allocates and frees at a few addresses.
#[derive(Default)]
struct Program {
    live: BTreeMap<u64, u64>,
    time: u64,
}

impl Program {
    fn take(&mut self, step: &(bool, prop::sample::Index, u64)) -> Option<MemoryEvent> {
        let (alloc, place, pages) = step;
        let addr = place.index(PLACES as usize) as u64 * 4096;
        let (action, size) = match (alloc, self.live.get(&addr)) {
            (true, None) => (Action::Alloc, pages * 512),
            (false, Some(size)) => (Action::Free, *size),
            _ => return None,
        };
        match action {
            Action::Alloc => drop(self.live.insert(addr, size)),
            _ => drop(self.live.remove(&addr)),
        }
        self.time += 1;
        Some(MemoryEvent {
            time: TimeNs(self.time),
            tgid: Tgid(1),
            tid: Tid(1),
            action,
            addr: Address(addr),
            size: Bytes(size),
            device: Some(DeviceIndex(0)),
            totals: Some(Totals {
                allocated: Bytes(self.live.values().sum()),
                reserved: Bytes(1 << 21),
            }),
            stack: StackId::NONE,
            shape: PurposeId::NONE,
            call: None,
        })
    }
}

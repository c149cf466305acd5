use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::estimate::CachingAllocator;
use crate::event::tensors::DType;
use crate::event::{
    Address, BlockPurpose, PurposeId, StackId, Target, TensorSpec, Tgid, Tid, TimeNs,
};
use crate::ledger::AnalyzedLedger;

const DEVICE: DeviceIndex = DeviceIndex(0);
const MIB: u64 = 1 << 20;

/// A step of a program: a request of so many bytes, or the free of a live block.
#[derive(Clone, Copy, Debug)]
enum Step {
    Alloc(u64),
    Free(usize),
    EmptyCache,
}

/// Runs a program on an allocator with these settings; returns its events and the allocator.
fn run(steps: &[Step], settings: &str) -> (Vec<Event>, CachingAllocator) {
    let settings = match settings {
        "" => AllocatorSettings::default(),
        text => AllocatorSettings::parse(text).expect("settings"),
    };
    let mut allocator = CachingAllocator::with_settings(settings, Ties::OldestSegment, None);
    let (mut events, mut live, mut time) = (Vec::new(), Vec::new(), 0);
    for step in steps {
        time += 1;
        let (action, block, purpose) = match *step {
            Step::Alloc(size) => {
                let purpose = PurposeId(PurposeId::FIRST.0 + time as u32);
                events.push(Event::BlockPurpose(purpose, Arc::new(tensor(size))));
                let block = allocator.malloc(Bytes(size)).expect("room");
                live.push(block);
                (Action::Alloc, block, purpose)
            }
            Step::Free(at) if !live.is_empty() => {
                let block = live.swap_remove(at % live.len());
                (Action::Free, block, PurposeId::NONE)
            }
            Step::EmptyCache => {
                let before = allocator.totals.reserved.0;
                allocator.empty_cache();
                let released = before - allocator.totals.reserved.0;
                if released > 0 {
                    let free = memory(time, Action::SegmentFree, Address(0), Bytes(released));
                    events.push(Event::Memory(free));
                }
                continue;
            }
            Step::Free(_) => continue,
        };
        let (addr, size) = (allocator.addr(block), allocator.size(block));
        if action == Action::Free {
            allocator.free(block);
        }
        let event = memory(time, action, addr, size);
        events.push(Event::Memory(MemoryEvent {
            totals: Some(allocator.totals),
            shape: purpose,
            ..event
        }));
    }
    (events, allocator)
}

fn tensor(size: u64) -> BlockPurpose {
    BlockPurpose::Tensor(TensorSpec {
        sizes: vec![size],
        more: 0,
        dtype: DType::FLOAT32,
        requested: Some(Bytes(size)),
    })
}

fn memory(time: u64, action: Action, addr: Address, size: Bytes) -> MemoryEvent {
    MemoryEvent {
        time: TimeNs(time),
        tgid: Tgid(1),
        tid: Tid(1),
        action,
        addr,
        size,
        device: Some(DEVICE),
        totals: None,
        stack: StackId::NONE,
        shape: PurposeId::NONE,
        call: None,
    }
}

fn what_if(events: &[Event], settings: &str) -> WhatIfDevice {
    let settings = AllocatorSettings::parse(settings).expect("settings");
    fn replay<A: Analysis>(events: &[Event], analysis: A) -> A {
        let mut ledger = AnalyzedLedger::new(Target::default(), TimeNs(0), analysis);
        events.iter().for_each(|event| ledger.apply(event));
        ledger.analyses
    }
    let facts = replay(events, WhatIfFacts::default());
    let results = replay(events, WhatIf::new(facts, settings)).results(0);
    results.into_iter().next().expect("a device")
}

const GROWING: [Step; 8] = [
    Step::Alloc(30 * MIB),
    Step::Free(0),
    Step::Alloc(40 * MIB),
    Step::Free(0),
    Step::Alloc(50 * MIB),
    Step::Free(0),
    Step::Alloc(60 * MIB),
    Step::Free(0),
];

#[test]
fn a_growing_batch_needs_less_with_expandable_segments() {
    let (events, _) = run(&GROWING, "");
    let found = what_if(&events, "expandable_segments:True");
    assert!(found.is_reproduced() && found.differing_events == 0);
    // No reading of the segments names their stream.
    let caveats = WhatIfCaveats {
        unknown_places: 4,
        ..WhatIfCaveats::default()
    };
    assert_eq!((found.caveats, found.is_exact()), (caveats, false));
    assert_eq!(found.recorded.reserved, Bytes(180 * MIB));
    assert_eq!(found.simulated.reserved, Bytes(60 * MIB));
    assert_eq!(found.requests, 4);
}

#[test]
fn a_failed_request_fits_fails_too_or_is_unknown() {
    let failing = |size: u64| {
        let (mut events, allocator) = run(&GROWING, "");
        let time = events.len() as u64;
        events.push(Event::Memory(MemoryEvent {
            totals: Some(allocator.totals),
            ..memory(time, Action::OutOfMemory, Address(0), Bytes(size))
        }));
        let found = what_if(&events, "expandable_segments:True");
        found.failed.expect("a failed request").outcome
    };
    assert_eq!(failing(70 * MIB), FailedOutcome::Fits);
    assert_eq!(failing(190 * MIB), FailedOutcome::Unknown);
    let (mut events, allocator) = run(&[Step::Alloc(100 * MIB)], "");
    events.push(Event::Memory(MemoryEvent {
        totals: Some(allocator.totals),
        ..memory(9, Action::OutOfMemory, Address(0), Bytes(50 * MIB))
    }));
    let found = what_if(&events, "max_split_size_mb:32");
    let outcome = found.failed.expect("a failed request").outcome;
    assert_eq!(outcome, FailedOutcome::FailsToo);
}

#[test]
fn another_allocator_than_the_simulated_one_is_not_called_exact() {
    let (mut events, _) = run(&GROWING, "");
    for event in &mut events {
        if let Event::Memory(MemoryEvent {
            totals: Some(totals),
            ..
        }) = event
        {
            totals.reserved.0 += 2 * MIB;
        }
    }
    let found = what_if(&events, "expandable_segments:True");
    assert!(!found.is_reproduced() && !found.is_exact());
    assert_eq!(found.differing_events, 8);
}

#[test]
fn blocks_of_unknown_size_are_counted() {
    let (mut events, _) = run(&[Step::Alloc(12 * MIB), Step::Alloc(3 * MIB)], "");
    events.retain(|event| matches!(event, Event::Memory(_)));
    let found = what_if(&events, "expandable_segments:True");
    // The first has a segment of its own, the second was cut from one.
    assert_eq!(found.caveats.unknown_sizes, 1);
    assert!(found.is_reproduced() && !found.is_exact());
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1..2 * MIB).prop_map(Step::Alloc),
        6 => (MIB..90 * MIB).prop_map(Step::Alloc),
        8 => any::<usize>().prop_map(Step::Free),
        1 => Just(Step::EmptyCache),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    #[test]
    fn a_replay_has_the_peaks_of_a_run_with_the_settings(steps in steps(), at in 0_usize..4) {
        let settings = [
            "expandable_segments:True",
            "max_split_size_mb:32",
            "roundup_power2_divisions:4",
            "expandable_segments:True,roundup_power2_divisions:[1:2,8:8,>:1]",
        ][at];
        let (events, own) = run(&steps, "");
        let has_events = events.iter().any(|event| matches!(event, Event::Memory(_)));
        prop_assume!(has_events);
        let found = what_if(&events, settings);
        prop_assert_eq!(found.reproduced.reserved, own.peak.reserved);
        prop_assert_eq!(found.differing_events, 0);
        // A release that returned nothing in the recorded run leaves no trace in it.
        if !steps.iter().any(|step| matches!(step, Step::EmptyCache)) {
            let (_, other) = run(&steps, settings);
            prop_assert_eq!(found.simulated.reserved, other.peak.reserved);
            prop_assert_eq!(found.simulated.allocated, other.peak.allocated);
        }
    }
}

use super::*;
use memprobe_common::StackHead;

use crate::event::{DriverReading, StackKind};
use crate::process::memory::fake::FakeMemory;

/// A symbolizer of no process.
fn symbolizer() -> Symbolizer<FakeMemory> {
    Symbolizer::new(
        Tgid(u32::MAX),
        FakeMemory::default(),
        None,
        PriorCudaUse::Unknown,
    )
}

/// Returns the reason for a missing stack while the kernel programs have no Python layout.
fn missing_stack_reason(symbolizer: &mut Symbolizer<FakeMemory>) -> Option<NoStack> {
    let record = MemoryRecord {
        tgid: symbolizer.tgid.0,
        size: 512,
        stack_state: stack_state::UNKNOWN_PYTHON,
        ..MemoryRecord::default()
    };
    symbolizer.push(Record::Memory(MemoryKind::Block, record, PurposeHint::None));
    symbolizer.settle_all();
    std::iter::from_fn(|| symbolizer.pop()).find_map(|event| match event {
        Event::Stack(_, stack) => match stack.kind {
            StackKind::Unknown { reason, .. } => Some(reason),
            _ => None,
        },
        _ => None,
    })
}

#[test]
fn a_program_that_runs_no_python_has_none_whose_version_is_unknown() {
    let mut symbolizer = symbolizer();
    assert_eq!(
        missing_stack_reason(&mut symbolizer),
        Some(NoStack::UnknownPython)
    );
    symbolizer.runs_no_python();
    assert_eq!(
        missing_stack_reason(&mut symbolizer),
        Some(NoStack::NoPython)
    );
}

/// A record of a block with the stack of hash 77.
fn block(time_ns: u64) -> Record<'static> {
    let record = MemoryRecord {
        tgid: u32::MAX,
        size: 512,
        addr: time_ns << 20,
        time_ns,
        stack: 77,
        stack_state: stack_state::PYTHON,
        ..MemoryRecord::default()
    };
    Record::Memory(MemoryKind::Block, record, PurposeHint::None)
}

fn stack_of_blocks() -> Record<'static> {
    let head = StackHead {
        tgid: u32::MAX,
        hash: 77,
        ..StackHead::default()
    };
    Record::Stack(head, Vec::new())
}

fn driver_reading(time: u64) -> TimedReading {
    TimedReading::Driver(Arc::new(DriverReading {
        time: TimeNs(time),
        asked: TimeNs(time),
        tgid: Tgid(u32::MAX),
        devices: Vec::new(),
        unread: None,
    }))
}

/// Takes the events; returns the times of blocks and readings.
fn times(symbolizer: &mut Symbolizer<FakeMemory>) -> Vec<u64> {
    let events = std::iter::from_fn(|| symbolizer.pop());
    let times = events.filter_map(|event| match event {
        Event::Memory(memory) => Some(memory.time.0),
        Event::Driver(reading) => Some(reading.time.0),
        _ => None,
    });
    times.collect()
}

#[test]
fn records_become_events_at_once_unless_a_stack_is_among_them() {
    let mut symbolizer = symbolizer();
    let stacks = |symbolizer: &mut Symbolizer<FakeMemory>| -> Vec<StackId> {
        let events = std::iter::from_fn(|| symbolizer.pop());
        let stacks = events.filter_map(|event| match event {
            Event::Memory(memory) => Some(memory.stack),
            _ => None,
        });
        stacks.collect()
    };
    symbolizer.push(stack_of_blocks());
    symbolizer.push(block(1));
    assert!(!symbolizer.settle_known(), "its code may have been freed");
    assert_eq!(stacks(&mut symbolizer), []);
    symbolizer.settle();
    symbolizer.settle();
    let known = stacks(&mut symbolizer);
    symbolizer.push(block(2));
    assert!(symbolizer.settle_known());
    assert_eq!(stacks(&mut symbolizer), known);
    assert!(!symbolizer.settle_known(), "there is no other record");
}

#[test]
fn a_block_before_which_nothing_waits_passes_the_queue() {
    let mut symbolizer = symbolizer();
    symbolizer.push_known(block(1));
    assert!(!symbolizer.is_unsettled());
    assert!(symbolizer.settle_known());
    assert_eq!(times(&mut symbolizer), [1]);
    assert!(!symbolizer.settle_known(), "there is no other record");
    symbolizer.push_known(block(2));
    symbolizer.push_known(stack_of_blocks());
    symbolizer.push_known(block(3));
    assert!(symbolizer.settle_known());
    assert_eq!(times(&mut symbolizer), [2], "a stack waits before the last");
    symbolizer.settle_all();
    assert_eq!(times(&mut symbolizer), [3]);
    symbolizer.push_reading(driver_reading(4));
    symbolizer.push_known(block(5));
    assert!(symbolizer.settle_known());
    assert_eq!(times(&mut symbolizer), [4, 5]);
}

#[test]
fn a_reading_stands_between_the_records_from_before_and_after_it() {
    let mut symbolizer = symbolizer();
    for time in [20, 5, 40] {
        symbolizer.push_reading(driver_reading(time));
    }
    for time in [10, 30] {
        symbolizer.push(block(time));
    }
    symbolizer.settle();
    assert_eq!(times(&mut symbolizer), [5, 10, 20, 30]);
    assert!(symbolizer.has_readings(), "a record may still come");
    symbolizer.settle_readings();
    assert_eq!(times(&mut symbolizer), [40]);
    assert!(!symbolizer.has_readings());
}

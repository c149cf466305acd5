//! Tests of CUDA memory, with and without a caching allocator.

use std::sync::Arc;

use crate::event::Target;
use crate::event::{
    Action, Address, Bytes, Context, CudaCall, CudaMemoryKind, DeviceIndex, Event, Frame,
    MemoryEvent, PurposeId, Stack, StackId, StackKind, Tgid, Tid, TimeNs, Totals,
};
use crate::ledger::snapshot::{Grouping, Snapshot, SoftwareLayer};
use crate::ledger::{Change, Ledger};

fn native(library: &str, function: &str) -> Frame {
    Frame {
        file: "".into(),
        line: 0,
        function: function.into(),
        library: Some(library.into()),
    }
}

/// Stack 1 is a line of Python that calls through `libnccl.so`; stack 2 is a native program.
fn ledger() -> Ledger {
    let mut ledger = Ledger::new(Target::default(), TimeNs(0));
    let train = Frame {
        file: "/home/me/train.py".into(),
        line: 7,
        function: "main".into(),
        library: None,
    };
    let stacks = [
        (
            StackKind::Python,
            vec![native("/v/libnccl.so.2", "ncclInit"), train],
        ),
        (StackKind::Native, vec![native("/home/me/a.out", "main")]),
    ];
    for (id, (kind, frames)) in (1..).zip(stacks) {
        let stack = Stack {
            kind,
            frames,
            truncated: false,
            context: Context::default(),
        };
        ledger.apply(&Event::Stack(StackId(id), Arc::new(stack)));
    }
    ledger
}

fn event(action: Action, space: CudaMemoryKind, addr: u64, size: u64, stack: u32) -> Event {
    Event::Memory(MemoryEvent {
        time: TimeNs(addr),
        tgid: Tgid(1),
        tid: Tid(1),
        action,
        addr: Address(addr),
        size: Bytes(size),
        device: Some(DeviceIndex(1)),
        totals: None,
        stack: StackId(stack),
        shape: PurposeId::NONE,
        call: Some(CudaCall {
            function: "cudaMalloc",
            space,
        }),
    })
}

fn block(addr: u64, size: u64) -> Event {
    Event::Memory(MemoryEvent {
        time: TimeNs(addr),
        tgid: Tgid(1),
        tid: Tid(1),
        action: Action::Alloc,
        addr: Address(addr),
        size: Bytes(size),
        device: Some(DeviceIndex(0)),
        totals: Some(Totals {
            allocated: Bytes(size),
            reserved: Bytes(4096),
        }),
        stack: StackId(1),
        shape: PurposeId::NONE,
        call: None,
    })
}

fn seen(ledger: &Ledger) -> Snapshot {
    ledger.snapshot(TimeNs(1 << 20), Grouping::User)
}

#[test]
fn where_no_caching_allocator_speaks_the_calls_are_the_allocations() {
    let mut ledger = ledger();
    ledger.apply(&event(
        Action::CudaAlloc,
        CudaMemoryKind::Device,
        0x1000,
        100,
        1,
    ));
    ledger.apply(&event(
        Action::CudaAlloc,
        CudaMemoryKind::Virtual,
        0x1000,
        20,
        2,
    ));
    ledger.apply(&event(
        Action::CudaAlloc,
        CudaMemoryKind::Pinned,
        0x5000,
        7,
        1,
    ));
    ledger.apply(&event(
        Action::CudaFree,
        CudaMemoryKind::Device,
        0x1000,
        100,
        0,
    ));
    ledger.apply(&event(
        Action::CudaAlloc,
        CudaMemoryKind::Device,
        0x2000,
        30,
        1,
    ));
    let snapshot = seen(&ledger);
    assert_eq!(snapshot.cuda.layer, SoftwareLayer::Runtime);
    let [device] = snapshot.devices.as_slice() else {
        panic!("one device: {:?}", snapshot.devices)
    };
    assert_eq!(device.index, DeviceIndex(1));
    assert_eq!(
        (device.totals.allocated, device.peak.allocated),
        (Bytes(50), Bytes(120))
    );
    assert_eq!((device.live_blocks, device.unaccounted), (2, 0));
    let sum: u64 = device.lines.iter().map(|line| line.live.0).sum();
    assert_eq!(sum, 50);
    let [pinned] = snapshot.cuda.rows.as_slice() else {
        panic!("what is on the host is apart: {:?}", snapshot.cuda.rows)
    };
    assert_eq!(
        (pinned.space, pinned.live, pinned.device),
        (CudaMemoryKind::Pinned, Bytes(7), None)
    );
}

#[test]
fn with_a_caching_allocator_other_memory_is_listed_by_library_and_kind() {
    let mut ledger = ledger();
    ledger.apply(&event(
        Action::CudaAlloc,
        CudaMemoryKind::Device,
        0x1000,
        100,
        1,
    ));
    ledger.apply(&event(
        Action::CudaAlloc,
        CudaMemoryKind::Device,
        0x2000,
        300,
        2,
    ));
    ledger.apply(&block(0x9000, 512));
    ledger.apply(&event(
        Action::CudaFree,
        CudaMemoryKind::Device,
        0x2000,
        300,
        0,
    ));
    let snapshot = seen(&ledger);
    assert_eq!(snapshot.cuda.layer, SoftwareLayer::Allocator);
    assert_eq!(snapshot.devices.len(), 1, "that of the allocator alone");
    assert_eq!(snapshot.devices[0].totals.allocated, Bytes(512));
    let rows: Vec<_> = snapshot
        .cuda
        .rows
        .iter()
        .map(|row| (&*row.library, row.live.0, row.peak.0, row.allocs))
        .collect();
    assert_eq!(
        rows,
        [
            ("/v/libnccl.so.2", 100, 100, 1),
            ("/home/me/a.out", 0, 300, 1)
        ]
    );
    assert_eq!(snapshot.cuda.live(), Bytes(100));
    let line = snapshot.cuda.rows[0].lines[0].site.frame().expect("a line");
    assert_eq!((&*line.file, line.line), ("/home/me/train.py", 7));
}

#[test]
fn the_same_address_again_ends_what_was_there() {
    let mut ledger = ledger();
    ledger.apply(&event(
        Action::CudaAlloc,
        CudaMemoryKind::Device,
        0x1000,
        100,
        1,
    ));
    ledger.apply(&event(
        Action::CudaAlloc,
        CudaMemoryKind::Device,
        0x1000,
        40,
        2,
    ));
    ledger.apply(&event(
        Action::CudaFree,
        CudaMemoryKind::Device,
        0x7000,
        0,
        0,
    ));
    let snapshot = seen(&ledger);
    assert_eq!(snapshot.devices[0].totals.allocated, Bytes(40));
    assert_eq!(snapshot.devices[0].live_blocks, 1);
}

#[test]
fn sizes_beyond_all_measure_are_malformed() {
    let mut ledger = ledger();
    let huge = event(
        Action::CudaAlloc,
        CudaMemoryKind::Array,
        0x1000,
        u64::MAX,
        1,
    );
    assert_eq!(ledger.apply(&huge), Change::Malformed);
    assert_eq!(seen(&ledger).devices, []);
    assert_eq!(ledger.losses().malformed, 1);
}

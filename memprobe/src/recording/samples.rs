//! Events for the tests of recordings and reports.

use std::io;
use std::sync::Arc;

use super::{EndReason, Header};
use crate::event::tensors::{DType, Retainer, TensorKind};
use crate::event::{
    Action, Address, AtAttach, BlockLabels, BlockPurpose, Bytes, Context, DeviceIndex, Event,
    Frame, LabeledBlock, Losses, MemoryEvent, NoStack, Purpose, PurposeId, Stack, StackId,
    StackKind, TensorSpec, Tgid, Tid, TimeNs, Totals,
};
use crate::event::{ProbeStatus, Target};
use crate::ledger::snapshot::Grouping;
use crate::recording::compact::GroupPolicy;
use crate::recording::write::compact::{CompactOptions, CompactWriter, ReplaceBeginning};
use crate::recording::write::trace_event::TraceWriter;

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn header() -> Header {
    Header {
        version: "0.1.0".into(),
        start: TimeNs(5_000_000_000),
        wall_start_ms: Some(1_790_000_000_000),
        boot_id: Some("3c1f0e52-0d6a-4f6f-9a55-5f0d5f7e7a10".into()),
        target: Target {
            tgid: Some(Tgid(1234)),
            command: "python train.py --lr \"0.1\"".into(),
            python: Some("3.12.1".into()),
            torch: Some("2.15.0+cu132".into()),
            ..Target::default()
        },
        probes: vec![ProbeStatus {
            function: "c10::reportMemoryUsageToProfiler".into(),
            library: "/venv/lib/libc10.so".into(),
            offset: 7,
            emulated: true,
        }],
        from_live_screen: false,
        dump: None,
        history: None,
        dropped: None,
    }
}

pub(crate) fn frame(file: &str, line: u32, function: &str) -> Frame {
    Frame {
        file: file.into(),
        line,
        function: function.into(),
        library: None,
    }
}

pub(crate) fn stack(id: u32, kind: StackKind, frames: Vec<Frame>) -> Event {
    Event::Stack(
        StackId(id),
        Arc::new(Stack {
            kind,
            frames,
            truncated: false,
            context: Context::default(),
        }),
    )
}

/// Returns an event on `cuda:0` by the main thread, `micros` after the start.
pub(crate) fn memory(action: Action, micros: u64, addr: u64, size: u64) -> MemoryEvent {
    MemoryEvent {
        time: TimeNs(5_000_000_000 + micros * 1000),
        tgid: Tgid(1234),
        tid: Tid(1234),
        action,
        addr: Address(addr),
        size: Bytes(size),
        device: Some(DeviceIndex(0)),
        totals: None,
        stack: StackId::NONE,
        shape: PurposeId::NONE,
        call: None,
    }
}

/// Returns the allocator's totals after an event, in bytes.
pub(crate) fn totals(allocated: u64, reserved: u64) -> Option<Totals> {
    Some(Totals {
        allocated: Bytes(allocated),
        reserved: Bytes(reserved),
    })
}

/// Events of most kinds: Python and backward stacks, two devices, blocks from before attach, a loss, an
/// out-of-memory error.
pub(crate) fn story() -> Vec<Event> {
    let kind = |thread: &str| StackKind::Waiting {
        thread: thread.into(),
    };
    let unknown = StackKind::Unknown {
        thread: "cuda-EvtHandlr".into(),
        reason: NoStack::NoPythonThread,
    };
    let train = frame("/home/me/train.py", 31, "<module>");
    let model = frame("/home/me/model.py", 88, "forward");
    let linear = frame(
        "/v/lib/python3.12/site-packages/torch/nn/linear.py",
        134,
        "forward",
    );
    let on = |device, event: MemoryEvent| MemoryEvent {
        device: Some(DeviceIndex(device)),
        ..event
    };
    let with = |id, allocated, reserved, event: MemoryEvent| {
        Event::Memory(MemoryEvent {
            stack: StackId(id),
            totals: totals(allocated, reserved),
            ..event
        })
    };
    let segment = memory(Action::SegmentAlloc, 8, 0x7f00_0000_0000, 20 * MIB);
    vec![
        Event::Thread(Tid(1234), "python".into()),
        stack(
            1,
            StackKind::Python,
            vec![linear, model.clone(), train.clone()],
        ),
        Event::Memory(MemoryEvent {
            stack: StackId(1),
            ..segment
        }),
        with(
            1,
            12 * MIB,
            22 * MIB,
            memory(Action::Alloc, 10, 0x7f00_0000_0000, 2 * MIB),
        ),
        with(
            1,
            14 * MIB,
            22 * MIB,
            memory(Action::Alloc, 12, 0x7f00_0020_0000, 2 * MIB),
        ),
        with(
            0,
            11 * MIB,
            22 * MIB,
            memory(Action::Free, 20, 0x7eff_0000_0000, 3 * MIB),
        ),
        Event::Thread(Tid(1300), "pt_autograd_0".into()),
        stack(2, kind("pt_autograd_0"), vec![model, train.clone()]),
        with(
            2,
            15 * MIB,
            22 * MIB,
            MemoryEvent {
                tid: Tid(1300),
                ..memory(Action::Alloc, 31, 0x7f00_0040_0000, 4 * MIB)
            },
        ),
        with(
            0,
            13 * MIB,
            22 * MIB,
            memory(Action::Free, 40, 0x7f00_0000_0000, 2 * MIB),
        ),
        Event::Loss(Losses {
            events: 3,
            stacks: 1,
            malformed: 0,
            uses: 0,
        }),
        stack(3, unknown, vec![]),
        with(
            3,
            MIB,
            2 * MIB,
            on(1, memory(Action::Alloc, 45, 0x7e00_0000_0000, MIB)),
        ),
        with(
            1,
            13 * MIB,
            22 * MIB,
            memory(Action::OutOfMemory, 50, 0, 1 << 40),
        ),
        Event::Memory(MemoryEvent {
            device: None,
            ..memory(Action::SegmentFree, 60, 0x7d00_0000_0000, 0)
        }),
        Event::Memory(memory(Action::SegmentFree, 61, 0x7f00_0000_0000, 20 * MIB)),
    ]
}

/// Blocks for two tensors (one with omitted dimensions), for none, and with an unknown purpose.
pub(crate) fn tensors() -> Vec<Event> {
    let define =
        |id, shape| Event::BlockPurpose(PurposeId(id), Arc::new(BlockPurpose::Tensor(shape)));
    let block = |at: u64, size, allocated, shape| {
        Event::Memory(MemoryEvent {
            stack: StackId(1),
            shape,
            totals: totals(allocated, 22 * MIB),
            ..memory(Action::Alloc, at, 0x7f00_0000_0000 + at * MIB, size)
        })
    };
    let train = frame("/home/me/train.py", 31, "<module>");
    let flat = TensorSpec {
        sizes: vec![32, 1024],
        more: 0,
        dtype: DType::FLOAT32,
        requested: Some(Bytes(131_072)),
    };
    let deep = TensorSpec {
        sizes: vec![2; 8],
        more: 3,
        dtype: DType(99),
        requested: None,
    };
    vec![
        Event::Thread(Tid(1234), "python".into()),
        stack(1, StackKind::Python, vec![train]),
        define(2, flat),
        block(1, 131_072, 131_072, PurposeId(2)),
        block(2, 131_072, 262_144, PurposeId(2)),
        define(3, deep),
        block(3, 8192, 270_336, PurposeId(3)),
        block(16, 8 * MIB, 270_336 + 8 * MIB, PurposeId::NO_TENSOR),
        block(5, 512, 270_848 + 8 * MIB, PurposeId::NONE),
        Event::Memory(MemoryEvent {
            totals: totals(139_776 + 8 * MIB, 22 * MIB),
            ..memory(Action::Free, 6, 0x7f00_0000_0000 + MIB, 131_072)
        }),
    ]
}

/// Blocks without a tensor: two with the same purpose, one with only the requesting function known, one with
/// nothing known.
pub(crate) fn purposes() -> Vec<Event> {
    let define = |id, what: Option<&str>, function: &str| {
        let purpose = Purpose {
            what: what.map(Into::into),
            function: function.into(),
            library: "libtorch_cuda.so".into(),
        };
        Event::BlockPurpose(PurposeId(id), Arc::new(BlockPurpose::Other(purpose)))
    };
    let block = |at: u64, allocated, shape| {
        Event::Memory(MemoryEvent {
            stack: StackId(1),
            shape,
            totals: totals(allocated, 22 * MIB),
            ..memory(Action::Alloc, at, 0x7f00_0000_0000 + at * MIB, MIB)
        })
    };
    let train = frame("/home/me/train.py", 31, "<module>");
    vec![
        Event::Thread(Tid(1234), "python".into()),
        stack(1, StackKind::Python, vec![train]),
        define(
            2,
            Some("cuBLAS workspace"),
            "at::cuda::getCurrentCUDABlasHandle",
        ),
        block(1, MIB, PurposeId(2)),
        block(2, 2 * MIB, PurposeId(2)),
        define(3, None, "at::native::foo"),
        block(3, 3 * MIB, PurposeId(3)),
        block(4, 4 * MIB, PurposeId::NO_TENSOR),
    ]
}

/// Attach to a process with CPU tensors: one more is allocated, and one of the earlier ones is freed.
pub(crate) fn on_the_cpu() -> Vec<Event> {
    let block = |action, at, addr, size, live| {
        Event::Memory(MemoryEvent {
            device: Some(DeviceIndex::CPU),
            stack: match action {
                Action::Alloc => StackId(1),
                _ => StackId::NONE,
            },
            totals: totals(live, live),
            ..memory(action, at, addr, size)
        })
    };
    let none = Totals::default();
    vec![
        Event::AtAttach(AtAttach {
            time: TimeNs(5_000_000_000),
            tgid: Tgid(1234),
            device: Some(DeviceIndex::CPU),
            totals: none,
            peak: none,
            unread: Some("nobody knows".into()),
        }),
        Event::Thread(Tid(1234), "python".into()),
        stack(
            1,
            StackKind::Python,
            vec![frame("/home/me/train.py", 31, "<module>")],
        ),
        block(Action::Alloc, 10, 0x5600_0000_0000, 400, 400),
        block(Action::Free, 11, 0x5600_0000_1000, 0, 400),
        block(Action::Alloc, 12, 0x5600_0000_2000, 12, 412),
        block(Action::Free, 13, 0x5600_0000_2000, 12, 400),
    ]
}

/// Attach to a running process: two blocks are found, and one of them is freed.
pub(crate) fn late_attach() -> Vec<Event> {
    let held = |addr, size| {
        Event::Memory(MemoryEvent {
            tid: Tid::UNKNOWN,
            totals: totals(3 * MIB, 22 * MIB),
            ..memory(Action::Held, 0, addr, size)
        })
    };
    let freed = memory(Action::Free, 20, 0x7f00_0000_0000, 2 * MIB);
    vec![
        at_attach(None),
        held(0x7f00_0000_0000, 2 * MIB),
        held(0x7f00_0020_0000, MIB),
        Event::Thread(Tid(1234), "python".into()),
        Event::Memory(MemoryEvent {
            totals: totals(MIB, 22 * MIB),
            ..freed
        }),
    ]
}

/// Attach to a running process whose objects name both of its blocks; then it allocates another one.
pub(crate) fn labeled_attach() -> Vec<Event> {
    let block =
        |addr, mib: u64| LabeledBlock::unlabeled(Address(addr), Bytes(mib * MIB), DeviceIndex(0));
    let retainer = Retainer {
        by: "serve.py:61 main() -> cache['kv'][*]".into(),
        class: Some("list".into()),
        slot: None,
        through: None,
        exclusive: true,
    };
    let labels = BlockLabels {
        time: TimeNs(5_000_000_010),
        tgid: Tgid(1234),
        blocks: vec![
            LabeledBlock {
                kind: Some(TensorKind::Parameter),
                module: Some("model.fc".into()),
                ..block(0x7f00_0000_0000, 2)
            },
            LabeledBlock {
                kind: Some(TensorKind::Tensor),
                retainer: Some(retainer.into()),
                ..block(0x7f00_0020_0000, 1)
            },
            // Not from before attach.
            block(0x7f00_0080_0000, 1),
        ],
        optimizers: Vec::new(),
        tags: Vec::new(),
    };
    let mut events = late_attach();
    events.pop();
    events.push(Event::BaselineLabels(labels.into()));
    events.push(Event::Memory(MemoryEvent {
        totals: totals(7 * MIB, 64 * MIB),
        ..memory(Action::Alloc, 30, 0x7f00_0080_0000, 4 * MIB)
    }));
    events
}

/// Totals at attach; `unread` is the reason why its blocks were not read.
pub(crate) fn at_attach(unread: Option<&str>) -> Event {
    let totals = |allocated, reserved| Totals {
        allocated: Bytes(allocated),
        reserved: Bytes(reserved),
    };
    Event::AtAttach(AtAttach {
        time: TimeNs(5_000_000_000),
        tgid: Tgid(1234),
        device: Some(DeviceIndex(0)),
        totals: totals(3 * MIB, 22 * MIB),
        peak: totals(16 * MIB, 24 * MIB),
        unread: unread.map(Into::into),
    })
}

/// Returns the file that holds these events.
pub(crate) fn recording(events: &[Event]) -> Vec<u8> {
    recording_of(&header(), events)
}

pub(crate) fn recording_of(header: &Header, events: &[Event]) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new(), "memory", header, Grouping::User).unwrap();
    for event in events {
        writer.event(event).unwrap();
    }
    writer.finish(EndReason::Interrupted).unwrap()
}

/// Returns the compact file that holds these events.
pub(crate) fn compact_recording(events: &[Event]) -> Vec<u8> {
    let mut writer = CompactWriter::new(Vec::new(), "memory", &header()).unwrap();
    for event in events {
        writer.event(event).unwrap();
    }
    writer.finish(EndReason::Interrupted).unwrap()
}

/// Returns the compact file that holds these events in groups of three, each with a keyframe.
pub(crate) fn small_groups(events: &[Event]) -> Vec<u8> {
    let policy = GroupPolicy {
        events: 3,
        bytes_per_keyframe_byte: 0,
        cell_events: 2,
        ..GroupPolicy::default()
    };
    let mut writer = CompactWriter::with_groups(Vec::new(), "memory", &header(), policy).unwrap();
    for event in events {
        writer.event(event).unwrap();
        writer.flush().unwrap();
    }
    writer.finish(EndReason::Interrupted).unwrap()
}

impl ReplaceBeginning for Vec<u8> {
    fn replace_beginning(&mut self, head: &[u8], from: u64) -> io::Result<()> {
        *self = [head, &self[from as usize..]].concat();
        Ok(())
    }
}

/// Returns the compact file of at most `bytes` that holds the newest of these events.
pub(crate) fn newest_part(events: &[Event], bytes: u64) -> Vec<u8> {
    let options = CompactOptions {
        max_size: Some(bytes),
        sources: None,
    };
    let mut writer = CompactWriter::with_options(Vec::new(), "memory", &header(), options).unwrap();
    for (at, event) in events.iter().enumerate() {
        writer.event(event).unwrap();
        if at % 50 == 0 {
            writer.flush().unwrap();
        }
    }
    writer.finish(EndReason::Interrupted).unwrap()
}

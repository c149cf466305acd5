//! Generated streams of events and headers, for property tests of the formats.

use std::sync::Arc;

use proptest::prelude::*;

use super::Header;
use super::samples::header;
use crate::event::tensors::{Name, Retainer, TensorKind};
use crate::event::{
    Action, Address, AtAttach, BlockLabels, Bytes, CallPathOrigin, CalledModule, Context,
    DeviceIndex, DeviceSegments, DriverCount, DriverReading, Event, Frame, Grad, LabeledBlock,
    Losses, MarkedPhase, MemoryEvent, MemorySegment, Module, NoStack, Node, PhaseMark, Pool,
    PoolId, PoolOwner, PoolSize, PrivatePoolState, PurposeId, SegmentReading, Stack, StackId,
    StackKind, StepSettings, TaggedAllocation, Target, Tgid, Tid, TimeNs, Totals,
};

fn any_text() -> impl Strategy<Value = Arc<str>> {
    any::<String>().prop_map(|text| text.as_str().into())
}

fn any_stack() -> impl Strategy<Value = Stack> {
    let reasons = prop::sample::select(vec![
        NoStack::NoPythonThread,
        NoStack::NoPythonFrames,
        NoStack::SeveralWaiting,
        NoStack::Unreadable,
        NoStack::Lost,
        NoStack::UnknownPython,
        NoStack::NoPython,
    ]);
    let kind = prop_oneof![
        Just(StackKind::Python),
        any_text().prop_map(|thread| StackKind::Waiting { thread }),
        (any_text(), reasons).prop_map(|(thread, reason)| StackKind::Unknown { thread, reason }),
    ];
    let frame = (any_text(), any::<u32>(), any_text()).prop_map(|(file, line, function)| Frame {
        file,
        line,
        function,
        library: None,
    });
    (
        kind,
        prop::collection::vec(frame, 0..40),
        any::<bool>(),
        any_context(),
    )
        .prop_map(|(kind, frames, truncated, context)| Stack {
            kind,
            frames,
            truncated,
            context,
        })
}

/// Generates a context without a node.
fn any_context() -> impl Strategy<Value = Context> {
    let module = prop_oneof![
        Just(Module::Outside),
        any_text().prop_map(Module::Called),
        Just(Module::Unknown),
    ];
    let grad = prop::sample::select(vec![
        Grad::Unknown,
        Grad::Enabled,
        Grad::Disabled,
        Grad::Inference,
    ]);
    (module, grad).prop_map(|(module, grad)| Context {
        module,
        grad,
        node: None,
    })
}

/// Generates a stack, possibly of a backward pass.
fn any_stack_with_node() -> impl Strategy<Value = Stack> {
    let forward = prop::option::of(any_stack().prop_map(Arc::new));
    let node = (any_text(), forward).prop_map(|(name, forward)| Arc::new(Node { name, forward }));
    (any_stack(), prop::option::of(node)).prop_map(|(mut stack, node)| {
        stack.context.node = node;
        stack
    })
}

fn any_retainer() -> impl Strategy<Value = Retainer> {
    let text = || prop::option::of(any_text());
    (any_text(), text(), text(), text(), any::<bool>()).prop_map(
        |(by, class, slot, through, alone)| Retainer {
            by,
            class,
            slot,
            through,
            exclusive: alone,
        },
    )
}

fn any_names() -> impl Strategy<Value = BlockLabels> {
    let kinds = prop::sample::select(TensorKind::ALL.to_vec());
    let rules = prop::sample::select(vec![None, Some(Name::BY_CLASS)]);
    let name = (any_text(), rules).prop_map(|(text, inferred)| Name { text, inferred });
    let block = (
        any::<(u64, u64, u8)>(),
        prop::option::of(kinds),
        prop::option::of(name),
        prop::option::of(any_text()),
        prop::option::of(any_text()),
        prop::option::of(any_retainer()),
    );
    let block = block.prop_map(
        |((addr, size, device), kind, name, module, saved_by, retainer)| LabeledBlock {
            addr: Address(addr),
            size: Bytes(size),
            device: DeviceIndex(device & 15),
            kind,
            name,
            called: module.clone().map(|path| CalledModule {
                path,
                origin: match size % 2 {
                    0 => CallPathOrigin::Call,
                    _ => CallPathOrigin::Class,
                },
            }),
            module,
            saved_by,
            retainer: retainer.map(Arc::new),
            is_saved_variable: size % 3 == 0,
        },
    );
    let settings = (any_text(), any::<Option<bool>>(), any::<bool>());
    let settings = settings.prop_map(|(class, foreach, other)| StepSettings {
        class: class.to_string(),
        foreach,
        fused: foreach.map(|foreach| !foreach),
        differentiable: other,
        has_tensor_rate: !other,
    });
    let lists = (
        prop::collection::vec(block, 0..5),
        prop::collection::vec(settings, 0..3),
        prop::collection::vec((any::<(u64, u64)>(), any_text()), 0..3),
    );
    (any::<u64>(), lists).prop_map(|(time, (blocks, optimizers, tags))| BlockLabels {
        time: TimeNs(time),
        tgid: Tgid(7),
        blocks,
        optimizers,
        tags: tags
            .into_iter()
            .map(|((addr, size), tag)| TaggedAllocation {
                addr: Address(addr),
                size: Bytes(size),
                tag,
            })
            .collect(),
    })
}

fn any_segments() -> impl Strategy<Value = SegmentReading> {
    let id = any::<(u64, u64)>().prop_map(|(first, second)| PoolId(first, second));
    let states = vec![PrivatePoolState::InUse, PrivatePoolState::Freeable];
    let private = (id, prop::sample::select(states));
    let owner = prop_oneof![
        Just(PoolOwner::Default),
        private.prop_map(|(id, state)| PoolOwner::Private { id, state }),
    ];
    let pool = (owner, any::<bool>()).prop_map(|(owner, is_small)| Pool {
        owner,
        size: match is_small {
            true => PoolSize::Small,
            false => PoolSize::Large,
        },
    });
    let place = || (any::<u32>(), any::<u32>());
    let segment = (place(), any::<u64>(), pool, any::<Option<u64>>());
    let segment = segment.prop_map(|((addr, size), stream, pool, expandable)| MemorySegment {
        addr: Address(addr.into()),
        size: Bytes(size.into()),
        stream,
        pool,
        expandable: expandable.map(Address),
    });
    let awaiting = place().prop_map(|(addr, size)| (Address(addr.into()), Bytes(size.into())));
    let lists = (
        prop::collection::vec(segment, 0..5),
        prop::collection::vec(awaiting, 0..3),
    );
    let device = (any::<(u64, u64, u64, u64)>(), lists);
    let devices = prop::collection::vec(device, 0..3);
    (any::<u64>(), devices, prop::option::of(any_text())).prop_map(|(time, devices, unread)| {
        let devices = (0..).zip(devices).map(|(index, (totals, lists))| {
            let (allocated, reserved, active, requested) = totals;
            DeviceSegments {
                device: DeviceIndex(index),
                totals: Totals::of(allocated, reserved),
                active: Bytes(active),
                requested: Bytes(requested),
                segments: lists.0,
                awaiting: lists.1,
            }
        });
        SegmentReading {
            time: TimeNs(time),
            tgid: Tgid(7),
            devices: devices.collect(),
            unread,
        }
    })
}

fn any_mark() -> impl Strategy<Value = PhaseMark> {
    let begins = prop::sample::select(vec![
        MarkedPhase::Step,
        MarkedPhase::ZeroGrad,
        MarkedPhase::NextBatch,
    ]);
    (any::<u64>(), any::<u32>(), begins, any_text()).prop_map(|(time, tid, begins, class)| {
        PhaseMark {
            time: TimeNs(time),
            tgid: Tgid(7),
            tid: Tid(tid),
            phase: begins,
            class,
            stack: StackId(1),
        }
    })
}

fn any_memory() -> impl Strategy<Value = MemoryEvent> {
    let actions = prop::sample::select(vec![
        Action::Alloc,
        Action::Free,
        Action::SegmentAlloc,
        Action::SegmentFree,
        Action::SegmentSleep,
        Action::SegmentWake,
        Action::OutOfMemory,
        Action::CudaOutOfMemory,
        Action::Held,
    ]);
    let totals = prop::option::of((any::<u64>(), any::<u64>()));
    // Few addresses, so that blocks collide and frees find their blocks.
    let place = (0_u64..6, any::<u64>(), prop::option::of(any::<u8>()));
    (
        any::<u64>(),
        any::<(u32, u32)>(),
        actions,
        place,
        totals,
        0_u32..4,
    )
        .prop_map(
            |(time, (tgid, tid), action, (addr, size, device), totals, stack)| MemoryEvent {
                time: TimeNs(time),
                tgid: Tgid(tgid),
                tid: Tid(tid),
                action,
                addr: Address(addr << 60),
                size: Bytes(size),
                device: device.map(DeviceIndex),
                totals: totals.map(|(allocated, reserved)| Totals {
                    allocated: Bytes(allocated),
                    reserved: Bytes(reserved),
                }),
                // The end of a slice cannot carry a stack, and frees have none.
                stack: match action {
                    Action::Free | Action::SegmentFree | Action::Held => StackId::NONE,
                    _ => StackId(stack),
                },
                shape: PurposeId::NONE,
                call: None,
            },
        )
}

fn any_driver() -> impl Strategy<Value = DriverReading> {
    let device = any::<(u8, u64, u64, Option<u64>)>();
    let device = device.prop_map(|(device, total, used, process)| DriverCount {
        device: DeviceIndex(device),
        total: Bytes(total),
        used: Bytes(used),
        process: process.map(Bytes),
    });
    let devices = prop::collection::vec(device, 0..3);
    let unread = prop::option::of(any_text());
    (any::<(u64, u64, u32)>(), devices, unread).prop_map(
        |((time, asked, tgid), devices, unread)| DriverReading {
            time: TimeNs(time),
            asked: TimeNs(asked),
            tgid: Tgid(tgid),
            devices,
            unread,
        },
    )
}

fn any_at_attach() -> impl Strategy<Value = Event> {
    let found = any::<(u64, u32, Option<u8>, [u64; 4])>();
    (found, prop::option::of(any_text())).prop_map(|((time, tgid, device, bytes), unread)| {
        let [allocated, reserved, peak, peak_reserved] = bytes.map(Bytes);
        Event::AtAttach(AtAttach {
            time: TimeNs(time),
            tgid: Tgid(tgid),
            device: device.map(DeviceIndex),
            totals: Totals {
                allocated,
                reserved,
            },
            peak: Totals {
                allocated: peak,
                reserved: peak_reserved,
            },
            unread,
        })
    })
}

pub(crate) fn any_stream() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        8 => any_memory().prop_map(Event::Memory),
        1 => (any::<u32>(), any_text()).prop_map(|(tid, name)| Event::Thread(Tid(tid), name)),
        1 => any_at_attach(),
        1 => any_mark().prop_map(Event::PhaseMark),
        1 => any_names().prop_map(|names| Event::BlockLabels(Arc::new(names))),
        1 => any_names().prop_map(|names| Event::BaselineLabels(Arc::new(names))),
        1 => any_segments().prop_map(|reading| Event::Segments(Arc::new(reading))),
        1 => any_driver().prop_map(|reading| Event::Driver(Arc::new(reading))),
        1 => any::<(u64, u64, u64, u64)>().prop_map(|(events, stacks, malformed, uses)| {
            Event::Loss(Losses { events, stacks, malformed, uses })
        }),
    ];
    let stacks = prop::collection::vec(any_stack_with_node(), 3);
    (stacks, prop::collection::vec(event, 0..60)).prop_map(|(stacks, events)| {
        let define = |(id, stack)| Event::Stack(StackId(id), Arc::new(stack));
        (1..).zip(stacks).map(define).chain(events).collect()
    })
}

pub(super) fn any_header() -> impl Strategy<Value = Header> {
    (
        any::<u64>(),
        any::<String>(),
        any::<Option<String>>(),
        any::<Option<u64>>(),
        any::<Option<u32>>(),
        any::<Option<String>>(),
    )
        .prop_map(
            |(start, command, torch, wall_start_ms, inner, container)| Header {
                start: TimeNs(start),
                wall_start_ms,
                target: Target {
                    inner_tgid: inner.map(Tgid),
                    container,
                    command,
                    torch,
                    ..header().target
                },
                ..header()
            },
        )
}

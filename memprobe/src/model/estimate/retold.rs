//! The run as the GPU's allocator would tell it, event by event: what it says of how large the model is.

use std::sync::Arc;

use crate::event::{
    Action, Address, Bytes, DeviceIndex, Event, MemoryEvent, NamedBlock, Names, ShapeId, StackId,
    Tgid, Tid, TimeNs, Totals,
};
use crate::model::Model;
use crate::model::snapshot::Target;
use crate::model::why::WhyLedger;
use crate::model::why::size::Sizes;
use crate::model::why::view::Hearsay;

/// The device that is told of.
const GPU: DeviceIndex = DeviceIndex(0);

/// Who asked for a block of the CPU, and what for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Asked {
    pub(super) tid: Tid,
    pub(super) stack: StackId,
    pub(super) shape: ShapeId,
}

/// A block of the GPU's allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OnGpu {
    pub(super) addr: Address,
    pub(super) size: Bytes,
}

/// The ledgers that hear it.
#[derive(Debug)]
pub(super) struct Retold {
    model: Model,
    why: WhyLedger,
    /// When the event happened that is being taken, and in which thread.
    now: (TimeNs, Tgid, Tid),
}

impl Retold {
    /// Nothing has happened yet.
    pub(super) fn new(start: TimeNs) -> Self {
        Self {
            model: Model::new(Target::default(), start),
            why: WhyLedger::new(None).with_sizes(),
            now: (start, Tgid(0), Tid::UNKNOWN),
        }
    }

    /// Something happened that is alike on both.
    pub(super) fn pass(&mut self, event: &Event) {
        let applied = self.model.apply(event);
        self.why.apply(event, &applied);
    }

    /// The CPU's allocator was called.
    pub(super) fn go_on(&mut self, event: &MemoryEvent) {
        self.now = (event.time, event.tgid, event.tid);
    }

    /// The GPU's allocator hands out a block.
    pub(super) fn begin(&mut self, block: OnGpu, totals: Totals, asked: Asked) {
        let event = self.event(Action::Alloc, block, totals);
        self.pass(&Event::Memory(MemoryEvent {
            tid: asked.tid,
            stack: asked.stack,
            shape: asked.shape,
            ..event
        }));
    }

    /// It takes one back.
    pub(super) fn end(&mut self, block: OnGpu, totals: Totals) {
        let event = self.event(Action::Free, block, totals);
        self.pass(&Event::Memory(event));
    }

    /// The process's objects say this of blocks of the CPU, for which those stand.
    pub(super) fn name(&mut self, names: &Names, named: Vec<(&NamedBlock, OnGpu)>) {
        let named = named.into_iter();
        let of_cpu = named.filter(|(block, _)| block.device == DeviceIndex::CPU);
        let on_gpu = of_cpu.map(|(block, OnGpu { addr, size })| NamedBlock {
            addr,
            size,
            device: GPU,
            ..block.clone()
        });
        let blocks = on_gpu.collect();
        self.pass(&Event::Names(Arc::new(Names { blocks, ..*names })));
    }

    /// How large the models are; `None` where nothing was allocated.
    pub(super) fn sizes(&self) -> Option<Sizes> {
        self.why.sizes()
    }

    /// What the stream said at all.
    pub(super) fn heard(&self) -> Hearsay {
        self.why.heard()
    }

    fn event(&self, action: Action, block: OnGpu, totals: Totals) -> MemoryEvent {
        let (time, tgid, tid) = self.now;
        MemoryEvent {
            time,
            tgid,
            tid,
            action,
            addr: block.addr,
            size: block.size,
            device: Some(GPU),
            totals: Some(totals),
            stack: StackId::NONE,
            shape: ShapeId::NONE,
            call: None,
        }
    }
}

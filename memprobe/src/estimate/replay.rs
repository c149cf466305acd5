//! Replay of the run as events of the GPU's allocator, for the size of the model.

use std::sync::Arc;

use crate::attribution::AttributionLedger;

use crate::event::{
    Action, Address, BlockLabels, Bytes, DeviceIndex, Event, LabeledBlock, MemoryEvent, PurposeId,
    StackId, Target, Tgid, Tid, TimeNs, Totals,
};
use crate::ledger::{Analysis, Change, Ledger};

const GPU: DeviceIndex = DeviceIndex(0);

/// Thread, stack and purpose of an allocation on the CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request {
    pub(super) tid: Tid,
    pub(super) stack: StackId,
    pub(super) shape: PurposeId,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OnGpu {
    pub(super) addr: Address,
    pub(super) size: Bytes,
}

/// Ledger of the CPU's blocks and of the simulated GPU's. Only the latter are analyzed.
#[derive(Debug)]
pub(super) struct Replay {
    pub(super) ledger: Ledger,
    pub(super) attribution: AttributionLedger,
    /// Time, process and thread of the current event.
    now: (TimeNs, Tgid, Tid),
}

impl Replay {
    pub(super) fn new(start: TimeNs) -> Self {
        Self {
            ledger: Ledger::new(Target::default(), start),
            attribution: AttributionLedger::new(None).with_sizes(),
            now: (start, Tgid(0), Tid::UNKNOWN),
        }
    }

    /// Passes on an event that is the same for CPU and GPU.
    pub(super) fn pass(&mut self, event: &Event) {
        let change = self.ledger.apply(event);
        self.attribution.apply(event, &change, &self.ledger);
    }

    /// Applies an event of the CPU's allocator; later events have its time and thread.
    pub(super) fn apply(&mut self, event: &MemoryEvent) -> Change {
        self.now = (event.time, event.tgid, event.tid);
        self.ledger.apply(&Event::Memory(*event))
    }

    pub(super) fn begin(&mut self, block: OnGpu, totals: Totals, asked: Request) {
        let event = self.event(Action::Alloc, block, totals);
        self.pass(&Event::Memory(MemoryEvent {
            tid: asked.tid,
            stack: asked.stack,
            shape: asked.shape,
            ..event
        }));
    }

    pub(super) fn end(&mut self, block: OnGpu, totals: Totals) {
        let event = self.event(Action::Free, block, totals);
        self.pass(&Event::Memory(event));
    }

    /// Passes on the names of CPU blocks, moved to their counterparts on the GPU.
    pub(super) fn name(&mut self, names: &BlockLabels, named: Vec<(&LabeledBlock, OnGpu)>) {
        let named = named.into_iter();
        let of_cpu = named.filter(|(block, _)| block.device == DeviceIndex::CPU);
        let on_gpu = of_cpu.map(|(block, OnGpu { addr, size })| LabeledBlock {
            addr,
            size,
            device: GPU,
            ..block.clone()
        });
        let blocks = on_gpu.collect();
        self.pass(&Event::BlockLabels(Arc::new(BlockLabels {
            blocks,
            optimizers: Vec::new(),
            tags: Vec::new(),
            ..*names
        })));
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
            shape: PurposeId::NONE,
            call: None,
        }
    }
}

//! The live state as events: what a recording that begins now must know of before.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Ledger;
use super::block_store::LiveBlock;
use super::definitions::StackRef;
use super::dense::Dense as _;
use super::keyframe::{CallSiteKey, CudaName};
use super::snapshot::SoftwareLayer;
use crate::event::{
    Action, Address, AtAttach, BlockLabels, Bytes, CudaCall, CudaMemoryKind, Event, MemoryEvent,
    PurposeId, SegmentReading, StackId, Tgid, Tid, TimeNs, Totals,
};

/// Events that bring an empty ledger to the live state of another one.
#[derive(Clone, Debug, Default)]
pub struct Restated {
    pub events: Vec<Event>,
    /// Live blocks that count as memory from before without a line, because there were too many.
    pub left_out: u64,
}

impl Ledger {
    /// Restates the live blocks of PyTorch's allocators as allocations at `now`, at most `most` of them, the largest
    /// first, with definitions for later events. Memory outside the allocators is not restated.
    pub fn restate(&self, now: TimeNs, most: usize) -> Restated {
        let mut blocks: Vec<&LiveBlock> = self.blocks().map(|(_, block)| block).collect();
        let left_out = blocks.len().saturating_sub(most);
        if left_out > 0 {
            blocks.select_nth_unstable_by_key(most, |block| std::cmp::Reverse(block.size));
            blocks.truncate(most);
            blocks.sort_unstable_by_key(|block| (block.device, block.addr));
        }
        let mut restated = Restated {
            events: Vec::new(),
            left_out: left_out as u64,
        };
        let definitions = &self.store.definitions;
        let purposes = definitions.purposes.iter();
        restated
            .events
            .extend(purposes.map(|(id, purpose)| Event::BlockPurpose(id, purpose)));
        restated.define_stacks(self, &blocks);
        self.restate_devices(now, &blocks, &mut restated.events);
        self.restate_segments(now, &mut restated.events);
        let labels = self.baseline_labels();
        let labels = labels.filter(|labels| !labels.blocks.is_empty() || !labels.tags.is_empty());
        restated.events.extend(labels.map(|labels| {
            Event::BaselineLabels(Arc::new(BlockLabels {
                time: now,
                ..labels
            }))
        }));
        restated.events.extend(self.segments.iter().map(|reading| {
            let time = reading.time.max(now);
            let reading = SegmentReading {
                time,
                ..SegmentReading::clone(reading)
            };
            Event::Segments(Arc::new(reading))
        }));
        // Last, as later events use the ids of the stream.
        restated.events.extend(definitions.stack_ids());
        restated.events.extend(definitions.thread_names());
        restated
    }

    /// Restates the memory of segments, and what of it sleeps.
    fn restate_segments(&self, now: TimeNs, events: &mut Vec<Event>) {
        let tgid = self.target.tgid.unwrap_or(Tgid(0));
        for memory in self.segment_memory() {
            let call = |function| CudaCall {
                function,
                space: memory.kind,
            };
            let (alloc, release) = match memory.kind {
                CudaMemoryKind::Virtual => ("cuMemCreate", "cuMemRelease"),
                CudaMemoryKind::Pool => ("cudaMallocAsync", "cudaFreeAsync"),
                CudaMemoryKind::Managed => ("cudaMallocManaged", "cudaFree"),
                CudaMemoryKind::Pinned => ("cudaHostAlloc", "cudaFreeHost"),
                _ => ("cudaMalloc", "cudaFree"),
            };
            let alloc = MemoryEvent {
                time: now,
                tgid,
                tid: Tid::UNKNOWN,
                action: Action::SegmentAlloc,
                addr: memory.addr,
                size: memory.size,
                device: memory.device,
                totals: None,
                stack: stack_id(memory.stack),
                shape: PurposeId::NONE,
                call: Some(call(alloc)),
            };
            events.push(Event::Memory(alloc));
            if memory.is_asleep {
                events.push(Event::Memory(MemoryEvent {
                    action: Action::SegmentSleep,
                    stack: StackId::NONE,
                    call: Some(call(release)),
                    ..alloc
                }));
            }
        }
    }

    /// Restates live CUDA memory outside the allocators as allocations at `now`, with definitions of their stacks. The
    /// ledger does not keep the function of a call: `function_of` names one of the same layer and kind of memory.
    pub fn restate_cuda(
        &self,
        now: TimeNs,
        function_of: impl Fn(SoftwareLayer, CudaMemoryKind) -> Option<&'static str>,
    ) -> Vec<Event> {
        let state = self.cuda.keyframe();
        let mut defined = BTreeSet::new();
        let mut events = Vec::new();
        for memory in &state.live {
            let Some(group) = state.groups.get(memory.group as usize) else {
                continue;
            };
            let Some(function) = function_of(state.layer, group.space) else {
                continue;
            };
            let call_site = group.call_sites.call_sites.get(memory.call_site as usize);
            let stack = match call_site.map(|call_site| &call_site.key) {
                Some(CallSiteKey::Stack(number)) => StackRef::from_index(*number as usize),
                _ => StackRef::UNKNOWN,
            };
            if stack != StackRef::UNKNOWN && defined.insert(stack) {
                events.push(Event::Stack(stack_id(stack), Arc::clone(self.stack(stack))));
            }
            let (CudaName::Address(number) | CudaName::Array(number) | CudaName::Handle(number)) =
                memory.name;
            events.push(Event::Memory(MemoryEvent {
                time: now,
                tgid: self.target.tgid.unwrap_or(Tgid(0)),
                tid: Tid::UNKNOWN,
                action: Action::CudaAlloc,
                addr: Address(number),
                size: memory.size,
                device: memory.on_device.map(|(device, _)| device).or(group.device),
                totals: None,
                stack: stack_id(stack),
                shape: PurposeId::NONE,
                call: Some(CudaCall {
                    function,
                    space: group.space,
                }),
            }));
        }
        events
    }

    fn restate_devices(&self, now: TimeNs, blocks: &[&LiveBlock], events: &mut Vec<Event>) {
        let tgid = self.target.tgid.unwrap_or(Tgid(0));
        for (index, device) in &self.devices {
            let own = blocks.iter().filter(|block| block.device == *index);
            let (baseline, allocated): (Vec<&&LiveBlock>, Vec<_>) =
                own.partition(|block| block.is_baseline);
            let lines = allocated.iter().map(|block| block.size.0).sum::<u64>();
            let mut totals = Totals {
                allocated: Bytes(device.totals.allocated.0.saturating_sub(lines)),
                reserved: device.totals.reserved,
            };
            events.push(Event::AtAttach(AtAttach {
                time: now,
                tgid,
                device: Some(*index),
                totals,
                peak: device.peak,
                unread: device.unread(),
            }));
            let event = |block: &LiveBlock, action, totals| {
                Event::Memory(MemoryEvent {
                    time: now,
                    tgid,
                    tid: Tid::UNKNOWN,
                    action,
                    addr: block.addr,
                    size: block.size,
                    device: Some(*index),
                    totals: Some(totals),
                    stack: stack_id(block.stack),
                    shape: block.purpose,
                    call: None,
                })
            };
            events.extend(baseline.iter().map(|block| {
                let unknown = LiveBlock {
                    stack: StackRef::UNKNOWN,
                    purpose: PurposeId::NONE,
                    ..***block
                };
                event(&unknown, Action::Held, totals)
            }));
            for block in allocated {
                let sum = totals.allocated.0.saturating_add(block.size.0);
                totals.allocated = Bytes(sum);
                events.push(event(block, Action::Alloc, totals));
            }
        }
    }
}

impl Restated {
    fn define_stacks(&mut self, ledger: &Ledger, blocks: &[&LiveBlock]) {
        let segments = ledger.segment_memory().map(|memory| memory.stack);
        let blocks = blocks.iter().map(|block| block.stack);
        let stacks: BTreeSet<StackRef> = blocks.chain(segments).collect();
        let stacks = stacks.into_iter().filter(|it| *it != StackRef::UNKNOWN);
        let define = |it| Event::Stack(stack_id(it), Arc::clone(ledger.stack(it)));
        self.events.extend(stacks.map(define));
    }
}

/// Id of a stack among the restated blocks; that of no stack for an unknown one, which is the first.
fn stack_id(stack: StackRef) -> StackId {
    StackId(u32::try_from(stack.index()).unwrap_or(StackId::NONE.0))
}

//! Beginning of a recording whose older part was dropped: the state of its first keyframe, as events.

use std::sync::Arc;

use crate::cuda::calls::{Api, allocating};
use crate::event::{CaptureChange, CudaMemoryKind, Event, Tgid, TimeNs};
use crate::ledger::Ledger;
use crate::ledger::keyframe::LedgerKeyframe;
use crate::ledger::snapshot::SoftwareLayer;
use crate::recording::Header;
use crate::recording::header::DroppedBeginning;

/// Returns a function that gives out memory of a kind in a layer of software.
fn allocating_function(layer: SoftwareLayer, space: CudaMemoryKind) -> Option<&'static str> {
    let api = match layer {
        SoftwareLayer::Tracepoints => Api::Tracepoint,
        SoftwareLayer::Driver => Api::Driver,
        SoftwareLayer::None | SoftwareLayer::Runtime | SoftwareLayer::Allocator => Api::Runtime,
    };
    allocating(api, space).map(|function| function.name)
}

/// Events that lead an empty ledger to the state at the beginning.
pub(super) struct RestatedBeginning {
    pub(super) time: TimeNs,
    pub(super) dropped: DroppedBeginning,
    pub(super) events: Vec<Event>,
}

impl RestatedBeginning {
    /// Restates a keyframe; `None` if it contradicts itself.
    pub(super) fn of(state: &LedgerKeyframe, header: &Header) -> Option<Self> {
        let target = header.target.clone();
        let tgid = target.tgid.unwrap_or(Tgid(0));
        let ledger = Ledger::of_keyframe(target, state).ok()?;
        let time = state.last_event.unwrap_or(state.started);
        // The restated blocks come last: they leave the IDs of stacks to the stream.
        let mut events = ledger.restate_cuda(time, allocating_function);
        events.extend(ledger.restate(time, usize::MAX).events);
        if state.losses.any() {
            events.push(Event::Loss(state.losses));
        }
        events.extend(state.budget.as_ref().map(|budget| {
            Event::Capture(CaptureChange {
                time,
                tgid,
                level: budget.level,
                overhead: budget.overhead,
                budget: budget.budget,
            })
        }));
        events.extend(
            state
                .labels
                .as_ref()
                .map(|labels| Event::BlockLabels(Arc::clone(labels))),
        );
        Some(Self {
            time,
            dropped: DroppedBeginning {
                events: state.events,
                // An event may be earlier than the start in the header, which all headers have.
                start: header.start,
                blocks: ledger.blocks().count() as u64,
            },
            events,
        })
    }
}

//! Second replay of a recording, for formats with a row for each event. What the first learnt of a whole life is known
//! from its begin.

use std::io::BufRead;
use std::sync::atomic::{AtomicU64, Ordering};

use super::ExportError;
use super::replay::ExportReplay;
use crate::attribution::allocations::AllocationNumbers;
use crate::attribution::segments::SegmentLedger;
use crate::event::{Action, CudaMemoryKind, Event, MemoryEvent};
use crate::ledger::{AnalyzedLedger, Change, StackRef};
use crate::recording::Reader;

/// A memory event, with what the first replay knows of it.
pub(super) struct ReplayedEvent<'a> {
    pub event: &'a MemoryEvent,
    pub change: &'a Change,
    /// Index in the history of the allocation that it begins or ends.
    pub allocation: Option<usize>,
    /// Stream that the segment at its address serves; `None` if it is not known.
    pub stream: Option<u64>,
    pub stack: StackRef,
}

impl ReplayedEvent<'_> {
    /// True for physical memory, whose event has a handle instead of an address.
    pub(super) fn is_of_handle(&self) -> bool {
        let call = self.event.call;
        call.is_some_and(|call| call.space == CudaMemoryKind::Virtual)
    }
}

/// Replays a recording once more; calls `each` with every memory event.
pub(super) fn replay_again<R: BufRead>(
    first: &ExportReplay,
    reader: &Reader<R>,
    progress: &AtomicU64,
    mut each: impl FnMut(ReplayedEvent<'_>) -> Result<(), ExportError>,
) -> Result<(), ExportError> {
    let again = reader.reopened().ok_or_else(|| {
        ExportError::Nothing("a pipe cannot be read twice; give a file".to_owned())
    })?;
    let segments = SegmentLedger::with_facts_of(&first.segments);
    let header = again.header();
    let mut replay = AnalyzedLedger::new(header.target.clone(), header.start, segments);
    let mut numbers = AllocationNumbers::default();
    for event in again {
        let event = event?;
        progress.fetch_add(1, Ordering::Relaxed);
        let Event::Memory(memory) = &event else {
            replay.apply(&event);
            continue;
        };
        let owner = |segments: &SegmentLedger| segments.owner_at(memory.device?, memory.addr);
        // The segment is gone after its free.
        let before = owner(&replay.analyses);
        let change = replay.ledger.apply(&event);
        crate::ledger::Analysis::apply(&mut replay.analyses, &event, &change, &replay.ledger);
        let owner = match memory.action {
            Action::SegmentFree => before,
            _ => owner(&replay.analyses),
        };
        each(ReplayedEvent {
            event: memory,
            change: &change,
            allocation: numbers.apply(&change),
            stream: owner.map(|(_, stream)| stream),
            stack: replay.ledger.stack_ref(memory.stack),
        })?;
    }
    Ok(())
}

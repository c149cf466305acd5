//! Second replay of a recording, for formats with a row for each event. What the first learnt of a whole life is known
//! from its begin.

use std::io::BufRead;
use std::sync::atomic::{AtomicU64, Ordering};

use super::ExportError;
use super::replay::ExportReplay;
use crate::attribution::allocations::{
    Allocation, AllocationNumbers, EventNumber, is_of_allocator,
};
use crate::attribution::segments::SegmentLedger;
use crate::event::{Action, Event, MemoryEvent, Pool};
use crate::ledger::{Analysis as _, AnalyzedLedger, Change, Ledger, StackRef};
use crate::recording::Reader;

/// A memory event, with what the first replay knows of it.
pub(super) struct ReplayedEvent<'a, 'h> {
    pub event: &'a MemoryEvent,
    /// Number of the last event of an allocator; this one's if it is one.
    pub number: EventNumber,
    /// Ledger after the event, and the change that it made.
    pub ledger: &'a Ledger,
    pub change: &'a Change,
    /// Allocation that it begins or ends, and its index in the history.
    pub allocation: Option<(usize, &'h Allocation)>,
    /// Pool and stream of the segment at its address; `None` if they are not known.
    pub owner: Option<(Pool, u64)>,
    pub stack: StackRef,
}

/// Replays a recording once more; calls `each` with every memory event.
pub(super) fn replay_again<'h, R: BufRead>(
    first: &'h ExportReplay,
    reader: &Reader<R>,
    progress: &AtomicU64,
    mut each: impl FnMut(ReplayedEvent<'_, 'h>) -> Result<(), ExportError>,
) -> Result<(), ExportError> {
    let again = reader.reopened().ok_or(ExportError::Pipe)?;
    let segments = SegmentLedger::with_facts_of(&first.segments);
    let header = again.header();
    let mut replay = AnalyzedLedger::new(header.target.clone(), header.start, segments);
    let mut numbers = AllocationNumbers::default();
    let mut number = EventNumber(0);
    // The file may have been replaced by another one.
    let known = |index: usize| Some((index, first.history.allocations().get(index)?));
    // A recording that is still written has more events by now.
    for event in again.take(first.events) {
        let event = event?;
        progress.fetch_add(1, Ordering::Relaxed);
        let Event::Memory(memory) = &event else {
            replay.apply(&event);
            continue;
        };
        let owner = |segments: &SegmentLedger| segments.owner_at(memory.device?, memory.addr);
        number.0 += u64::from(is_of_allocator(memory.action));
        // The segment is gone after its free.
        let before = owner(&replay.analyses);
        let change = replay.ledger.apply(&event);
        (replay.analyses).apply(&event, &change, &replay.ledger);
        let owner = match memory.action {
            Action::SegmentFree => before,
            _ => owner(&replay.analyses),
        };
        each(ReplayedEvent {
            event: memory,
            number,
            ledger: &replay.ledger,
            change: &change,
            allocation: numbers.apply(&change).and_then(known),
            owner,
            stack: replay.ledger.stack_ref(memory.stack),
        })?;
    }
    Ok(())
}

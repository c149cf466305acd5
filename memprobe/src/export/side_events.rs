//! Events beside those of memory: marks of phases, and readings of the process's objects.

use std::sync::Arc;

use crate::attribution::allocations::{EventNumber, is_of_allocator};
use crate::event::{BlockLabels, Event, PhaseMark};
use crate::ledger::{Analysis, Change, Ledger, StackRef};
use crate::recording::{LabelScope, MAX_MARKS};

/// An event between those of memory.
#[derive(Debug)]
pub(super) struct SideEvent {
    /// Last memory event before it.
    pub after: EventNumber,
    pub event: SideEventKind,
}

#[derive(Debug)]
pub(super) enum SideEventKind {
    /// A mark, and the stack that reached it.
    Mark(PhaseMark, StackRef),
    /// A reading of the objects. There are few: a recording has one after 2, 16, 128 steps and so on.
    Labels(LabelScope, Arc<BlockLabels>),
}

/// Marks and readings of a recording, in the order of the stream.
#[derive(Debug, Default)]
pub(super) struct SideEvents {
    events: u64,
    marks: usize,
    pub found: Vec<SideEvent>,
    /// Marks beyond the cap.
    pub left_out: u64,
}

impl SideEvents {
    fn push(&mut self, event: SideEventKind) {
        let after = EventNumber(self.events);
        self.found.push(SideEvent { after, event });
    }
}

impl Analysis for SideEvents {
    fn apply(&mut self, event: &Event, _change: &Change, ledger: &Ledger) {
        match event {
            Event::Memory(event) => self.events += u64::from(is_of_allocator(event.action)),
            Event::PhaseMark(_) if self.marks == MAX_MARKS => self.left_out += 1,
            Event::PhaseMark(mark) => {
                self.marks += 1;
                let stack = ledger.stack_ref(mark.stack);
                self.push(SideEventKind::Mark(mark.clone(), stack));
            }
            Event::BlockLabels(labels) => {
                self.push(SideEventKind::Labels(
                    LabelScope::AllBlocks,
                    Arc::clone(labels),
                ));
            }
            Event::BaselineLabels(labels) => {
                self.push(SideEventKind::Labels(
                    LabelScope::Baseline,
                    Arc::clone(labels),
                ));
            }
            _ => {}
        }
    }
}

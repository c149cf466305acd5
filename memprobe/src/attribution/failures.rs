//! Failed requests of a recording: the event that a page is about.

use std::sync::Arc;

use crate::event::{Event, MemoryEvent, TimeNs};
use crate::ledger::snapshot::{Grouping, Site};
use crate::ledger::{Analysis, Change, Ledger};

/// Request that the allocator, or CUDA itself, could not serve.
#[derive(Clone, Debug)]
pub struct AllocationFailure {
    /// Number of the event in the recording, from 1.
    pub number: u64,
    pub event: MemoryEvent,
    /// Line that asked.
    pub site: Site,
    /// Path of the module that was being called.
    pub module: Option<Arc<str>>,
    /// Library that called CUDA; `None` for a request of the allocator, or if it is unknown.
    pub library: Option<Arc<str>>,
}

/// Failed request to find.
#[derive(Clone, Copy, Debug, Default)]
enum WantedFailure {
    First,
    #[default]
    Last,
    /// The last at this time.
    At(TimeNs),
}

/// Finds the first or the last failed request, or the last at a given time.
#[derive(Debug, Default)]
pub struct FailureFinder {
    wanted: WantedFailure,
    events: u64,
    /// Failed requests so far.
    pub failures: u64,
    pub found: Option<AllocationFailure>,
}

impl FailureFinder {
    /// Finds the first failed request.
    pub fn first() -> Self {
        Self {
            wanted: WantedFailure::First,
            ..Self::default()
        }
    }

    /// Finds the request that failed at `time`; the last one of all if it is `None`.
    pub fn at(time: Option<TimeNs>) -> Self {
        Self {
            wanted: time.map_or(WantedFailure::Last, WantedFailure::At),
            ..Self::default()
        }
    }
}

impl Analysis for FailureFinder {
    fn apply(&mut self, event: &Event, _change: &Change, ledger: &Ledger) {
        self.events += 1;
        let Event::Memory(event) = event else { return };
        if !event.action.is_failure() {
            return;
        }
        self.failures += 1;
        let is_wanted = match self.wanted {
            WantedFailure::First => self.found.is_none(),
            WantedFailure::Last => true,
            WantedFailure::At(time) => time == event.time,
        };
        if is_wanted {
            let stack = ledger.stack_ref(event.stack);
            self.found = Some(AllocationFailure {
                number: self.events,
                event: *event,
                site: ledger.site(stack, Grouping::User).clone(),
                module: ledger.stack(stack).context.module.path().cloned(),
                library: match event.call {
                    Some(_) => ledger.stack(stack).calling_library().cloned(),
                    None => None,
                },
            });
        }
    }
}

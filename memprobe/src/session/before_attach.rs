//! Baseline: the blocks live before the first event, read from the running process and put first.

use crate::event::{AtAttach, DeviceIndex, Event, Tgid, TimeNs};
use crate::process::maps::Maps;
use crate::process::memory::ProcessMemory;
use crate::torch::allocator::active::{AllocatorVariable, NoAllocator};
use crate::torch::allocator::reconcile::Reconciler;
use crate::torch::allocator::tables::{self, AllocatorTables, TablesError};
use crate::view::clean;

/// Attempts to read consistent tables: a running process may change them meanwhile.
const ATTEMPTS: u32 = 40;

/// Sentence for people if `event` says that the baseline's blocks are one row.
pub(super) fn notice(event: &Event) -> Option<String> {
    let Event::AtAttach(AtAttach {
        unread: Some(reason),
        device,
        ..
    }) = event
    else {
        return None;
    };
    // Of the CPU it is never known, and every view says so.
    if *device == Some(DeviceIndex::CPU) {
        return None;
    }
    Some(format!(
        "memory from before attach cannot be told block by block: {}",
        clean(reason)
    ))
}

/// Reads what a process held when its probes were in place, and keeps its events back until then.
pub(super) struct BaselineReader {
    memory: ProcessMemory,
    variable: Option<AllocatorVariable>,
    version: Option<String>,
    reconciler: Reconciler,
    tables: Result<AllocatorTables, TablesError>,
    /// When the tables had been read.
    read: TimeNs,
    /// Attempts so far; 0 until the probes are in place.
    attempts: u32,
    has_events: bool,
    /// The events that were taken last may be older than the tables.
    is_ahead: bool,
    has_given_up: bool,
}

impl BaselineReader {
    pub(super) fn of(tgid: Tgid) -> Self {
        let since = super::now();
        Self {
            memory: ProcessMemory::new(tgid),
            variable: None,
            version: None,
            reconciler: Reconciler::new(tgid, since),
            tables: Ok(AllocatorTables::default()),
            read: since,
            attempts: 0,
            has_events: false,
            is_ahead: false,
            has_given_up: false,
        }
    }

    /// Reads for the first time, once the probes are in place. `version` is PyTorch's.
    pub(super) fn begin(&mut self, version: Option<String>) {
        if self.attempts == 0 {
            self.version = version;
            self.read();
            self.is_ahead = true;
        }
    }

    /// True if the probes are in place and the baseline is not settled yet.
    pub(super) fn is_reading(&self) -> bool {
        self.attempts > 0 && !self.reconciler.is_settled()
    }

    /// True if the baseline is known, or is one row.
    pub(super) fn is_settled(&self) -> bool {
        self.reconciler.is_settled()
    }

    /// True if it has nothing more to say of any event.
    pub(super) fn is_over(&self) -> bool {
        !self.has_given_up && self.reconciler.is_over()
    }

    /// True if the blocks could not be read.
    pub(super) fn has_given_up(&self) -> bool {
        self.has_given_up
    }

    fn read(&mut self) {
        self.attempts += 1;
        self.tables = self.read_tables();
        self.read = super::now();
    }

    /// Reads the allocator's tables; empty if PyTorch's library is not loaded yet.
    fn read_tables(&mut self) -> Result<AllocatorTables, TablesError> {
        let variable = match self.variable {
            Some(variable) => variable,
            None => match self.find()? {
                Some(variable) => *self.variable.insert(variable),
                None => return Ok(AllocatorTables::default()),
            },
        };
        tables::read(&self.memory, variable, self.version.as_deref())
    }

    fn find(&self) -> Result<Option<AllocatorVariable>, TablesError> {
        let tgid = self.memory.tgid();
        let maps = Maps::of(tgid).map_err(|error| NoAllocator::Process(error.to_string()))?;
        Ok(AllocatorVariable::find(tgid, &maps)?)
    }

    pub(super) fn push(&mut self, event: Event) {
        self.has_events = true;
        self.reconciler.push(event);
    }

    /// Settles without reading: by its first event, nothing came before.
    pub(super) fn settle_with_nothing(&mut self) {
        if !self.reconciler.is_settled() {
            // Where something does not add up after all, the tables say what.
            let _ = self.reconciler.settle(&AllocatorTables::default());
        }
    }

    /// Goes on, after events were taken; `all` says that none is left that had happened by then. The
    /// first time after [`Self::begin`] they may have been taken before it.
    pub(super) fn settle(&mut self, all: bool) {
        let reconciler = &mut self.reconciler;
        if reconciler.is_settled() {
            return;
        }
        if reconciler.is_full() {
            return self.give_up("too many events during the reading");
        }
        if reconciler.has_lost() {
            return self.give_up("events were lost during the reading");
        }
        if self.attempts == 0 || std::mem::take(&mut self.is_ahead) {
            return;
        }
        // Until then there may be events that the tables know of already.
        if !all && reconciler.latest() <= self.read {
            return;
        }
        let wrong = match &self.tables {
            Ok(tables) => match reconciler.settle(tables) {
                Ok(()) => return self.forget_tables(),
                Err(mismatch) => mismatch.to_string(),
            },
            Err(reason) => reason.to_string(),
        };
        if self.attempts < ATTEMPTS {
            self.read();
        } else {
            self.give_up(&wrong);
        }
    }

    /// Goes on without, if need be: the process or the recording ends, or it cannot be probed.
    pub(super) fn finish(&mut self, reason: &str) {
        if self.attempts == 0 && !self.has_events {
            // Neither probed nor heard of: there is nothing to say of it.
            return;
        }
        self.is_ahead = false;
        self.settle(true);
        if !self.reconciler.is_settled() {
            self.give_up(reason);
        }
    }

    fn give_up(&mut self, reason: &str) {
        self.has_given_up = true;
        let tables = self.tables.as_ref().ok();
        self.reconciler.give_up(tables, reason);
        self.forget_tables();
    }

    /// Frees the tables once the baseline is settled: they have an entry for each block.
    fn forget_tables(&mut self) {
        self.tables = Ok(AllocatorTables::default());
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        self.reconciler.pop()
    }
}

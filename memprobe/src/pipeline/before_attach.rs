//! What was live before the first event, read while the process runs and put first.

use crate::event::{Event, Tgid, TimeNs};
use crate::inspect::active::{AllocatorVariable, NoAllocator};
use crate::inspect::allocator::{self, AllocatorTables, Why};
use crate::inspect::reconcile::Reconciler;
use crate::target::maps::Maps;
use crate::target::memory::ProcessMemory;

/// How often the tables are read before what does not add up is given up: a process may change
/// them while they are read.
const ATTEMPTS: u32 = 40;

/// Reads what a process held when its probes were in place, and keeps its events back until then.
pub(super) struct BeforeAttach {
    memory: ProcessMemory,
    variable: Option<AllocatorVariable>,
    version: Option<String>,
    reconciler: Reconciler,
    tables: Result<AllocatorTables, Why>,
    /// When the tables had been read.
    read: TimeNs,
    /// How often they were; 0 while the probes are not in place.
    attempts: u32,
}

impl BeforeAttach {
    /// Keeps the events of a process back from now on.
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
        }
    }

    /// The probes are in place: reads for the first time. `version` is that of PyTorch.
    pub(super) fn begin(&mut self, version: Option<String>) {
        if self.attempts == 0 {
            self.version = version;
            self.read();
        }
    }

    /// Whether the probes are in place and what came before them is not settled yet.
    pub(super) fn is_reading(&self) -> bool {
        self.attempts > 0 && !self.reconciler.is_settled()
    }

    fn read(&mut self) {
        self.attempts += 1;
        self.tables = self.read_tables();
        self.read = super::now();
    }

    /// Where PyTorch's library is not loaded yet, nothing was allocated.
    fn read_tables(&mut self) -> Result<AllocatorTables, Why> {
        let variable = match self.variable {
            Some(variable) => variable,
            None => match self.find()? {
                Some(variable) => *self.variable.insert(variable),
                None => return Ok(AllocatorTables::default()),
            },
        };
        allocator::read(&self.memory, variable, self.version.as_deref())
    }

    fn find(&self) -> Result<Option<AllocatorVariable>, Why> {
        let tgid = self.memory.tgid();
        let maps = Maps::of(tgid).map_err(|error| NoAllocator::Process(error.to_string()))?;
        Ok(AllocatorVariable::find(tgid, &maps)?)
    }

    /// Takes the next event of the process.
    pub(super) fn push(&mut self, event: Event) {
        self.reconciler.push(event);
    }

    /// Goes on, after events were taken; `all` says that none is left that has happened by now.
    pub(super) fn settle(&mut self, all: bool) {
        let reconciler = &mut self.reconciler;
        if reconciler.is_settled() {
            return;
        }
        if reconciler.is_full() {
            return self.give_up("too much happened while they were read");
        }
        if self.attempts == 0 {
            return;
        }
        // Until then there may be events that the tables know of already.
        if !all && reconciler.latest() <= self.read {
            return;
        }
        let wrong = match &self.tables {
            Ok(tables) => match reconciler.settle(tables) {
                Ok(()) => return,
                Err(mismatch) => mismatch.to_string(),
            },
            Err(why) => why.to_string(),
        };
        if self.attempts < ATTEMPTS {
            self.read();
        } else {
            self.give_up(&wrong);
        }
    }

    /// Goes on without, if need be: the process or the recording ends, or it cannot be probed.
    pub(super) fn finish(&mut self, why: &str) {
        self.settle(true);
        if !self.reconciler.is_settled() {
            self.give_up(why);
        }
    }

    fn give_up(&mut self, why: &str) {
        let tables = self.tables.as_ref().ok();
        self.reconciler.give_up(tables, why);
    }

    /// The next event, in order.
    pub(super) fn pop(&mut self) -> Option<Event> {
        self.reconciler.pop()
    }
}

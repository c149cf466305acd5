//! Readings of the caching allocator's tables in a running process, on a thread of their own where they take long.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::event::{Tgid, TimeNs};
use crate::process::maps::Maps;
use crate::process::memory::ProcessMemory;
use crate::torch::allocator::active::{AllocatorVariable, NoAllocator};
use crate::torch::allocator::tables::TablesError;

/// The allocator of a process. The place of its variable is found once.
#[derive(Clone, Debug)]
pub(super) struct ProcessAllocator {
    memory: ProcessMemory,
    variable: Option<AllocatorVariable>,
    /// PyTorch's version, if known.
    pub(super) version: Option<String>,
}

/// Result of one reading; the default of `T` if PyTorch's library is not loaded yet.
#[derive(Debug)]
pub(super) struct AllocatorReading<T> {
    pub(super) result: Result<T, TablesError>,
    /// Time at which it ended.
    pub(super) time: TimeNs,
    pub(super) took: Duration,
    variable: Option<AllocatorVariable>,
}

/// Reader of some tables, by the allocator's variable and PyTorch's version.
pub(super) type TableReader<T> =
    fn(&ProcessMemory, AllocatorVariable, Option<&str>) -> Result<T, TablesError>;

impl ProcessAllocator {
    pub(super) const fn of(tgid: Tgid) -> Self {
        Self {
            memory: ProcessMemory::new(tgid),
            variable: None,
            version: None,
        }
    }

    pub(super) const fn tgid(&self) -> Tgid {
        self.memory.tgid()
    }

    /// Reads at once.
    pub(super) fn read<T: Default>(&mut self, read: TableReader<T>) -> AllocatorReading<T> {
        let begun = Instant::now();
        let result = self.variable().and_then(|variable| {
            let version = self.version.as_deref();
            variable.map_or_else(
                || Ok(T::default()),
                |variable| read(&self.memory, variable, version),
            )
        });
        AllocatorReading {
            result,
            time: super::now(),
            took: begun.elapsed(),
            variable: self.variable,
        }
    }

    /// Reads on a thread. [`Self::join`] takes the result.
    /// Fails if the system has no room for a thread.
    pub(super) fn begin<T: Default + Send + 'static>(
        &self,
        read: TableReader<T>,
    ) -> Result<JoinHandle<AllocatorReading<T>>, TablesError> {
        let mut allocator = self.clone();
        let thread = thread::Builder::new().name("allocator".to_owned());
        let thread = thread.spawn(move || allocator.read(read));
        thread.map_err(|error| {
            NoAllocator::Process(format!("no thread to read its tables: {error}")).into()
        })
    }

    /// Waits for a reading on a thread.
    pub(super) fn join<T>(
        &mut self,
        thread: JoinHandle<AllocatorReading<T>>,
    ) -> AllocatorReading<T> {
        let reading = thread.join();
        let reading = reading.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        self.variable = reading.variable;
        reading
    }

    /// `None` while PyTorch's library is not loaded.
    fn variable(&mut self) -> Result<Option<AllocatorVariable>, TablesError> {
        if self.variable.is_none() {
            let tgid = self.memory.tgid();
            let maps = Maps::of(tgid).map_err(|error| NoAllocator::Process(error.to_string()))?;
            self.variable = AllocatorVariable::find(tgid, &maps)?;
        }
        Ok(self.variable)
    }
}

#[cfg(test)]
impl<T> AllocatorReading<T> {
    /// A reading that ends now.
    pub(super) fn of(result: T) -> Self {
        Self {
            result: Ok(result),
            time: super::now(),
            took: Duration::ZERO,
            variable: None,
        }
    }
}

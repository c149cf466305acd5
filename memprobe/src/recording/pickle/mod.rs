//! Memory snapshots that PyTorch pickled itself, read as a stream of events.
//!
//! `torch.cuda.memory._snapshot()` returns the allocator's segments with their blocks, and the latest events if
//! `_record_memory_history()` was on (torch/cuda/memory.py@v2.15.0). [`History`] has the same facts as events.
//!
//! Facts that PyTorch does not record are unknown: threads, modules, tensors. memprobe's own export has them
//! ([`metadata`]). An event has the requested size, and a
//! block that was freed before the snapshot no other; the allocator's rounding gives its size then.

mod copy;
mod dict_keys;
mod history;
mod machine;
mod metadata;
mod stacks;
mod timeline;
mod writer;

pub use copy::{PickleCopyError, copy_pickle};
pub use metadata::{CALLED_BACKWARD, UNKNOWN_MODULE, WRITER_KEY};
pub use writer::{PickleItems, PickleMemo, PickleWriter};

use std::collections::VecDeque;
use std::io::{self, BufRead};

use crate::event::{Event, TimeNs};
use history::PickledDefinitions;

/// First byte of a pickle of protocol 2 or above.
pub const FIRST_BYTE: u8 = b'\x80';

/// PyTorch's history of a process, as events.
#[derive(Debug)]
pub(super) struct History {
    /// Definitions of the stacks, then the other events.
    pub events: VecDeque<Event>,
    /// Allocations, frees and failed requests among `events`, those without [`crate::event::Action::Held`].
    pub memory_events: u64,
    pub start: TimeNs,
    /// The same moment in milliseconds since 1970 (UTC); `None` if PyTorch recorded no times.
    pub wall_start_ms: Option<u64>,
    pub facts: HistoryFacts,
}

/// Limits of a history that PyTorch recorded itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryFacts {
    /// Live blocks whose allocation is older than the history, with a known stack. They are the first events.
    pub restated: u64,
    /// Blocks from before the history whose stack PyTorch did not keep.
    pub before: u64,
    /// Blocks that were freed before the snapshot: their size is inferred from the requested bytes.
    pub inferred_sizes: u64,
    /// Allocations and frees that must have happened without an event: the history was off for a while.
    pub missing_events: u64,
    /// Entries of an unknown kind.
    pub unknown_entries: u64,
    /// Blocks and events of pinned host memory, which are left out.
    pub host_entries: u64,
    /// PyTorch before 2.2 records the order of events, but no times.
    pub lacks_times: bool,
    /// The snapshot has segments alone: no history was recorded.
    pub lacks_history: bool,
    /// memprobe exported it, with modules and tensors.
    pub is_exported: bool,
}

/// Reason why a pickle cannot be read.
#[derive(Debug)]
pub(super) enum PickleError {
    Io(io::Error),
    Truncated {
        offset: u64,
    },
    Damaged {
        offset: u64,
        reason: String,
    },
    /// An opcode would import, call or make something.
    Object {
        offset: u64,
    },
    /// Plain data of another kind.
    Foreign,
}

/// Reads a whole pickle.
///
/// # Errors
///
/// If it cannot be read, is damaged, or is no memory snapshot of PyTorch.
pub(super) fn read(input: impl BufRead) -> Result<History, PickleError> {
    let document = machine::decode(input)?;
    let mut definitions = history::PickledDefinitions::of(&document);
    let snapshot = history::MemoryPickle::of(&document, &mut definitions);
    // The largest part is needed no more.
    drop(document);
    let snapshot = snapshot.ok_or(PickleError::Foreign)?;
    let PickledDefinitions { stacks, metadata } = definitions;
    let is_exported = metadata.is_own;
    let mut history = timeline::events(snapshot, stacks.without_lists(), metadata.definitions);
    history.facts.is_exported = is_exported;
    Ok(history)
}

#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;

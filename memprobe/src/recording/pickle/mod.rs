//! Memory snapshots that PyTorch pickled itself, read as a stream of events.
//!
//! `torch.cuda.memory._snapshot()` returns the allocator's segments with their blocks, and the latest events if
//! `_record_memory_history()` was on (torch/cuda/memory.py@v2.15.0). [`History`] has the same facts as events.
//!
//! Facts that PyTorch does not record are unknown: threads, modules, tensors. memprobe's own export has them
//! ([`metadata`], [`side_events`]). An event has the requested size, and a block that was freed before the snapshot no
//! other; the allocator's rounding gives its size then.

mod copy;
mod dict_keys;
mod history;
mod machine;
mod metadata;
pub mod side_events;
mod stacks;
mod timeline;
mod times;
mod writer;

pub use copy::{PickleCopyError, copy_pickle};
pub use metadata::{CALLED_BACKWARD, NO_TENSOR, UNKNOWN_MODULE, WRITER_KEY};
pub use timeline::rounded as rounded_request;
pub use writer::{PickleItems, PickleMemo, PickleWriter};

use std::collections::VecDeque;
use std::io::{self, BufRead};

use crate::event::{Event, Tgid};
use crate::recording::{Header, MAX_CONTEXT};
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
    /// Header of the recording that memprobe exported, or of PyTorch's history.
    pub header: Header,
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
    /// memprobe exported it, with modules, tensors, threads and labels.
    pub is_exported: bool,
    /// Marks and labels of the export that could not be read.
    pub refused_side_events: u64,
    /// Stacks beyond the limits of a recording: their allocations have none.
    pub refused_stacks: u64,
}

/// Key of the settings as text, in `allocator_settings`.
pub const SETTINGS_TEXT_KEY: &str = "PYTORCH_CUDA_ALLOC_CONF";

/// Process of a snapshot that PyTorch wrote, which has no PID.
const NO_PROCESS: Tgid = Tgid(0);

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
    /// Several segments or devices have the same list, so that a short file has any number of events.
    Repeated,
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
    let header = side_events::header(&document);
    let process = header.as_ref().and_then(|header| header.target.tgid);
    let process = process.unwrap_or(NO_PROCESS);
    let mut definitions = history::PickledDefinitions::of(&document);
    let side_events = side_events::PickledSideEvents::of(&document, process, &mut definitions);
    let snapshot = history::MemoryPickle::of(&document, &mut definitions, side_events);
    let threads = side_events::threads(&document);
    let settings = allocator_settings(&document);
    // The largest part is needed no more.
    drop(document);
    let snapshot = snapshot?;
    let PickledDefinitions { stacks, metadata } = definitions;
    let is_exported = metadata.is_own;
    let mut definitions = threads;
    definitions.extend(metadata.definitions);
    let mut history = timeline::events(snapshot, stacks.without_lists(), definitions, header);
    history.facts.is_exported = is_exported;
    let conf = &mut history.header.target.allocator_conf;
    *conf = conf.take().or(settings);
    Ok(history)
}

/// Returns the text of the allocator's settings; `None` without any.
fn allocator_settings(document: &machine::Document) -> Option<String> {
    let dict = |value| match value {
        machine::Value::Dict(dict) => Some(dict),
        _ => None,
    };
    let root = dict(document.root)?;
    let settings = dict(document.get(root, "allocator_settings")?)?;
    let machine::Value::Text(text) = document.get(settings, SETTINGS_TEXT_KEY)? else {
        return None;
    };
    let text = document.text(text);
    (!text.is_empty() && text.len() <= MAX_CONTEXT).then(|| text.to_string())
}

#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;

//! Recordings: formats of memprobe's `trace.mprb` ([`compact`]) and `trace.json`, and their reader. PyTorch's own memory
//! snapshots are read too ([`pickle`]).
//!
//! `trace.json` is a Chrome trace-event array, written by [`crate::recording::write::trace_event`], with one record a line.
//! Additional metadata records let the reader restore the stream of [`crate::event::Event`]s exactly. Records:
//!
//! | `ph` | `cat` or `name` | meaning |
//! |---|---|---|
//! | `M` | `memprobe` | [`Header`]; first line, and again when more is known of the target; with `from_live_screen`, the live screen saved the recording, and its first events restate the blocks that were live; with `dump`, `watch` wrote it ([`DumpFacts`]), and it begins in the same way |
//! | `M` | `memprobe_stack` | defines a stack; `module`, `module_unknown` and `grad` are the state of its thread, `node` (with the stack `forward` that created it) is the autograd node being evaluated |
//! | `M` | `thread_name` | names a thread |
//! | `i` | `attach` | an allocator's totals when memprobe attached ([`crate::event::AtAttach`]; from format 2 on) |
//! | `b`, `i` | `alloc` | a block was allocated (`i`: too many are live to be drawn as slices); with `live_at_attach` (`held` before format 5), it was live when memprobe attached |
//! | | | the tensor it was allocated for: `shape`, `more_dimensions` (count of those omitted), `dtype`, `requested` bytes; if `tensor` is false, it is not a tensor's, and `inferred` may name its purpose: `purpose` if known (`use` before format 5), and the requesting `function` and `library` |
//! | `e` | `alloc` | the block was freed; with `unseen_free`, its free was lost and its address was reused; with `live_at_end`, it is live and drawn up to the last event |
//! | `i` | `free` | a block was freed whose allocation was not seen |
//! | `b`, `i`, `e` | `segment` | likewise for segments |
//! | `i` | `segment_free` | a segment was freed whose allocation was not seen |
//! | `i` | `segment_sleep`, `segment_wake` | the memory behind a segment was given back to CUDA without the allocator, which keeps the segment; got back (from format 7 on) |
//! | `b`, `i`, `e` | `cpu` | likewise for blocks of the CPU allocator, whose `device` is `"cpu"` (from format 3 on) |
//! | `i` | `cpu_free` | a CPU block was freed whose allocation was not seen; its `size` is 0 |
//! | `i` | `oom` | an out-of-memory error |
//! | `i` | `cuda_oom` | CUDA had no memory for a caller other than the caching allocator (from format 7 on) |
//! | `i` | `mark` | PyTorch announced an optimizer step, `zero_grad()` or next batch ([`crate::event::PhaseMark`]; from format 4 on) |
//! | `M`, `i` | `memprobe_named`, `names` | names of all live blocks and the roots that retain them (`retained_by`, before format 5 `kept`), read from the process's objects, then the time of the reading ([`crate::event::BlockLabels`]; from format 4 on) |
//! | `M`, `i` | `memprobe_named`, `baseline_names` | likewise, of blocks from before attach that were live during the whole reading |
//! | `M`, `i` | `memprobe_segment`, `segments` | the allocator's segments and the blocks that await an event, read from its tables, then the time of the reading and the allocator's totals; `unread` is the reason if there are none ([`crate::event::SegmentReading`]; from format 6 on) |
//! | `i` | `driver` | memory of the GPUs as the driver counts it, and the time of the question ([`crate::event::DriverReading`]; from format 7 on) |
//! | `i` | `loss` | running totals of losses |
//! | `i` | `capture` | the detail recorded from now on, and the estimated share of the process's time, in parts per million, for the budget of `--max-overhead` ([`crate::event::CaptureChange`]; from format 6 on) |
//! | `C` | | counters, for viewers only |
//! | `M` | `memprobe_end` | [`End`]; last line |

mod compact;
mod directory;
mod driver;
mod dump;
mod error;
mod format;
#[cfg(test)]
pub(crate) mod generated;
mod header;
mod json_reader;
mod line;
mod names;
mod pickle;
mod reader;
#[cfg(test)]
pub(crate) mod samples;
mod seekable;
mod segments;
mod sources;
mod tensors;
pub mod write;

pub use compact::{KeyframePlace, RecordedCurve, RecordingDamage, decode_curve};
pub use directory::recordings_in;
pub(crate) use driver::DriverRecord;
pub use dump::{
    DumpFacts, DumpReason, DumpedGpu, DumpedProcess, MAX_DUMPED_COMMAND, MAX_DUMPED_PROCESSES,
};
pub use error::RecordingError;
pub use format::RecordingFormat;
pub(crate) use header::{AtAttachRecord, CaptureRecord, EndRecord, HeaderRecord};
pub use header::{DroppedBeginning, End, EndReason, Header};
pub(crate) use names::{LabelScope, NamedRecord, NamesRecord, RetainerRecord};
pub use pickle::{
    CALLED_BACKWARD, FIRST_BYTE as PICKLE_FIRST_BYTE, HistoryFacts, NO_TENSOR, PickleCopyError,
    PickleItems, PickleMemo, PickleWriter, SETTINGS_TEXT_KEY as PICKLE_SETTINGS_TEXT_KEY,
    UNKNOWN_MODULE, WRITER_KEY as PICKLE_WRITER_KEY, copy_pickle, rounded_request,
    side_events as pickle_side_events,
};
pub use reader::Reader;
pub(crate) use seekable::CELL_EVENTS;
pub use seekable::{GroupReader, SeekableRecording};
pub(crate) use segments::{SegmentRecord, SegmentsRecord};
pub use sources::{RecordedSource, RecordedSources, SourceSection};
pub(crate) use tensors::{BlockRecord, KvCachesRecord, SiteRecord, StorageRecord};
pub use tensors::{SnapshotFileError, TENSOR_FORMAT, open_tensors, read_tensors};

/// Format version. The reader refuses later ones.
pub const FORMAT: u32 = 7;

/// Longest line written or read, in bytes.
pub const MAX_LINE: usize = 4 << 20;

/// Deepest stack read, in frames.
pub const MAX_FRAMES: usize = 4096;

/// Longest text about the purpose of a block without a tensor, in bytes.
pub const MAX_PURPOSE: usize = 4096;

/// Longest module path, node name or class name, in bytes.
pub const MAX_CONTEXT: usize = 128 << 10;

/// Most dimensions read of a tensor.
pub const MAX_DIMENSIONS: usize = 64;

/// Most stacks that one recording may define.
pub const MAX_STACKS: usize = 1 << 20;

/// Most frames of all stacks of one recording together.
pub const MAX_ALL_FRAMES: usize = 1 << 25;

/// Most marks of phases of an exported recording, at 64 bytes each.
pub const MAX_MARKS: usize = 1 << 20;

/// Returns an error if a name exceeds [`MAX_CONTEXT`].
fn check_names<'a>(mut names: impl Iterator<Item = &'a str>) -> Result<(), String> {
    match names.find(|name| name.len() > MAX_CONTEXT) {
        Some(long) => Err(format!("a name of {} bytes", long.len())),
        None => Ok(()),
    }
}

/// Parses an address or handle: `0x7f00`.
fn hex(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x")?;
    if digits.starts_with('+') {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}

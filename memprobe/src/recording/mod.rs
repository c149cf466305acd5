//! Recordings: what a `trace.json` of memprobe holds, and how it is read back.
//!
//! The file is a Chrome trace-event array (written by [`crate::export::trace_event`]), one record
//! a line, with metadata records of our own that make the stream of [`crate::event::Event`]s
//! restorable exactly. Record by record:
//!
//! | `ph` | `cat` or `name` | meaning |
//! |---|---|---|
//! | `M` | `memprobe` | [`Header`]; first line, and again when more is known of the target |
//! | `M` | `memprobe_stack` | defines a stack; `module`, `module_unknown` and `grad` say what its thread was doing, `node` (with the stack `forward` that made it) which step of a backward pass it belongs to |
//! | `M` | `thread_name` | names a thread |
//! | `i` | `attach` | what an allocator held when memprobe attached ([`crate::event::AtAttach`]; from format 2 on) |
//! | `b`, `i` | `alloc` | a block was allocated (`i`: too many are live to be drawn as slices); with `held`, it was live when memprobe attached |
//! | | | of the tensor that it was allocated for: `shape`, `more_dimensions` where those are not all, `dtype`, `requested` bytes; `tensor` is false where it was for none, and then `inferred` may say what for: `use` where that is known, `function` and `library` that asked |
//! | `e` | `alloc` | it was freed; with `unseen_free`, its free was lost and its address is used again; with `live_at_end`, it is live and drawn up to the last event |
//! | `i` | `free` | a block was freed that was not seen being allocated |
//! | `b`, `i`, `e` | `segment` | likewise for segments |
//! | `i` | `segment_free` | a segment was freed that was not seen being allocated |
//! | `b`, `i`, `e` | `cpu` | likewise for blocks of the CPU allocator, whose `device` is `"cpu"` (from format 3 on) |
//! | `i` | `cpu_free` | a block of the CPU was freed that was not seen being allocated; its `size` is 0 |
//! | `i` | `oom` | an out-of-memory error |
//! | `i` | `mark` | PyTorch said what its program was about to do ([`crate::event::Mark`]; from format 4 on) |
//! | `M`, `i` | `memprobe_named`, `names` | what each live block was for when the process's objects were read and who kept it (`kept`), and the moment of that ([`crate::event::Names`]; from format 4 on) |
//! | `i` | `loss` | running totals of what was lost |
//! | `C` | | counters, for viewers only |
//! | `M` | `memprobe_end` | [`End`]; last line |

mod directory;
mod error;
mod header;
mod kept;
mod line;
mod names;
mod reader;
#[cfg(test)]
pub(crate) mod samples;
mod tensors;

pub use directory::recordings_in;
pub use error::RecordingError;
pub(crate) use header::{AtAttachRecord, EndRecord, HeaderRecord};
pub use header::{End, EndReason, Header};
pub(crate) use kept::KeptRecord;
pub(crate) use names::NamedRecord;
pub use reader::Reader;
pub use tensors::{SnapshotError, TENSOR_FORMAT, open_tensors, read_tensors};

/// The version of the format. A reader refuses what is newer.
pub const FORMAT: u32 = 4;

/// Bytes of the longest line that is written or read.
pub const MAX_LINE: usize = 4 << 20;

/// Frames of the deepest stack that is read.
pub const MAX_FRAMES: usize = 4096;

/// Bytes of each text that says what a block without a tensor is for.
pub const MAX_PURPOSE: usize = 4096;

/// Bytes of a module's path, a node's or a class's name.
pub const MAX_CONTEXT: usize = 128 << 10;

/// Dimensions of a tensor that are read.
pub const MAX_DIMENSIONS: usize = 64;

/// Stacks that one recording may define.
pub const MAX_STACKS: usize = 1 << 20;

/// Frames of all stacks of one recording together.
pub const MAX_ALL_FRAMES: usize = 1 << 25;

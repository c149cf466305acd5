//! Compact recording (`.mprb`): checksummed frames, compressed by zstd. docs/mprb.md describes the format.
//!
//! A frame of records has its records in columns: kinds, times, addresses, sizes and so on, each with varints of the
//! differences. Differences begin anew in each frame. Strings, lines, stacks and purposes are defined once in a group
//! of frames, so that damage in one group leaves the next one whole.

mod beginning;
mod columns;
mod curve;
mod decode;
mod definitions;
mod encode;
mod follow;
mod frame;
mod id_set;
mod index;
mod input;
mod labels;
mod limit;
mod reader;
mod seek;
mod source;
mod varint;

pub use curve::decode as decode_curve;
pub(super) use encode::CompactEncoder;
pub(super) use follow::KeyframeWriter;
pub(super) use frame::{MAGIC, PlainFrame, preamble};
pub(super) use limit::SizeLimit;
pub(super) use reader::CompactReader;
pub use reader::RecordingDamage;
pub use seek::{KeyframePlace, RecordedCurve};
pub(super) use seek::{PartInput, SeekIndex};

/// Version of the compact format. The reader refuses later ones.
pub const COMPACT_FORMAT: u16 = 5;

/// Length of groups, and share of keyframes in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupPolicy {
    /// Memory events after which a group is closed.
    pub(super) events: u64,
    /// Bytes before compression after which a group is closed.
    pub(super) bytes: u64,
    /// Bytes before compression after which a frame is closed.
    pub(super) frame_bytes: usize,
    /// Least bytes of frames between two keyframes, for each byte of the earlier one.
    pub(super) bytes_per_keyframe_byte: u64,
    /// Bytes of frames after which a keyframe is due in any case.
    pub(super) keyframe_bytes: u64,
    /// Memory events of a cell of the curve.
    pub(super) cell_events: u32,
}

impl Default for GroupPolicy {
    /// A quarter of a million events are replayed in a moment. Keyframes take at most a ninth of a file.
    fn default() -> Self {
        Self {
            events: 1 << 18,
            bytes: u64::MAX,
            frame_bytes: 1 << 20,
            bytes_per_keyframe_byte: 8,
            keyframe_bytes: u64::MAX,
            cell_events: CELL_EVENTS,
        }
    }
}

/// Memory events of a cell of the curve.
pub(super) const CELL_EVENTS: u32 = 256;

/// Most records of one frame.
const MAX_RECORDS: usize = 1 << 17;

/// Most bytes of a frame, compressed or not.
const MAX_PAYLOAD: usize = 16 << 20;

/// Longest text, in bytes.
const MAX_STRING: usize = super::MAX_CONTEXT;

/// Numbers of the records that are no memory events.
mod record {
    pub(super) const STACK: u64 = 0;
    /// Repeats a [`STACK`] for a reader that begins with this group.
    pub(super) const STACK_REPEATED: u64 = 1;
    pub(super) const PURPOSE: u64 = 2;
    /// Repeats a [`PURPOSE`] for a reader that begins with this group.
    pub(super) const PURPOSE_REPEATED: u64 = 3;
    pub(super) const THREAD: u64 = 4;
    pub(super) const AT_ATTACH: u64 = 5;
    pub(super) const MARK: u64 = 6;
    pub(super) const LABEL: u64 = 7;
    pub(super) const LABELS: u64 = 8;
    pub(super) const SEGMENT: u64 = 9;
    pub(super) const SEGMENTS: u64 = 10;
    pub(super) const LOSS: u64 = 11;
    pub(super) const CAPTURE: u64 = 12;
    /// Ends [`LABEL`]s as [`LABELS`] does, of blocks from before attach alone.
    pub(super) const BASELINE_LABELS: u64 = 13;
    /// Answer of the driver about the GPUs.
    pub(super) const DRIVER: u64 = 14;
    /// Tag of an allocation, before the end of its labels.
    pub(super) const TAG: u64 = 15;
    /// A memory event of the first class of its frame; the next classes follow.
    pub(super) const MEMORY: u64 = 16;
}

/// Numbers of the records of a keyframe that a group has not. Definitions and segments have the numbers of [`record`].
mod keyframe_record {
    pub(super) const MOMENT: u64 = 16;
    pub(super) const STACK_ID: u64 = 17;
    pub(super) const DEVICE: u64 = 18;
    pub(super) const CALL_SITE: u64 = 19;
    pub(super) const LINE_PEAKS: u64 = 20;
    pub(super) const BLOCK: u64 = 21;
    pub(super) const CUDA_DEVICE: u64 = 22;
    pub(super) const CUDA_GROUP: u64 = 23;
    pub(super) const CUDA_MEMORY: u64 = 24;
    pub(super) const END: u64 = 25;
    pub(super) const SEGMENT_MEMORY: u64 = 26;
    pub(super) const DRIVER_MEMORY: u64 = 27;
    pub(super) const DRIVER_STATE: u64 = 28;
    pub(super) const RESERVED: u64 = 29;
    pub(super) const CUDA_KIND: u64 = 30;
}

#[cfg(test)]
mod tests;

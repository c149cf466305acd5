//! Compact recording (`.mprb`): checksummed frames, compressed by zstd. docs/mprb.md describes the format.
//!
//! A frame of records has its records in columns: kinds, times, addresses, sizes and so on, each with varints of the
//! differences. Differences begin anew in each frame. Strings, lines, stacks and purposes are defined once in a group
//! of frames, so that damage in one group leaves the next one whole.

mod columns;
mod decode;
mod definitions;
mod encode;
mod frame;
mod input;
mod reader;
mod varint;

pub(super) use encode::CompactEncoder;
pub(super) use frame::{FrameWriter, MAGIC, PlainFrame, preamble};
pub(super) use reader::CompactReader;
pub use reader::RecordingDamage;

/// Version of the compact format. The reader refuses later ones.
pub const COMPACT_FORMAT: u16 = 1;

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
    /// A memory event of the first class of its frame; the next classes follow.
    pub(super) const MEMORY: u64 = 16;
}

#[cfg(test)]
mod tests;

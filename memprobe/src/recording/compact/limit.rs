//! Bound on the size of a recording: its oldest part is dropped.
//!
//! The file grows to two thirds of the bound. Then its newest part, at most a third, is copied and replaces it. Both
//! together stay within the bound, and the file is whole at every moment.

use std::io;

use super::GroupPolicy;
use super::index::{FramePlace, PlaceKind};

/// Bound on a file and the copy of its end together.
pub(in crate::recording) struct SizeLimit<W> {
    pub(in crate::recording) bytes: u64,
    /// Replaces everything before an offset.
    pub(in crate::recording) replace_beginning: fn(&mut W, &[u8], u64) -> io::Result<()>,
}

impl<W> SizeLimit<W> {
    /// Longest file, in bytes.
    pub(super) fn file(&self) -> u64 {
        self.bytes / 3 * 2
    }

    /// Returns the keyframe at which the file shall begin, with `head` bytes before it: the earliest one that leaves
    /// enough room, or else the newest. Returns `None` if that would not free an eighth of the bound.
    pub(super) fn cut(&self, places: &[FramePlace], end: u64, head: u64) -> Option<FramePlace> {
        let most = (self.bytes / 3).saturating_sub(head);
        let keyframes = places
            .iter()
            .filter(|place| place.kind == PlaceKind::Keyframe);
        let mut useful = keyframes.filter(|place| place.offset > self.bytes / 8);
        let fits = |place: &&FramePlace| end - place.offset.min(end) <= most;
        useful
            .clone()
            .find(fits)
            .or_else(|| useful.next_back())
            .copied()
    }
}

impl GroupPolicy {
    /// Groups and keyframes so short that a recording of at most `bytes` can be cut at many places.
    pub(in crate::recording) fn within(bytes: u64) -> Self {
        let policy = Self::default();
        let part = bytes / 16;
        Self {
            bytes: part,
            frame_bytes: usize::try_from(part)
                .map_or(policy.frame_bytes, |part| part.min(policy.frame_bytes)),
            keyframe_bytes: part,
            ..policy
        }
    }
}

//! Parts of structured tables.

use serde::Serialize;

pub(super) use super::cells::{known_line, place_kind, purpose_kind as what_kind};
use crate::event::{DeviceIndex, Frame};
use crate::ledger::snapshot::{DeviceSnapshot, Site};

/// One frame of a stack.
#[derive(Serialize)]
pub(super) struct FrameRow<'a> {
    file: &'a str,
    line: Option<u32>,
    function: &'a str,
    /// Present for native code.
    #[serde(skip_serializing_if = "Option::is_none")]
    library: Option<&'a str>,
}

impl<'a> From<&'a Frame> for FrameRow<'a> {
    fn from(frame: &'a Frame) -> Self {
        Self {
            file: &frame.file,
            line: known_line(frame),
            function: &frame.function,
            library: frame.library.as_deref(),
        }
    }
}

/// Kind of the row for all hidden lines.
pub(super) const OTHERS: &str = "others";

pub(super) fn known_device(index: DeviceIndex) -> Option<DeviceIndex> {
    (index != DeviceIndex::UNKNOWN).then_some(index)
}

/// Bytes that no row has, unless 0: kind, bytes and blocks.
pub(super) fn remainder(
    device: &DeviceSnapshot,
) -> impl Iterator<Item = (&'static str, i64, Option<u64>)> {
    let before = &device.before_attach;
    let live = signed(before.live.0);
    let rest = [
        ("before_attach", live, before.live_blocks()),
        ("unaccounted", device.unaccounted, None),
    ];
    rest.into_iter().filter(|(_, live, _)| *live != 0)
}

/// Call site of memory, as far as it is known.
#[derive(Default)]
pub(super) struct CallSiteFields<'a> {
    pub(super) file: Option<&'a str>,
    pub(super) line: Option<u32>,
    pub(super) function: Option<&'a str>,
    /// Thread of memory without a line.
    pub(super) thread: Option<&'a str>,
    /// Reason that it has no line.
    pub(super) reason: Option<&'a str>,
    /// Autograd node, for `backward_of`.
    pub(super) node: Option<&'a str>,
}

impl<'a> CallSiteFields<'a> {
    pub(super) fn of(site: &'a Site) -> Self {
        let frame = site.frame();
        let nobody = site.nobody();
        Self {
            file: frame.map(|frame| &*frame.file),
            line: frame.and_then(known_line),
            function: frame.map(|frame| &*frame.function),
            thread: nobody.map(|(thread, _)| &**thread),
            reason: nobody.map(|(_, reason)| reason),
            node: site.node().map(|node| &**node),
        }
    }
}

/// Bytes as a signed number, for columns that may be negative.
pub(super) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

//! Cells and rows that several reports have in common.

use crate::event::{DeviceIndex, Frame};
use crate::ledger::snapshot::{LineRow, PurposeInfo, Site, SoftwareLayer};
pub(super) use crate::view::cells::{Remainder, frame, known_line, remainders};
use crate::view::line_pools;
use crate::view::table::Cell;

pub(super) fn file(site: Option<&Site>) -> Cell<'_> {
    site.and_then(Site::frame).map(|frame| &*frame.file).into()
}

pub(super) fn line(site: Option<&Site>) -> Cell<'_> {
    site.and_then(Site::frame).and_then(known_line).into()
}

pub(super) fn function(site: Option<&Site>) -> Cell<'_> {
    let frame = site.and_then(Site::frame);
    frame.map(|frame| &*frame.function).into()
}

/// Thread of memory without a line.
pub(super) fn thread(site: Option<&Site>) -> Cell<'_> {
    let nobody = site.and_then(Site::nobody);
    nobody.map(|(thread, _)| &**thread).into()
}

/// Reason that memory has no line.
pub(super) fn reason(site: Option<&Site>) -> Cell<'_> {
    site.and_then(Site::nobody).map(|(_, reason)| reason).into()
}

pub(super) fn node(site: Option<&Site>) -> Cell<'_> {
    site.and_then(Site::node).map(|node| &**node).into()
}

pub(super) fn frames(frames: &[Frame]) -> Cell<'_> {
    Cell::list(frames.iter().map(frame))
}

/// Live bytes of a line by allocator; empty if no stack shows one.
pub(super) fn pools(line: &LineRow) -> Cell<'static> {
    let pools = line_pools(line);
    if pools.is_empty() {
        return Cell::Blank;
    }
    let pools = pools.into_iter();
    let pools =
        pools.map(|(name, live)| Cell::Object(vec![("name", name.into()), ("live", live.into())]));
    Cell::List(pools.collect())
}

/// Kind of the row for all hidden ones.
pub(super) const OTHERS: &str = "others";

pub(super) fn total_name(device: DeviceIndex, layer: SoftwareLayer) -> String {
    match layer {
        _ if device == DeviceIndex::CPU => "(total as memprobe counts)".to_owned(),
        SoftwareLayer::Allocator => "(total of the allocator)".to_owned(),
        layer => format!("(total of {})", layer.as_str()),
    }
}

pub(super) fn purpose_kind(purpose: &PurposeInfo) -> &'static str {
    match purpose {
        PurposeInfo::Known(known) if known.tensor().is_some() => "tensor",
        PurposeInfo::Known(_) | PurposeInfo::NoTensor => "no_tensor",
        PurposeInfo::Unknown => "unknown",
        PurposeInfo::TooMany => "too_many",
    }
}

pub(super) fn shape(purpose: Option<&PurposeInfo>) -> Cell<'_> {
    let shape = purpose.and_then(PurposeInfo::shape);
    shape.map(ToString::to_string).into()
}

pub(super) fn dtype(purpose: Option<&PurposeInfo>) -> Cell<'_> {
    let shape = purpose.and_then(PurposeInfo::shape);
    shape.map(|shape| shape.dtype.to_string()).into()
}

/// Purpose of a block without a tensor.
pub(super) fn purpose(purpose: Option<&PurposeInfo>) -> Cell<'_> {
    let purpose = purpose.and_then(PurposeInfo::purpose);
    purpose.map(ToString::to_string).into()
}

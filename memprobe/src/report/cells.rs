//! Cells and rows that several reports have in common.

use crate::event::DeviceIndex;
use crate::ledger::snapshot::{PurposeInfo, SoftwareLayer};
pub(super) use crate::view::cells::{
    Remainder, file, frame, frames, function, line, node, reason, remainders, thread,
};
use crate::view::table::Cell;

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

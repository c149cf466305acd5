//! Structured table of tensors. Numbers are bytes; unknown is null (or empty).

use serde::Serialize;

use super::Tensors;
use crate::event::DeviceIndex;
use crate::model::snapshot::{DeviceSnapshot, ShapeRow};
use crate::report::document_old::Layout;
use crate::report::structured::{
    CallSiteFields, OTHERS, known_device, remainder, signed, what_kind,
};

/// Columns of comma-separated values.
pub(super) const HEADINGS: [&str; 17] = [
    "device",
    "kind",
    "shape",
    "dtype",
    "requested",
    "file",
    "line",
    "function",
    "thread",
    "reason",
    "live",
    "peak",
    "live_blocks",
    "allocs",
    "purpose",
    "requested_by",
    "library",
];

#[derive(Serialize)]
pub(super) struct Device<'a> {
    device: Option<DeviceIndex>,
    allocated: u64,
    reserved: u64,
    before_attach: u64,
    unaccounted: i64,
    live_blocks: u64,
    tensors: Vec<Row<'a>>,
}

/// One row. `kind` is `tensor`, `no_tensor`, `unknown` or `too_many`, and `others` for all hidden
/// rows. JSON lines and CSV also have `before_attach` and `unaccounted`, so that `live` adds up to
/// the allocator's total.
///
/// For `no_tensor`, `purpose` is inferred from `requested_by`, a function of
/// `library`. If it is null, `requested_by` is the innermost function outside the allocator.
#[derive(Default, Serialize)]
pub(super) struct Row<'a> {
    device: Option<DeviceIndex>,
    kind: &'static str,
    shape: Option<Sizes<'a>>,
    dtype: Option<String>,
    /// Requested bytes of one block.
    requested: Option<u64>,
    file: Option<&'a str>,
    line: Option<u32>,
    function: Option<&'a str>,
    thread: Option<&'a str>,
    reason: Option<&'a str>,
    live: i64,
    peak: Option<u64>,
    live_blocks: Option<u64>,
    allocs: Option<u64>,
    purpose: Option<&'a str>,
    requested_by: Option<&'a str>,
    library: Option<&'a str>,
}

/// A shape: numbers, or text in a flat row.
#[derive(Serialize)]
#[serde(untagged)]
enum Sizes<'a> {
    Numbers(&'a [u64]),
    Words(String),
}

/// A device in a document.
pub(super) fn device<'a>((device, tensors): &'a (&DeviceSnapshot, Tensors)) -> Device<'a> {
    let rows = tensors.shown.iter();
    Device {
        device: known_device(device.index),
        allocated: device.totals.allocated.0,
        reserved: device.totals.reserved.0,
        before_attach: device.before_attach.live.0,
        unaccounted: device.unaccounted,
        live_blocks: device.live_blocks,
        tensors: rows
            .map(|it| row(device.index, it, Layout::Nested))
            .chain(others(device.index, &tensors.hidden))
            .collect(),
    }
}

/// Rows of a device, and its remainders.
pub(super) fn flat<'a>(
    device: &'a DeviceSnapshot,
    tensors: &'a Tensors,
    layout: Layout,
) -> impl Iterator<Item = Row<'a>> {
    let rest = remainder(device).map(|(kind, live, live_blocks)| Row {
        live,
        live_blocks,
        ..bare(device.index, kind)
    });
    let shown = tensors.shown.iter();
    shown
        .map(move |it| row(device.index, it, layout))
        .chain(others(device.index, &tensors.hidden))
        .chain(rest)
}

/// Sum of hidden rows, if there are any.
fn others<'a>(device: DeviceIndex, hidden: &[ShapeRow]) -> Option<Row<'a>> {
    let total = |of: fn(&ShapeRow) -> u64| hidden.iter().map(of).fold(0, u64::saturating_add);
    (!hidden.is_empty()).then(|| Row {
        live: signed(total(|row| row.live.0)),
        live_blocks: Some(total(|row| row.live_blocks)),
        allocs: Some(total(|row| row.allocs)),
        ..bare(device, OTHERS)
    })
}

fn row(device: DeviceIndex, row: &ShapeRow, layout: Layout) -> Row<'_> {
    let shape = row.what.shape();
    let purpose = row.what.purpose();
    let at = CallSiteFields::of(&row.site);
    Row {
        shape: shape.map(|shape| match layout {
            Layout::Nested if shape.more == 0 => Sizes::Numbers(&shape.sizes),
            Layout::Nested | Layout::Flat => Sizes::Words(shape.to_string()),
        }),
        dtype: shape.map(|shape| shape.dtype.to_string()),
        requested: shape.and_then(|shape| Some(shape.requested?.0)),
        purpose: purpose.and_then(|it| it.what.as_deref()),
        requested_by: purpose.map(|it| &*it.function),
        library: purpose.map(|it| &*it.library),
        file: at.file,
        line: at.line,
        function: at.function,
        thread: at.thread,
        reason: at.reason,
        live: signed(row.live.0),
        peak: Some(row.peak.0),
        live_blocks: Some(row.live_blocks),
        allocs: Some(row.allocs),
        ..bare(device, what_kind(&row.what))
    }
}

fn bare<'a>(device: DeviceIndex, kind: &'static str) -> Row<'a> {
    Row {
        device: known_device(device),
        kind,
        ..Row::default()
    }
}

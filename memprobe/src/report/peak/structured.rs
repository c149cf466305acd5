//! Structured report of a device's peak. Numbers are bytes and nanoseconds; unknown is null (or
//! empty).

use serde::Serialize;

use super::{AtPeak, Called, place_name};
use crate::event::DeviceIndex;
use crate::ledger::snapshot::{PurposeInfo, Site};
use crate::report::structured::{CallSiteFields, known_device, place_kind, signed, what_kind};

#[derive(Serialize)]
pub(super) struct Device<'a> {
    device: Option<DeviceIndex>,
    /// Nanoseconds from the start to the device's peak since attach.
    peak_ns: u64,
    /// Totals at that time.
    allocated: u64,
    reserved: u64,
    cached: u64,
    /// Iteration of the peak, as text.
    iteration: Option<&'a str>,
    before_attach: u64,
    unaccounted: i64,
    /// Highest allocated bytes by the allocator's own statistics, which may be from before attach.
    highest_allocated: u64,
    rows: Vec<Row<'a>>,
}

/// One row. `by` is its table: `line`, `module`, `tensor`, `category` (inferred) or `saved`.
/// Together with the `kind`s `before_attach` and `unaccounted`, the rows of each table add up to
/// the allocator's total. Rows of `saved` instead divide the category `activation`.
#[derive(Default, Serialize)]
pub(super) struct Row<'a> {
    device: Option<DeviceIndex>,
    by: &'static str,
    kind: &'static str,
    file: Option<&'a str>,
    line: Option<u32>,
    function: Option<&'a str>,
    thread: Option<&'a str>,
    reason: Option<&'a str>,
    /// Autograd node, for `backward_of`.
    node: Option<&'a str>,
    category: Option<&'static str>,
    module: Option<String>,
    pass: Option<&'static str>,
    shape: Option<String>,
    dtype: Option<String>,
    purpose: Option<String>,
    bytes: i64,
    blocks: Option<u64>,
}

pub(super) const HEADINGS: [&str; 17] = [
    "device", "by", "kind", "file", "line", "function", "thread", "reason", "node", "category",
    "module", "pass", "shape", "dtype", "purpose", "bytes", "blocks",
];

/// A device in a document; the recording began at `started`, in nanoseconds.
pub(super) fn device<'a>(at_peak: &'a AtPeak<'a>, started: u64) -> Device<'a> {
    let moment = &at_peak.view.moment;
    let (allocated, reserved) = (moment.totals.allocated.0, moment.totals.reserved.0);
    Device {
        device: known_device(at_peak.device.index),
        peak_ns: moment.time.0.saturating_sub(started),
        allocated,
        reserved,
        cached: reserved.saturating_sub(allocated),
        iteration: at_peak.iteration.as_deref(),
        before_attach: moment.before_attach.0,
        unaccounted: moment.unaccounted,
        highest_allocated: at_peak.device.peak.allocated.0,
        rows: rows(at_peak),
    }
}

/// Rows of a device.
pub(super) fn rows<'a>(at_peak: &'a AtPeak<'a>) -> Vec<Row<'a>> {
    let device = at_peak.device.index;
    let moment = &at_peak.view.moment;
    let rest = |by| {
        let rest = [
            ("before_attach", signed(moment.before_attach.0)),
            ("unaccounted", moment.unaccounted),
        ];
        let some = rest.into_iter().filter(|(_, bytes)| *bytes != 0);
        some.map(move |(kind, bytes)| Row {
            bytes,
            ..bare(device, by, kind)
        })
    };
    let held = |row: Row<'a>, bytes: u64, blocks: Option<u64>| Row {
        bytes: signed(bytes),
        blocks,
        ..row
    };
    let purposes = at_peak.purposes.iter().map(|row| Row {
        category: Some(row.who.category.key()),
        bytes: signed(row.bytes),
        ..bare(device, "category", "category")
    });
    let saved = at_peak.purposes.iter().flat_map(|row| &row.who.saved);
    let saved = saved.map(|(module, bytes)| Row {
        module: Some(module.clone()),
        bytes: signed(*bytes),
        ..bare(device, "saved", "module")
    });
    let lines = at_peak.lines.iter();
    let lines = lines.map(|row| held(of_site(device, &row.who), row.bytes, row.blocks));
    let modules = at_peak.modules.iter();
    let modules = modules.map(|row| held(of_module(device, &row.who), row.bytes, row.blocks));
    let tensors = at_peak.tensors.iter();
    let tensors = tensors.map(|row| held(of_tensor(device, &row.who), row.bytes, row.blocks));
    purposes
        .chain(rest("category"))
        .chain(saved)
        .chain(lines)
        .chain(rest("line"))
        .chain(modules)
        .chain(rest("module"))
        .chain(tensors)
        .chain(rest("tensor"))
        .collect()
}

fn of_site(device: DeviceIndex, site: &Site) -> Row<'_> {
    let at = CallSiteFields::of(site);
    Row {
        file: at.file,
        line: at.line,
        function: at.function,
        thread: at.thread,
        reason: at.reason,
        node: at.node,
        ..bare(device, "line", site.as_str())
    }
}

fn of_module(device: DeviceIndex, called: &Called) -> Row<'static> {
    let kind = place_kind(&called.place);
    Row {
        module: (kind == "module").then(|| place_name(&called.place)),
        pass: Some(called.pass.as_str()),
        ..bare(device, "module", kind)
    }
}

fn of_tensor(device: DeviceIndex, what: &PurposeInfo) -> Row<'static> {
    Row {
        shape: what.shape().map(ToString::to_string),
        dtype: what.shape().map(|shape| shape.dtype.to_string()),
        purpose: what.purpose().map(ToString::to_string),
        ..bare(device, "tensor", what_kind(what))
    }
}

fn bare<'a>(device: DeviceIndex, by: &'static str, kind: &'static str) -> Row<'a> {
    Row {
        device: known_device(device),
        by,
        kind,
        ..Row::default()
    }
}

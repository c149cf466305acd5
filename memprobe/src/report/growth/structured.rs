//! Structured report of growth. Numbers are bytes; unknown is null (or empty).

use serde::Serialize;

use super::OnDevice;
use crate::attribution::allocation_groups::AllocationGroup;
use crate::attribution::growth::{Growth, Rate, RetainedGrowth, StepUnit, Suspect};
use crate::event::DeviceIndex;
use crate::report::peak::place_name;
use crate::report::replay::Replay;
use crate::report::structured::{CallSiteFields, known_device, place_kind, what_kind};

#[derive(Serialize)]
pub(super) struct Device<'a> {
    device: Option<DeviceIndex>,
    /// Unit of rates: `iteration` or `second`.
    per: &'static str,
    /// Iterations or seconds per step.
    step: f64,
    /// Number of steps examined; with fewer than `needed_steps` there are no suspects.
    steps: usize,
    /// Earlier steps that were left out.
    left_out: usize,
    needed_steps: usize,
    /// Minimum growth of a suspect.
    least_growth: u64,
    suspects: Vec<SuspectRecord<'a>>,
    /// Time at which the process's objects were read, in nanoseconds since the start; null if
    /// never.
    read_ns: Option<u64>,
    /// Retainers of all growing lines; `named`, `others` and `unknown` add up to `live`.
    retainers: Option<RetainedRecord<'a>>,
}

/// A row, and all its retainers.
#[derive(Serialize)]
pub(super) struct SuspectRecord<'a> {
    #[serde(flatten)]
    pub(super) row: Row<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retainers: Option<RetainedRecord<'a>>,
}

#[derive(Serialize)]
struct RetainedRecord<'a> {
    live_blocks: u64,
    live_bytes: u64,
    named: Vec<RetainerRecord<'a>>,
    others_bytes: u64,
    unknown_bytes: u64,
}

/// A retainer of blocks: `root`, through `slot` and then `through`.
#[derive(Serialize)]
struct RetainerRecord<'a> {
    root: &'a str,
    class: Option<&'a str>,
    slot: Option<&'a str>,
    through: Option<&'a str>,
    saved_by: Option<&'a str>,
    blocks: u64,
    bytes: u64,
    exclusive_blocks: u64,
    exclusive_bytes: u64,
}

/// One row. `by` is `total`, `line`, `module` or `tensor`: different views of the same memory. The
/// other keys of a suspect are those of its part with most growth.
#[derive(Default, Serialize)]
pub(super) struct Row<'a> {
    device: Option<DeviceIndex>,
    by: &'static str,
    per: &'static str,
    bytes: f64,
    blocks: Option<f64>,
    /// Share of the steps with growth, from 0 to 1.
    grew: f64,
    first: u64,
    last: u64,
    kind: Option<&'static str>,
    file: Option<&'a str>,
    line: Option<u32>,
    function: Option<&'a str>,
    reason: Option<&'a str>,
    /// Autograd node, for `backward_of`.
    node: Option<&'a str>,
    module: Option<String>,
    shape: Option<String>,
    dtype: Option<String>,
    purpose: Option<String>,
    /// Top retainer of the blocks that were live when the process's objects were read.
    retained_by: Option<&'a str>,
    retained_class: Option<&'a str>,
    retained_through: Option<&'a str>,
    retained_blocks: Option<u64>,
    retained_bytes: Option<u64>,
    exclusive_bytes: Option<u64>,
}

pub(super) const HEADINGS: [&str; 24] = [
    "device",
    "by",
    "per",
    "bytes",
    "blocks",
    "grew",
    "first",
    "last",
    "kind",
    "file",
    "line",
    "function",
    "reason",
    "node",
    "module",
    "shape",
    "dtype",
    "purpose",
    "retained_by",
    "retained_class",
    "retained_through",
    "retained_blocks",
    "retained_bytes",
    "exclusive_bytes",
];

/// A device in a document.
pub(super) fn device<'a>(on: &'a OnDevice<'a>, replay: &Replay) -> Device<'a> {
    let growth = &on.growth;
    Device {
        device: known_device(on.device.index),
        per: per(growth),
        step: match growth.step {
            StepUnit::Iterations(iterations) => iterations,
            StepUnit::Window(nanoseconds) => nanoseconds as f64 / 1e9,
        },
        steps: growth.steps,
        left_out: growth.left_out,
        needed_steps: growth.needed,
        least_growth: growth.least.0,
        suspects: rows(on),
        read_ns: growth
            .read
            .map(|read| read.0.saturating_sub(replay.header.start.0)),
        retainers: growth.read.map(|_| retained_record(&growth.retained)),
    }
}

fn retained_record(kept: &RetainedGrowth) -> RetainedRecord<'_> {
    let retainers = kept.retainers.iter().map(|retainer| RetainerRecord {
        root: &retainer.by,
        class: retainer.class.as_deref(),
        slot: retainer.slot.as_deref(),
        through: retainer.through.as_deref(),
        saved_by: retainer.saved_by.as_deref(),
        blocks: retainer.retained.blocks,
        bytes: retainer.retained.bytes.0,
        exclusive_blocks: retainer.exclusive.blocks,
        exclusive_bytes: retainer.exclusive.bytes.0,
    });
    RetainedRecord {
        live_blocks: kept.live.blocks,
        live_bytes: kept.live.bytes.0,
        named: retainers.collect(),
        others_bytes: kept.others.bytes.0,
        unknown_bytes: kept.nobody.bytes.0,
    }
}

fn per(growth: &Growth) -> &'static str {
    match growth.step {
        StepUnit::Iterations(_) => "iteration",
        StepUnit::Window(_) => "second",
    }
}

/// Rows of a device.
pub(super) fn rows<'a>(on: &'a OnDevice<'a>) -> Vec<SuspectRecord<'a>> {
    let OnDevice { device, growth } = on;
    let row = |by, rate: &Rate| bare(device.index, by, per(growth), rate);
    let total = growth.total.iter().map(|rate| SuspectRecord {
        row: Row {
            blocks: None,
            ..row("total", rate)
        },
        retainers: None,
    });
    let is_read = growth.read.is_some();
    let lines = growth.lines.iter();
    let lines = lines.map(|it| suspect(it, row("line", &it.rate), is_read));
    let modules = growth.modules.iter();
    let modules = modules.map(|it| suspect(it, row("module", &it.rate), is_read));
    let tensors = growth.tensors.iter();
    let tensors = tensors.map(|it| suspect(it, row("tensor", &it.rate), is_read));
    total.chain(lines).chain(modules).chain(tensors).collect()
}

fn suspect<'a, K>(suspect: &'a Suspect<K>, row: Row<'a>, is_read: bool) -> SuspectRecord<'a> {
    let first = suspect.retained.retainers.first();
    SuspectRecord {
        row: Row {
            retained_by: first.map(|retainer| &*retainer.by),
            retained_class: first.and_then(|retainer| retainer.class.as_deref()),
            retained_through: first.and_then(|retainer| retainer.through.as_deref()),
            retained_blocks: first.map(|retainer| retainer.retained.blocks),
            retained_bytes: first.map(|retainer| retainer.retained.bytes.0),
            exclusive_bytes: first.map(|retainer| retainer.exclusive.bytes.0),
            ..named(suspect, row)
        },
        retainers: is_read.then(|| retained_record(&suspect.retained)),
    }
}

fn named<'a, K>(suspect: &'a Suspect<K>, row: Row<'a>) -> Row<'a> {
    let AllocationGroup { origin, what } = &suspect.part;
    let at = CallSiteFields::of(&origin.site);
    let place = place_kind(&origin.place);
    Row {
        kind: Some(match row.by {
            "line" => origin.site.as_str(),
            "module" => place,
            _ => what_kind(what),
        }),
        file: at.file,
        line: at.line,
        function: at.function,
        reason: at.reason,
        node: at.node,
        module: (place == "module").then(|| place_name(&origin.place)),
        shape: what.shape().map(ToString::to_string),
        dtype: what.shape().map(|shape| shape.dtype.to_string()),
        purpose: what.purpose().map(ToString::to_string),
        ..row
    }
}

fn bare<'a>(device: DeviceIndex, by: &'static str, per: &'static str, rate: &Rate) -> Row<'a> {
    Row {
        device: known_device(device),
        by,
        per,
        bytes: rate.bytes,
        blocks: Some(rate.blocks),
        grew: rate.grew,
        first: rate.first.0,
        last: rate.last.0,
        ..Row::default()
    }
}

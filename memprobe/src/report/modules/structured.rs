//! Structured table of modules: every module, whatever the text shows. Numbers are bytes; unknown
//! is null (or empty).

use serde::Serialize;

use super::{Shown, ordered};
use crate::attribution::allocation_groups::Pass;
use crate::attribution::modules::{ModuleTree, Sums};
use crate::event::DeviceIndex;
use crate::ledger::snapshot::DeviceSnapshot;
use crate::report::ReportOptions;
use crate::report::structured::{known_device, place_kind, remainder, signed};

#[derive(Serialize)]
pub(super) struct Device {
    device: Option<DeviceIndex>,
    allocated: u64,
    reserved: u64,
    /// Totals and time of the device's peak since attach.
    peak_allocated: u64,
    peak_reserved: u64,
    peak_ns: u64,
    modules: Vec<Row>,
}

/// One row. `kind` is `module`, `outside`, `unknown`, `backward_unknown`, `too_many`,
/// `before_attach` or `unaccounted`. Keys that begin with `own` exclude a module's parts. They add
/// up to the allocator's total now (`own_live`) and at the peak (`own_at_peak`).
#[derive(Default, Serialize)]
pub(super) struct Row {
    device: Option<DeviceIndex>,
    kind: &'static str,
    path: Option<String>,
    /// 0 for an outermost module.
    depth: Option<usize>,
    live: i64,
    at_peak: i64,
    peak: Option<u64>,
    live_blocks: Option<u64>,
    at_peak_blocks: Option<u64>,
    allocs: Option<u64>,
    forward_live: Option<u64>,
    forward_at_peak: Option<u64>,
    forward_peak: Option<u64>,
    recompute_live: Option<u64>,
    recompute_at_peak: Option<u64>,
    recompute_peak: Option<u64>,
    backward_live: Option<u64>,
    backward_at_peak: Option<u64>,
    backward_peak: Option<u64>,
    own_live: i64,
    own_at_peak: i64,
    own_peak: Option<u64>,
    own_live_blocks: Option<u64>,
    own_allocs: Option<u64>,
}

pub(super) const HEADINGS: [&str; 24] = [
    "device",
    "kind",
    "path",
    "depth",
    "live",
    "at_peak",
    "peak",
    "live_blocks",
    "at_peak_blocks",
    "allocs",
    "forward_live",
    "forward_at_peak",
    "forward_peak",
    "recompute_live",
    "recompute_at_peak",
    "recompute_peak",
    "backward_live",
    "backward_at_peak",
    "backward_peak",
    "own_live",
    "own_at_peak",
    "own_peak",
    "own_live_blocks",
    "own_allocs",
];

/// A device in a document; the recording began at `started`, in nanoseconds.
pub(super) fn device(
    device: &DeviceSnapshot,
    tree: &ModuleTree,
    started: u64,
    options: &ReportOptions,
) -> Device {
    Device {
        device: known_device(device.index),
        allocated: device.totals.allocated.0,
        reserved: device.totals.reserved.0,
        peak_allocated: tree.peak.totals.allocated.0,
        peak_reserved: tree.peak.totals.reserved.0,
        peak_ns: tree.peak.time.0.saturating_sub(started),
        modules: rows(device, tree, options),
    }
}

/// Rows of a device.
pub(super) fn rows(
    device: &DeviceSnapshot,
    tree: &ModuleTree,
    options: &ReportOptions,
) -> Vec<Row> {
    let modules = ordered(tree.modules.clone(), options);
    let mut rows: Vec<Row> = modules
        .iter()
        .map(|module| of_module(device.index, module))
        .collect();
    rows.extend(
        tree.others
            .iter()
            .map(|(place, sums)| of_sums(device.index, place_kind(place), sums, sums)),
    );
    let then = |kind| match kind {
        "before_attach" => signed(tree.peak.before_attach.0),
        _ => tree.peak.unaccounted,
    };
    let mut rest: Vec<(&str, i64, Option<u64>)> = remainder(device).collect();
    for kind in ["before_attach", "unaccounted"] {
        if then(kind) != 0 && rest.iter().all(|(known, ..)| *known != kind) {
            rest.push((kind, 0, Some(0)));
        }
    }
    rows.extend(rest.into_iter().map(|(kind, live, blocks)| Row {
        live,
        own_live: live,
        at_peak: then(kind),
        own_at_peak: then(kind),
        live_blocks: blocks,
        own_live_blocks: blocks,
        ..bare(device.index, kind)
    }));
    rows
}

fn of_module(device: DeviceIndex, module: &Shown) -> Row {
    Row {
        path: Some(module.path.clone()),
        depth: Some(module.depth),
        ..of_sums(device, "module", &module.total, &module.own)
    }
}

fn of_sums(device: DeviceIndex, kind: &'static str, total: &Sums, own: &Sums) -> Row {
    let [forward, recompute, backward] = Pass::ALL.map(|pass| total.pass(pass));
    let (all, own) = (&total.all, &own.all);
    let peak = |of: &crate::attribution::peak::Holding| of.peak.map(|peak| peak.0);
    Row {
        live: signed(all.live.0),
        at_peak: signed(all.at_peak.0),
        peak: peak(all),
        live_blocks: Some(all.live_blocks),
        at_peak_blocks: Some(all.at_peak_blocks),
        allocs: Some(all.allocs),
        forward_live: Some(forward.live.0),
        forward_at_peak: Some(forward.at_peak.0),
        forward_peak: peak(&forward),
        recompute_live: Some(recompute.live.0),
        recompute_at_peak: Some(recompute.at_peak.0),
        recompute_peak: peak(&recompute),
        backward_live: Some(backward.live.0),
        backward_at_peak: Some(backward.at_peak.0),
        backward_peak: peak(&backward),
        own_live: signed(own.live.0),
        own_at_peak: signed(own.at_peak.0),
        own_peak: peak(own),
        own_live_blocks: Some(own.live_blocks),
        own_allocs: Some(own.allocs),
        ..bare(device, kind)
    }
}

fn bare(device: DeviceIndex, kind: &'static str) -> Row {
    Row {
        device: known_device(device),
        kind,
        ..Row::default()
    }
}

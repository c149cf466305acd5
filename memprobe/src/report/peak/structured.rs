//! What a device held at its peak, for other programs. Numbers are bytes and nanoseconds; unknown is null (or empty).

use std::io::{self, Write};

use serde::Serialize;

use super::{AtPeak, Called, place_name};
use crate::event::DeviceIndex;
use crate::model::snapshot::{Site, What};
use crate::model::why::parts::Place;
use crate::report::replay::Replay;
use crate::report::structured::{csv_error, known_device, known_line};

#[derive(Serialize)]
struct Report<'a> {
    memprobe: &'a str,
    command: &'a str,
    pid: Option<u32>,
    truncated: bool,
    events: u64,
    lost_events: u64,
    devices: Vec<Device<'a>>,
}

#[derive(Serialize)]
struct Device<'a> {
    device: Option<DeviceIndex>,
    /// From the beginning to the moment when the device held most since attach.
    peak_ns: u64,
    /// What it held then.
    allocated: u64,
    reserved: u64,
    cached: u64,
    /// In words: which iteration it was.
    iteration: Option<&'a str>,
    before_attach: u64,
    unaccounted: i64,
    /// The highest by the allocator's own statistics, which may be of before attach.
    highest_allocated: u64,
    rows: Vec<Row<'a>>,
}

/// One row. `by` says which table it belongs to: `line`, `module`, `tensor` or `category` (which is inferred). The rows of each add up to what
/// the allocator said, with those of the `kind`s `before_attach` and `unaccounted`. Those of `saved` divide the category `activation`.
#[derive(Serialize)]
struct Row<'a> {
    device: Option<DeviceIndex>,
    by: &'static str,
    kind: &'static str,
    file: Option<&'a str>,
    line: Option<u32>,
    function: Option<&'a str>,
    thread: Option<&'a str>,
    reason: Option<&'a str>,
    category: Option<&'static str>,
    module: Option<String>,
    pass: Option<&'static str>,
    shape: Option<String>,
    dtype: Option<String>,
    r#use: Option<String>,
    bytes: i64,
    blocks: Option<u64>,
}

const HEADINGS: [&str; 16] = [
    "device", "by", "kind", "file", "line", "function", "thread", "reason", "category", "module",
    "pass", "shape", "dtype", "use", "bytes", "blocks",
];

/// One document.
pub(super) fn json(
    replay: &Replay,
    devices: &[AtPeak<'_>],
    out: &mut impl Write,
) -> io::Result<()> {
    let health = &replay.snapshot.health;
    let device = |at_peak| device(at_peak, replay.snapshot.started.0);
    let report = Report {
        memprobe: &replay.header.version,
        command: &replay.snapshot.target.command,
        pid: replay.snapshot.target.tgid.map(|tgid| tgid.0),
        truncated: replay.truncated,
        events: health.events,
        lost_events: health.losses.events,
        devices: devices.iter().map(device).collect(),
    };
    serde_json::to_writer_pretty(&mut *out, &report)?;
    out.write_all(b"\n")
}

/// One object a row.
pub(super) fn jsonl(devices: &[AtPeak<'_>], out: &mut impl Write) -> io::Result<()> {
    for row in devices.iter().flat_map(rows) {
        serde_json::to_writer(&mut *out, &row)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// Comma-separated values.
pub(super) fn csv(devices: &[AtPeak<'_>], out: &mut impl Write) -> io::Result<()> {
    let mut table = csv::WriterBuilder::new()
        .has_headers(false)
        .from_writer(out);
    table.write_record(HEADINGS).map_err(csv_error)?;
    for row in devices.iter().flat_map(rows) {
        table.serialize(row).map_err(csv_error)?;
    }
    table.flush()
}

fn device<'a>(at_peak: &'a AtPeak<'a>, started: u64) -> Device<'a> {
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

fn rows<'a>(at_peak: &'a AtPeak<'a>) -> Vec<Row<'a>> {
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
            ..empty(device, by, kind)
        })
    };
    let held = |row: Row<'a>, bytes: u64, blocks: Option<u64>| Row {
        bytes: signed(bytes),
        blocks,
        ..row
    };
    let purposes = at_peak.purposes.iter().map(|row| Row {
        category: Some(row.who.category.as_str()),
        bytes: signed(row.bytes),
        ..empty(device, "category", "category")
    });
    let saved = at_peak.purposes.iter().flat_map(|row| &row.who.saved);
    let saved = saved.map(|(module, bytes)| Row {
        module: Some(module.clone()),
        bytes: signed(*bytes),
        ..empty(device, "saved", "module")
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
    let (kind, thread, reason) = match site {
        Site::Line(_) => ("line", None, None),
        Site::Backward(_) => ("backward", None, None),
        Site::NoLine { thread, reason } => ("no_line", Some(&**thread), Some(*reason)),
    };
    let frame = site.frame();
    Row {
        file: frame.map(|frame| &*frame.file),
        line: frame.and_then(known_line),
        function: frame.map(|frame| &*frame.function),
        thread,
        reason,
        ..empty(device, "line", kind)
    }
}

fn of_module(device: DeviceIndex, called: &Called) -> Row<'static> {
    let kind = place_kind(&called.place);
    Row {
        module: (kind == "module").then(|| place_name(&called.place)),
        pass: Some(called.pass.as_str()),
        ..empty(device, "module", kind)
    }
}

fn of_tensor(device: DeviceIndex, what: &What) -> Row<'static> {
    Row {
        shape: what.shape().map(ToString::to_string),
        dtype: what.shape().map(|shape| shape.dtype.to_string()),
        r#use: what.purpose().map(ToString::to_string),
        ..empty(device, "tensor", what_kind(what))
    }
}

/// The word for a place in reports for other programs.
pub(in crate::report) fn place_kind(place: &Place) -> &'static str {
    match place {
        Place::Module(_) => "module",
        Place::Outside => "outside",
        Place::Unknown => "unknown",
        Place::BackwardUnknown => "backward_unknown",
        Place::TooMany => "too_many",
    }
}

/// The word for what a block is for in reports for other programs.
pub(in crate::report) fn what_kind(what: &What) -> &'static str {
    match what {
        What::Known(is) if is.shape().is_some() => "tensor",
        What::Known(_) | What::NoTensor => "no_tensor",
        What::Unknown => "unknown",
        What::TooMany => "too_many",
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn empty<'a>(device: DeviceIndex, by: &'static str, kind: &'static str) -> Row<'a> {
    Row {
        device: known_device(device),
        by,
        kind,
        file: None,
        line: None,
        function: None,
        thread: None,
        reason: None,
        category: None,
        module: None,
        pass: None,
        shape: None,
        dtype: None,
        r#use: None,
        bytes: 0,
        blocks: None,
    }
}

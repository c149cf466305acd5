//! What grows, for other programs. Numbers are bytes; unknown is null (or empty).

use std::io::{self, Write};

use serde::Serialize;

use super::OnDevice;
use crate::event::DeviceIndex;
use crate::model::snapshot::Site;
use crate::model::why::growth::{Growth, Rate, Step, Suspect};
use crate::model::why::parts::Part;
use crate::report::peak::{place_kind, place_name, what_kind};
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
    /// What rates are by: `iteration` or `second`.
    per: &'static str,
    /// Iterations, or seconds, a step.
    step: f64,
    /// Steps that were looked at; with fewer than `needed_steps` nobody is named.
    steps: usize,
    /// Those before, which were left out.
    left_out: usize,
    needed_steps: usize,
    /// What somebody must have gained to be named.
    least_growth: u64,
    suspects: Vec<Row<'a>>,
}

/// One row. `by` is `total`, `line`, `module` or `tensor`: each is the same memory, told apart in another way. What else is known of a suspect
/// is that of its part which gained most.
#[derive(Serialize)]
struct Row<'a> {
    device: Option<DeviceIndex>,
    by: &'static str,
    per: &'static str,
    bytes: f64,
    blocks: Option<f64>,
    /// In which share of the steps it grew, from 0 to 1.
    grew: f64,
    first: u64,
    last: u64,
    kind: Option<&'static str>,
    file: Option<&'a str>,
    line: Option<u32>,
    function: Option<&'a str>,
    reason: Option<&'a str>,
    module: Option<String>,
    shape: Option<String>,
    dtype: Option<String>,
    r#use: Option<String>,
}

const HEADINGS: [&str; 17] = [
    "device", "by", "per", "bytes", "blocks", "grew", "first", "last", "kind", "file", "line",
    "function", "reason", "module", "shape", "dtype", "use",
];

/// One document.
pub(super) fn json(
    replay: &Replay,
    devices: &[OnDevice<'_>],
    out: &mut impl Write,
) -> io::Result<()> {
    let health = &replay.snapshot.health;
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
pub(super) fn jsonl(devices: &[OnDevice<'_>], out: &mut impl Write) -> io::Result<()> {
    for row in devices.iter().flat_map(rows) {
        serde_json::to_writer(&mut *out, &row)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// Comma-separated values.
pub(super) fn csv(devices: &[OnDevice<'_>], out: &mut impl Write) -> io::Result<()> {
    let mut table = csv::WriterBuilder::new()
        .has_headers(false)
        .from_writer(out);
    table.write_record(HEADINGS).map_err(csv_error)?;
    for row in devices.iter().flat_map(rows) {
        table.serialize(row).map_err(csv_error)?;
    }
    table.flush()
}

fn device<'a>(on: &'a OnDevice<'a>) -> Device<'a> {
    let growth = &on.growth;
    Device {
        device: known_device(on.device.index),
        per: per(growth),
        step: match growth.step {
            Step::Iterations(iterations) => iterations,
            Step::Window(nanoseconds) => nanoseconds as f64 / 1e9,
        },
        steps: growth.steps,
        left_out: growth.left_out,
        needed_steps: growth.needed,
        least_growth: growth.least.0,
        suspects: rows(on),
    }
}

fn per(growth: &Growth) -> &'static str {
    match growth.step {
        Step::Iterations(_) => "iteration",
        Step::Window(_) => "second",
    }
}

fn rows<'a>(on: &'a OnDevice<'a>) -> Vec<Row<'a>> {
    let OnDevice { device, growth } = on;
    let row = |by, rate: &Rate| empty(device.index, by, per(growth), rate);
    let total = growth.total.iter().map(|rate| Row {
        blocks: None,
        ..row("total", rate)
    });
    let lines = growth.lines.iter();
    let lines = lines.map(|it| named(it, row("line", &it.rate)));
    let modules = growth.modules.iter();
    let modules = modules.map(|it| named(it, row("module", &it.rate)));
    let tensors = growth.tensors.iter();
    let tensors = tensors.map(|it| named(it, row("tensor", &it.rate)));
    total.chain(lines).chain(modules).chain(tensors).collect()
}

fn named<'a, K>(suspect: &'a Suspect<K>, row: Row<'a>) -> Row<'a> {
    let Part { origin, what } = &suspect.part;
    let frame = origin.site.frame();
    let line = match &origin.site {
        Site::Line(_) => "line",
        Site::Backward(_) => "backward",
        Site::NoLine { .. } => "no_line",
    };
    let place = place_kind(&origin.place);
    Row {
        kind: Some(match row.by {
            "line" => line,
            "module" => place,
            _ => what_kind(what),
        }),
        file: frame.map(|frame| &*frame.file),
        line: frame.and_then(known_line),
        function: frame.map(|frame| &*frame.function),
        reason: match &origin.site {
            Site::NoLine { reason, .. } => Some(reason),
            Site::Line(_) | Site::Backward(_) => None,
        },
        module: (place == "module").then(|| place_name(&origin.place)),
        shape: what.shape().map(ToString::to_string),
        dtype: what.shape().map(|shape| shape.dtype.to_string()),
        r#use: what.purpose().map(ToString::to_string),
        ..row
    }
}

fn empty<'a>(device: DeviceIndex, by: &'static str, per: &'static str, rate: &Rate) -> Row<'a> {
    Row {
        device: known_device(device),
        by,
        per,
        bytes: rate.bytes,
        blocks: Some(rate.blocks),
        grew: rate.grew,
        first: rate.first.0,
        last: rate.last.0,
        kind: None,
        file: None,
        line: None,
        function: None,
        reason: None,
        module: None,
        shape: None,
        dtype: None,
        r#use: None,
    }
}

//! The table of tensors for other programs. Numbers are bytes; unknown is null (or empty).

use std::io::{self, Write};

use serde::Serialize;

use super::{Tensors, csv_error};
use crate::event::DeviceIndex;
use crate::model::snapshot::{DeviceSnapshot, ShapeRow, Site, What};
use crate::report::replay::Replay;
use crate::report::structured::{known_device, known_line, remainder};

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
    allocated: u64,
    reserved: u64,
    before_attach: u64,
    unaccounted: i64,
    live_blocks: u64,
    tensors: Vec<Row<'a>>,
}

/// One row. What a block of `no_tensor` is for may be known: `use` says it, inferred from `asked_by`, a function of
/// `library`; where `use` is null, that is the innermost one outside of the allocator. `kind` is `tensor`, `no_tensor`, `unknown` or `too_many`, and in flat tables also `before_attach` and
/// `unaccounted`, so that `live` adds up to what the allocator says.
#[derive(Serialize)]
struct Row<'a> {
    device: Option<DeviceIndex>,
    kind: &'static str,
    shape: Option<Sizes<'a>>,
    dtype: Option<String>,
    /// Bytes that one was asked for.
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
    r#use: Option<&'a str>,
    asked_by: Option<&'a str>,
    library: Option<&'a str>,
}

/// A shape: numbers, or where a row is flat, words.
#[derive(Serialize)]
#[serde(untagged)]
enum Sizes<'a> {
    Numbers(&'a [u64]),
    Words(String),
}

#[derive(Clone, Copy)]
enum Layout {
    Nested,
    Flat,
}

/// One document.
pub(super) fn json(
    replay: &Replay,
    tensors: &[(&DeviceSnapshot, Tensors)],
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
        devices: tensors.iter().map(device).collect(),
    };
    serde_json::to_writer_pretty(&mut *out, &report)?;
    out.write_all(b"\n")
}

/// One object a row.
pub(super) fn jsonl(
    tensors: &[(&DeviceSnapshot, Tensors)],
    out: &mut impl Write,
) -> io::Result<()> {
    for (device, tensors) in tensors {
        for row in flat(device, tensors, Layout::Nested) {
            serde_json::to_writer(&mut *out, &row)?;
            out.write_all(b"\n")?;
        }
    }
    Ok(())
}

/// Comma-separated values.
pub(super) fn csv(tensors: &[(&DeviceSnapshot, Tensors)], out: &mut impl Write) -> io::Result<()> {
    let mut table = csv::WriterBuilder::new()
        .has_headers(false)
        .from_writer(out);
    table
        .write_record([
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
            "use",
            "asked_by",
            "library",
        ])
        .map_err(csv_error)?;
    for (device, tensors) in tensors {
        for row in flat(device, tensors, Layout::Flat) {
            table.serialize(row).map_err(csv_error)?;
        }
    }
    table.flush()
}

fn device<'a>((device, tensors): &'a (&DeviceSnapshot, Tensors)) -> Device<'a> {
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
            .collect(),
    }
}

fn flat<'a>(
    device: &'a DeviceSnapshot,
    tensors: &'a Tensors,
    layout: Layout,
) -> impl Iterator<Item = Row<'a>> {
    let rest = remainder(device).map(|(kind, live, live_blocks)| Row {
        live,
        live_blocks,
        ..empty(device.index, kind)
    });
    let shown = tensors.shown.iter();
    shown
        .map(move |it| row(device.index, it, layout))
        .chain(rest)
}

fn row(device: DeviceIndex, row: &ShapeRow, layout: Layout) -> Row<'_> {
    let kind = match &row.what {
        What::Known(is) if is.shape().is_some() => "tensor",
        What::Known(_) | What::NoTensor => "no_tensor",
        What::Unknown => "unknown",
        What::TooMany => "too_many",
    };
    let shape = row.what.shape();
    let purpose = row.what.purpose();
    let frame = row.site.frame();
    let (thread, reason) = match &row.site {
        Site::NoLine { thread, reason } => (Some(&**thread), Some(*reason)),
        Site::Line(_) | Site::Backward(_) | Site::Node { .. } => (None, None),
    };
    Row {
        shape: shape.map(|shape| match layout {
            Layout::Nested if shape.more == 0 => Sizes::Numbers(&shape.sizes),
            Layout::Nested | Layout::Flat => Sizes::Words(shape.to_string()),
        }),
        dtype: shape.map(|shape| shape.dtype.to_string()),
        requested: shape.and_then(|shape| Some(shape.requested?.0)),
        r#use: purpose.and_then(|it| it.what.as_deref()),
        asked_by: purpose.map(|it| &*it.function),
        library: purpose.map(|it| &*it.library),
        file: frame.map(|frame| &*frame.file),
        line: frame.and_then(known_line),
        function: frame.map(|frame| &*frame.function),
        thread,
        reason,
        live: i64::try_from(row.live.0).unwrap_or(i64::MAX),
        peak: Some(row.peak.0),
        live_blocks: Some(row.live_blocks),
        allocs: Some(row.allocs),
        ..empty(device, kind)
    }
}

fn empty<'a>(device: DeviceIndex, kind: &'static str) -> Row<'a> {
    Row {
        device: known_device(device),
        kind,
        shape: None,
        dtype: None,
        requested: None,
        r#use: None,
        asked_by: None,
        library: None,
        file: None,
        line: None,
        function: None,
        thread: None,
        reason: None,
        live: 0,
        peak: None,
        live_blocks: None,
        allocs: None,
    }
}

//! The table of lines for other programs. Numbers are bytes and nanoseconds; unknown is null (or
//! empty).

use std::io::{self, Write};

use serde::Serialize;

use super::ReportOptions;
use super::lines::{Lines, callers};
use super::replay::Replay;
use crate::event::{DeviceIndex, Frame};
use crate::model::snapshot::{DeviceSnapshot, LineRow, OutsideRow, Site};

#[derive(Serialize)]
struct Report<'a> {
    memprobe: &'a str,
    command: &'a str,
    pid: Option<u32>,
    /// In its own PID namespace, where that is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    inner_pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<&'a str>,
    python: Option<&'a str>,
    torch: Option<&'a str>,
    start_ns: u64,
    wall_start_ms: Option<u64>,
    duration_ns: u64,
    end: Option<&'static str>,
    truncated: bool,
    events: u64,
    lost_events: u64,
    lost_stacks: u64,
    malformed: u64,
    disagreements: u64,
    /// The layer of software that the lines come from.
    layer: &'static str,
    devices: Vec<Device<'a>>,
    /// What CUDA gave to others than the caching allocator.
    cuda: Vec<Outside<'a>>,
}

/// What a library got from CUDA of one kind of memory.
#[derive(Serialize)]
struct Outside<'a> {
    library: &'a str,
    space: &'static str,
    device: Option<DeviceIndex>,
    live: u64,
    peak: u64,
    live_blocks: u64,
    allocs: u64,
    lines: Vec<Line<'a>>,
}

#[derive(Serialize)]
struct Device<'a> {
    /// `null` where it is not known.
    device: Option<DeviceIndex>,
    allocated: u64,
    reserved: u64,
    peak_allocated: u64,
    peak_reserved: u64,
    before_attach: u64,
    /// Blocks of `before_attach`; null where it is not known which they are.
    before_attach_blocks: Option<u64>,
    /// Blocks that were freed and of which nothing else is known.
    unseen_frees: u64,
    /// Why the blocks could not be read at attach.
    #[serde(skip_serializing_if = "Option::is_none")]
    before_attach_unread: Option<&'a str>,
    unaccounted: i64,
    live_blocks: u64,
    ooms: u64,
    lines: Vec<Line<'a>>,
}

/// What one row of the table says. `kind` is `line`, `backward`, `no_line`, and in flat tables
/// also `before_attach` and `unaccounted`, so that `live` adds up to what the allocator says.
#[derive(Serialize)]
struct Line<'a> {
    device: Option<DeviceIndex>,
    kind: &'static str,
    file: Option<&'a str>,
    line: Option<u32>,
    function: Option<&'a str>,
    thread: Option<&'a str>,
    reason: Option<&'a str>,
    live: i64,
    peak: Option<u64>,
    live_blocks: Option<u64>,
    allocs: Option<u64>,
    alloc_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    callers: Option<Vec<FrameRow<'a>>>,
    /// What went back to the line, of `backward_of`.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a str>,
}

/// One line of Python on a stack.
#[derive(Serialize)]
pub(super) struct FrameRow<'a> {
    file: &'a str,
    line: Option<u32>,
    function: &'a str,
    /// For native code.
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

/// One document.
pub(super) fn json(
    replay: &Replay,
    options: &ReportOptions,
    out: &mut impl Write,
) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &document(replay, options))?;
    out.write_all(b"\n")
}

/// As [`json`], with the name of the recording and without a last newline: one of many.
pub(super) fn named_json(
    name: &str,
    replay: &Replay,
    options: &ReportOptions,
    out: &mut impl Write,
) -> io::Result<()> {
    #[derive(Serialize)]
    struct Named<'a> {
        recording: &'a str,
        #[serde(flatten)]
        report: Report<'a>,
    }
    let named = Named {
        recording: name,
        report: document(replay, options),
    };
    serde_json::to_writer_pretty(out, &named)?;
    Ok(())
}

fn document<'a>(replay: &'a Replay, options: &ReportOptions) -> Report<'a> {
    let snapshot = &replay.snapshot;
    Report {
        memprobe: &replay.header.version,
        command: &snapshot.target.command,
        pid: snapshot.target.tgid.map(|tgid| tgid.0),
        inner_pid: snapshot.target.inner_tgid.map(|tgid| tgid.0),
        container: snapshot.target.container.as_deref(),
        python: snapshot.target.python.as_deref(),
        torch: snapshot.target.torch.as_deref(),
        start_ns: snapshot.started.0,
        wall_start_ms: replay.header.wall_start_ms,
        duration_ns: replay.duration(),
        end: replay.end.as_ref().map(|end| end.reason.as_str()),
        truncated: replay.truncated,
        events: snapshot.health.events,
        lost_events: snapshot.health.losses.events,
        lost_stacks: snapshot.health.losses.stacks,
        malformed: snapshot.health.losses.malformed,
        disagreements: snapshot.health.disagreements,
        layer: snapshot.cuda.layer.as_str(),
        cuda: snapshot
            .cuda
            .rows
            .iter()
            .map(|row| outside(row, options))
            .collect(),
        devices: snapshot
            .devices
            .iter()
            .map(|device| whole(device, options))
            .collect(),
    }
}

/// One object a line, all devices in one table.
pub(super) fn jsonl(
    replay: &Replay,
    options: &ReportOptions,
    out: &mut impl Write,
) -> io::Result<()> {
    for device in &replay.snapshot.devices {
        for line in flat(device, options, Callers::Listed) {
            serde_json::to_writer(&mut *out, &line)?;
            out.write_all(b"\n")?;
        }
    }
    Ok(())
}

/// Comma-separated values, all devices in one table.
pub(super) fn csv(
    replay: &Replay,
    options: &ReportOptions,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut table = csv::WriterBuilder::new()
        .has_headers(false)
        .from_writer(out);
    table
        .write_record([
            "device",
            "kind",
            "file",
            "line",
            "function",
            "thread",
            "reason",
            "live",
            "peak",
            "live_blocks",
            "allocs",
            "alloc_bytes",
        ])
        .map_err(csv_error)?;
    for device in &replay.snapshot.devices {
        for line in flat(device, options, Callers::LeftOut) {
            table.serialize(line).map_err(csv_error)?;
        }
    }
    table.flush()
}

/// What the operating system said: a closed pipe must stay known as one.
pub(super) fn csv_error(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}

#[derive(Clone, Copy)]
enum Callers {
    Listed,
    LeftOut,
}

fn whole<'a>(device: &'a DeviceSnapshot, options: &ReportOptions) -> Device<'a> {
    let lines = Lines::of(device, options);
    Device {
        device: known_device(device.index),
        allocated: device.totals.allocated.0,
        reserved: device.totals.reserved.0,
        peak_allocated: device.peak.allocated.0,
        peak_reserved: device.peak.reserved.0,
        before_attach: device.before_attach.live.0,
        before_attach_blocks: device.before_attach.live_blocks(),
        unseen_frees: device.before_attach.unseen_frees,
        before_attach_unread: device.before_attach.unread.as_deref(),
        unaccounted: device.unaccounted,
        live_blocks: device.live_blocks,
        ooms: device.ooms,
        lines: lines
            .shown
            .iter()
            .map(|row| line(device.index, row, Callers::Listed))
            .collect(),
    }
}

fn outside<'a>(row: &'a OutsideRow, options: &ReportOptions) -> Outside<'a> {
    let index = row.device.unwrap_or(DeviceIndex::UNKNOWN);
    let lines = Lines::among(&row.lines, options);
    Outside {
        library: &row.library,
        space: row.space.as_str(),
        device: known_device(index),
        live: row.live.0,
        peak: row.peak.0,
        live_blocks: row.live_blocks,
        allocs: row.allocs,
        lines: lines
            .shown
            .iter()
            .map(|row| line(index, row, Callers::Listed))
            .collect(),
    }
}

pub(super) fn known_device(index: DeviceIndex) -> Option<DeviceIndex> {
    (index != DeviceIndex::UNKNOWN).then_some(index)
}

/// What no row stands for, where there is any: its kind, bytes and blocks.
pub(super) fn remainder(
    device: &DeviceSnapshot,
) -> impl Iterator<Item = (&'static str, i64, Option<u64>)> {
    let before = &device.before_attach;
    let live = i64::try_from(before.live.0).unwrap_or(i64::MAX);
    let rest = [
        ("before_attach", live, before.live_blocks()),
        ("unaccounted", device.unaccounted, None),
    ];
    rest.into_iter().filter(|(_, live, _)| *live != 0)
}

fn flat<'a>(
    device: &'a DeviceSnapshot,
    options: &ReportOptions,
    callers: Callers,
) -> impl Iterator<Item = Line<'a>> {
    let lines = Lines::of(device, options);
    let rest = remainder(device).map(|(kind, live, live_blocks)| Line {
        live,
        live_blocks,
        ..empty(device.index, kind)
    });
    lines
        .shown
        .into_iter()
        .map(move |row| line(device.index, row, callers))
        .chain(rest)
}

fn line<'a>(device: DeviceIndex, row: &'a LineRow, listed: Callers) -> Line<'a> {
    let frame = row.site.frame();
    let nobody = row.site.nobody();
    Line {
        file: frame.map(|frame| &*frame.file),
        line: frame.and_then(known_line),
        function: frame.map(|frame| &*frame.function),
        thread: nobody.map(|(thread, _)| &**thread),
        reason: nobody.map(|(_, reason)| reason),
        live: i64::try_from(row.live.0).unwrap_or(i64::MAX),
        peak: Some(row.peak.0),
        live_blocks: Some(row.live_blocks),
        allocs: Some(row.allocs),
        alloc_bytes: Some(row.alloc_bytes.0),
        callers: match listed {
            Callers::Listed => Some(callers(row).iter().map(FrameRow::from).collect()),
            Callers::LeftOut => None,
        },
        node: match (&row.site, listed) {
            (Site::Node { name, .. }, Callers::Listed) => Some(name),
            _ => None,
        },
        ..empty(device, row.site.as_str())
    }
}

fn empty<'a>(device: DeviceIndex, kind: &'static str) -> Line<'a> {
    Line {
        device: known_device(device),
        kind,
        file: None,
        line: None,
        function: None,
        thread: None,
        reason: None,
        live: 0,
        peak: None,
        live_blocks: None,
        allocs: None,
        alloc_bytes: None,
        callers: None,
        node: None,
    }
}

pub(super) fn known_line(frame: &Frame) -> Option<u32> {
    (frame.line != 0).then_some(frame.line)
}

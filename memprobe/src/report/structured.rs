//! Structured table of lines. Numbers are bytes and nanoseconds; unknown is null (or empty).

use std::io::{self, Write};

use serde::Serialize;

use super::document::{Layout, Table};
use super::lines::{Lines, Sum, callers};
use super::replay::Replay;
use super::{ReportOptions, table};
use crate::attribution::allocation_groups::ModuleScope;
use crate::event::{DeviceIndex, Frame};
use crate::ledger::snapshot::{DeviceSnapshot, LineRow, OutsideRow, PurposeInfo, Site};

#[derive(Serialize)]
struct Report<'a> {
    memprobe: &'a str,
    command: &'a str,
    pid: Option<u32>,
    /// Process id in its own PID namespace, if that differs.
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
    lost_uses: u64,
    malformed: u64,
    disagreements: u64,
    /// Layer of software behind the lines.
    layer: &'static str,
    devices: Vec<Device<'a>>,
    /// CUDA memory outside the caching allocator.
    cuda: Vec<Outside<'a>>,
}

/// Memory of one kind that a library got from CUDA.
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
    /// `null` if unknown.
    device: Option<DeviceIndex>,
    allocated: u64,
    reserved: u64,
    peak_allocated: u64,
    peak_reserved: u64,
    before_attach: u64,
    /// Number of blocks in `before_attach`; null unless all are known.
    before_attach_blocks: Option<u64>,
    /// Frees since attach of blocks that were unknown.
    unseen_frees: u64,
    /// Reason that the blocks could not be read at attach.
    #[serde(skip_serializing_if = "Option::is_none")]
    before_attach_unread: Option<&'a str>,
    unaccounted: i64,
    live_blocks: u64,
    ooms: u64,
    lines: Vec<Line<'a>>,
}

/// One row of the table. `kind` is `line`, `backward`, `backward_of` or `no_line`, and `others` for
/// all hidden lines. JSON lines and CSV also have `before_attach` and `unaccounted`, so that `live`
/// adds up to the allocator's total.
#[derive(Default, Serialize)]
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
    /// Autograd node, for `backward_of`.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a str>,
}

/// Columns of comma-separated values.
const HEADINGS: [&str; 12] = [
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
];

/// One frame of a stack.
#[derive(Serialize)]
pub(super) struct FrameRow<'a> {
    file: &'a str,
    line: Option<u32>,
    function: &'a str,
    /// Present for native code.
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

/// Writes the document of one recording out of several: with its name, without a final newline.
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
        lost_uses: snapshot.health.losses.uses,
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

pub(super) struct LineTable<'a> {
    pub(super) replay: &'a Replay,
    pub(super) options: &'a ReportOptions,
}

impl Table for LineTable<'_> {
    fn text(&self) -> String {
        table::render(self.replay, self.options)
    }

    fn document(&self) -> impl Serialize {
        document(self.replay, self.options)
    }

    fn headings(&self) -> Vec<&'static str> {
        HEADINGS.to_vec()
    }

    fn rows(&self, layout: Layout) -> impl Iterator<Item = impl Serialize> {
        let devices = self.replay.snapshot.devices.iter();
        devices.flat_map(move |device| flat(device, self.options, layout))
    }
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
            .map(|row| line(device.index, row, Layout::Nested))
            .chain(others(device.index, &lines.hidden))
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
            .map(|row| line(index, row, Layout::Nested))
            .chain(others(index, &lines.hidden))
            .collect(),
    }
}

/// Kind of the row for all hidden lines.
pub(super) const OTHERS: &str = "others";

pub(super) fn known_device(index: DeviceIndex) -> Option<DeviceIndex> {
    (index != DeviceIndex::UNKNOWN).then_some(index)
}

/// Bytes that no row has, unless 0: kind, bytes and blocks.
pub(super) fn remainder(
    device: &DeviceSnapshot,
) -> impl Iterator<Item = (&'static str, i64, Option<u64>)> {
    let before = &device.before_attach;
    let live = signed(before.live.0);
    let rest = [
        ("before_attach", live, before.live_blocks()),
        ("unaccounted", device.unaccounted, None),
    ];
    rest.into_iter().filter(|(_, live, _)| *live != 0)
}

fn flat<'a>(
    device: &'a DeviceSnapshot,
    options: &ReportOptions,
    layout: Layout,
) -> impl Iterator<Item = Line<'a>> {
    let lines = Lines::of(device, options);
    let rest = remainder(device).map(|(kind, live, live_blocks)| Line {
        live,
        live_blocks,
        ..bare(device.index, kind)
    });
    lines
        .shown
        .into_iter()
        .map(move |row| line(device.index, row, layout))
        .chain(others(device.index, &lines.hidden))
        .chain(rest)
}

/// Sum of hidden lines, if there are any.
fn others<'a>(device: DeviceIndex, hidden: &Sum) -> Option<Line<'a>> {
    (hidden.lines > 0).then(|| Line {
        live: signed(hidden.live),
        live_blocks: Some(hidden.live_blocks),
        allocs: Some(hidden.allocs),
        ..bare(device, OTHERS)
    })
}

fn line<'a>(device: DeviceIndex, row: &'a LineRow, layout: Layout) -> Line<'a> {
    let at = CallSiteFields::of(&row.site);
    Line {
        file: at.file,
        line: at.line,
        function: at.function,
        thread: at.thread,
        reason: at.reason,
        live: signed(row.live.0),
        peak: Some(row.peak.0),
        live_blocks: Some(row.live_blocks),
        allocs: Some(row.allocs),
        alloc_bytes: Some(row.alloc_bytes.0),
        callers: match layout {
            Layout::Nested => Some(callers(row).iter().map(FrameRow::from).collect()),
            Layout::Flat => None,
        },
        node: at.node.filter(|_| layout == Layout::Nested),
        ..bare(device, row.site.as_str())
    }
}

fn bare<'a>(device: DeviceIndex, kind: &'static str) -> Line<'a> {
    Line {
        device: known_device(device),
        kind,
        ..Line::default()
    }
}

/// Call site of memory, as far as it is known.
#[derive(Default)]
pub(super) struct CallSiteFields<'a> {
    pub(super) file: Option<&'a str>,
    pub(super) line: Option<u32>,
    pub(super) function: Option<&'a str>,
    /// Thread of memory without a line.
    pub(super) thread: Option<&'a str>,
    /// Reason that it has no line.
    pub(super) reason: Option<&'a str>,
    /// Autograd node, for `backward_of`.
    pub(super) node: Option<&'a str>,
}

impl<'a> CallSiteFields<'a> {
    pub(super) fn of(site: &'a Site) -> Self {
        let frame = site.frame();
        let nobody = site.nobody();
        Self {
            file: frame.map(|frame| &*frame.file),
            line: frame.and_then(known_line),
            function: frame.map(|frame| &*frame.function),
            thread: nobody.map(|(thread, _)| &**thread),
            reason: nobody.map(|(_, reason)| reason),
            node: site.node().map(|node| &**node),
        }
    }
}

pub(super) fn known_line(frame: &Frame) -> Option<u32> {
    (frame.line != 0).then_some(frame.line)
}

/// Bytes as a signed number, for columns that may be negative.
pub(super) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Keyword of a place in structured reports.
pub(super) fn place_kind(place: &ModuleScope) -> &'static str {
    match place {
        ModuleScope::Module(_) => "module",
        ModuleScope::Outside => "outside",
        ModuleScope::Unknown => "unknown",
        ModuleScope::BackwardUnknown => "backward_unknown",
        ModuleScope::TooMany => "too_many",
    }
}

/// Keyword of a block's purpose in structured reports.
pub(super) fn what_kind(what: &PurposeInfo) -> &'static str {
    match what {
        PurposeInfo::Known(is) if is.tensor().is_some() => "tensor",
        PurposeInfo::Known(_) | PurposeInfo::NoTensor => "no_tensor",
        PurposeInfo::Unknown => "unknown",
        PurposeInfo::TooMany => "too_many",
    }
}

//! Table of tensors, by shape, element type and line.

use std::cmp::Reverse;
use std::io::{BufRead, Write};

use super::cells::{self, purpose_kind, total_name};
use super::document::{self, TableReport, document};
use super::held::{self, HeldRow};
use super::preamble::push_devices;
use super::replay::{self, RecordingReplay};
use super::{Outcome, ReportError, ReportOptions};
use crate::attribution::peak::Holding;
use crate::attribution::{BlockGroup, ShapeLedger};
use crate::event::{BlockPurpose, Purpose, TensorSpec};
use crate::ledger::snapshot::{DeviceSnapshot, PurposeInfo, Site};
use crate::recording::Reader;
use crate::view::table::{Cell, Column, Output, Page, Table, columns};
use crate::view::{BLOCKS, FileNames, clean};

const INFERRED: &str = "The purpose of blocks without a tensor is inferred from the named native function, which \
                        allocated them.";

/// Columns. `kind` is `tensor`, `no_tensor`, `unknown` or `too_many`, or that of a sum.
///
/// For `no_tensor`, `purpose` is inferred from `requested_by`, a function of
/// `library`. If it is null, `requested_by` is the innermost function outside the allocator.
fn columns<'a>() -> Vec<Column<HeldRow<'a>>> {
    columns![|row: HeldRow<'a>|
        data("device") => row.device,
        data("kind") => row.kind,
        data("shape") => spec(row).map(|spec| match spec.more {
            0 => Cell::Shape((&*spec.sizes).into()),
            _ => spec.to_string().into(),
        }),
        data("dtype") => spec(row).map(|spec| spec.dtype.to_string()),
        data("requested") => requested(row),
        data("file") => cells::file(row.site),
        data("line") => cells::line(row.site),
        data("function") => cells::function(row.site),
        data("thread") => cells::thread(row.site),
        data("reason") => cells::reason(row.site),
        number("live", "LIVE") => row.live.clone(),
        number("peak", "PEAK") => row.peak,
        number("live_blocks", BLOCKS) => row.blocks,
        number("allocs", "ALLOCS") => row.allocs,
        data("purpose") => purpose(row).and_then(|it| it.what.as_deref()),
        data("requested_by") => purpose(row).map(|it| &*it.function),
        data("library") => purpose(row).map(|it| &*it.library),
        figure("REQUESTED") => requested(row),
        label("TENSOR").width(20, 90) => row.tensor.map_or_else(|| row.name.clone(), tensor),
        label("LINE") => row.site.map_or(Cell::Blank, |_| row.site_name()),
    ]
    .into()
}

fn spec<'a>(row: &HeldRow<'a>) -> Option<&'a TensorSpec> {
    row.tensor?.shape()
}

fn purpose<'a>(row: &HeldRow<'a>) -> Option<&'a Purpose> {
    row.tensor?.purpose()
}

fn requested<'a>(row: &HeldRow<'_>) -> Cell<'a> {
    spec(row).and_then(|spec| spec.requested).into()
}

pub(super) fn write<R: BufRead>(
    reader: Reader<R>,
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<Outcome, ReportError> {
    let ledger = ShapeLedger::new(options.grouping);
    let (replay, ledger) = replay::run(reader, options.grouping, ledger)?;
    let devices = replay.snapshot.devices.iter();
    let devices = devices.map(|device| (device, sorted(ledger.rows(device.index), options)));
    let devices: Vec<_> = devices.collect();
    let report = ShapeReport {
        replay: &replay,
        devices: &devices,
        options,
    };
    document::write(&report, &replay, options, out)
}

/// A tensor and a line, and their memory.
type ShapeRow<'a> = (&'a BlockGroup<Site>, Holding);

struct ShapeReport<'a> {
    replay: &'a RecordingReplay,
    devices: &'a [(&'a DeviceSnapshot, Vec<ShapeRow<'a>>)],
    options: &'a ReportOptions,
}

impl<'a> TableReport for ShapeReport<'a> {
    type Row = HeldRow<'a>;

    fn text(&self, page: &mut Page) {
        let devices = self.devices.iter().map(|(device, _)| *device);
        push_devices(
            page,
            self.replay,
            devices.zip(self.tables()),
            |page, table| {
                page.table(&table);
                if table.data_rows().any(|row| purpose(row).is_some()) {
                    page.legend(&[INFERRED]);
                }
            },
        );
    }

    fn document(&self) -> Cell<'_> {
        let devices = self.devices.iter().zip(self.tables());
        let devices = devices.map(|((device, _), tensors)| {
            Cell::Object(vec![
                ("device", device.index.into()),
                ("allocated", device.totals.allocated.into()),
                ("reserved", device.totals.reserved.into()),
                ("before_attach", device.before_attach.live.into()),
                ("unaccounted", device.unaccounted.into()),
                ("live_blocks", device.live_blocks.into()),
                ("tensors", tensors.into()),
            ])
        });
        document(self.replay, Cell::Absent, devices)
    }

    fn columns(&self) -> Vec<Column<HeldRow<'a>>> {
        columns()
    }

    fn tables(&self) -> impl Iterator<Item = Table<HeldRow<'a>>> {
        self.devices
            .iter()
            .map(|(device, rows)| self.table(device, rows))
    }
}

impl<'a> ShapeReport<'a> {
    fn table(&self, device: &DeviceSnapshot, rows: &'a [ShapeRow<'a>]) -> Table<HeldRow<'a>> {
        let top = self.options.top.of(rows.len());
        let frames = rows[..top]
            .iter()
            .filter_map(|(group, _)| group.origin.frame());
        let names = FileNames::of(frames.map(|frame| &frame.file));
        let rows = rows
            .iter()
            .map(|(BlockGroup { origin, what }, holding)| HeldRow {
                kind: purpose_kind(what),
                site: Some(origin),
                tensor: Some(what),
                live: holding.live.into(),
                peak: holding.peak,
                blocks: Some(holding.live_blocks),
                allocs: Some(holding.allocs),
                ..HeldRow::default()
            });
        let mut table = Table::new(columns());
        held::push_top(&mut table, rows.collect(), top, "other row");
        let before = &device.before_attach;
        let before = (before.live, before.live_blocks());
        held::push_remainders(&mut table, Output::Flat, before, device.unaccounted);
        let total = HeldRow {
            name: total_name(device.index, self.replay.snapshot.cuda.layer),
            live: device.totals.allocated.into(),
            blocks: Some(device.live_blocks),
            ..HeldRow::default()
        };
        table.push(Output::Text, total);
        held::complete(&mut table, device.index, device.totals.allocated.0, names);
        table
    }
}

fn sorted<'a>(
    rows: impl Iterator<Item = ShapeRow<'a>>,
    options: &ReportOptions,
) -> Vec<ShapeRow<'a>> {
    let mut rows: Vec<_> = rows.collect();
    let names = FileNames::default();
    rows.sort_by_cached_key(|(group, held)| {
        let peak = held.peak.unwrap_or_default();
        let figures = [peak.0, held.live.0, held.live_blocks, held.allocs];
        let words = (names.site(&group.origin), tensor(&group.what));
        (Reverse(options.sort.rank(figures)), words)
    });
    rows
}

/// Name of a tensor, or of a block's other purpose.
pub fn tensor(what: &PurposeInfo) -> String {
    match what {
        PurposeInfo::Known(is) => match &**is {
            BlockPurpose::Tensor(shape) => format!("{shape} {}", shape.dtype),
            BlockPurpose::Other(purpose) => clean(&purpose.to_string()),
        },
        PurposeInfo::NoTensor => "(no tensor)".to_owned(),
        PurposeInfo::Unknown => "(unknown)".to_owned(),
        PurposeInfo::TooMany => "(too many to distinguish)".to_owned(),
    }
}

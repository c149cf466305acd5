//! Table of tensors, by shape, element type and line.

mod structured;

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::io::{BufRead, Write};

use serde::Serialize;

use super::document::{self, Document, Layout, Table};
use super::replay::{self, Replay};
use super::table::{self, Style};
use super::{Outcome, ReportError, ReportOptions};
use crate::bytes::{human, signed};
use crate::event::{BlockPurpose, Bytes, DeviceIndex};
use crate::label::{
    BEFORE_ATTACH, BLOCKS, CUT, FileNames, UNACCOUNTED, clean, count, counted, fit, width,
};
use crate::model::ShapeLedger;
use crate::model::snapshot::{DeviceSnapshot, PurposeInfo, ShapeRow};
use crate::recording::Reader;

/// Maximum width of a tensor's name, and minimum width of a line.
const WIDEST_TENSOR: usize = 90;
const NARROWEST_LINE: usize = 20;

/// Note below a table with purposes of blocks without a tensor.
const INFERRED: &str = "The purpose of blocks without a tensor is inferred from the named native function, which \
                        allocated them.";

const HEADINGS: [&str; 7] = [
    "LIVE",
    "PEAK",
    BLOCKS,
    "ALLOCS",
    "REQUESTED",
    "TENSOR",
    "LINE",
];

/// Tensors of one device: the shown ones in order, and the others.
struct Tensors {
    shown: Vec<ShapeRow>,
    hidden: Vec<ShapeRow>,
}

/// Cells of a row: five numbers, the tensor, the line.
type Cells = [String; 7];

/// Reads the recording and writes the report.
pub(super) fn write<R: BufRead>(
    reader: Reader<R>,
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<Outcome, ReportError> {
    let ledger = ShapeLedger::new(options.grouping);
    let (replay, ledger) = replay::run(reader, options.grouping, ledger)?;
    let devices = replay.snapshot.devices.iter();
    let tensors: Vec<_> = devices
        .map(|device| (device, Tensors::of(ledger.rows(device.index), options)))
        .collect();
    let table = Shapes {
        replay: &replay,
        tensors,
        options,
    };
    document::write(&table, options.format, out)?;
    Ok(replay.outcome())
}

/// Tensors of every device.
struct Shapes<'a> {
    replay: &'a Replay,
    tensors: Vec<(&'a DeviceSnapshot, Tensors)>,
    options: &'a ReportOptions,
}

impl Table for Shapes<'_> {
    fn text(&self) -> String {
        let mut text = table::beginning(self.replay, self.options);
        for (device, tensors) in &self.tensors {
            table::push_line(&mut text, "");
            table::push_totals(&mut text, device, self.options);
            render(&mut text, device, tensors, self.options);
        }
        text
    }

    fn document(&self) -> impl Serialize {
        Document::new(self.replay, self.tensors.iter().map(structured::device))
    }

    fn headings(&self) -> Vec<&'static str> {
        structured::HEADINGS.to_vec()
    }

    fn rows(&self, layout: Layout) -> impl Iterator<Item = impl Serialize> {
        let tensors = self.tensors.iter();
        tensors.flat_map(move |(device, tensors)| structured::flat(device, tensors, layout))
    }
}

impl Tensors {
    fn of(mut rows: Vec<ShapeRow>, options: &ReportOptions) -> Self {
        let names = FileNames::default();
        rows.sort_by_cached_key(|row| {
            let figures = [row.peak.0, row.live.0, row.live_blocks, row.allocs];
            let words = (names.site(&row.site), tensor(&row.what));
            (Reverse(options.sort.rank(figures)), words)
        });
        let hidden = rows.split_off(options.top.of(rows.len()));
        Self {
            shown: rows,
            hidden,
        }
    }
}

/// Name of a tensor, or of a block's other purpose.
pub(super) fn tensor(what: &PurposeInfo) -> String {
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

/// Requested bytes of each block in a row.
fn requested(row: &ShapeRow) -> Option<Bytes> {
    row.what.shape()?.requested
}

fn render(text: &mut String, device: &DeviceSnapshot, tensors: &Tensors, options: &ReportOptions) {
    let frames = tensors.shown.iter().filter_map(|row| row.site.frame());
    let names = FileNames::of(frames.map(|frame| &frame.file));
    let mut rows: Vec<Cells> = vec![HEADINGS.map(str::to_owned)];
    rows.extend(tensors.shown.iter().map(|row| cells(row, &names)));
    if !tensors.hidden.is_empty() {
        let others = counted(tensors.hidden.len() as u64, "other row");
        rows.push(sum(&tensors.hidden, format!("({others})")));
    }
    let before = &device.before_attach;
    let rest = |live: String, blocks: Option<u64>, what: &str| {
        let none = || "-".to_owned();
        let blocks = blocks.map_or_else(none, count);
        [
            live,
            none(),
            blocks,
            none(),
            none(),
            what.to_owned(),
            String::new(),
        ]
    };
    if before.live.0 > 0 {
        rows.push(rest(
            human(before.live),
            before.live_blocks(),
            BEFORE_ATTACH,
        ));
    }
    if device.unaccounted != 0 {
        rows.push(rest(signed(device.unaccounted), None, UNACCOUNTED));
    }
    let total = match device.index {
        DeviceIndex::CPU => "(total as memprobe counts)",
        _ => "(total of the allocator)",
    };
    rows.push(rest(
        human(device.totals.allocated),
        Some(device.live_blocks),
        total,
    ));
    lay_out(text, &rows, options);
    if tensors.shown.iter().any(|row| row.what.purpose().is_some()) {
        table::push_line(text, INFERRED);
    }
}

fn cells(row: &ShapeRow, names: &FileNames) -> Cells {
    [
        human(row.live),
        human(row.peak),
        count(row.live_blocks),
        count(row.allocs),
        requested(row).map_or_else(|| "-".to_owned(), human),
        tensor(&row.what),
        names.site(&row.site),
    ]
}

fn sum(rows: &[ShapeRow], what: String) -> Cells {
    let total = |of: fn(&ShapeRow) -> u64| rows.iter().map(of).fold(0, u64::saturating_add);
    [
        human(Bytes(total(|row| row.live.0))),
        "-".to_owned(),
        count(total(|row| row.live_blocks)),
        count(total(|row| row.allocs)),
        "-".to_owned(),
        what,
        String::new(),
    ]
}

/// Writes rows, headings first: numbers right-aligned, text left-aligned.
fn lay_out(text: &mut String, rows: &[Cells], options: &ReportOptions) {
    let style = Style(options.colour);
    let widths: [usize; 6] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|cells| width(&cells[column]));
        cells.max().unwrap_or(0)
    });
    let numbers: usize = widths[..5].iter().map(|width| width + 2).sum();
    let available = options.width.saturating_sub(numbers + NARROWEST_LINE + 2);
    let tensor = widths[5]
        .min(WIDEST_TENSOR)
        .min(available.max(NARROWEST_LINE));
    let line = options
        .width
        .saturating_sub(numbers + tensor + 2)
        .max(NARROWEST_LINE);
    for (at, cells) in rows.iter().enumerate() {
        let mut written = String::new();
        for (cell, width) in cells[..5].iter().zip(widths) {
            // Writing to a string cannot fail.
            let _ = write!(written, "{cell:>width$}  ");
        }
        // A row without a line uses the width of both columns.
        if cells[6].is_empty() {
            written.push_str(&fit(&cells[5], tensor + 2 + line, CUT));
        } else {
            let name = fit(&cells[5], tensor, CUT);
            let gap = tensor.saturating_sub(width(&name)) + 2;
            let _ = write!(written, "{name}{:gap$}{}", "", fit(&cells[6], line, CUT));
        }
        let written = match at {
            0 => style.strong(&written),
            _ => written,
        };
        table::push_line(text, &written);
    }
}

//! Table of CUDA memory outside the caching allocator.

use super::super::ReportOptions;
use super::super::lines::Lines;
use super::{BLOCKS, Row, Style, push_line, render_rows};
use crate::event::DeviceIndex;
use crate::event::bytes::human;
use crate::ledger::snapshot::{CudaSnapshot, Layer, LineRow, OutsideRow};
use crate::view::{FileNames, clean, count};

const HEADINGS: [&str; 6] = [
    "LIVE",
    "PEAK",
    BLOCKS,
    "ALLOCS",
    "KIND",
    "LIBRARY AND LINES",
];

/// Maximum number of lines per library.
const LINES: usize = 3;

/// Adds the table if it has rows.
pub(super) fn render(
    text: &mut String,
    cuda: &CudaSnapshot,
    options: &ReportOptions,
    style: Style,
) {
    if cuda.rows.is_empty() {
        return;
    }
    let of = match cuda.layer {
        Layer::Allocator => "outside the caching allocator",
        _ => "that CUDA allocated on the host, or on demand",
    };
    push_line(text, "");
    let head = format!("memory {of}: {}", human(cuda.live()));
    push_line(text, &style.strong(&head));
    let names = FileNames::of(frames(cuda).map(|frame| &frame.file));
    let rows: Vec<Row> = cuda
        .rows
        .iter()
        .map(|row| table_row(row, &names, options))
        .collect();
    render_rows(text, &HEADINGS, &rows, options.width, style);
}

fn frames(cuda: &CudaSnapshot) -> impl Iterator<Item = &crate::event::Frame> {
    let lines = cuda.rows.iter().flat_map(|row| &row.lines);
    lines.filter_map(|line| line.site.frame())
}

fn table_row(row: &OutsideRow, names: &FileNames, options: &ReportOptions) -> Row {
    let lines = Lines::among(&row.lines, options).shown;
    let site = |line: &&LineRow| names.site(&line.site);
    Row {
        numbers: [
            human(row.live),
            human(row.peak),
            count(row.live_blocks),
            count(row.allocs),
            kind(row),
        ],
        line: library(&row.library),
        callers: lines.iter().take(LINES).map(site).collect(),
    }
}

/// Such as `device cuda:0` or `pinned`.
fn kind(row: &OutsideRow) -> String {
    let space = row.space.as_str();
    match row.device {
        Some(device) => format!("{space} {device}"),
        None if row.space.is_on_device() => format!("{space} {}", DeviceIndex::UNKNOWN),
        None => space.to_owned(),
    }
}

/// File name of a library.
fn library(path: &str) -> String {
    clean(path.rsplit('/').next().unwrap_or(path))
}

//! Table of CUDA memory outside the caching allocator.

use super::ReportOptions;
use super::lines::lines;
use crate::event::DeviceIndex;
use crate::event::bytes::human;
use crate::ledger::snapshot::{CudaSnapshot, Layer, OutsideRow};
use crate::view::table::{Cell, Column, Output, Page, Table};
use crate::view::{BLOCKS, FileNames};

/// Maximum number of lines per library.
const LINES: usize = 3;

/// Memory of one kind that a library got from CUDA.
pub(super) struct Row<'a> {
    of: &'a OutsideRow,
    lines: Cell<'a>,
    /// Names of the first lines.
    names: Vec<String>,
}

fn columns<'a>() -> Vec<Column<Row<'a>>> {
    vec![
        Column::data("library", |row| (&*row.of.library).into()),
        Column::data("space", |row| row.of.space.as_str().into()),
        Column::data("device", |row| row.of.device.into()),
        Column::number("live", "LIVE", |row| row.of.live.into()),
        Column::number("peak", "PEAK", |row| row.of.peak.into()),
        Column::number("live_blocks", BLOCKS, |row| row.of.live_blocks.into()),
        Column::number("allocs", "ALLOCS", |row| row.of.allocs.into()),
        Column::figure("KIND", |row| kind(row.of).into()),
        Column::label("LIBRARY AND LINES", |row| {
            let path = &*row.of.library;
            path.rsplit('/').next().unwrap_or(path).into()
        }),
        Column::trail(|row| {
            let name = |name: &String| format!("<- {name}").into();
            Cell::List(row.names.iter().map(name).collect())
        }),
        Column::json("lines", |row| row.lines.clone()),
    ]
}

/// Adds the table if it has rows.
pub(super) fn push(page: &mut Page, cuda: &CudaSnapshot, options: &ReportOptions) {
    if cuda.rows.is_empty() {
        return;
    }
    let of = match cuda.layer {
        Layer::Allocator => "outside the caching allocator",
        _ => "that CUDA allocated on the host, or on demand",
    };
    page.blank();
    page.strong(&format!("memory {of}: {}", human(cuda.live())));
    page.table(&table(cuda, options));
}

pub(super) fn table<'a>(cuda: &'a CudaSnapshot, options: &ReportOptions) -> Table<Row<'a>> {
    let frames = cuda.rows.iter().flat_map(|row| &row.lines);
    let frames = frames.filter_map(|line| line.site.frame());
    let names = FileNames::of(frames.map(|frame| &frame.file));
    let mut table = Table::new(columns());
    for row in &cuda.rows {
        let device = row.device.unwrap_or(DeviceIndex::UNKNOWN);
        let lines = lines(device, &row.lines, options);
        let sites = lines.data_rows().filter_map(|row| row.site).take(LINES);
        let names = sites.map(|site| names.site(site)).collect();
        let row = Row {
            of: row,
            names,
            lines: lines.into(),
        };
        table.push(Output::All, row);
    }
    table
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

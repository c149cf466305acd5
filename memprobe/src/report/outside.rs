//! Table of CUDA memory outside the caching allocator.

use super::ReportOptions;
use super::lines::lines;
use crate::event::DeviceIndex;
use crate::event::bytes::human;
use crate::ledger::snapshot::{CudaSnapshot, OutsideRow, SoftwareLayer};
use crate::view::table::{Cell, Column, Output, Page, Table, columns};
use crate::view::{BLOCKS, FileNames, cuda_memory_kind, library_name};

const LINES: usize = 3;

/// Memory of one kind that a library got from CUDA.
pub(super) struct OutsideEntry<'a> {
    of: &'a OutsideRow,
    lines: Cell<'a>,
    names: Vec<String>,
}

fn columns<'a>() -> Vec<Column<OutsideEntry<'a>>> {
    columns![|row: OutsideEntry<'a>|
        data("library") => &*row.of.library,
        data("space") => row.of.space.as_str(),
        data("device") => row.of.device,
        number("live", "LIVE") => row.of.live,
        number("peak", "PEAK") => row.of.peak,
        number("live_blocks", BLOCKS) => row.of.live_blocks,
        number("allocs", "ALLOCS") => row.of.allocs,
        figure("KIND") => cuda_memory_kind(row.of),
        label("LIBRARY AND LINES") => library_name(row.of),
        trail() => Cell::list(row.names.iter().map(|name| format!("<- {name}"))),
        json("lines") => row.lines.clone(),
    ]
    .into()
}

pub(super) fn push(page: &mut Page, cuda: &CudaSnapshot, options: &ReportOptions) {
    if cuda.rows.is_empty() {
        return;
    }
    let of = match cuda.layer {
        SoftwareLayer::Allocator => "outside the caching allocator",
        _ => "that CUDA allocated on the host, or on demand",
    };
    page.blank();
    page.strong(&format!("memory {of}: {}", human(cuda.live())));
    page.table(&table(cuda, options));
}

pub(super) fn table<'a>(
    cuda: &'a CudaSnapshot,
    options: &ReportOptions,
) -> Table<OutsideEntry<'a>> {
    let frames = cuda.rows.iter().flat_map(|row| &row.lines);
    let frames = frames.filter_map(|line| line.site.frame());
    let names = FileNames::of(frames.map(|frame| &frame.file));
    let mut table = Table::new(columns());
    for row in &cuda.rows {
        let device = row.device.unwrap_or(DeviceIndex::UNKNOWN);
        let lines = lines(device, &row.lines, options);
        let sites = lines.data_rows().filter_map(|row| row.site).take(LINES);
        let names = sites.map(|site| names.site(site)).collect();
        let row = OutsideEntry {
            of: row,
            names,
            lines: lines.into(),
        };
        table.push(Output::All, row);
    }
    table
}

//! Table of CUDA memory outside the caching allocator.

use super::ReportOptions;
use super::lines::lines;
use crate::event::DeviceIndex;
use crate::event::bytes::human;
use crate::ledger::snapshot::{CudaSnapshot, SoftwareLayer};
use crate::view::table::{Output, Page, Table};
use crate::view::{FileNames, OutsideEntry, outside_columns};

const LINES: usize = 3;

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
    let mut table = Table::new(outside_columns());
    for row in &cuda.rows {
        let device = row.device.unwrap_or(DeviceIndex::UNKNOWN);
        let lines = lines(device, &row.lines, options);
        let sites = lines.data_rows().filter_map(|row| row.site).take(LINES);
        let names = sites.map(|site| names.site(site)).collect();
        let row = OutsideEntry {
            beside: names,
            lines: lines.into(),
            ..OutsideEntry::new(row)
        };
        table.push(Output::All, row);
    }
    table
}

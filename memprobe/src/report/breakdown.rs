//! Table of a breakdown: memory of each device by a key of the block.

use std::io::{BufRead, Write};

use super::attribution::{Notes, once};
use super::cells::total_name;
use super::{Outcome, ReportError, ReportOptions, document, replay};
use crate::attribution::WithCategories;
use crate::attribution::breakdown::{Breakdown, BreakdownLedger, DeviceBreakdown};
use crate::attribution::peak::Holding;
use crate::ledger::snapshot::SoftwareLayer;
use crate::recording::Reader;
use crate::view::table::{Cell, Output, Table};
use crate::view::{BreakdownEntry, BreakdownView, counted};

pub(super) fn write<R: BufRead>(
    reader: Reader<R>,
    breakdown: Breakdown,
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<Outcome, ReportError> {
    let view = BreakdownView::of(breakdown);
    let analyses = WithCategories::new(BreakdownLedger::new(breakdown));
    let (replay, analyses) = replay::run(reader, options.grouping, analyses)?;
    let devices = analyses.table.devices(&replay.snapshot);
    let notes = Notes {
        legend: vec![view.legend.to_owned()],
        ..Notes::default()
    };
    let report = once(&replay, view.columns.to_vec(), notes, |index| {
        let device = devices.iter().find(|device| device.index == index)?;
        Some(table(view, device, options))
    });
    document::write(&report, &replay, options, out)
}

fn table(
    view: &BreakdownView,
    device: &DeviceBreakdown,
    options: &ReportOptions,
) -> Table<BreakdownEntry> {
    let mut table = Table::new(view.columns);
    let rows = &device.rows;
    let (shown, hidden) = rows.split_at(options.top.of(rows.len()));
    let entry = |row| BreakdownEntry::new(view, row);
    table.extend(Output::All, shown.iter().map(entry));
    table.extend(Output::Data, hidden.iter().map(entry));
    let holdings = hidden.iter().map(|row| row.holding);
    if let Some(sum) = holdings.reduce(Holding::and) {
        let others = counted(hidden.len() as u64, &format!("other {}", view.noun));
        let entry = BreakdownEntry::sum(&sum, format!("({others})"));
        table.push(Output::Text, entry);
    }
    table.extend(Output::All, BreakdownEntry::remainders(device));
    let total = BreakdownEntry {
        name: total_name(device.index, SoftwareLayer::Allocator),
        bytes: [device.totals, device.peak].map(|totals| Cell::from(totals.allocated)),
        counts: Some([
            device.live_blocks,
            rows.iter().map(|row| row.holding.allocs).sum(),
        ]),
        ..BreakdownEntry::default()
    };
    table.push(Output::Text, total);
    for entry in &mut table.rows {
        entry.row.device = Some(device.index);
    }
    table
}

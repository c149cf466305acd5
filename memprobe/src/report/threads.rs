//! Table of threads by the memory that they allocated.

use std::io::{BufRead, Write};

use super::attribution::{Notes, once};
use super::cells::{remainders, total_name};
use super::{Outcome, ReportError, ReportOptions, document, replay};
use crate::attribution::WithCategories;
use crate::attribution::peak::Holding;
use crate::attribution::tables::TotalsSample;
use crate::attribution::threads::{ThreadLedger, ThreadRow};
use crate::ledger::snapshot::{DeviceSnapshot, SoftwareLayer};
use crate::recording::Reader;
use crate::view::table::{Cell, Output, Table};
use crate::view::{THREAD_COLUMNS, ThreadEntry, counted};

pub(super) fn write<R: BufRead>(
    reader: Reader<R>,
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<Outcome, ReportError> {
    let analyses = WithCategories::new(ThreadLedger::default());
    let (replay, analyses) = replay::run(reader, options.grouping, analyses)?;
    let ledger = analyses.table;
    let devices = &replay.snapshot.devices;
    let table = |index| {
        let device = devices.iter().find(|device| device.index == index)?;
        // CUDA's own calls have no thread here: such a device has no table.
        let peak = ledger.peak(index)?;
        Some(table(device, &peak, &ledger.rows(index), options))
    };
    let notes = Notes {
        legend: vec!["A block belongs to the thread that allocated it.".to_owned()],
        ..Notes::default()
    };
    let report = once(&replay, || THREAD_COLUMNS.into(), notes, table);
    document::write(&report, &replay, options, out)
}

fn table(
    device: &DeviceSnapshot,
    peak: &TotalsSample,
    rows: &[ThreadRow],
    options: &ReportOptions,
) -> Table<ThreadEntry> {
    let mut table = Table::new(THREAD_COLUMNS);
    let shown = options.top.of(rows.len());
    let (shown, hidden) = rows.split_at(shown);
    table.extend(Output::All, shown.iter().map(ThreadEntry::new));
    table.extend(Output::Data, hidden.iter().map(ThreadEntry::new));
    let holdings = hidden.iter().map(|row| row.holding);
    if let Some(sum) = holdings.reduce(Holding::and) {
        let name = format!("({})", counted(hidden.len() as u64, "other thread"));
        table.push(Output::Text, ThreadEntry::sum(&sum, name));
    }
    let before = [device.before_attach.live, peak.before_attach].map(|bytes| bytes.0);
    let rest = remainders(before, [device.unaccounted, peak.unaccounted]);
    table.extend(Output::All, rest.into_iter().map(ThreadEntry::from));
    let total = ThreadEntry {
        name: total_name(device.index, SoftwareLayer::Allocator),
        bytes: [device.totals.allocated, peak.totals.allocated].map(Cell::from),
        counts: Some([
            device.live_blocks,
            rows.iter().map(|row| row.holding.allocs).sum(),
        ]),
        ..ThreadEntry::default()
    };
    table.push(Output::Text, total);
    for entry in &mut table.rows {
        entry.row.device = Some(device.index);
    }
    table
}

//! Table of threads by the memory that they allocated.

use std::io::{BufRead, Write};

use super::attribution::once;
use super::cells::{remainders, total_name};
use super::{Outcome, ReportError, ReportOptions, document, replay};
use crate::attribution::peak::Holding;
use crate::attribution::tables::DeviceTotals;
use crate::attribution::threads::{AllocatingThread, ThreadLedger, ThreadRow};
use crate::event::Tid;
use crate::ledger::snapshot::{DeviceSnapshot, Layer};
use crate::recording::Reader;
use crate::view::table::{Cell, Column, Output, Table};
use crate::view::{BLOCKS, counted, thread};

/// A thread, or bytes without one.
#[derive(Default)]
struct Row {
    device: Cell<'static>,
    tid: Option<Tid>,
    kind: &'static str,
    name: String,
    /// Bytes now, and at the device's peak.
    bytes: [Cell<'static>; 2],
    peak: Cell<'static>,
    /// Live blocks, and allocations.
    counts: Option<[u64; 2]>,
}

fn columns() -> Vec<Column<Row>> {
    vec![
        Column::data("device", |row| row.device.clone()),
        Column::number("live", "LIVE", |row| row.bytes[0].clone()),
        Column::number("at_peak", "AT PEAK", |row| row.bytes[1].clone()),
        Column::wide(1, "peak", "PEAK", |row| row.peak.clone()),
        Column::number("live_blocks", BLOCKS, |row| {
            row.counts.map(|it| it[0]).into()
        }),
        Column::wide(2, "allocs", "ALLOCS", |row| {
            row.counts.map(|it| it[1]).into()
        }),
        Column::number("tid", "TID", |row| {
            row.tid
                .map_or(Cell::Unknown, |tid| Cell::Number(tid.0.into()))
        }),
        Column::data("kind", |row| row.kind.into()),
        Column::text("name", "THREAD", |row| row.name.as_str().into()),
    ]
}

/// Reads the recording and writes the report.
pub(super) fn write<R: BufRead>(
    reader: Reader<R>,
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<Outcome, ReportError> {
    let (replay, ledger) = replay::run(reader, options.grouping, ThreadLedger::default())?;
    let devices = &replay.snapshot.devices;
    let table = |index| {
        let device = devices.iter().find(|device| device.index == index)?;
        // CUDA's own calls have no thread here: such a device has no table.
        let peak = ledger.peak(index)?;
        Some(table(device, &peak, &ledger.rows(index), options))
    };
    let notes = vec!["A block belongs to the thread that allocated it.".to_owned()];
    document::write(&once(&replay, columns, notes, table), options, out)?;
    Ok(replay.outcome())
}

fn table(
    device: &DeviceSnapshot,
    peak: &DeviceTotals,
    rows: &[ThreadRow],
    options: &ReportOptions,
) -> Table<Row> {
    let mut table = Table::new(columns());
    let shown = options.top.of(rows.len());
    let (shown, hidden) = rows.split_at(shown);
    table.extend(Output::All, shown.iter().map(row));
    table.extend(Output::Data, hidden.iter().map(row));
    let holdings = hidden.iter().map(|row| row.holding);
    if let Some(sum) = holdings.reduce(Holding::and) {
        let name = format!("({})", counted(hidden.len() as u64, "other thread"));
        table.push(Output::Text, held(&sum, name));
    }
    let before = [device.before_attach.live, peak.before_attach].map(|bytes| bytes.0);
    let rest = remainders(before, [device.unaccounted, peak.unaccounted]);
    table.extend(
        Output::All,
        rest.into_iter().map(|rest| Row {
            kind: rest.kind,
            name: rest.name.to_owned(),
            bytes: rest.bytes,
            ..Row::default()
        }),
    );
    let total = Row {
        name: total_name(device.index, Layer::Allocator),
        bytes: [device.totals.allocated, peak.totals.allocated].map(Cell::from),
        counts: Some([
            device.live_blocks,
            rows.iter().map(|row| row.holding.allocs).sum(),
        ]),
        ..Row::default()
    };
    table.push(Output::Text, total);
    for entry in &mut table.rows {
        entry.row.device = device.index.into();
    }
    table
}

fn row(row: &ThreadRow) -> Row {
    Row {
        tid: match row.allocator {
            AllocatingThread::Thread(tid) => Some(tid),
            AllocatingThread::BeforeOpening | AllocatingThread::TooMany => None,
        },
        kind: match row.allocator {
            AllocatingThread::Thread(_) => "thread",
            AllocatingThread::BeforeOpening => "before_opening",
            AllocatingThread::TooMany => "too_many",
        },
        ..held(&row.holding, thread(row))
    }
}

fn held(holding: &Holding, name: String) -> Row {
    Row {
        name,
        bytes: [holding.live, holding.at_peak].map(Cell::from),
        peak: holding.peak.into(),
        counts: Some([holding.live_blocks, holding.allocs]),
        ..Row::default()
    }
}

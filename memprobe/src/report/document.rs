//! Output formats of a report: text, one JSON document, one JSON object per row, or comma-separated
//! values.

use std::io::{self, Write};

use super::replay::RecordingReplay;
use super::{Outcome, ReportError, ReportFormat, ReportOptions};
use crate::event::TimeNs;
use crate::ledger::snapshot::Health;
use crate::view::table::{Cell, Column, CsvWriter, Page, Table, json_document, json_object};

/// Tables of a recording, one for each device.
pub(super) trait TableReport {
    type Row;

    fn text(&self, page: &mut Page);

    fn document(&self) -> Cell<'_>;

    fn columns(&self) -> Vec<Column<Self::Row>>;

    fn tables(&self) -> impl Iterator<Item = Table<Self::Row>>;
}

/// Writes a report of a replayed recording.
pub(super) fn write(
    report: &impl TableReport,
    replay: &RecordingReplay,
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<Outcome, ReportError> {
    write_as(report, options, out)?;
    Ok(replay.outcome())
}

pub(super) fn write_as(
    report: &impl TableReport,
    options: &ReportOptions,
    out: &mut impl Write,
) -> io::Result<()> {
    match options.format {
        ReportFormat::Text => {
            let mut page = Page::new(options.width, options.colour);
            report.text(&mut page);
            out.write_all(page.into_text().as_bytes())
        }
        ReportFormat::Json => json_document(&report.document(), out),
        ReportFormat::Jsonl => {
            let columns = report.columns();
            for table in report.tables() {
                for row in table.data_rows() {
                    json_object(&columns, row, out)?;
                    out.write_all(b"\n")?;
                }
            }
            Ok(())
        }
        ReportFormat::Csv => {
            let columns = report.columns();
            let mut csv = CsvWriter::new(&columns, out)?;
            for table in report.tables() {
                for row in table.data_rows() {
                    csv.row(row)?;
                }
            }
            csv.flush()
        }
    }
}

/// Document about a recording: its metadata, notes on the table, then the rows of each device.
pub(super) fn document<'a>(
    replay: &'a RecordingReplay,
    notes: Cell<'a>,
    devices: impl Iterator<Item = Cell<'a>>,
) -> Cell<'a> {
    let health = &replay.snapshot.health;
    let budget = budget(health, replay.snapshot.now);
    Cell::Object(vec![
        ("memprobe", (&*replay.header.version).into()),
        ("command", (&*replay.snapshot.target.command).into()),
        ("pid", replay.snapshot.target.tgid.map(|tgid| tgid.0).into()),
        ("truncated", replay.truncated.into()),
        ("damage", damage(replay)),
        ("events", health.events.into()),
        ("lost_events", health.losses.events.into()),
        ("budget", budget),
        ("notes", notes),
        ("devices", Cell::list(devices)),
    ])
}

/// Damage of the file that was left out, if there is any.
pub(super) fn damage(replay: &RecordingReplay) -> Cell<'static> {
    Cell::if_known(replay.damage.map(|damage| damage.to_string()))
}

/// State of the budget of `--max-overhead` at the end of a recording, if there was one.
pub(super) fn budget(health: &Health, now: TimeNs) -> Cell<'static> {
    Cell::if_known(health.budget.map(|state| {
        Cell::Object(vec![
            ("budget_ppm", u64::from(state.budget.0).into()),
            ("overhead_ppm", u64::from(state.overhead.0).into()),
            ("level", state.level.as_str().into()),
            ("least_detail", state.deepest.as_str().into()),
            ("pauses", state.pauses.into()),
            ("paused_ns", state.paused_until(now).into()),
        ])
    }))
}

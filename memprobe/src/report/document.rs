//! Output formats of a report: text, one JSON document, one JSON object per row, or comma-separated
//! values.

use std::io::{self, Write};

use serde::Serialize;

use super::replay::Replay;
use super::{Format, ReportOptions};
use crate::view::table::{Column, CsvWriter, Page, Table, json_document, json_line};

/// Tables of a recording, one for each device.
pub(super) trait Report {
    type Row<'a>
    where
        Self: 'a;

    fn text(&self, page: &mut Page);

    /// All data as one document.
    fn document(&self) -> impl Serialize;

    fn columns(&self) -> Vec<Column<Self::Row<'_>>>;

    fn tables(&self) -> impl Iterator<Item = Table<Self::Row<'_>>>;
}

pub(super) fn write(
    report: &impl Report,
    options: &ReportOptions,
    out: &mut impl Write,
) -> io::Result<()> {
    match options.format {
        Format::Text => {
            let mut page = Page::new(options.width, options.colour);
            report.text(&mut page);
            out.write_all(page.into_text().as_bytes())
        }
        Format::Json => json_document(&report.document(), out),
        Format::Jsonl => {
            let columns = report.columns();
            for table in report.tables() {
                for row in table.data_rows() {
                    json_line(&columns, row, out)?;
                }
            }
            Ok(())
        }
        Format::Csv => {
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

/// Document about a recording: its metadata, then the rows of each device.
#[derive(Serialize)]
pub(super) struct Document<'a, Device> {
    memprobe: &'a str,
    command: &'a str,
    pid: Option<u32>,
    truncated: bool,
    events: u64,
    lost_events: u64,
    /// Notes on the table.
    #[serde(skip_serializing_if = "Option::is_none")]
    notes: Option<&'a [String]>,
    devices: Vec<Device>,
}

impl<'a, Device> Document<'a, Device> {
    pub(super) fn new(replay: &'a Replay, devices: impl Iterator<Item = Device>) -> Self {
        let health = &replay.snapshot.health;
        Self {
            memprobe: &replay.header.version,
            command: &replay.snapshot.target.command,
            pid: replay.snapshot.target.tgid.map(|tgid| tgid.0),
            truncated: replay.truncated,
            events: health.events,
            lost_events: health.losses.events,
            notes: None,
            devices: devices.collect(),
        }
    }

    pub(super) fn with_notes(self, notes: &'a [String]) -> Self {
        let notes = Some(notes);
        Self { notes, ..self }
    }
}

//! Output formats of a table: text, one JSON document, one JSON object per row, or comma-separated
//! values.

use std::io::{self, Write};

use serde::Serialize;

use super::Format;
use super::replay::Replay;

/// Table of a recording. The rows of all devices form one table, except in a document, which nests
/// them by device.
pub(super) trait Table {
    /// Text for people.
    fn text(&self) -> String;

    /// All data as one document.
    fn document(&self) -> impl Serialize;

    /// Column names, in the order of a row's values.
    fn headings(&self) -> Vec<&'static str>;

    fn rows(&self, layout: Layout) -> impl Iterator<Item = impl Serialize>;
}

/// Kinds of values that a row may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Scalars and lists.
    Nested,
    /// Scalars only.
    Flat,
}

pub(super) fn write(table: &impl Table, format: Format, out: &mut impl Write) -> io::Result<()> {
    match format {
        Format::Text => out.write_all(table.text().as_bytes()),
        Format::Json => json(&table.document(), out),
        Format::Jsonl => {
            for row in table.rows(Layout::Nested) {
                serde_json::to_writer(&mut *out, &row)?;
                out.write_all(b"\n")?;
            }
            Ok(())
        }
        Format::Csv => csv(&table.headings(), table.rows(Layout::Flat), out),
    }
}

pub(super) fn json(document: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, document)?;
    out.write_all(b"\n")
}

/// Writes comma-separated values. The headings are written even without rows.
pub(super) fn csv<R: Serialize>(
    headings: &[&str],
    rows: impl Iterator<Item = R>,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut table = csv::WriterBuilder::new()
        .has_headers(false)
        .from_writer(out);
    table.write_record(headings).map_err(csv_error)?;
    for row in rows {
        table.serialize(row).map_err(csv_error)?;
    }
    table.flush()
}

/// Unwraps I/O errors, so that a broken pipe stays recognizable.
pub(super) fn csv_error(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
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

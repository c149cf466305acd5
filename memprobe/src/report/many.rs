//! Report of several recordings: each in turn, then their sum.

use std::fmt::Write as _;
use std::io::{self, BufRead, Write};

use serde::Serialize;

use super::replay::Replay;
use super::{By, Format, ReportError, ReportOptions, replay, structured, table};
use crate::bytes::human;
use crate::event::{Bytes, DeviceIndex, Totals};
use crate::label::{CUT, clean, count, fit};
use crate::recording::{Reader, RecordingError};

/// Report of several recordings.
pub struct Many<'a, W> {
    options: &'a ReportOptions,
    out: &'a mut W,
    rows: Vec<Row>,
    recordings: u64,
}

/// Memory of one process on one device.
struct Row {
    recording: String,
    device: DeviceIndex,
    events: u64,
    now: Totals,
    peak: Totals,
}

/// Sum of all rows.
#[derive(Default, Serialize)]
struct Total {
    recordings: u64,
    events: u64,
    allocated: u64,
    reserved: u64,
    /// The peaks are at different times.
    sum_of_peak_allocated: u64,
    /// The peaks are at different times.
    sum_of_peak_reserved: u64,
}

/// Returns true if these options allow several recordings: by line, as text or one document.
pub fn is_possible(options: &ReportOptions) -> bool {
    options.by == By::Line && matches!(options.format, Format::Text | Format::Json)
}

impl<'a, W: Write> Many<'a, W> {
    /// Starts the report.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn begin(options: &'a ReportOptions, out: &'a mut W) -> Result<Self, ReportError> {
        if options.format == Format::Json {
            out.write_all(b"{\"recordings\": [\n")?;
        }
        Ok(Self {
            options,
            out,
            rows: Vec::new(),
            recordings: 0,
        })
    }

    /// Adds the next recording under the given name.
    ///
    /// # Errors
    /// If the recording cannot be read, or `out` cannot be written.
    pub fn add<R: BufRead>(&mut self, name: &str, reader: Reader<R>) -> Result<(), ReportError> {
        let (replay, ()) = replay::run(reader, self.options.grouping, ())?;
        let is_first = self.recordings == 0;
        self.recordings += 1;
        if self.options.format == Format::Json {
            if !is_first {
                self.out.write_all(b",\n")?;
            }
            structured::named_json(name, &replay, self.options, self.out)?;
        } else {
            if !is_first {
                self.out.write_all(b"\n")?;
            }
            let text = table::render(&replay, self.options);
            self.out.write_all(text.as_bytes())?;
        }
        self.keep(name, &replay);
        Ok(())
    }

    /// Adds an entry for a file that is not a readable recording.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn add_unreadable(
        &mut self,
        name: &str,
        error: &RecordingError,
    ) -> Result<(), ReportError> {
        let is_first = self.recordings == 0;
        self.recordings += 1;
        if self.options.format == Format::Json {
            let error = error.to_string();
            let document = serde_json::json!({ "recording": name, "error": error });
            if !is_first {
                self.out.write_all(b",\n")?;
            }
            serde_json::to_writer_pretty(&mut *self.out, &document).map_err(io::Error::from)?;
        } else {
            let line = format!("{}: {error}", clean(name));
            writeln!(self.out, "{}", table::warning(self.options.colour, &line))?;
        }
        Ok(())
    }

    fn keep(&mut self, name: &str, replay: &Replay) {
        let events = replay.snapshot.health.events;
        let devices = replay.snapshot.devices.iter();
        self.rows
            .extend(devices.enumerate().map(|(at, device)| Row {
                recording: name.to_owned(),
                device: device.index,
                // The count is per process, so only the first device has it.
                events: if at == 0 { events } else { 0 },
                now: device.totals,
                peak: device.peak,
            }));
    }

    /// Writes the sum.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn finish(self) -> Result<(), ReportError> {
        let total = self.total();
        if self.options.format == Format::Json {
            self.out.write_all(b"],\n\"total\": ")?;
            serde_json::to_writer_pretty(&mut *self.out, &total).map_err(io::Error::from)?;
            self.out.write_all(b"}\n")?;
        } else {
            let text = render(&self.rows, &total, self.options);
            self.out.write_all(text.as_bytes())?;
        }
        Ok(self.out.flush()?)
    }

    fn total(&self) -> Total {
        let mut total = Total {
            recordings: self.recordings,
            ..Total::default()
        };
        for row in &self.rows {
            total.events += row.events;
            total.allocated += row.now.allocated.0;
            total.reserved += row.now.reserved.0;
            total.sum_of_peak_allocated += row.peak.allocated.0;
            total.sum_of_peak_reserved += row.peak.reserved.0;
        }
        total
    }
}

/// Table of processes, as text.
fn render(rows: &[Row], total: &Total, options: &ReportOptions) -> String {
    let headings = ["ALLOCATED", "PEAK", "RESERVED", "PEAK", "EVENTS", "DEVICE"];
    let mut table: Vec<([String; 6], String)> =
        vec![(headings.map(str::to_owned), "RECORDING".to_owned())];
    table.extend(rows.iter().map(|row| {
        let cells = [
            human(row.now.allocated),
            human(row.peak.allocated),
            human(row.now.reserved),
            human(row.peak.reserved),
            count(row.events),
            row.device.to_string(),
        ];
        (cells, clean(&row.recording))
    }));
    let sums = [
        human(Bytes(total.allocated)),
        human(Bytes(total.sum_of_peak_allocated)),
        human(Bytes(total.reserved)),
        human(Bytes(total.sum_of_peak_reserved)),
        count(total.events),
        "-".to_owned(),
    ];
    table.push((
        sums,
        "(sum; the peaks may be at different times)".to_owned(),
    ));
    let widths: [usize; 6] = std::array::from_fn(|column| {
        let cells = table.iter().map(|(cells, _)| cells[column].len());
        cells.max().unwrap_or(0)
    });
    let mut text = "\n".to_owned();
    for (at, (cells, last)) in table.iter().enumerate() {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(widths) {
            // Writing to a string cannot fail.
            let _ = write!(line, "{cell:>width$}  ");
        }
        line.push_str(last);
        let line = fit(&line, options.width, CUT);
        let line = if at == 0 {
            table::strong(options.colour, &line)
        } else {
            line
        };
        text.push_str(&line);
        text.push('\n');
    }
    text
}

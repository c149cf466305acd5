//! Report of several recordings: each in turn, then their sum.

use std::io::{self, BufRead, Write};
use std::path::Path;

use serde::Serialize;

use super::document::TableReport;
use super::lines::LineReport;
use super::named_records::{Heading, NamedRecords};
use super::ranks::{JobFailures, RankEnd, push_sentences};
use super::replay::RecordingReplay;
use super::{By, Outcome, ReportError, ReportFormat, ReportOptions, replay};
use crate::attribution::failures::FailureFinder;
use crate::event::{Bytes, DeviceIndex, Totals};
use crate::recording::{Reader, RecordingError};
use crate::view::table::{Cell, Column, Output, Page, Style, Table, columns, json_document};
use crate::view::{clean, gpu_number};

pub struct ManyReport<'a, W> {
    options: &'a ReportOptions,
    out: &'a mut W,
    rows: Vec<RecordingEntry>,
    ends: Vec<RankEnd>,
    recordings: u64,
    heading: Heading,
}

/// Memory of one process on one device, or the sum of all.
struct RecordingEntry {
    recording: String,
    device: Option<DeviceIndex>,
    /// Number of its GPU; `None` if unknown.
    gpu: Option<String>,
    events: u64,
    now: Totals,
    peak: Totals,
}

fn columns() -> Vec<Column<RecordingEntry>> {
    columns![|row: RecordingEntry|
        figure("ALLOCATED") => row.now.allocated,
        figure("PEAK") => row.peak.allocated,
        figure("RESERVED") => row.now.reserved,
        figure("PEAK") => row.peak.reserved,
        figure("EVENTS") => row.events,
        figure("DEVICE") => row.device,
        figure("GPU") => row.gpu.as_deref(),
        label("RECORDING") => &*row.recording,
    ]
    .into()
}

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

impl<'a, W: Write> ManyReport<'a, W> {
    /// Starts the report.
    pub fn begin(options: &'a ReportOptions, out: &'a mut W) -> Result<Self, ReportError> {
        if options.format == ReportFormat::Json {
            out.write_all(b"{\"recordings\": [\n")?;
        }
        Ok(Self {
            options,
            out,
            rows: Vec::new(),
            ends: Vec::new(),
            recordings: 0,
            heading: Heading::First,
        })
    }

    /// Adds the next recording under the given name.
    pub fn add<R: BufRead>(
        &mut self,
        name: &str,
        reader: Reader<R>,
    ) -> Result<Option<Outcome>, ReportError> {
        let has_sum = self.has_sum();
        let outcome = if has_sum {
            Some(self.add_lines(name, reader)?)
        } else {
            self.add_table(name, reader)?
        };
        self.recordings += 1;
        Ok(outcome)
    }

    /// True if the sum of all recordings comes last.
    fn has_sum(&self) -> bool {
        let is_for_rows = matches!(self.options.format, ReportFormat::Csv | ReportFormat::Jsonl);
        self.options.by == By::Line && self.options.what_if.is_none() && !is_for_rows
    }

    fn add_lines<R: BufRead>(
        &mut self,
        name: &str,
        reader: Reader<R>,
    ) -> Result<Outcome, ReportError> {
        let path = reader.path().map(Path::to_owned);
        let (replay, failures) =
            replay::run(reader, self.options.grouping, FailureFinder::first())?;
        let report = LineReport {
            replay: &replay,
            options: self.options,
        };
        if self.options.format == ReportFormat::Json {
            let mut fields = vec![("recording", name.into())];
            if let Cell::Object(report) = report.document() {
                fields.extend(report);
            }
            self.document(&Cell::Object(fields))?;
        } else {
            let mut page = self.page();
            if self.recordings > 0 {
                page.blank();
            }
            report.text(&mut page);
            self.out.write_all(page.into_text().as_bytes())?;
        }
        self.keep(name, &replay);
        let end = RankEnd::of(name, path.as_deref(), &replay, failures);
        self.ends.extend(end.has_devices().then_some(end));
        Ok(replay.outcome())
    }

    /// Adds a table without a sum over recordings.
    fn add_table<R: BufRead>(
        &mut self,
        name: &str,
        reader: Reader<R>,
    ) -> Result<Option<Outcome>, ReportError> {
        let mut named = match self.options.format {
            ReportFormat::Text => {
                let title = Style(self.options.colour).strong(&clean(name));
                let separator = if self.recordings > 0 { "\n" } else { "" };
                NamedRecords::text(&format!("{separator}{title}"), self.out)
            }
            ReportFormat::Json => {
                if self.recordings > 0 {
                    self.out.write_all(b",\n")?;
                }
                NamedRecords::document(name, self.out)
            }
            ReportFormat::Jsonl => NamedRecords::json_lines(name, self.out),
            ReportFormat::Csv => NamedRecords::csv(name, self.heading, self.out),
        };
        self.heading = Heading::Repeated;
        super::write(reader, self.options, &mut named)
    }

    /// Adds an entry for a file that is not a readable recording.
    pub fn add_unreadable(
        &mut self,
        name: &str,
        error: &RecordingError,
    ) -> Result<(), ReportError> {
        let error = error.to_string();
        match self.options.format {
            ReportFormat::Json => {
                self.document(&serde_json::json!({ "recording": name, "error": error }))?;
            }
            ReportFormat::Jsonl => {
                let line = serde_json::json!({ "recording": name, "error": error });
                writeln!(self.out, "{line}")?;
            }
            // The column of a table has no place for it.
            ReportFormat::Csv => return Ok(()),
            ReportFormat::Text => {
                let line = format!("{}: {error}", clean(name));
                writeln!(self.out, "{}", Style(self.options.colour).warning(&line))?;
            }
        }
        self.recordings += 1;
        Ok(())
    }

    fn page(&self) -> Page {
        Page::new(self.options.width, self.options.colour)
    }

    fn document(&mut self, document: &impl Serialize) -> io::Result<()> {
        if self.recordings > 0 {
            self.out.write_all(b",\n")?;
        }
        Ok(serde_json::to_writer_pretty(&mut *self.out, document)?)
    }

    fn keep(&mut self, name: &str, replay: &RecordingReplay) {
        let events = replay.snapshot.health.events;
        let devices = replay.snapshot.devices.iter();
        self.rows
            .extend(devices.enumerate().map(|(at, device)| RecordingEntry {
                recording: name.to_owned(),
                device: Some(device.index),
                gpu: replay.snapshot.target.gpu(device.index).map(gpu_number),
                // The count is per process, so only the first device has it.
                events: if at == 0 { events } else { 0 },
                now: device.totals,
                peak: device.peak,
            }));
    }

    /// Writes the sum.
    pub fn finish(self) -> Result<(), ReportError> {
        if !self.has_sum() {
            if self.options.format == ReportFormat::Json {
                self.out.write_all(b"]}\n")?;
            }
            return Ok(self.out.flush()?);
        }
        let total = self.total();
        let failures = JobFailures::read(self.ends);
        if self.options.format == ReportFormat::Json {
            self.out.write_all(b"],\n\"first_failure\": ")?;
            json_document(&failures.cell(), self.out)?;
            self.out.write_all(b",\n\"total\": ")?;
            serde_json::to_writer_pretty(&mut *self.out, &total).map_err(io::Error::from)?;
            self.out.write_all(b"}\n")?;
        } else {
            let totals = |allocated, reserved| Totals {
                allocated: Bytes(allocated),
                reserved: Bytes(reserved),
            };
            let sum = RecordingEntry {
                recording: "(sum; the peaks may be at different times)".to_owned(),
                device: None,
                gpu: None,
                events: total.events,
                now: totals(total.allocated, total.reserved),
                peak: totals(total.sum_of_peak_allocated, total.sum_of_peak_reserved),
            };
            let mut page = Page::new(self.options.width, self.options.colour);
            let mut table = Table::new(columns());
            table.extend(Output::Text, self.rows.into_iter().chain([sum]));
            page.blank();
            page.table(&table);
            let sentences = failures.sentences();
            if !sentences.is_empty() {
                page.blank();
                push_sentences(&mut page, &sentences);
            }
            self.out.write_all(page.into_text().as_bytes())?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{DeviceIdentity, Gpu, IdentitySource};
    use crate::recording::samples::{header, recording_of, story};

    /// Recording of a rank whose `cuda:0` is this GPU.
    fn rank(index: u32, source: IdentitySource) -> Vec<u8> {
        let mut header = header();
        header.target.gpus = vec![DeviceIdentity {
            device: DeviceIndex(0),
            gpu: Some(Gpu {
                index: Some(index),
                uuid: Some(format!("GPU-0{index}5a5a5a")),
                pci_bus_id: Some(format!("00000000:0{index}:00.0")),
                mig: None,
                memory: None,
                source,
            }),
            unknown: None,
        }];
        recording_of(&header, &story())
    }

    fn written(format: ReportFormat) -> String {
        let options = ReportOptions {
            format,
            ..ReportOptions::default()
        };
        let mut out = Vec::new();
        let mut many = ManyReport::begin(&options, &mut out).unwrap();
        for (name, index, source) in [
            ("a.json", 3, IdentitySource::Properties),
            ("b.json", 1, IdentitySource::Environment),
        ] {
            let file = rank(index, source);
            many.add(name, Reader::new(&*file).unwrap()).unwrap();
        }
        many.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn ranks_that_all_have_a_device_0_keep_their_gpus() {
        let text = written(ReportFormat::Text);
        let line = "cuda:0 is GPU 3  GPU-035a5a5a  00000000:03:00.0\n";
        assert!(text.contains(line), "{text}");
        let inferred = "00000000:01:00.0  (inferred)\n";
        assert!(text.contains(inferred), "{text}");
        for (name, gpu) in [("a.json", "3"), ("b.json", "1?")] {
            let mut rows = text.lines().filter(|line| line.ends_with(name));
            let row = rows.rfind(|line| line.contains("cuda:0")).unwrap();
            let mut words = row.split_whitespace().rev();
            assert_eq!(words.nth(1), Some(gpu), "{row}");
        }
        let json: serde_json::Value = serde_json::from_str(&written(ReportFormat::Json)).unwrap();
        for (at, gpu, source) in [(0, 3, "properties"), (1, 1, "environment")] {
            let device = &json["recordings"][at]["devices"][0];
            assert_eq!(device["device"], 0);
            assert_eq!(device["gpu"], gpu);
            assert_eq!(device["gpu_source"], source);
            assert_eq!(device["uuid"], format!("GPU-0{gpu}5a5a5a"));
        }
    }
}

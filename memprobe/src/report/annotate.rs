//! Source text with the memory of each line beside it.

mod functions;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, Write};

use super::attribution::{Notes, once};
use super::cells::total_name;
use super::{
    Outcome, RecordingReplay, ReportError, ReportOptions, SegmentMoment, document, replay,
    unless_closed,
};
use crate::attribution::WithCategories;
use crate::attribution::line_figures::{LineFigureLedger, SourceLineFigures};
use crate::event::{Bytes, DeviceIndex, Totals};
use crate::ledger::snapshot::{DeviceSnapshot, Grouping, Site, SoftwareLayer};
use crate::recording::Reader;
use crate::view::clean;
use crate::view::table::{Cell, Column, Output, Table, columns};
use functions::{Functions, LineRange};

/// Lines before and after one with memory, if no function was chosen.
const CONTEXT: u32 = 3;

/// Most names of files in a message.
const MAX_NAMED: usize = 5;

/// Reads the text of a source file, given its name in the recording.
pub type SourceReader = Box<dyn Fn(&str) -> Result<SourceFile, String>>;

/// Source file to annotate.
pub struct Annotation {
    /// Path as the user gave it, and as the system resolves it.
    pub paths: [String; 2],
    /// Functions to show, such as `forward` or `Net.forward`; all if empty.
    pub functions: Vec<String>,
    /// Reads the text, given the name of the file in the recording. An error is the reason for missing text.
    pub text_of: SourceReader,
}

/// Text of a source file.
pub struct SourceFile {
    pub text: String,
    /// Time of the last change in milliseconds since 1970; `None` if unknown.
    pub modified_ms: Option<u64>,
    pub origin: SourceOrigin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceOrigin {
    /// The recorded process had it.
    Recording,
    /// A file of this machine.
    Machine,
}

impl SourceOrigin {
    const fn words(self) -> &'static str {
        match self {
            Self::Recording => "the source in the recording",
            Self::Machine => "the source on this machine",
        }
    }
}

/// A line of the file, or a sum.
#[derive(Default)]
pub struct AnnotatedRow {
    device: Option<DeviceIndex>,
    live: Option<Bytes>,
    figures: Option<SourceLineFigures>,
    line: Option<u32>,
    text: String,
}

fn columns() -> Vec<Column<AnnotatedRow>> {
    columns![|row: AnnotatedRow|
        data("device") => row.device,
        number("live", "LIVE") => shown(row.live),
        number("peak", "PEAK") => shown(row.figures.map(|it| it.peak)),
        number("allocated", "ALLOCATED") => shown(row.figures.map(|it| it.allocated)),
        data("allocs") => row.figures.map(|it| it.allocs),
        number("active", "ACTIVE").priority(2) => shown(row.figures.map(|it| it.active)),
        number("reserved", "RESERVED").priority(1) => shown(row.figures.map(|it| it.reserved)),
        number("line", "LINE") => row.line.map_or(Cell::Blank, |line| u64::from(line).into()),
        text("source", "SOURCE") => &*row.text,
    ]
    .into()
}

/// A line without memory has empty cells.
fn shown(bytes: Option<Bytes>) -> Cell<'static> {
    bytes.map_or(Cell::Blank, Cell::from)
}

/// Figures of the lines of the file on one device, and the device's totals at the moment.
struct AnnotatedDevice {
    lines: BTreeMap<u32, (Bytes, SourceLineFigures)>,
    totals: Totals,
}

/// A source file with the memory of its lines.
pub struct AnnotatedFile {
    /// Name in the recording.
    pub file: String,
    /// Meaning of the columns.
    legend: String,
    /// Doubts about the text.
    facts: Vec<String>,
    replay: RecordingReplay,
    text: Option<String>,
    functions: Option<Vec<LineRange>>,
    devices: BTreeMap<DeviceIndex, AnnotatedDevice>,
}

/// Writes the annotated file. Returns `None` if the reader closes the output early.
pub fn write_annotated<R: BufRead>(
    reader: Reader<R>,
    options: &ReportOptions,
    annotation: &Annotation,
    out: &mut impl Write,
) -> Result<Option<Outcome>, ReportError> {
    let annotated = AnnotatedFile::read(reader, options.moment, annotation)?;
    let table = |index| annotated.table(index);
    let notes = Notes {
        legend: vec![annotated.legend.clone()],
        facts: annotated.facts.clone(),
    };
    let report = once(&annotated.replay, columns(), notes, table);
    let written = document::write(&report, &annotated.replay, options, out);
    unless_closed(written.and_then(|outcome| Ok(out.flush().map(|()| outcome)?)))
}

impl AnnotatedFile {
    /// Replays a recording for the figures of the lines of a file.
    pub fn read<R: BufRead>(
        reader: Reader<R>,
        moment: SegmentMoment,
        annotation: &Annotation,
    ) -> Result<Self, ReportError> {
        let analyses = WithCategories::new(LineFigureLedger::default());
        let (replay, ended) = replay::run_to_end(reader, Grouping::User, analyses)?;
        let (figures, ledger) = (ended.analyses.table, ended.ledger);
        let all = |device: &DeviceSnapshot| -> Vec<(&Site, SourceLineFigures)> {
            figures.lines(device.index, &ledger).collect()
        };
        let devices = &replay.snapshot.devices;
        let sites: Vec<(&Site, SourceLineFigures)> = devices.iter().flat_map(all).collect();
        let file = annotation.file(&sites)?;
        let recorded = replay.sources.file(&file);
        let recorded = recorded.and_then(|source| {
            Some(SourceFile {
                text: source.text()?.to_owned(),
                modified_ms: source.modified_ms,
                origin: SourceOrigin::Recording,
            })
        });
        let source = match recorded {
            Some(source) => Ok(source),
            None => (annotation.text_of)(&file),
        };
        let text = source.as_ref().map(|source| &*source.text);
        let functions = annotation.functions(&file, text, &sites)?;
        let mut found = BTreeMap::new();
        for device in devices {
            let totals = match moment {
                SegmentMoment::End => Some(device.totals),
                SegmentMoment::Peak => figures.peak(device.index).map(|it| it.totals),
                SegmentMoment::OutOfMemory => figures.failure(device.index).map(|it| it.totals),
            };
            if let Some(totals) = totals {
                let lines = lines_of(&file, &all(device), moment);
                found.insert(device.index, AnnotatedDevice { lines, totals });
            }
        }
        if found.is_empty() {
            return Err(ReportError::NoMoment(
                "no request failed in it; leave out --at oom, or give --at peak".to_owned(),
            ));
        }
        let doubt = doubt(&file, &source, &sites, replay.header.wall_start_ms);
        Ok(Self {
            file,
            legend: legend(moment),
            facts: doubt.into_iter().collect(),
            text: source.ok().map(|source| source.text),
            functions,
            devices: found,
            replay,
        })
    }

    /// Legend and doubts, as sentences.
    pub fn notes(&self) -> Vec<String> {
        let legend = std::iter::once(&self.legend);
        legend.chain(&self.facts).cloned().collect()
    }

    /// Devices with memory at the moment.
    pub fn devices(&self) -> impl Iterator<Item = DeviceIndex> {
        self.devices.keys().copied()
    }

    /// Lines of the file on a device; `None` if it has no memory at the moment.
    pub fn table(&self, device: DeviceIndex) -> Option<Table<AnnotatedRow>> {
        Some(table(
            device,
            self.devices.get(&device)?,
            self.text.as_deref(),
            self.functions.as_deref(),
        ))
    }
}

fn legend(moment: SegmentMoment) -> String {
    let when = match moment {
        SegmentMoment::End => "at the end",
        SegmentMoment::Peak => "at the peak of the device",
        SegmentMoment::OutOfMemory => "at the last out-of-memory error",
    };
    format!(
        "LIVE: {when}. PEAK: the line's own. ALLOCATED: all its blocks. ACTIVE, RESERVED: highest totals of the \
         device just after it allocated."
    )
}

/// Lines of a file with their live bytes at the moment.
fn lines_of(
    file: &str,
    sites: &[(&Site, SourceLineFigures)],
    moment: SegmentMoment,
) -> BTreeMap<u32, (Bytes, SourceLineFigures)> {
    let mut lines: BTreeMap<u32, (Bytes, SourceLineFigures)> = BTreeMap::new();
    for (site, figures) in sites {
        let Some(frame) = site.frame().filter(|frame| &*frame.file == file) else {
            continue;
        };
        let live = match moment {
            SegmentMoment::End => figures.live,
            SegmentMoment::Peak => figures.at_peak,
            SegmentMoment::OutOfMemory => figures.at_failure,
        };
        lines.insert(frame.line, (live, *figures));
    }
    lines
}

impl Annotation {
    /// Name of the file in the recording.
    fn file(&self, sites: &[(&Site, SourceLineFigures)]) -> Result<String, ReportError> {
        let [given, resolved] = &self.paths;
        let files: BTreeSet<&str> = sites
            .iter()
            .filter_map(|(site, _)| site.frame().map(|frame| &*frame.file))
            .collect();
        if files.contains(&**resolved) {
            return Ok(resolved.clone());
        }
        let ending = format!("/{}", given.trim_start_matches("./"));
        let is_named = |file: &&&str| **file == given || file.ends_with(&ending);
        let named: Vec<&&str> = files.iter().filter(is_named).collect();
        match &named[..] {
            [only] => Ok((**only).to_owned()),
            [] => {
                let known: Vec<String> = files.iter().take(MAX_NAMED).map(|it| clean(it)).collect();
                let more = if files.len() > MAX_NAMED { ", ..." } else { "" };
                Err(ReportError::NoLines(format!(
                    "no line of {} allocated memory in it; lines of {}{more} did",
                    clean(given),
                    known.join(", ")
                )))
            }
            several => {
                let names: Vec<String> = several.iter().map(|it| clean(it)).collect();
                Err(ReportError::NoLines(format!(
                    "{} is the end of several files in it: give one of {}",
                    clean(given),
                    names.join(", ")
                )))
            }
        }
    }

    /// Functions that the user chose, as ranges of lines; `None` for all lines.
    fn functions(
        &self,
        file: &str,
        text: Result<&str, &String>,
        sites: &[(&Site, SourceLineFigures)],
    ) -> Result<Option<Vec<LineRange>>, ReportError> {
        if self.functions.is_empty() {
            return Ok(None);
        }
        let of_text = text.map(Functions::of);
        let mut ranges = Vec::new();
        for name in &self.functions {
            let found: Vec<LineRange> = match &of_text {
                Ok(functions) => functions.named(name),
                Err(_) => lines_in(file, name, sites),
            };
            if found.is_empty() {
                let mut known: Vec<String> = sites
                    .iter()
                    .filter_map(|(site, _)| site.frame())
                    .filter(|frame| &*frame.file == file)
                    .map(|frame| clean(&frame.function))
                    .collect();
                known.sort_unstable();
                known.dedup();
                return Err(ReportError::NoLines(format!(
                    "{} has no function {}; lines of {} allocated memory",
                    clean(file),
                    clean(name),
                    known.join(", ")
                )));
            }
            ranges.extend(found);
        }
        Ok(Some(ranges))
    }
}

/// Sentence on text that is missing, or is not the one that ran.
fn doubt(
    file: &str,
    source: &Result<SourceFile, String>,
    sites: &[(&Site, SourceLineFigures)],
    start_ms: Option<u64>,
) -> Option<String> {
    let source = match source {
        Err(reason) => {
            let (file, reason) = (clean(file), clean(reason));
            return Some(format!(
                "warning: there is no source text: {file}: {reason}"
            ));
        }
        Ok(source) => source,
    };
    let functions = Functions::of(&source.text);
    let frames = sites.iter().filter_map(|(site, _)| site.frame());
    let own = frames.filter(|frame| &*frame.file == file && frame.line > 0);
    let differs = own.filter(|it| !functions.can_hold(it.line, &it.function));
    if let Some(line) = differs.map(|frame| frame.line).min() {
        return Some(format!(
            "warning: {} is not the one that ran: line {line} is not in the function that allocated",
            source.origin.words()
        ));
    }
    let is_newer = source
        .modified_ms
        .zip(start_ms)
        .is_some_and(|(at, start)| at > start);
    is_newer.then(|| {
        let words = source.origin.words();
        format!("warning: {words} was changed after the recording began")
    })
}

/// Lines of the source with their figures, and what adds up to the device's total.
fn table(
    index: DeviceIndex,
    device: &AnnotatedDevice,
    text: Option<&str>,
    functions: Option<&[LineRange]>,
) -> Table<AnnotatedRow> {
    let mut table = Table::new(columns());
    let text: Vec<&str> = text.map_or(Vec::new(), |it| it.lines().collect());
    let is_shown = |line: u32| match functions {
        Some(ranges) => ranges.iter().any(|range| range.contains(&line)),
        None => {
            let near = line.saturating_sub(CONTEXT)..=line.saturating_add(CONTEXT);
            device.lines.range(near).next().is_some()
        }
    };
    let last = u32::try_from(text.len()).unwrap_or(u32::MAX);
    let all = (1..=last).chain(device.lines.keys().copied());
    let all: BTreeSet<u32> = all.filter(|line| is_shown(*line)).collect();
    let mut before = None;
    let mut sum = 0_u64;
    for line in all {
        if before.is_some_and(|before: u32| before + 1 < line) {
            table.push(Output::Text, AnnotatedRow::default());
        }
        before = Some(line);
        let found = device.lines.get(&line);
        sum = sum.saturating_add(found.map_or(0, |(live, _)| live.0));
        table.push(
            Output::All,
            AnnotatedRow {
                device: Some(index),
                live: found.map(|(live, _)| *live),
                figures: found.map(|(_, figures)| *figures),
                line: Some(line),
                text: source_line(&text, line),
            },
        );
    }
    let total = device.totals.allocated;
    let rest = Bytes(total.0.saturating_sub(sum));
    for (bytes, text) in [
        (rest, "(everything else)".to_owned()),
        (total, total_name(index, SoftwareLayer::Allocator)),
    ] {
        let row = AnnotatedRow {
            device: Some(index),
            live: Some(bytes),
            text,
            ..AnnotatedRow::default()
        };
        table.push(Output::Text, row);
    }
    table
}

fn source_line(text: &[&str], line: u32) -> String {
    let at = usize::try_from(line)
        .ok()
        .and_then(|line| line.checked_sub(1));
    match at.and_then(|at| text.get(at)) {
        Some(text) => clean(&text.replace('\t', "    ")),
        None => "(no such line in the source)".to_owned(),
    }
}

/// Lines of a file on which a function allocated, where no text tells its extent.
fn lines_in(file: &str, function: &str, sites: &[(&Site, SourceLineFigures)]) -> Vec<LineRange> {
    let name = function.rsplit('.').next().unwrap_or(function);
    let frames = sites.iter().filter_map(|(site, _)| site.frame());
    let own = frames.filter(|frame| &*frame.file == file && &*frame.function == name);
    own.map(|frame| frame.line..=frame.line).collect()
}

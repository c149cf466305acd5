//! Difference of two moments, of one recording or of two.

pub(super) mod keys;
mod side;
mod table;

use std::io::{BufRead, Write};

use super::document::{self, TableReport};
use super::preamble::{NO_MODULES, warnings};
use super::{Alike, Colour, Outcome, ReportError, ReportFormat, ReportOptions, RowLimit};
use crate::attribution::chosen_moments::ChosenMoment;
use crate::attribution::iterations::IterationLine;
use crate::compare::lines::LineMatches;
use crate::compare::{
    CompareBy, ComparedKey, ComparedRow, MemoryByKey, compared, difference, paired_devices,
};
use crate::event::bytes::{human, signed};
use crate::event::{Bytes, DeviceIndex, Totals};
use crate::ledger::snapshot::{Grouping, PurposeInfo};
use crate::recording::Reader;
use crate::view::table::{Cell, Column, Page, Table};
use crate::view::{clean, counted};

use side::NamedMoment;
pub(super) use side::{ComparedSide, SearchedRecording};
use table::DifferenceRow;

#[derive(Clone, Debug)]
pub struct DiffOptions {
    pub by: CompareBy,
    /// Moments before and after.
    pub moments: [ChosenMoment; 2],
    pub format: ReportFormat,
    pub top: RowLimit,
    pub grouping: Grouping,
    /// Display of modules that differ only in a number.
    pub alike: Alike,
    pub width: usize,
    pub colour: Colour,
    /// Line that starts an iteration, if the user gave one.
    pub iteration: Option<IterationLine>,
}

/// A recording with its name.
pub struct NamedRecording<'a, R> {
    pub name: &'a str,
    pub reader: Reader<R>,
}

const CATEGORIES: &str = "Categories are inferred from when memory was allocated and freed.";
const NO_TENSORS: &str = "Tensors were not recorded: record with --detail tensors.";
const ON_ERROR: &str =
    "At an out-of-memory error, categories are as far as they were known by then.";

/// Writes the difference of two recordings, or of two moments of `before` without `after`.
///
/// `out` should be buffered. Returns the outcome of each recording; `None` if the reader closes the output early.
pub fn write_difference<R: BufRead>(
    before: NamedRecording<'_, R>,
    after: Option<NamedRecording<'_, R>>,
    options: &DiffOptions,
    out: &mut impl Write,
) -> Result<Option<Vec<Outcome>>, ReportError> {
    let [first, second] = options.moments;
    let report = match after {
        Some(after) => Difference::new(
            vec![
                ComparedSide::read(before, &[first], options)?,
                ComparedSide::read(after, &[second], options)?,
            ],
            options,
        ),
        None => Difference::new(
            vec![ComparedSide::read(before, &[first, second], options)?],
            options,
        ),
    };
    let outcomes = report.sides.iter().map(|side| side.replay.outcome());
    let outcomes: Vec<Outcome> = outcomes.collect();
    let format = ReportOptions {
        format: options.format,
        width: options.width,
        colour: options.colour,
        ..ReportOptions::default()
    };
    let written = document::write_as(&report, &format, out).and_then(|()| out.flush());
    super::unless_closed(written.map(|()| outcomes).map_err(ReportError::from))
}

struct Difference<'a> {
    /// One recording, or two.
    sides: Vec<ComparedSide<'a>>,
    devices: Vec<DeviceDifference>,
    options: &'a DiffOptions,
}

/// Difference on one device, which may have another number in the other process.
struct DeviceDifference {
    before: NamedMoment,
    after: NamedMoment,
    sums: [MemoryByKey; 2],
    rows: Vec<ComparedRow>,
}

impl<'a> Difference<'a> {
    fn new(sides: Vec<ComparedSide<'a>>, options: &'a DiffOptions) -> Self {
        let matches = match (&sides[..], options.by) {
            ([before, after], CompareBy::Line) => {
                LineMatches::find(&before.sites(), &after.sites())
            }
            // Lines of one recording are of one source.
            _ => LineMatches::default(),
        };
        let later = |key: &ComparedKey| match key {
            ComparedKey::Line(site) => matches.later(site).map(ComparedKey::Line),
            key => Some(key.clone()),
        };
        let (before, after) = (&sides[0], sides.last().unwrap_or(&sides[0]));
        // Of one recording, the second moment.
        let moment = after.found.len() - 1;
        let devices = |side: &ComparedSide<'_>, moment: usize| -> Vec<DeviceIndex> {
            side.found[moment].keys().copied().collect()
        };
        let pairs = paired_devices(&devices(before, 0), &devices(after, moment));
        let devices = pairs.into_iter().map(|(first, second)| {
            let (before, earlier) = before.memory(first, 0, options);
            let (after, now) = after.memory(second, moment, options);
            DeviceDifference {
                rows: compared(&earlier, &now, later),
                before,
                after,
                sums: [earlier, now],
            }
        });
        Self {
            devices: devices.collect(),
            sides,
            options,
        }
    }

    fn after(&self) -> &ComparedSide<'a> {
        self.sides.last().unwrap_or(&self.sides[0])
    }

    fn notes(&self) -> Vec<String> {
        let by = self.options.by;
        let rows = || self.devices.iter().flat_map(|device| &device.rows);
        let is_unknown = |row: &ComparedRow| {
            let key = &row.key;
            *key == ComparedKey::Tensor(PurposeInfo::Unknown)
        };
        let mut notes = Vec::new();
        let moved = rows().filter(|row| row.inferred_from.is_some()).count();
        if moved > 0 {
            notes.push(format!(
                "~ {} moved: inferred from the function and the nearest line.",
                counted(moved as u64, "line")
            ));
        }
        let mut note = |text: &str| notes.push(text.to_owned());
        if by == CompareBy::Category {
            note(CATEGORIES);
            if self.options.moments.contains(&ChosenMoment::OutOfMemory) {
                note(ON_ERROR);
            }
        }
        if by == CompareBy::Tensor && rows().any(is_unknown) {
            note(NO_TENSORS);
        }
        if by == CompareBy::Module && !self.sides.iter().any(ComparedSide::knows_modules) {
            note(NO_MODULES);
        }
        notes
    }
}

impl<'a> TableReport for Difference<'a> {
    type Row = DifferenceRow;

    fn text(&self, page: &mut Page) {
        let words: &[&str] = match self.sides.len() {
            1 => &[""],
            _ => &["before: ", "after:  "],
        };
        for (side, word) in self.sides.iter().zip(words) {
            page.fitted(&format!("{word}{}", side.heading()));
        }
        for side in &self.sides {
            for warning in warnings(&side.replay) {
                page.warning(&format!("warning: {}: {warning}", clean(side.name)));
            }
        }
        if self.devices.is_empty() {
            page.blank();
            page.line("No memory of PyTorch's allocators in either.");
        }
        for device in &self.devices {
            page.blank();
            page.fitted_strong(&device.title());
            page.fitted(&format!(
                "before: {}; after: {}",
                device.before.name, device.after.name
            ));
            page.table(&table::text(device, self.options));
        }
        let notes = self.notes();
        if !notes.is_empty() {
            page.blank();
        }
        notes.iter().for_each(|note| page.note(note));
    }

    fn document(&self) -> Cell<'_> {
        let devices = self.devices.iter().map(|device| {
            Cell::Object(vec![
                ("device", device.index().into()),
                ("change", Cell::Signed(device.change())),
                ("before", device.before.cell()),
                ("after", device.after.cell()),
                ("rows", table::data(device).into()),
            ])
        });
        Cell::Object(vec![
            ("before", self.sides[0].cell()),
            ("after", self.after().cell()),
            ("by", keys::key_of_table(self.options.by).into()),
            (
                "notes",
                Cell::list(self.notes().into_iter().map(Cell::from)),
            ),
            ("devices", Cell::list(devices)),
        ])
    }

    fn columns(&self) -> Vec<Column<DifferenceRow>> {
        table::columns("")
    }

    fn tables(&self) -> impl Iterator<Item = Table<DifferenceRow>> {
        self.devices.iter().map(table::data)
    }
}

impl DeviceDifference {
    fn index(&self) -> DeviceIndex {
        let index = self.after.device.or(self.before.device);
        index.unwrap_or(DeviceIndex::UNKNOWN)
    }

    fn change(&self) -> i64 {
        difference(self.sums[0].allocated, self.sums[1].allocated)
    }

    /// Such as `cuda:0  allocated 4.12 GiB, was 4.00 GiB: +0.12 GiB`.
    fn title(&self) -> String {
        let devices = match (self.before.device, self.after.device) {
            (Some(before), Some(after)) if before != after => format!("{before} and {after}"),
            _ => self.index().to_string(),
        };
        let part = |what: &str, of: fn(Totals) -> u64| {
            let [before, after] = [&self.before, &self.after].map(|moment| of(moment.totals));
            let change = signed(difference(before, after));
            let [before, after] = [before, after].map(|bytes| human(Bytes(bytes)));
            format!("{what} {after}, was {before}: {change}")
        };
        let mut title = format!(
            "{devices}  {}",
            part("allocated", |totals| totals.allocated.0)
        );
        if self.index() != DeviceIndex::CPU {
            title += &format!("; {}", part("reserved", |totals| totals.reserved.0));
        }
        title
    }
}

#[cfg(test)]
mod tests;

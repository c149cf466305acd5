//! Tables of iterations, categories, phases, layers, model size, and memory saved for backward.

mod categories;
mod iterations;
mod layers;
mod numbered_modules;
mod phases;
mod saved;
mod size;

use std::io::{BufRead, Write};
use std::rc::Rc;

pub(super) use iterations::source as source_of_iterations;

use super::cells::{self, Remainder};
use super::document::{self, TableReport, document};
use super::preamble::{NO_CALLS_INTO_CUDA, push_beginning, push_totals};
use super::replay::{self, RecordingReplay};
use super::{By, Outcome, ReportError, ReportOptions};
use crate::attribution::AttributionLedger;
use crate::attribution::moments::Moment;
use crate::attribution::size::Sizes;
use crate::attribution::view::Coverage;
use crate::event::DeviceIndex;
use crate::ledger::snapshot::SoftwareLayer;
use crate::recording::Reader;
use crate::view::table::{Cell, Column, Page, Rows, Table};
use crate::view::{category_table_columns, counted};

/// A table of every device, or one of each moment of every device.
pub(super) struct AttributionReport<'a, R> {
    replay: &'a RecordingReplay,
    columns: Vec<Column<R>>,
    /// The tables of a device; `None` if it has none.
    sections: Box<dyn Fn(DeviceIndex) -> Option<Sections<'a, R>> + 'a>,
    notes: Notes,
}

type Sections<'a, R> = Box<dyn Iterator<Item = Section<R>> + 'a>;

struct Section<R> {
    /// Name of the moment; `None` if it is the only one.
    title: Option<String>,
    table: Table<R>,
}

/// Rows of a device in a document, made one table at a time.
struct DeviceRows<'r, 'a, R>(&'r AttributionReport<'a, R>, DeviceIndex);

impl<R> Rows for DeviceRows<'_, '_, R> {
    fn each(&self, emit: &mut dyn FnMut(Cell<'_>)) {
        let sections = (self.0.sections)(self.1).into_iter().flatten();
        sections.for_each(|section| section.table.each(emit));
    }
}

pub(super) fn write<R: BufRead>(
    reader: Reader<R>,
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<Outcome, ReportError> {
    let ledger = AttributionLedger::new(options.iteration.clone());
    let ledger = match options.by {
        By::Size => ledger.with_sizes(),
        By::Layer => ledger.with_layers(),
        _ => ledger,
    };
    let (replay, ledger) = replay::run(reader, options.grouping, ledger)?;
    write_tables(&replay, &ledger, options, out)
}

fn write_tables(
    replay: &RecordingReplay,
    ledger: &AttributionLedger,
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<Outcome, ReportError> {
    match options.by {
        By::Layer => {
            let iterations = &ledger.iterations();
            let Some(layering) = &ledger.layering() else {
                return Ok(replay.outcome());
            };
            layers::check(layering, iterations, &options.layers)?;
            let moments = layers::Moments {
                layering,
                iterations,
                options,
            };
            let report = AttributionReport {
                replay,
                columns: layers::columns(),
                sections: Box::new(move |index| moments.sections(index)),
                notes: layers::notes(ledger, layering, iterations, options),
            };
            document::write(&report, replay, options, out)
        }
        By::Iteration => {
            let iterations = &ledger.iterations();
            let start = replay.snapshot.started;
            let notes = iterations::notes(iterations, ledger.coverage());
            let table = |index| Some(iterations::table(iterations, index, start, options));
            let report = once(replay, iterations::columns(), notes, table);
            document::write(&report, replay, options, out)
        }
        By::Size => {
            let sizes = &ledger.sizes();
            let notes = size::notes(sizes.as_ref(), ledger.coverage());
            let table = |index| {
                let sizes = sizes.as_ref()?;
                let device = sizes.devices.get(&index)?;
                Some(size::table(index, device, sizes.named, options))
            };
            let report = once(replay, size::columns(), notes, table);
            document::write(&report, replay, options, out)
        }
        By::Phase => {
            let table = |index| Some(phases::table(index, ledger.device(index)?));
            let report = once(replay, phases::columns(), phases::notes(ledger), table);
            document::write(&report, replay, options, out)
        }
        By::Saved => {
            let table = |index| Some(saved::table(index, ledger.device(index)?, options));
            let report = once(
                replay,
                saved::columns(),
                saved::notes(ledger, options),
                table,
            );
            document::write(&report, replay, options, out)
        }
        _ => {
            let table = |index| Some(categories::table(index, ledger.device(index)?));
            let notes = categories::notes(ledger);
            let report = once(replay, category_table_columns().into(), notes, table);
            document::write(&report, replay, options, out)
        }
    }
}

pub(super) fn once<'a, R: 'a>(
    replay: &'a RecordingReplay,
    columns: Vec<Column<R>>,
    notes: Notes,
    table: impl Fn(DeviceIndex) -> Option<Table<R>> + 'a,
) -> AttributionReport<'a, R> {
    let sections = move |index| -> Option<Sections<'a, R>> {
        let table = table(index)?;
        let title = None;
        Some(Box::new(std::iter::once(Section { title, table })))
    };
    AttributionReport {
        replay,
        columns,
        sections: Box::new(sections),
        notes,
    }
}

impl<R> AttributionReport<'_, R> {
    /// True if the recording has allocations, and none that PyTorch reported.
    fn has_only_calls(&self) -> bool {
        let layer = self.replay.snapshot.cuda.layer;
        matches!(layer, SoftwareLayer::Driver | SoftwareLayer::Runtime)
    }
}

impl<'a, R> TableReport for AttributionReport<'a, R> {
    type Row = R;

    fn text(&self, page: &mut Page) {
        push_beginning(page, self.replay);
        if self.has_only_calls() {
            page.blank();
            page.note(NO_CALLS_INTO_CUDA);
            return;
        }
        let mut dropped = Vec::new();
        let mut is_empty = true;
        for device in &self.replay.snapshot.devices {
            let Some(sections) = (self.sections)(device.index) else {
                continue;
            };
            is_empty = false;
            page.blank();
            push_totals(page, device, self.replay.snapshot.cuda.layer);
            for Section { title, table } in sections {
                if let Some(title) = title {
                    page.blank();
                    page.strong(&title);
                }
                dropped = page.table(&table).dropped;
            }
        }
        if !is_empty {
            page.blank();
        }
        self.notes.push(page);
        if !dropped.is_empty() {
            page.note(&format!(
                "Columns left out: {}. Use a wider terminal, or --format csv or json.",
                dropped.join(", ")
            ));
        }
    }

    fn document(&self) -> Cell<'_> {
        if self.has_only_calls() {
            let notes = Cell::list([NO_CALLS_INTO_CUDA]);
            return document(self.replay, notes, std::iter::empty());
        }
        let devices = self.replay.snapshot.devices.iter();
        let devices = devices.filter(|device| (self.sections)(device.index).is_some());
        let devices = devices.map(|device| {
            Cell::Object(vec![
                ("device", device.index.into()),
                ("allocated", device.totals.allocated.into()),
                ("reserved", device.totals.reserved.into()),
                ("rows", Cell::Rows(Rc::new(DeviceRows(self, device.index)))),
            ])
        });
        document(self.replay, Cell::list(self.notes.all()), devices)
    }

    fn columns(&self) -> Vec<Column<R>> {
        self.columns.clone()
    }

    fn tables(&self) -> impl Iterator<Item = Table<R>> {
        let devices = self.replay.snapshot.devices.iter();
        let sections = devices.filter_map(|device| (self.sections)(device.index));
        sections.flatten().map(|section| section.table)
    }
}

pub(super) fn push_sizes(
    page: &mut Page,
    sizes: &Sizes,
    coverage: Coverage,
    options: &ReportOptions,
) {
    for (index, device) in &sizes.devices {
        page.table(&size::table(*index, device, sizes.named, options));
    }
    size::notes_of_estimate(sizes, coverage).push(page);
}

pub(super) fn sizes_of_device<'a>(sizes: &Sizes, options: &ReportOptions) -> Option<Cell<'a>> {
    let (index, device) = sizes.devices.first_key_value()?;
    Some(size::table(*index, device, sizes.named, options).into())
}

/// Sentences under a table.
#[derive(Default)]
pub(super) struct Notes {
    /// Meaning of the rows and columns.
    pub(super) legend: Vec<String>,
    /// Facts about the recording.
    pub(super) facts: Vec<String>,
}

impl Notes {
    fn all(&self) -> impl Iterator<Item = &String> {
        self.legend.iter().chain(&self.facts)
    }

    fn push(&self, page: &mut Page) {
        page.legend(&self.legend);
        self.facts.iter().for_each(|fact| page.note(fact));
    }
}

/// Rows that complete the sums to the allocator's totals.
fn remainders(now: &Moment, peak: &Moment) -> Vec<Remainder> {
    let moments = [now, peak].map(|moment| &moment.composition);
    cells::remainders(
        moments.map(|it| it.before_attach),
        moments.map(|it| it.unaccounted),
    )
}

const FOLDED: &str = "Modules that differ only in a number share one row; --no-fold shows each.";

/// Notes on data that the recording lacks, and the consequences.
fn missing(heard: Coverage) -> Vec<String> {
    let mut notes = Vec::new();
    if heard.stacks_left_out > 0 {
        notes.push(format!(
            "{} exceeded the limit: the category of their memory is unknown.",
            counted(heard.stacks_left_out, "stack")
        ));
    }
    let mut count = |number: u64, of: &str, words: &str| {
        if number > 0 {
            notes.push(format!("{} {words}", counted(number, of)));
        }
    };
    count(
        heard.operations_left_out,
        "operation",
        "without a name, on lines with many.",
    );
    count(
        heard.threads_forgotten,
        "thread",
        "exceeded the limit: their phase between modules and a backward pass may be unknown, and an iteration at a \
         given line may be split.",
    );
    count(
        heard.marks_without_place,
        "mark",
        "(steps, batches) from places beyond the limit: they count as one place.",
    );
    let mut say = |is_missing: bool, words: &str| {
        if is_missing {
            notes.push(words.to_owned());
        }
    };
    say(
        heard.concurrent_training,
        "Several threads train at once in this process: the pass of a block, and categories that depend on it, are \
         unknown.",
    );
    say(
        !heard.grad,
        "This recording lacks the grad mode: evaluation counts as forward. Record again with this version.",
    );
    say(
        !heard.tensors,
        "This recording lacks the tensors of blocks, so workspaces of libraries are not separate. Record with \
         --detail tensors.",
    );
    notes
}

#[cfg(test)]
mod tests;

//! Tables of iterations, categories, phases, layers, model size, and memory saved for backward.

mod categories;
mod grid;
mod iterations;
mod layers;
mod numbered_modules;
mod phases;
mod purposes;
mod saved;
mod size;

use std::io::{BufRead, Write};

use serde::{Serialize, Serializer};

use super::document::{self, Document, Layout, Table};
use super::replay::{self, Replay};
use super::structured::known_device;
use super::table::{self, Style};
use super::{By, Outcome, ReportError, ReportOptions};
use crate::event::DeviceIndex;
use crate::label::{BEFORE_ATTACH, UNACCOUNTED, counted};
use crate::model::attribution::AttributionLedger;
use crate::model::attribution::iterations::Iterations;
use crate::model::attribution::layers::Layering;
use crate::model::attribution::moments::Moment;
use crate::model::attribution::size::Sizes;
use crate::model::attribution::view::Coverage;
use crate::model::snapshot::DeviceSnapshot;
use crate::recording::Reader;
use grid::{Cell, Column, Grid, Keyed, Section};

/// A table of every device.
struct Tables<'a> {
    replay: &'a Replay,
    options: &'a ReportOptions,
    columns: &'static [Column],
    devices: Vec<(&'a DeviceSnapshot, Rows<'a>)>,
    /// Notes on the table.
    notes: Vec<String>,
}

/// Rows of a device.
enum Rows<'a> {
    /// One table for the whole recording.
    Once(Grid),
    /// A table for each of several moments.
    Moments(layers::Moments<'a>),
}

impl Rows<'_> {
    fn for_people(&self) -> Vec<Section> {
        match self {
            Self::Once(grid) => vec![Section {
                title: None,
                grid: grid.clone(),
            }],
            Self::Moments(moments) => moments.for_people(),
        }
    }

    fn for_programs(&self, layout: Layout) -> impl Iterator<Item = Keyed> {
        let (once, moments) = match self {
            Self::Once(grid) => (Some(grid.clone()), None),
            Self::Moments(moments) => (None, Some(moments.for_programs())),
        };
        let grids = once.into_iter().chain(moments.into_iter().flatten());
        grids.flat_map(move |grid| grid.into_rows(layout))
    }
}

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.for_programs(Layout::Nested))
    }
}

#[derive(Serialize)]
struct Device<'a> {
    device: Option<DeviceIndex>,
    allocated: u64,
    reserved: u64,
    rows: &'a Rows<'a>,
}

/// Reads the recording and writes the report.
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
    match ledger.layering().filter(|_| options.by == By::Layer) {
        Some(layering) => {
            let iterations = ledger.iterations();
            layers::check(&layering, &iterations, &options.layers)?;
            let tables = of_layers(&replay, &ledger, (&layering, &iterations), options);
            document::write(&tables, options.format, out)?;
        }
        None => document::write(&tables(&replay, &ledger, options), options.format, out)?,
    }
    Ok(replay.outcome())
}

impl Table for Tables<'_> {
    fn text(&self) -> String {
        text(self.replay, self, self.options)
    }

    fn document(&self) -> impl Serialize {
        let devices = self.devices.iter();
        let devices = devices.map(|(device, rows)| Device {
            device: known_device(device.index),
            allocated: device.totals.allocated.0,
            reserved: device.totals.reserved.0,
            rows,
        });
        Document::new(self.replay, devices).with_notes(&self.notes)
    }

    fn headings(&self) -> Vec<&'static str> {
        grid::headings(self.columns)
    }

    fn rows(&self, layout: Layout) -> impl Iterator<Item = impl Serialize> {
        let devices = self.devices.iter();
        devices.flat_map(move |(_, rows)| rows.for_programs(layout))
    }
}

fn of_layers<'a>(
    replay: &'a Replay,
    ledger: &AttributionLedger,
    (layering, iterations): (&'a Layering<'a>, &'a Iterations),
    options: &'a ReportOptions,
) -> Tables<'a> {
    let devices = replay.snapshot.devices.iter();
    let devices = devices.filter(|device| layering.knows(device.index));
    let devices = devices.map(|device| {
        let moments = layers::Moments::of(device.index, layering, iterations, options);
        (device, Rows::Moments(moments))
    });
    Tables {
        replay,
        options,
        columns: layers::COLUMNS,
        devices: devices.collect(),
        notes: layers::notes(ledger, layering, iterations, options),
    }
}

fn tables<'a>(
    replay: &'a Replay,
    ledger: &AttributionLedger,
    options: &'a ReportOptions,
) -> Tables<'a> {
    let devices = replay.snapshot.devices.iter();
    let of_devices = |columns, notes, grid: &dyn Fn(DeviceIndex) -> Option<Grid>| {
        let devices = devices.clone();
        let devices = devices.filter_map(|device| Some((device, Rows::Once(grid(device.index)?))));
        Tables {
            replay,
            options,
            columns,
            devices: devices.collect(),
            notes,
        }
    };
    match options.by {
        By::Iteration => {
            let iterations = ledger.iterations();
            let start = replay.snapshot.started;
            let notes = iterations::notes(&iterations, ledger.coverage());
            of_devices(iterations::COLUMNS, notes, &|index| {
                Some(iterations::grid(&iterations, index, start, options))
            })
        }
        By::Size => {
            let sizes = ledger.sizes();
            let notes = size::notes(sizes.as_ref(), ledger.coverage(), options);
            of_devices(size::COLUMNS, notes, &|index| {
                let sizes = sizes.as_ref()?;
                let device = sizes.devices.get(&index)?;
                Some(size::grid(index, device, sizes.named, options))
            })
        }
        By::Phase => of_devices(phases::COLUMNS, phases::notes(ledger), &|index| {
            Some(phases::grid(index, ledger.device(index)?))
        }),
        By::Saved => of_devices(saved::COLUMNS, saved::notes(ledger, options), &|index| {
            Some(saved::grid(index, ledger.device(index)?, options))
        }),
        _ => of_devices(categories::COLUMNS, categories::notes(ledger), &|index| {
            Some(categories::grid(index, ledger.device(index)?))
        }),
    }
}

fn text(replay: &Replay, tables: &Tables<'_>, options: &ReportOptions) -> String {
    let mut text = table::beginning(replay, options);
    let style = Style(options.colour);
    let mut left_out = Vec::new();
    for (device, rows) in &tables.devices {
        table::push_line(&mut text, "");
        table::push_totals(&mut text, device, options);
        for Section { title, grid } in rows.for_people() {
            if let Some(title) = title {
                table::push_line(&mut text, "");
                table::push_line(&mut text, &style.strong(&title));
            }
            left_out = grid.render(&mut text, options.width, style);
        }
    }
    let narrow = (!left_out.is_empty()).then(|| {
        format!(
            "Columns left out: {}. Use a wider terminal, or --format csv or json.",
            left_out.join(", ")
        )
    });
    if !tables.devices.is_empty() {
        table::push_line(&mut text, "");
    }
    for note in tables.notes.iter().chain(&narrow) {
        table::push_note(&mut text, note, options.width);
    }
    text
}

/// Adds the table of model size to an estimate, with its notes.
pub(super) fn push_sizes(
    text: &mut String,
    sizes: &Sizes,
    heard: Coverage,
    options: &ReportOptions,
) {
    for (index, device) in &sizes.devices {
        let grid = size::grid(*index, device, sizes.named, options);
        grid.render(text, options.width, Style(options.colour));
    }
    for note in size::notes_of_estimate(sizes, heard) {
        table::push_note(text, &note, options.width);
    }
}

/// Rows of `report --by size` for one device, for structured formats.
pub(super) fn sizes_for_programs(
    sizes: &Sizes,
    options: &ReportOptions,
) -> Option<impl Serialize + use<>> {
    let (index, device) = sizes.devices.first_key_value()?;
    let grid = size::grid(*index, device, sizes.named, options);
    Some(grid.into_rows(Layout::Nested).collect::<Vec<_>>())
}

/// A row that completes the sum to the allocator's total.
struct Remainder {
    /// Its name in structured formats, and in text.
    kind: &'static str,
    name: &'static str,
    /// Bytes now, and at the peak.
    live: Cell,
    at_peak: Cell,
}

fn remainders(now: &Moment, peak: &Moment) -> Vec<Remainder> {
    let (now, peak) = (&now.composition, &peak.composition);
    let mut rows = Vec::new();
    if now.before_attach > 0 || peak.before_attach > 0 {
        rows.push(Remainder {
            kind: "before_attach",
            name: BEFORE_ATTACH,
            live: Cell::Bytes(now.before_attach),
            at_peak: Cell::Bytes(peak.before_attach),
        });
    }
    if now.unaccounted != 0 || peak.unaccounted != 0 {
        rows.push(Remainder {
            kind: "unaccounted",
            name: UNACCOUNTED,
            live: Cell::Signed(now.unaccounted),
            at_peak: Cell::Signed(peak.unaccounted),
        });
    }
    rows
}

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

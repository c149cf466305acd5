//! Tables that say why memory is there: by iteration, by category, by phase, and what is saved for backward.

mod alike;
mod categories;
mod grid;
mod iterations;
mod layers;
mod outline;
mod phases;
mod saved;
mod size;

use std::io::{BufRead, Write};

use serde::Serialize;

use super::document::{self, Document, Layout, Table};
use super::replay::{self, Replay};
use super::structured::known_device;
use super::table::{self, Style, wrap};
use super::{By, Outcome, ReportError, ReportOptions};
use crate::event::DeviceIndex;
use crate::label::{BEFORE_ATTACH, UNACCOUNTED, counted};
use crate::model::snapshot::DeviceSnapshot;
use crate::model::why::WhyLedger;
use crate::model::why::moments::Moment;
use crate::model::why::size::Sizes;
use crate::model::why::view::Hearsay;
use crate::recording::Reader;
use grid::{Cell, Column, Grid};

/// A table of every device.
struct Tables<'a> {
    replay: &'a Replay,
    options: &'a ReportOptions,
    columns: &'static [Column],
    grids: Vec<(&'a DeviceSnapshot, Grid)>,
    /// What is to be known of it.
    notes: Vec<String>,
}

#[derive(Serialize)]
struct Device<'a> {
    device: Option<DeviceIndex>,
    allocated: u64,
    reserved: u64,
    rows: &'a Grid,
}

/// Writes the report.
pub(super) fn write<R: BufRead>(
    reader: Reader<R>,
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<Outcome, ReportError> {
    let ledger = WhyLedger::new(options.iteration.clone());
    let mut ledger = match options.by {
        By::Size | By::Layer => ledger.with_sizes(),
        _ => ledger,
    };
    let replay = replay::run_beside(reader, options.grouping, |event, applied, _| {
        ledger.apply(event, applied);
    })?;
    let tables = tables(&replay, &ledger, options);
    document::write(&tables, options.format, out)?;
    Ok(replay.outcome())
}

impl Table for Tables<'_> {
    fn text(&self) -> String {
        text(self.replay, self, self.options)
    }

    fn document(&self) -> impl Serialize {
        let grids = self.grids.iter();
        let devices = grids.map(|(device, rows)| Device {
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
        let grids = self.grids.iter();
        grids.flat_map(move |(_, grid)| grid.for_programs(layout))
    }
}

fn tables<'a>(replay: &'a Replay, ledger: &WhyLedger, options: &'a ReportOptions) -> Tables<'a> {
    let devices = replay.snapshot.devices.iter();
    let of_devices = |columns, notes, grid: &dyn Fn(DeviceIndex) -> Option<Grid>| {
        let grids = devices.clone();
        let grids = grids.filter_map(|device| Some((device, grid(device.index)?)));
        Tables {
            replay,
            options,
            columns,
            grids: grids.collect(),
            notes,
        }
    };
    match options.by {
        By::Iteration => {
            let iterations = ledger.iterations();
            let start = replay.snapshot.started;
            let notes = iterations::notes(&iterations, ledger.heard());
            of_devices(iterations::COLUMNS, notes, &|index| {
                Some(iterations::grid(&iterations, index, start, options))
            })
        }
        By::Size => {
            let sizes = ledger.sizes();
            let notes = size::notes(sizes.as_ref(), ledger.heard(), options);
            of_devices(size::COLUMNS, notes, &|index| {
                let sizes = sizes.as_ref()?;
                let device = sizes.devices.get(&index)?;
                Some(size::grid(index, device, sizes.named, options))
            })
        }
        By::Layer => of_devices(layers::COLUMNS, layers::notes(ledger, options), &|index| {
            Some(layers::grid(index, &ledger.layers(index)?, options))
        }),
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
    let mut left_out = Vec::new();
    for (device, grid) in &tables.grids {
        table::push_line(&mut text, "");
        table::push_totals(&mut text, device, options);
        left_out = grid.render(&mut text, options.width, Style(options.colour));
    }
    let narrow = (!left_out.is_empty()).then(|| {
        format!(
            "Left out for want of room: {}. A wider terminal shows them, and --format csv or json.",
            left_out.join(", ")
        )
    });
    if !tables.grids.is_empty() {
        table::push_line(&mut text, "");
    }
    for note in tables.notes.iter().chain(&narrow) {
        for line in wrap(note, options.width) {
            table::push_line(&mut text, &line);
        }
    }
    text
}

/// Writes how large a model is as a part of an estimate, with what is to be known of it.
pub(super) fn push_sizes(
    text: &mut String,
    sizes: &Sizes,
    heard: Hearsay,
    options: &ReportOptions,
) {
    for (index, device) in &sizes.devices {
        let grid = size::grid(*index, device, sizes.named, options);
        grid.render(text, options.width, Style(options.colour));
    }
    for note in size::notes_of_estimate(sizes, heard) {
        for line in wrap(&note, options.width) {
            table::push_line(text, &line);
        }
    }
}

/// The same for programs, where there is one device: the rows of `report --by size`.
pub(super) fn sizes_for_programs(
    sizes: &Sizes,
    options: &ReportOptions,
) -> Option<impl Serialize + use<>> {
    let (index, device) = sizes.devices.first_key_value()?;
    Some(size::grid(*index, device, sizes.named, options))
}

/// The rows without which a sum is not the allocator's: their names, and what they held now and at the peak.
fn remainders(now: &Moment, peak: &Moment) -> Vec<(&'static str, Cell, Cell)> {
    let (now, peak) = (&now.composition, &peak.composition);
    let mut rows = Vec::new();
    if now.before_attach > 0 || peak.before_attach > 0 {
        let bytes = Cell::Bytes;
        rows.push((
            BEFORE_ATTACH,
            bytes(now.before_attach),
            bytes(peak.before_attach),
        ));
    }
    if now.unaccounted != 0 || peak.unaccounted != 0 {
        let bytes = Cell::Signed;
        rows.push((UNACCOUNTED, bytes(now.unaccounted), bytes(peak.unaccounted)));
    }
    rows
}

/// What a recording does not say, and what follows from that.
fn missing(heard: Hearsay) -> Vec<String> {
    let mut notes = Vec::new();
    if heard.stacks_left_out > 0 {
        notes.push(format!(
            "{} came when there was room for no more: what they asked for is unknown.",
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
        "left unnamed, of lines that do many.",
    );
    count(
        heard.threads_forgotten,
        "thread",
        "forgotten when there was room for no more: what they do between modules and a backward \
         pass may be unknown, and an iteration at a named line may be cut in two.",
    );
    count(
        heard.marks_without_place,
        "mark",
        "(steps, batches) from places for which there was no room: they count as one place.",
    );
    let mut say = |is_missing: bool, words: &str| {
        if is_missing {
            notes.push(words.to_owned());
        }
    };
    say(
        heard.crowded,
        "Several threads train at once in this process: whose pass a block belongs to cannot be told, and what \
         would follow from that is unknown.",
    );
    say(
        !heard.grad,
        "This recording does not say whether grad was enabled: modules that were called count as forward, and \
         evaluation is not told apart. Record it anew with this version.",
    );
    say(
        !heard.tensors,
        "This recording does not say which blocks are tensors (--detail lines, or an older version): workspaces of \
         libraries are not told apart.",
    );
    notes
}

#[cfg(test)]
mod tests;

//! Report of memory that grows from iteration to iteration.

mod retainers;
mod structured;

use std::io::{BufRead, Write};
use std::time::Duration;

use serde::Serialize;

use self::structured::{Row, SuspectRecord};
use super::columns::{self, Cells};
use super::document::{self, Document, Layout, Table};
use super::peak::place_name;
use super::replay::Replay;
use super::table::{self, Style};
use super::{Outcome, ReportError, ReportOptions, replay, shapes};
use crate::bytes::human;
use crate::event::{Bytes, DeviceIndex};
use crate::label::{FileNames, count, counted, rate, span};
use crate::model::attribution::growth::{Growth, GrowthLedger, Rate, StepUnit, Suspect};
use crate::model::snapshot::{DeviceSnapshot, PurposeInfo};
use crate::recording::Reader;

/// Note above the suspects.
const SUSPECTS: &str = "Each row grew in most steps and kept most of its growth to the end: a leak, or a store that \
                        is meant to grow. Rates are medians of the slopes between all pairs of steps (Theil-Sen).";

/// A device, and its growth.
struct OnDevice<'a> {
    device: &'a DeviceSnapshot,
    growth: Growth,
}

/// Reads the recording and writes the report.
pub(super) fn write<R: BufRead>(
    reader: Reader<R>,
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<Outcome, ReportError> {
    let ledger = GrowthLedger::new(options.grouping, options.iteration.clone());
    let (replay, ledger) = replay::run(reader, options.grouping, ledger)?;
    let intervals = ledger.intervals_per_iteration();
    let devices: Vec<OnDevice> = replay
        .snapshot
        .devices
        .iter()
        .filter_map(|device| {
            let growth = ledger.growth(device.index, intervals)?;
            Some(OnDevice { device, growth })
        })
        .collect();
    let table = Suspects {
        replay: &replay,
        devices,
        options,
    };
    document::write(&table, options.format, out)?;
    Ok(replay.outcome())
}

/// Growth on every device.
struct Suspects<'a> {
    replay: &'a Replay,
    devices: Vec<OnDevice<'a>>,
    options: &'a ReportOptions,
}

/// A row in one of its output forms.
#[derive(Serialize)]
#[serde(untagged)]
enum Written<'a> {
    Nested(SuspectRecord<'a>),
    Flat(Row<'a>),
}

impl Table for Suspects<'_> {
    fn text(&self) -> String {
        text(self.replay, &self.devices, self.options)
    }

    fn document(&self) -> impl Serialize {
        let device = |on| structured::device(on, self.replay);
        Document::new(self.replay, self.devices.iter().map(device))
    }

    fn headings(&self) -> Vec<&'static str> {
        structured::HEADINGS.to_vec()
    }

    fn rows(&self, layout: Layout) -> impl Iterator<Item = impl Serialize> {
        let rows = self.devices.iter().flat_map(structured::rows);
        rows.map(move |suspect| match layout {
            Layout::Nested => Written::Nested(suspect),
            Layout::Flat => Written::Flat(suspect.row),
        })
    }
}

fn text(replay: &Replay, devices: &[OnDevice<'_>], options: &ReportOptions) -> String {
    let mut text = table::beginning(replay, options);
    for on in devices {
        let OnDevice { device, growth } = on;
        table::push_line(&mut text, "");
        table::push_totals(&mut text, device, options);
        let mut notes = vec![looked_at(growth)];
        if growth.steps >= growth.needed {
            notes.push(total(growth, device.index));
            notes.push(match is_quiet(growth) {
                true => nobody(growth),
                false => SUSPECTS.to_owned(),
            });
        }
        for note in notes {
            table::push_note(&mut text, &note, options.width);
        }
        render(&mut text, growth, options);
        retainers::render(&mut text, on, replay.header.start, options);
    }
    if replay.snapshot.devices.len() > devices.len() {
        table::push_line(&mut text, "");
        table::push_note(&mut text, table::NO_CALLS_INTO_CUDA, options.width);
    }
    text
}

fn is_quiet(growth: &Growth) -> bool {
    growth.lines.is_empty() && growth.modules.is_empty() && growth.tensors.is_empty()
}

/// Describes the data behind the figures.
fn looked_at(growth: &Growth) -> String {
    let steps = counted(growth.steps as u64, "step");
    let each = match growth.step {
        StepUnit::Iterations(each) if (each - 1.0).abs() < 0.01 => {
            "live memory at the end of each iteration".to_owned()
        }
        StepUnit::Iterations(each) => {
            format!("lowest live memory at the ends of every {each:.0} iterations")
        }
        StepUnit::Window(length) => format!(
            "lowest live memory in every {}, as no iterations were found",
            span(Duration::from_nanos(length))
        ),
    };
    let left_out = growth.left_out;
    let mut text = format!("{steps} examined: {each}; the first {left_out} left out (warm-up).");
    if growth.steps < growth.needed {
        let needed = growth.needed;
        text.push_str(&format!(
            " These are too few to find growth: {needed} are needed. Record for longer."
        ));
    }
    text
}

fn per(growth: &Growth) -> &'static str {
    match growth.step {
        StepUnit::Iterations(_) => "an iteration",
        StepUnit::Window(_) => "a second",
    }
}

fn total(growth: &Growth, device: DeviceIndex) -> String {
    match &growth.total {
        Some(total) => format!(
            "{device} as a whole grows by {} {}, in {:.0}% of the steps: from {} to {}.",
            bytes(total.bytes),
            per(growth),
            100.0 * total.grew,
            human(total.first),
            human(total.last)
        ),
        None => format!("{device} as a whole does not grow."),
    }
}

fn nobody(growth: &Growth) -> String {
    format!(
        "No line, module or tensor grows. (Growth below {} over these steps is not listed.)",
        human(growth.least)
    )
}

/// Formats a fractional number of bytes.
fn bytes(bytes: f64) -> String {
    // The cast saturates beyond `u64`; negative numbers become 0.
    human(Bytes(bytes.round() as u64))
}

fn render(text: &mut String, growth: &Growth, options: &ReportOptions) {
    let frames = growth.lines.iter().filter_map(|line| line.who.frame());
    let names = FileNames::of(frames.map(|frame| &frame.file));
    let of_part = |suspect: &Suspect<_>| {
        let part = &suspect.part;
        match part.what {
            PurposeInfo::Unknown => String::new(),
            _ => format!("  {}", shapes::tensor(&part.what)),
        }
    };
    section(text, growth, "LINE", &growth.lines, options, |line| {
        format!("{}{}", names.site(&line.who), of_part(line))
    });
    if growth.knows_modules {
        section(text, growth, "MODULE", &growth.modules, options, |it| {
            place_name(&it.who)
        });
    }
    section(text, growth, "TENSOR", &growth.tensors, options, |it| {
        shapes::tensor(&it.who)
    });
}

fn section<K>(
    text: &mut String,
    growth: &Growth,
    what: &str,
    suspects: &[Suspect<K>],
    options: &ReportOptions,
    name: impl Fn(&Suspect<K>) -> String,
) {
    if suspects.is_empty() {
        return;
    }
    let (shown, hidden) = suspects.split_at(options.top.of(suspects.len()));
    let headings = match growth.step {
        StepUnit::Iterations(_) => ["BYTES/ITER", "BLOCKS/ITER", "GREW", "FIRST", "LAST", what],
        StepUnit::Window(_) => ["BYTES/s", "BLOCKS/s", "GREW", "FIRST", "LAST", what],
    };
    let mut cells: Vec<Cells> = vec![headings.map(str::to_owned).to_vec()];
    cells.extend(
        shown
            .iter()
            .map(|suspect| row(&suspect.rate, name(suspect))),
    );
    table::push_line(text, "");
    columns::lay_out(text, &cells, options.width, Style(options.colour));
    if !hidden.is_empty() {
        let others = count(hidden.len() as u64);
        table::push_line(text, &format!("(and {others} more: --limit all)"));
    }
}

fn row(rate_of: &Rate, name: String) -> Cells {
    vec![
        bytes(rate_of.bytes),
        rate(rate_of.blocks),
        format!("{:.0}%", 100.0 * rate_of.grew),
        human(rate_of.first),
        human(rate_of.last),
        name,
    ]
}

#[cfg(test)]
mod tests;

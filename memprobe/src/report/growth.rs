//! Report of memory that grows from iteration to iteration.

mod retainers;

use std::io::{BufRead, Write};
use std::time::Duration;

use super::cells::{self, purpose_kind};
use super::document::{self, TableReport, document};
use super::peak::place_name;
use super::preamble::push_devices;
use super::replay::RecordingReplay;
use super::{Outcome, ReportError, ReportOptions, replay, shapes};

use crate::attribution::allocation_groups::AllocationGroup;
use crate::attribution::growth::{
    Growth, GrowthLedger, GrowthRetainer, Rate, RetainedGrowth, StepUnit, Suspect,
};
use crate::event::bytes::human;
use crate::event::{Bytes, DeviceIndex};
use crate::ledger::snapshot::{DeviceSnapshot, PurposeInfo, Site};
use crate::recording::Reader;
use crate::view::table::{Cell, Column, Output, Page, Table, columns};
use crate::view::{FileNames, count, counted, span};

const SUSPECTS: &str = "Each row grew in most steps and kept most of its growth to the end: a leak, or a store that \
                        is meant to grow. Rates are medians of the slopes between all pairs of steps (Theil-Sen).";

struct OnDevice<'a> {
    device: &'a DeviceSnapshot,
    growth: Growth,
}

/// One row. `by` is `total`, `line`, `module` or `tensor`: different views of the same memory.
struct GrowthEntry<'a> {
    device: DeviceIndex,
    by: &'static str,
    /// Unit of rates: `iteration` or `second`.
    per: &'static str,
    rate: &'a Rate,
    /// Part of a suspect with most growth; `None` for the total.
    part: Option<&'a AllocationGroup>,
    /// Retainers of a suspect, if the process's objects were read.
    retained: Option<&'a RetainedGrowth>,
    name: String,
}

impl GrowthEntry<'_> {
    fn site(&self) -> Option<&Site> {
        self.part.map(|part| &part.origin.site)
    }

    fn purpose(&self) -> Option<&PurposeInfo> {
        self.part.map(|part| &part.what)
    }

    fn kind(&self) -> Option<&'static str> {
        let AllocationGroup { origin, what } = self.part?;
        Some(match self.by {
            "line" => origin.site.as_str(),
            "module" => origin.place.as_str(),
            _ => purpose_kind(what),
        })
    }

    fn module(&self) -> Option<String> {
        let place = &self.part?.origin.place;
        (place.as_str() == "module").then(|| place_name(place))
    }

    /// Top retainer of the blocks that were live when the process's objects were read.
    fn retainer(&self) -> Option<&GrowthRetainer> {
        self.retained?.retainers.first()
    }
}

/// Columns, with the headings of the rates and of the last one.
fn columns<'a>(
    [bytes, blocks]: [&'static str; 2],
    name: &'static str,
) -> Vec<Column<GrowthEntry<'a>>> {
    columns![|row: GrowthEntry<'a>|
        data("device") => row.device,
        data("by") => row.by,
        data("per") => row.per,
        data("bytes") => Cell::Rate(row.rate.bytes),
        figure(bytes) => rounded(row.rate.bytes),
        number("blocks", blocks) => row.part.map(|_| row.rate.blocks),
        // Share of the steps between points with growth, from 0 to 1.
        data("grew") => Cell::Rate(row.rate.grew),
        figure("GREW") => percent(row.rate.grew),
        number("first", "FIRST") => row.rate.first,
        number("last", "LAST") => row.rate.last,
        data("kind") => row.kind(),
        data("file") => cells::file(row.site()),
        data("line") => cells::line(row.site()),
        data("function") => cells::function(row.site()),
        data("reason") => cells::reason(row.site()),
        data("node") => cells::node(row.site()),
        data("module") => row.module(),
        data("shape") => cells::shape(row.purpose()),
        data("dtype") => cells::dtype(row.purpose()),
        data("purpose") => cells::purpose(row.purpose()),
        data("retained_by") => row.retainer().map(|it| &*it.by),
        data("retained_class") => row.retainer().and_then(|it| it.class.as_deref()),
        data("retained_through") => row.retainer().and_then(|it| it.through.as_deref()),
        data("retained_blocks") => row.retainer().map(|it| it.retained.blocks),
        data("retained_bytes") => row.retainer().map(|it| it.retained.bytes),
        data("exclusive_bytes") => row.retainer().map(|it| it.exclusive.bytes),
        label(name) => &*row.name,
        json("retainers") => row.retained.map(retainers::cell),
    ]
    .into()
}

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
    let report = GrowthReport {
        replay: &replay,
        devices: &devices,
        options,
    };
    document::write(&report, &replay, options, out)
}

struct GrowthReport<'a> {
    replay: &'a RecordingReplay,
    devices: &'a [OnDevice<'a>],
    options: &'a ReportOptions,
}

impl<'a> TableReport for GrowthReport<'a> {
    type Row = GrowthEntry<'a>;

    fn text(&self, page: &mut Page) {
        let devices = self.devices.iter().map(|on| (on.device, on));
        push_devices(page, self.replay, devices, |page, on| {
            let growth = &on.growth;
            page.note(&examined(growth));
            if growth.points >= growth.needed {
                page.note(&total(growth, on.device.index));
                if is_quiet(growth) {
                    page.note(&no_growth(growth));
                } else {
                    page.legend(&[SUSPECTS]);
                }
            }
            push_sections(page, on, self.options);
            retainers::push(page, growth, self.replay.header.start, self.options);
        });
    }

    fn document(&self) -> Cell<'_> {
        let started = self.replay.header.start.0;
        let devices = self.devices.iter().map(move |on| {
            let growth = &on.growth;
            let read = growth.read.map(|read| read.0.saturating_sub(started));
            let retainers = read.map(|_| retainers::cell(&growth.retained));
            Cell::Object(vec![
                ("device", on.device.index.into()),
                ("per", per(growth).into()),
                // Iterations or seconds between two points.
                ("step", growth.step.per_step().into()),
                ("points", Cell::Count(growth.points as u64)),
                ("left_out", Cell::Count(growth.left_out as u64)),
                // With fewer points there are no suspects.
                ("needed_points", Cell::Count(growth.needed as u64)),
                // Minimum growth of a suspect.
                ("least_growth", growth.least.into()),
                ("suspects", on.table().into()),
                // Time since the start at which the process's objects were read; null if never.
                ("read_ns", read.into()),
                // Of all growing lines; `named`, `others` and `unknown` add up to `live`.
                ("retainers", retainers.into()),
            ])
        });
        document(self.replay, Cell::Absent, devices)
    }

    fn columns(&self) -> Vec<Column<GrowthEntry<'a>>> {
        columns([""; 2], "")
    }

    fn tables(&self) -> impl Iterator<Item = Table<GrowthEntry<'a>>> {
        self.devices.iter().map(OnDevice::table)
    }
}

impl OnDevice<'_> {
    fn table(&self) -> Table<GrowthEntry<'_>> {
        let growth = &self.growth;
        let mut table = Table::new(columns([""; 2], ""));
        let total = growth.total.iter().map(|rate| GrowthEntry {
            device: self.device.index,
            by: "total",
            per: per(growth),
            rate,
            part: None,
            retained: None,
            name: String::new(),
        });
        table.extend(Output::Data, total);
        for (by, suspects) in [
            ("line", &growth.lines),
            ("module", &growth.modules),
            ("tensor", &growth.tensors),
        ] {
            table.extend(Output::Data, self.rows(by, suspects, |_| String::new()));
        }
        table
    }

    fn rows<'r>(
        &'r self,
        by: &'static str,
        suspects: &'r [Suspect],
        name: impl Fn(&AllocationGroup) -> String,
    ) -> Vec<GrowthEntry<'r>> {
        let growth = &self.growth;
        let row = |suspect: &'r Suspect| GrowthEntry {
            device: self.device.index,
            by,
            per: per(growth),
            rate: &suspect.rate,
            part: Some(&suspect.part),
            retained: growth.read.map(|_| &suspect.retained),
            name: name(&suspect.part),
        };
        suspects.iter().map(row).collect()
    }
}

fn is_quiet(growth: &Growth) -> bool {
    growth.lines.is_empty() && growth.modules.is_empty() && growth.tensors.is_empty()
}

/// Describes the data behind the figures.
fn examined(growth: &Growth) -> String {
    let points = counted(growth.points as u64, "point");
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
    let mut text = format!("{points} examined: {each}; the first {left_out} left out (warm-up).");
    if growth.points < growth.needed {
        let needed = growth.needed;
        text.push_str(&format!(
            " These are too few to find growth: {needed} are needed. Record for longer."
        ));
    }
    text
}

fn per(growth: &Growth) -> &'static str {
    match growth.step {
        StepUnit::Iterations(_) => "iteration",
        StepUnit::Window(_) => "second",
    }
}

fn total(growth: &Growth, device: DeviceIndex) -> String {
    match &growth.total {
        Some(total) => format!(
            "{device} as a whole grows by {} {} {}, in {} of the steps: from {} to {}.",
            human(rounded(total.bytes)),
            match growth.step {
                StepUnit::Iterations(_) => "an",
                StepUnit::Window(_) => "a",
            },
            per(growth),
            percent(total.grew),
            human(total.first),
            human(total.last)
        ),
        None => format!("{device} as a whole does not grow."),
    }
}

fn no_growth(growth: &Growth) -> String {
    format!(
        "No line, module or tensor grows. (Growth below {} over these steps is not listed.)",
        human(growth.least)
    )
}

fn rounded(bytes: f64) -> Bytes {
    // The cast saturates beyond `u64`; negative numbers become 0.
    Bytes(bytes.round() as u64)
}

fn percent(share: f64) -> String {
    format!("{:.0}%", 100.0 * share)
}

fn push_sections(page: &mut Page, on: &OnDevice<'_>, options: &ReportOptions) {
    let growth = &on.growth;
    let sites = growth.lines.iter().map(|line| &line.part.origin.site);
    let frames = sites.filter_map(Site::frame);
    let names = FileNames::of(frames.map(|frame| &frame.file));
    let lines = on.rows("line", &growth.lines, |part| {
        let name = names.site(&part.origin.site);
        match part.what {
            PurposeInfo::Unknown => name,
            _ => format!("{name}  {}", shapes::tensor(&part.what)),
        }
    });
    let modules = on.rows("module", &growth.modules, |it| place_name(&it.origin.place));
    let tensors = on.rows("tensor", &growth.tensors, |it| shapes::tensor(&it.what));
    let sections = [
        ("LINE", lines, true),
        ("MODULE", modules, growth.knows_modules),
        ("TENSOR", tensors, true),
    ];
    let heads = match growth.step {
        StepUnit::Iterations(_) => ["BYTES/ITER", "BLOCKS/ITER"],
        StepUnit::Window(_) => ["BYTES/s", "BLOCKS/s"],
    };
    for (name, mut rows, is_known) in sections {
        if rows.is_empty() || !is_known {
            continue;
        }
        let hidden = rows.split_off(options.top.of(rows.len()));
        let mut table = Table::new(columns(heads, name));
        table.extend(Output::Text, rows);
        page.blank();
        page.table(&table);
        if !hidden.is_empty() {
            let others = count(hidden.len() as u64);
            page.line(&format!("(and {others} more: --limit all)"));
        }
    }
}

#[cfg(test)]
mod tests;

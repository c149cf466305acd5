//! Memory of a device at its peak.

mod purpose;
mod structured;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;
use std::io::{BufRead, Write};
use std::time::Duration;

use serde::Serialize;

use super::columns::{self, Cells};
use super::document::{self, Document, Layout, Table};
use super::replay::Replay;
use super::table::{self, Style};
use super::{Outcome, ReportError, ReportOptions, replay, shapes};
use crate::bytes::{human, signed};
use crate::event::{Bytes, DeviceIndex};
use crate::label::{
    BEFORE_ATTACH, BLOCKS, FileNames, UNACCOUNTED, clean, count, counted, duration, no_module,
    percent,
};
use crate::model::attribution::AttributionLedger;
use crate::model::attribution::allocation_groups::{AllocationGroup, ModuleScope, Pass};
use crate::model::attribution::peak::{PeakLedger, PeakView};
use crate::model::snapshot::{DeviceSnapshot, PurposeInfo, Site};
use crate::recording::Reader;

use purpose::{INFERRED, Purposed, iteration_at, purposes};

/// A device, and its memory at the peak.
struct AtPeak<'a> {
    device: &'a DeviceSnapshot,
    view: PeakView,
    /// Iteration of the peak, if known.
    iteration: Option<String>,
    purposes: Vec<Row<Purposed>>,
    lines: Vec<Row<Site>>,
    modules: Vec<Row<Called>>,
    tensors: Vec<Row<PurposeInfo>>,
}

/// Memory of one key (line, module, tensor or category).
struct Row<K> {
    who: K,
    bytes: u64,
    /// Number of blocks, if known.
    blocks: Option<u64>,
}

/// A module and a pass through it; modules that differ only in a number are one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Called {
    pub(super) place: ModuleScope,
    pub(super) pass: Pass,
}

/// Reads the recording and writes the report.
pub(super) fn write<R: BufRead>(
    reader: Reader<R>,
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<Outcome, ReportError> {
    let ledger = PeakLedger::new(options.grouping);
    let attribution = AttributionLedger::new(options.iteration.clone());
    let (replay, (ledger, attribution)) =
        replay::run(reader, options.grouping, (ledger, attribution))?;
    let iterations = attribution.iterations();
    let devices: Vec<AtPeak> = replay
        .snapshot
        .devices
        .iter()
        .filter_map(|device| {
            let view = ledger.view(device.index)?;
            let purposes = purposes(attribution.device(device.index)?);
            let iteration = iteration_at(&iterations, view.moment.time);
            Some(AtPeak {
                device,
                iteration,
                lines: rows(&view, |part| part.origin.site.clone()),
                modules: rows(&view, called),
                tensors: rows(&view, |part| part.what.clone()),
                purposes,
                view,
            })
        })
        .collect();
    let table = Peaks {
        replay: &replay,
        devices,
        options,
    };
    document::write(&table, options.format, out)?;
    Ok(replay.outcome())
}

/// Memory of every device at its peak.
struct Peaks<'a> {
    replay: &'a Replay,
    devices: Vec<AtPeak<'a>>,
    options: &'a ReportOptions,
}

impl Table for Peaks<'_> {
    fn text(&self) -> String {
        text(self.replay, &self.devices, self.options)
    }

    fn document(&self) -> impl Serialize {
        let started = self.replay.snapshot.started.0;
        let devices = self.devices.iter();
        let devices = devices.map(move |at_peak| structured::device(at_peak, started));
        Document::new(self.replay, devices)
    }

    fn headings(&self) -> Vec<&'static str> {
        structured::HEADINGS.to_vec()
    }

    fn rows(&self, _: Layout) -> impl Iterator<Item = impl Serialize> {
        self.devices.iter().flat_map(structured::rows)
    }
}

/// Sums of the parts by the key that `who` returns, largest first.
fn rows<K: Eq + Hash>(view: &PeakView, who: impl Fn(&AllocationGroup) -> K) -> Vec<Row<K>> {
    let mut sums: HashMap<K, (u64, u64)> = HashMap::new();
    // Equal rows keep the order of their parts.
    let mut first: HashMap<K, usize> = HashMap::new();
    for (at, part) in view.parts.iter().enumerate() {
        let (bytes, blocks) = sums.entry(who(&part.part)).or_default();
        *bytes = bytes.saturating_add(part.live.0);
        *blocks = blocks.saturating_add(part.blocks);
        first.entry(who(&part.part)).or_insert(at);
    }
    let mut rows: Vec<Row<K>> = sums
        .into_iter()
        .map(|(who, (bytes, blocks))| Row {
            who,
            bytes,
            blocks: Some(blocks),
        })
        .collect();
    rows.sort_by_key(|row| (Reverse(row.bytes), first.get(&row.who).copied()));
    rows
}

pub(super) fn called(part: &AllocationGroup) -> Called {
    let place = match &part.origin.place {
        ModuleScope::Module(path) => ModuleScope::Module(without_numbers(path).into()),
        other => other.clone(),
    };
    Called {
        place,
        pass: part.origin.pass,
    }
}

/// Turns `GPT.layers.3.mlp` into `GPT.layers.*.mlp`. A number at the end stays: such modules may
/// differ in kind.
fn without_numbers(path: &str) -> String {
    let is_number = |name: &str| !name.is_empty() && name.bytes().all(|it| it.is_ascii_digit());
    let Some((modules, last)) = path.rsplit_once('.') else {
        return path.to_owned();
    };
    let names = modules
        .split('.')
        .map(|name| if is_number(name) { "*" } else { name });
    names.chain([last]).collect::<Vec<_>>().join(".")
}

/// Name of a module and a pass.
pub(super) fn called_name(called: &Called) -> String {
    let place = place_name(&called.place);
    match (called.pass, &called.place) {
        (Pass::Forward, _) | (_, ModuleScope::BackwardUnknown) => place,
        (pass, _) => format!("{place}, {}", pass.as_str()),
    }
}

/// Name of a module, or of the lack of one.
pub(super) fn place_name(place: &ModuleScope) -> String {
    match place {
        ModuleScope::Module(path) => clean(path),
        none => no_module(none).to_owned(),
    }
}

fn text(replay: &Replay, devices: &[AtPeak<'_>], options: &ReportOptions) -> String {
    let mut text = table::beginning(replay, options);
    for at_peak in devices {
        table::push_line(&mut text, "");
        table::push_totals(&mut text, at_peak.device, options);
        let since = replay.snapshot.started.0;
        for line in moment(at_peak, since) {
            table::push_note(&mut text, &line, options.width);
        }
        let frames = at_peak.lines.iter().filter_map(|row| row.who.frame());
        let names = FileNames::of(frames.map(|frame| &frame.file));
        let sheet = Sheet { at_peak, options };
        sheet.render(&mut text, "CATEGORY", &at_peak.purposes, Purposed::name);
        table::push_note(&mut text, INFERRED, options.width);
        sheet.render(&mut text, "LINE", &at_peak.lines, |site| names.site(site));
        if at_peak.view.knows_modules {
            sheet.render(&mut text, "MODULE", &at_peak.modules, called_name);
        } else {
            table::push_line(&mut text, "");
            table::push_note(&mut text, table::NO_MODULES, options.width);
        }
        if at_peak
            .tensors
            .iter()
            .any(|row| row.who != PurposeInfo::Unknown)
        {
            sheet.render(&mut text, "TENSOR", &at_peak.tensors, shapes::tensor);
        }
    }
    if replay.snapshot.devices.len() > devices.len() {
        table::push_line(&mut text, "");
        table::push_note(&mut text, table::NO_CALLS_INTO_CUDA, options.width);
    }
    text
}

/// Time of the peak, and the allocator's totals then.
fn moment(at_peak: &AtPeak<'_>, since: u64) -> Vec<String> {
    let moment = &at_peak.view.moment;
    let (allocated, reserved) = (moment.totals.allocated, moment.totals.reserved);
    let after = Duration::from_nanos(moment.time.0.saturating_sub(since));
    let iteration = at_peak.iteration.as_ref();
    let mut lines = vec![format!(
        "peak since attach: {} allocated, {} after the start{}",
        human(allocated),
        duration(after),
        iteration.map_or_else(String::new, |it| format!(", {it}"))
    )];
    let cached = reserved.0.saturating_sub(allocated.0);
    if at_peak.device.index != DeviceIndex::CPU {
        lines.push(format!(
            "reserved at the peak: {}, of which {} ({}) cached, not allocated",
            human(reserved),
            human(Bytes(cached)),
            percent(cached.into(), reserved.0.into())
        ));
    }
    let highest = at_peak.device.peak.allocated;
    if highest > allocated {
        let before = human(highest);
        lines.push(format!(
            "peak before attach, by the allocator's own statistics: {before}"
        ));
    }
    lines
}

/// Layout of tables.
struct Sheet<'a> {
    at_peak: &'a AtPeak<'a>,
    options: &'a ReportOptions,
}

impl Sheet<'_> {
    fn render<K>(
        &self,
        text: &mut String,
        what: &str,
        rows: &[Row<K>],
        name: impl Fn(&K) -> String,
    ) {
        let (shown, hidden) = rows.split_at(self.options.top.of(rows.len()));
        let headings = ["BYTES", "SHARE", BLOCKS, what].map(str::to_owned);
        let mut cells: Vec<Cells> = vec![headings.to_vec()];
        cells.extend(
            shown
                .iter()
                .map(|row| self.row(row.bytes, row.blocks, name(&row.who))),
        );
        if !hidden.is_empty() {
            let sum = |of: fn(&Row<K>) -> u64| hidden.iter().map(of).fold(0, u64::saturating_add);
            let others = counted(hidden.len() as u64, "other row");
            let blocks = hidden.iter().map(|row| row.blocks).sum();
            cells.push(self.row(sum(|row| row.bytes), blocks, format!("({others})")));
        }
        let moment = &self.at_peak.view.moment;
        if moment.before_attach.0 > 0 {
            cells.push(self.row(moment.before_attach.0, None, BEFORE_ATTACH.to_owned()));
        }
        if moment.unaccounted != 0 {
            let none = || "-".to_owned();
            let bytes = signed(moment.unaccounted);
            cells.push(vec![bytes, none(), none(), UNACCOUNTED.to_owned()]);
        }
        let total = match self.at_peak.device.index {
            DeviceIndex::CPU => "(total as memprobe counted)",
            _ => "(total of the allocator)",
        };
        cells.push(self.row(moment.totals.allocated.0, None, total.to_owned()));
        table::push_line(text, "");
        columns::lay_out(text, &cells, self.options.width, Style(self.options.colour));
    }

    fn row(&self, bytes: u64, blocks: Option<u64>, name: String) -> Cells {
        let whole = self.at_peak.view.moment.totals.allocated.0;
        vec![
            human(Bytes(bytes)),
            percent(bytes.into(), whole.into()),
            blocks.map_or_else(|| "-".to_owned(), count),
            name,
        ]
    }
}

#[cfg(test)]
mod tests;

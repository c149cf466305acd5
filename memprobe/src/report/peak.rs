//! Memory of a device at its peak.

mod purpose;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;
use std::io::{BufRead, Write};
use std::time::Duration;

use super::cells::{self, purpose_kind, total_name};
use super::document::{self, TableReport, document};
use super::held::{self, HeldRow};
use super::preamble::{NO_MODULES, push_devices};
use super::replay::RecordingReplay;
use super::{Outcome, ReportError, ReportOptions, replay, shapes};
use crate::attribution::allocation_groups::{AllocationGroup, ModuleScope, Pass};
use crate::attribution::peak::{PeakLedger, PeakView};
use crate::attribution::{AttributionLedger, WithCategories};
use crate::event::bytes::human;
use crate::event::{Bytes, DeviceIndex};
use crate::ledger::snapshot::{DeviceSnapshot, PurposeInfo, Site};
use crate::recording::Reader;
use crate::view::table::{Cell, Column, Output, Page, Table, columns};
use crate::view::{BLOCKS, FileNames, clean, duration, no_module, percent};

use purpose::{INFERRED, Purposed, iteration_at, purposes};

struct AtPeak<'a> {
    device: &'a DeviceSnapshot,
    view: PeakView,
    iteration: Option<String>,
    purposes: Vec<Group<Purposed>>,
    /// Bytes from before attach without a category.
    unnamed_before_attach: u64,
    lines: Vec<Group<Site>>,
    modules: Vec<Group<Called>>,
    tensors: Vec<Group<PurposeInfo>>,
}

/// Memory of one key (line, module, tensor or category).
struct Group<K> {
    who: K,
    bytes: u64,
    blocks: Option<u64>,
}

/// A module and a pass through it; modules that differ only in a number are one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Called {
    pub(super) place: ModuleScope,
    pub(super) pass: Pass,
}

/// Columns. `by` is the table of a row: `line`, `module`, `tensor`, `category` (inferred) or
/// `saved`. Each adds up to the allocator's total, except that `saved` divides the category
/// `activation`.
fn columns<'a>(head: &'static str) -> Vec<Column<HeldRow<'a>>> {
    columns![|row: HeldRow<'a>|
        data("device") => row.device,
        data("by") => row.by,
        data("kind") => row.kind,
        data("file") => cells::file(row.site),
        data("line") => cells::line(row.site),
        data("function") => cells::function(row.site),
        data("thread") => cells::thread(row.site),
        data("reason") => cells::reason(row.site),
        data("node") => cells::node(row.site),
        data("category") => row.category,
        data("module") => row.module.as_deref(),
        data("pass") => row.pass,
        data("shape") => cells::shape(row.tensor),
        data("dtype") => cells::dtype(row.tensor),
        data("purpose") => cells::purpose(row.tensor),
        number("bytes", "BYTES") => row.live.clone(),
        figure("SHARE") => row.share(),
        number("blocks", BLOCKS) => row.blocks,
        label(head) => row.site_name(),
    ]
    .into()
}

pub(super) fn write<R: BufRead>(
    reader: Reader<R>,
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<Outcome, ReportError> {
    let analyses = WithCategories {
        categories: AttributionLedger::new(options.iteration.clone()),
        table: PeakLedger::new(options.grouping),
    };
    let (replay, analyses) = replay::run(reader, options.grouping, analyses)?;
    let (attribution, ledger) = (analyses.categories, analyses.table);
    let iterations = attribution.iterations();
    let devices: Vec<AtPeak> = replay
        .snapshot
        .devices
        .iter()
        .filter_map(|device| {
            let view = ledger.view(device.index, &attribution)?;
            let device_view = attribution.device(device.index)?;
            let iteration = iteration_at(&iterations, view.moment.time);
            Some(AtPeak {
                device,
                iteration,
                lines: groups(&view, |part| part.origin.site.clone()),
                modules: groups(&view, called),
                tensors: groups(&view, |part| part.what.clone()),
                purposes: purposes(device_view),
                unnamed_before_attach: device_view.peak().composition.before_attach,
                view,
            })
        })
        .collect();
    let report = PeakReport {
        replay: &replay,
        devices: &devices,
        options,
    };
    document::write(&report, &replay, options, out)
}

struct PeakReport<'a> {
    replay: &'a RecordingReplay,
    devices: &'a [AtPeak<'a>],
    options: &'a ReportOptions,
}

impl<'a> TableReport for PeakReport<'a> {
    type Row = HeldRow<'a>;

    fn text(&self, page: &mut Page) {
        let devices = self.devices.iter().map(|at_peak| (at_peak.device, at_peak));
        push_devices(page, self.replay, devices, |page, at_peak| {
            push_moment(page, at_peak, self.replay.snapshot.started.0);
            self.push_sections(page, at_peak);
        });
    }

    fn document(&self) -> Cell<'_> {
        let started = self.replay.snapshot.started.0;
        let devices = self.devices.iter().map(move |at_peak| {
            let moment = &at_peak.view.moment;
            let (allocated, reserved) = (moment.totals.allocated.0, moment.totals.reserved.0);
            Cell::Object(vec![
                ("device", at_peak.device.index.into()),
                // Nanoseconds from the start to the device's peak since attach.
                ("peak_ns", moment.time.0.saturating_sub(started).into()),
                ("allocated", allocated.into()),
                ("reserved", reserved.into()),
                ("cached", moment.totals.cached().0.into()),
                ("iteration", at_peak.iteration.as_deref().into()),
                ("before_attach", moment.before_attach.into()),
                ("unaccounted", moment.unaccounted.into()),
                // By the allocator's own statistics, which may be from before attach.
                ("highest_allocated", at_peak.device.peak.allocated.into()),
                ("rows", at_peak.table().into()),
            ])
        });
        document(self.replay, Cell::Absent, devices)
    }

    fn columns(&self) -> Vec<Column<HeldRow<'a>>> {
        columns("")
    }

    fn tables(&self) -> impl Iterator<Item = Table<HeldRow<'a>>> {
        self.devices.iter().map(AtPeak::table)
    }
}

impl PeakReport<'_> {
    fn push_sections(&self, page: &mut Page, at_peak: &AtPeak<'_>) {
        let knows_tensors = at_peak
            .tensors
            .iter()
            .any(|row| row.who != PurposeInfo::Unknown);
        for (by, rows) in at_peak.sections() {
            let head = match by {
                "category" => "CATEGORY",
                "line" => "LINE",
                "module" if at_peak.view.knows_modules => "MODULE",
                "tensor" if knows_tensors => "TENSOR",
                "module" => {
                    page.blank();
                    page.note(NO_MODULES);
                    continue;
                }
                _ => continue,
            };
            page.blank();
            page.table(&self.section(at_peak, (by, head), rows));
            if by == "category" {
                page.legend(&[INFERRED]);
            }
        }
    }

    fn section<'r>(
        &self,
        at_peak: &AtPeak<'_>,
        (by, head): (&'static str, &'static str),
        rows: Vec<HeldRow<'r>>,
    ) -> Table<HeldRow<'r>> {
        let mut table = Table::new(columns(head));
        let top = self.options.top.of(rows.len());
        held::push_top(&mut table, rows, top, "other row");
        at_peak.push_remainders(by, &mut table);
        let index = at_peak.device.index;
        let total = HeldRow {
            name: total_name(index, self.replay.snapshot.cuda.layer),
            live: at_peak.view.moment.totals.allocated.into(),
            ..HeldRow::default()
        };
        table.push(Output::Text, total);
        let frames = at_peak.lines.iter().filter_map(|group| group.who.frame());
        let names = FileNames::of(frames.map(|frame| &frame.file));
        let allocated = at_peak.view.moment.totals.allocated.0;
        held::complete(&mut table, index, allocated, names);
        table
    }
}

impl AtPeak<'_> {
    fn table(&self) -> Table<HeldRow<'_>> {
        let mut table = Table::new(columns(""));
        for (by, rows) in self.sections() {
            let first = table.rows.len();
            table.extend(Output::Data, rows);
            if by != "saved" {
                self.push_remainders(by, &mut table);
            }
            for entry in &mut table.rows[first..] {
                entry.row.by = by;
            }
        }
        held::complete(&mut table, self.device.index, 0, FileNames::default());
        table
    }

    /// Adds the bytes that no row of the section `by` has.
    fn push_remainders(&self, by: &str, table: &mut Table<HeldRow<'_>>) {
        let moment = &self.view.moment;
        let before_attach = match by {
            // Names give blocks from before attach a category, but neither line nor tensor.
            "category" => Bytes(self.unnamed_before_attach),
            _ => moment.before_attach,
        };
        let before_attach = (before_attach, None);
        held::push_remainders(table, Output::All, before_attach, moment.unaccounted);
    }

    /// The sections, and the rows of each, largest first.
    fn sections(&self) -> [(&'static str, Vec<HeldRow<'_>>); 5] {
        let purposes = self.purposes.iter().map(|group| HeldRow {
            category: Some(group.who.category.key()),
            ..group.row("category", group.who.name())
        });
        let saved = self.purposes.iter().flat_map(|group| &group.who.saved);
        let saved = saved.map(|(module, bytes)| HeldRow {
            kind: "module",
            module: Some(module.clone()),
            live: Cell::Bytes(*bytes),
            ..HeldRow::default()
        });
        let lines = self.lines.iter().map(|group| HeldRow {
            site: Some(&group.who),
            ..group.row(group.who.as_str(), String::new())
        });
        let modules = self.modules.iter().map(|group| {
            let Called { place, pass } = &group.who;
            let is_module = matches!(place, ModuleScope::Module(_));
            HeldRow {
                module: is_module.then(|| place_name(place)),
                pass: Some(pass.as_str()),
                ..group.row(place.as_str(), called_name(&group.who))
            }
        });
        let tensors = self.tensors.iter().map(|group| HeldRow {
            tensor: Some(&group.who),
            ..group.row(purpose_kind(&group.who), shapes::tensor(&group.who))
        });
        [
            ("category", purposes.collect()),
            ("saved", saved.collect()),
            ("line", lines.collect()),
            ("module", modules.collect()),
            ("tensor", tensors.collect()),
        ]
    }
}

impl<K> Group<K> {
    fn row<'r>(&self, kind: &'static str, name: String) -> HeldRow<'r> {
        HeldRow {
            kind,
            name,
            live: Cell::Bytes(self.bytes),
            blocks: self.blocks,
            ..HeldRow::default()
        }
    }
}

/// Sums of the parts by the key that `who` returns, largest first.
fn groups<K: Eq + Hash>(view: &PeakView, who: impl Fn(&AllocationGroup) -> K) -> Vec<Group<K>> {
    let mut sums: HashMap<K, (u64, u64)> = HashMap::new();
    // Equal rows keep the order of their parts.
    let mut first: HashMap<K, usize> = HashMap::new();
    for (at, (part, held)) in view.parts.iter().enumerate() {
        let (bytes, blocks) = sums.entry(who(part)).or_default();
        *bytes = bytes.saturating_add(held.at_peak.0);
        *blocks = blocks.saturating_add(held.at_peak_blocks);
        first.entry(who(part)).or_insert(at);
    }
    let mut rows: Vec<Group<K>> = sums
        .into_iter()
        .map(|(who, (bytes, blocks))| Group {
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
pub(super) fn without_numbers(path: &str) -> String {
    let is_number = |name: &str| !name.is_empty() && name.bytes().all(|it| it.is_ascii_digit());
    let Some((modules, last)) = path.rsplit_once('.') else {
        return path.to_owned();
    };
    let names = modules
        .split('.')
        .map(|name| if is_number(name) { "*" } else { name });
    names.chain([last]).collect::<Vec<_>>().join(".")
}

pub(super) fn called_name(called: &Called) -> String {
    let place = place_name(&called.place);
    match (called.pass, &called.place) {
        (Pass::Forward, _) | (_, ModuleScope::BackwardUnknown) => place,
        (pass, _) => format!("{place}, {}", pass.as_str()),
    }
}

pub(super) fn place_name(place: &ModuleScope) -> String {
    match place {
        ModuleScope::Module(path) => clean(path),
        none => no_module(none).to_owned(),
    }
}

fn push_moment(page: &mut Page, at_peak: &AtPeak<'_>, started: u64) {
    let moment = &at_peak.view.moment;
    let (allocated, reserved) = (moment.totals.allocated, moment.totals.reserved);
    let after = Duration::from_nanos(moment.time.0.saturating_sub(started));
    let iteration = at_peak.iteration.as_ref();
    page.note(&format!(
        "peak since attach: {} allocated, {} after the start{}",
        human(allocated),
        duration(after),
        iteration.map_or_else(String::new, |it| format!(", {it}"))
    ));
    let cached = moment.totals.cached();
    if at_peak.device.index != DeviceIndex::CPU {
        page.note(&format!(
            "reserved at the peak: {}, of which {} ({}) cached, not allocated",
            human(reserved),
            human(cached),
            percent(cached.0.into(), reserved.0.into())
        ));
    }
    let highest = at_peak.device.peak.allocated;
    if highest > allocated {
        let before = human(highest);
        page.note(&format!(
            "peak before attach, by the allocator's own statistics: {before}"
        ));
    }
}

#[cfg(test)]
mod tests;

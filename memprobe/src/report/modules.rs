//! Table of modules: a tree by the components of their paths.

mod structured;

use std::cmp::Reverse;
use std::collections::HashSet;
use std::io::{BufRead, Write};
use std::time::Duration;

use serde::Serialize;

use super::columns::{self, Cells};
use super::document::{self, Document, Layout, Table};
use super::outline;
use super::peak::place_name;
use super::replay::Replay;
use super::table::{self, Style};
use super::{Alike, Outcome, ReportError, ReportOptions, Sort, replay};
use crate::bytes::{short, signed};
use crate::event::{Bytes, DeviceIndex};
use crate::label::{BEFORE_ATTACH, UNACCOUNTED, count, counted, duration, percent};
use crate::model::attribution::allocation_groups::Pass;
use crate::model::attribution::modules::{
    Additive, ModuleLedger, ModuleRow, ModuleTree, Sums, fold,
};
use crate::model::attribution::peak::Holding;
use crate::model::snapshot::DeviceSnapshot;
use crate::recording::Reader;

/// Note below the table.
const PARAMETERS: &str =
    "Parameters are made outside of module calls: `memprobe snapshot --by module` lists them.";

/// A displayed module.
type Shown = outline::Shown<Sums>;

/// Reads the recording and writes the report.
pub(super) fn write<R: BufRead>(
    reader: Reader<R>,
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<Outcome, ReportError> {
    let (replay, ledger) = replay::run(reader, options.grouping, ModuleLedger::default())?;
    let devices = replay.snapshot.devices.iter();
    let trees: Vec<(&DeviceSnapshot, ModuleTree)> = devices
        .filter_map(|device| Some((device, ledger.tree(device.index)?)))
        .collect();
    let table = Trees {
        replay: &replay,
        trees,
        options,
    };
    document::write(&table, options.format, out)?;
    Ok(replay.outcome())
}

/// Modules of every device.
struct Trees<'a> {
    replay: &'a Replay,
    trees: Vec<(&'a DeviceSnapshot, ModuleTree)>,
    options: &'a ReportOptions,
}

impl Table for Trees<'_> {
    fn text(&self) -> String {
        text(self.replay, &self.trees, self.options)
    }

    fn document(&self) -> impl Serialize {
        let started = self.replay.snapshot.started.0;
        let trees = self.trees.iter();
        let devices = trees
            .map(move |(device, tree)| structured::device(device, tree, started, self.options));
        Document::new(self.replay, devices)
    }

    fn headings(&self) -> Vec<&'static str> {
        structured::HEADINGS.to_vec()
    }

    fn rows(&self, _: Layout) -> impl Iterator<Item = impl Serialize> {
        let trees = self.trees.iter();
        trees.flat_map(|(device, tree)| structured::rows(device, tree, self.options))
    }
}

fn text(
    replay: &Replay,
    trees: &[(&DeviceSnapshot, ModuleTree)],
    options: &ReportOptions,
) -> String {
    let mut text = table::beginning(replay, options);
    let silent = replay.snapshot.devices.len() > trees.len();
    for (device, tree) in trees {
        table::push_line(&mut text, "");
        table::push_totals(&mut text, device, options);
        if !tree.knows_modules {
            table::push_note(&mut text, table::NO_MODULES, options.width);
        }
        let since = tree.peak.time.0.saturating_sub(replay.snapshot.started.0);
        let when = duration(Duration::from_nanos(since));
        render(&mut text, device, tree, options);
        let note = format!(
            "AT PEAK to OWN: at the peak of {} since attach, {when} after the start. A module's numbers include its \
             submodules; OWN excludes them.",
            device.index
        );
        table::push_note(&mut text, &note, options.width);
        table::push_note(&mut text, PARAMETERS, options.width);
    }
    if silent {
        table::push_line(&mut text, "");
        table::push_note(&mut text, table::NO_CALLS_INTO_CUDA, options.width);
    }
    text
}

/// Rows in tree order, siblings sorted by `options.sort`.
fn ordered(mut rows: Vec<ModuleRow>, options: &ReportOptions) -> Vec<Shown> {
    order(&mut rows, options.sort);
    outline::each(rows, options)
}

fn order(rows: &mut [ModuleRow], sort: Sort) {
    rows.sort_by_key(|row| Reverse(rank(&row.total.all, sort)));
    for row in rows {
        order(&mut row.parts, sort);
    }
}

fn rank(all: &Holding, sort: Sort) -> (u64, [u64; 4]) {
    sort.rank([all.at_peak.0, all.live.0, all.live_blocks, all.allocs])
}

/// Indices of the top rows. They include their ancestors, which rank no lower.
fn first(rows: &[Shown], options: &ReportOptions) -> HashSet<usize> {
    let mut ranked: Vec<usize> = (0..rows.len()).collect();
    ranked.sort_by_key(|at| Reverse(rank(&rows[*at].total.all, options.sort).0));
    ranked.truncate(options.top.of(rows.len()));
    ranked.into_iter().collect()
}

fn render(text: &mut String, device: &DeviceSnapshot, tree: &ModuleTree, options: &ReportOptions) {
    let recomputed = tree
        .modules
        .iter()
        .map(|row| &row.total)
        .chain(tree.others.iter().map(|(_, sums)| sums))
        .any(|sums| sums.pass(Pass::Recompute).allocs > 0);
    let mut left_out = Vec::new();
    if !recomputed {
        left_out.push(RECOMPUTE);
    }
    if options.width < WIDTH_FOR_SHARES {
        left_out.push(SHARE);
    }
    let sheet = Sheet {
        left_out,
        whole: tree.peak.totals.allocated,
    };
    let modules = match options.alike {
        Alike::Folded => fold(tree.modules.clone()),
        Alike::Each => tree.modules.clone(),
    };
    let rows = ordered(modules, options);
    let shown = first(&rows, options);
    let mut cells: Vec<Cells> = vec![sheet.headings()];
    for (_, row) in rows.iter().enumerate().filter(|(at, _)| shown.contains(at)) {
        cells.push(sheet.row(&row.total, &row.own, row.name.clone()));
    }
    cells.extend(sheet.hidden(&rows, &shown));
    for (place, sums) in &tree.others {
        cells.push(sheet.row(sums, sums, place_name(place)));
    }
    let (now, then) = (&device.before_attach, tree.peak.before_attach);
    if now.live.0 > 0 || then.0 > 0 {
        cells.push(sheet.rest(short(then), short(now.live), BEFORE_ATTACH));
    }
    if device.unaccounted != 0 || tree.peak.unaccounted != 0 {
        let (then, now) = (signed(tree.peak.unaccounted), signed(device.unaccounted));
        cells.push(sheet.rest(then, now, UNACCOUNTED));
    }
    let total = match device.index {
        DeviceIndex::CPU => "(total as memprobe counts)",
        _ => "(total of the allocator)",
    };
    let (then, now) = (tree.peak.totals.allocated, device.totals.allocated);
    cells.push(sheet.rest(short(then), short(now), total));
    columns::lay_out(text, &cells, options.width, Style(options.colour));
}

/// Width of text below which the share column is dropped in favour of the names.
const WIDTH_FOR_SHARES: usize = 110;

/// Indices of these columns.
const SHARE: usize = 1;
const RECOMPUTE: usize = 3;

/// Layout of rows.
struct Sheet {
    /// Dropped columns, by index.
    left_out: Vec<usize>,
    /// Allocated bytes of the device at its peak.
    whole: Bytes,
}

impl Sheet {
    fn headings(&self) -> Cells {
        let all = [
            "AT PEAK",
            "SHARE",
            "FORWARD",
            "RECOMPUTE",
            "BACKWARD",
            "OWN",
            "LIVE",
            "PEAK",
            "ALLOCS",
            "MODULE",
        ];
        self.of_columns(all.map(str::to_owned))
    }

    fn row(&self, total: &Sums, own: &Sums, name: String) -> Cells {
        let of_pass = |pass| short(total.pass(pass).at_peak);
        self.of_columns([
            short(total.all.at_peak),
            percent(total.all.at_peak.0.into(), self.whole.0.into()),
            of_pass(Pass::Forward),
            of_pass(Pass::Recompute),
            of_pass(Pass::Backward),
            short(own.all.at_peak),
            short(total.all.live),
            total.all.peak.map_or_else(|| "-".to_owned(), short),
            count(total.all.allocs),
            name,
        ])
    }

    /// A row with bytes only.
    fn rest(&self, then: String, now: String, name: &str) -> Cells {
        let none = || "-".to_owned();
        let cells = [
            then,
            none(),
            none(),
            none(),
            none(),
            none(),
            now,
            none(),
            none(),
        ];
        let [a, b, c, d, e, f, g, h, i] = cells;
        self.of_columns([a, b, c, d, e, f, g, h, i, name.to_owned()])
    }

    /// Row for hidden modules. It has bytes for hidden outermost modules only, as no other row
    /// contains them.
    fn hidden(&self, rows: &[Shown], shown: &HashSet<usize>) -> Option<Cells> {
        let hidden = || {
            let rows = rows.iter().enumerate();
            rows.filter(|(at, _)| !shown.contains(at))
                .map(|(_, row)| row)
        };
        let modules = counted(hidden().count() as u64, "other module");
        let outermost = hidden().filter(|row| row.depth == 0).map(|row| row.total);
        match outermost.reduce(|one, other| one.and(&other)) {
            Some(sums) => Some(self.row(&sums, &sums, format!("({modules})"))),
            None if hidden().next().is_some() => {
                let none = || "-".to_owned();
                let name = format!("({modules}, included above)");
                Some(self.rest(none(), none(), &name))
            }
            None => None,
        }
    }

    fn of_columns(&self, cells: [String; 10]) -> Cells {
        let cells = cells.into_iter().enumerate();
        cells
            .filter(|(at, _)| !self.left_out.contains(at))
            .map(|(_, cell)| cell)
            .collect()
    }
}

#[cfg(test)]
mod tests;

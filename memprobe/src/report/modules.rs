//! Table of modules: a tree by the components of their paths.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::io::{BufRead, Write};
use std::time::Duration;

use super::cells::{remainders, total_name};
use super::document::{self, TableReport, document};
use super::outline;
use super::peak::place_name;
use super::preamble::{NO_MODULES, push_devices};
use super::replay::RecordingReplay;
use super::{Outcome, ReportError, ReportFormat, ReportOptions, Sort, replay};
use crate::attribution::WithCategories;
use crate::attribution::allocation_groups::Pass::{Backward, Forward, Recompute};
use crate::attribution::modules::{Additive, ModuleLedger, ModuleRow, ModuleTree, Sums};
use crate::attribution::peak::Holding;
use crate::ledger::snapshot::DeviceSnapshot;
use crate::recording::Reader;
use crate::view::table::{Cell, Column, Output, Page, Table, columns};
use crate::view::{counted, duration, folded};

const PARAMETERS: &str =
    "Parameters are made outside of module calls: `memprobe snapshot --by module` lists them.";

type ModuleOutlineRow = outline::OutlineRow<Sums>;

/// One row. `kind` is `module`, `outside`, `unknown`, `backward_unknown`, `too_many`,
/// `before_attach` or `unaccounted`.
#[derive(Default)]
struct ModuleEntry {
    device: Cell<'static>,
    kind: &'static str,
    path: Option<String>,
    /// 0 for an outermost module.
    depth: Option<u64>,
    /// Indented name, for text.
    name: String,
    /// Memory with submodules, and without.
    sums: Option<[Sums; 2]>,
    /// Bytes now and at the peak, and blocks now, of a row without sums.
    rest: ([Cell<'static>; 2], Option<u64>),
    /// Allocated bytes of the device at its peak.
    whole: u64,
}

impl ModuleEntry {
    fn new(name: String, total: Sums, own: Sums) -> Self {
        Self {
            name,
            sums: Some([total, own]),
            ..Self::default()
        }
    }

    fn total<T: Into<Cell<'static>>>(&self, value: fn(&Sums) -> T) -> Cell<'static> {
        self.sums
            .as_ref()
            .map(|[total, _]| value(total).into())
            .unwrap_or_default()
    }

    fn own<T: Into<Cell<'static>>>(&self, value: fn(&Holding) -> T) -> Cell<'static> {
        self.sums
            .as_ref()
            .map(|[_, own]| value(&own.all).into())
            .unwrap_or_default()
    }

    fn live(&self) -> Cell<'static> {
        self.or_rest(self.total(|it| it.all.live), 0)
    }

    fn at_peak(&self) -> Cell<'static> {
        self.or_rest(self.total(|it| it.all.at_peak), 1)
    }

    fn or_rest(&self, value: Cell<'static>, moment: usize) -> Cell<'static> {
        match self.sums {
            Some(_) => value,
            None => self.rest.0[moment].clone(),
        }
    }

    fn or_blocks(&self, value: Cell<'static>) -> Cell<'static> {
        match self.sums {
            Some(_) => value,
            None => self.rest.1.into(),
        }
    }
}

type ModuleColumn = Column<ModuleEntry>;

/// Columns whose keys begin with `own` exclude a module's parts. They add up to the allocator's
/// total now (`own_live`) and at the peak (`own_at_peak`).
fn columns(recomputed: bool) -> Vec<ModuleColumn> {
    let columns = columns![|row: ModuleEntry|
        figure("AT PEAK") => row.at_peak(),
        figure("SHARE").priority(1) => row.sums.map(|[total, _]| Cell::share(total.all.at_peak.0, row.whole)),
        figure("FORWARD") => row.total(|it| it.pass(Forward).at_peak),
        figure("RECOMPUTE") => row.total(|it| it.pass(Recompute).at_peak),
        figure("BACKWARD") => row.total(|it| it.pass(Backward).at_peak),
        figure("OWN") => row.own(|own| own.at_peak),
        figure("LIVE") => row.live(),
        figure("PEAK") => row.total(|it| it.all.peak),
        figure("ALLOCS") => row.total(|it| it.all.allocs),
        label("MODULE") => &*row.name,
        data("device") => row.device.clone(),
        data("kind") => row.kind,
        data("path") => row.path.as_deref(),
        data("depth") => row.depth,
        data("live") => row.live(),
        data("at_peak") => row.at_peak(),
        data("peak") => row.total(|it| it.all.peak),
        data("live_blocks") => row.or_blocks(row.total(|it| it.all.live_blocks)),
        data("at_peak_blocks") => row.total(|it| it.all.at_peak_blocks),
        data("allocs") => row.total(|it| it.all.allocs),
        data("forward_live") => row.total(|it| it.pass(Forward).live),
        data("forward_at_peak") => row.total(|it| it.pass(Forward).at_peak),
        data("forward_peak") => row.total(|it| it.pass(Forward).peak),
        data("recompute_live") => row.total(|it| it.pass(Recompute).live),
        data("recompute_at_peak") => row.total(|it| it.pass(Recompute).at_peak),
        data("recompute_peak") => row.total(|it| it.pass(Recompute).peak),
        data("backward_live") => row.total(|it| it.pass(Backward).live),
        data("backward_at_peak") => row.total(|it| it.pass(Backward).at_peak),
        data("backward_peak") => row.total(|it| it.pass(Backward).peak),
        data("own_live") => row.or_rest(row.own(|own| own.live), 0),
        data("own_at_peak") => row.or_rest(row.own(|own| own.at_peak), 1),
        data("own_peak") => row.own(|own| own.peak),
        data("own_live_blocks") => row.or_blocks(row.own(|own| own.live_blocks)),
        data("own_allocs") => row.own(|own| own.allocs),
    ];
    let shown = columns
        .into_iter()
        .filter(|column| recomputed || column.head != "RECOMPUTE");
    shown.map(Column::short).collect()
}

pub(super) fn write<R: BufRead>(
    reader: Reader<R>,
    options: &ReportOptions,
    out: &mut impl Write,
) -> Result<Outcome, ReportError> {
    let analyses = WithCategories::new(ModuleLedger::default());
    let (replay, analyses) = replay::run(reader, options.grouping, analyses)?;
    let ledger = analyses.table;
    let devices = replay.snapshot.devices.iter();
    let trees: Vec<(&DeviceSnapshot, ModuleTree)> = devices
        .filter_map(|device| Some((device, ledger.tree(device.index)?)))
        .collect();
    let report = ModuleReport {
        replay: &replay,
        trees,
        options,
    };
    document::write(&report, &replay, options, out)
}

struct ModuleReport<'a> {
    replay: &'a RecordingReplay,
    trees: Vec<(&'a DeviceSnapshot, ModuleTree)>,
    options: &'a ReportOptions,
}

impl TableReport for ModuleReport<'_> {
    type Row = ModuleEntry;

    fn text(&self, page: &mut Page) {
        let trees = self.trees.iter().map(|tree| (tree.0, tree));
        push_devices(page, self.replay, trees, |page, (device, tree)| {
            if !tree.knows_modules {
                page.note(NO_MODULES);
            }
            page.table(&self.table(device, tree));
            let columns = format!(
                "AT PEAK to OWN: at the peak of {} since attach, {} after the start. A module's numbers include its \
                 submodules; OWN excludes them.",
                device.index,
                duration(Duration::from_nanos(self.since(tree)))
            );
            page.legend(&[&columns, PARAMETERS]);
        });
    }

    fn document(&self) -> Cell<'_> {
        let devices = self.trees.iter().map(|(device, tree)| {
            Cell::Object(vec![
                ("device", device.index.into()),
                ("allocated", device.totals.allocated.into()),
                ("reserved", device.totals.reserved.into()),
                // Totals and time of the device's peak since attach.
                ("peak_allocated", tree.peak.totals.allocated.into()),
                ("peak_reserved", tree.peak.totals.reserved.into()),
                ("peak_ns", self.since(tree).into()),
                ("modules", self.table(device, tree).into()),
            ])
        });
        document(self.replay, Cell::Absent, devices)
    }

    fn columns(&self) -> Vec<ModuleColumn> {
        columns(true)
    }

    fn tables(&self) -> impl Iterator<Item = Table<ModuleEntry>> {
        let trees = self.trees.iter();
        trees.map(|(device, tree)| self.table(device, tree))
    }
}

impl ModuleReport<'_> {
    /// Nanoseconds from the start to the device's peak.
    fn since(&self, tree: &ModuleTree) -> u64 {
        let started = self.replay.snapshot.started.0;
        tree.peak.time.0.saturating_sub(started)
    }

    fn table(&self, device: &DeviceSnapshot, tree: &ModuleTree) -> Table<ModuleEntry> {
        let totals = tree.modules.iter().map(|row| &row.total);
        let mut totals = totals.chain(tree.others.iter().map(|(_, sums)| sums));
        let recomputed = totals.any(|sums| sums.pass(Recompute).allocs > 0);
        let mut table = Table::new(columns(recomputed));
        if self.options.format == ReportFormat::Text {
            push_shown(&mut table, tree.modules.clone(), self.options);
        } else {
            let modules = ordered(tree.modules.clone(), self.options).into_iter();
            let rows = modules.map(|module| ModuleEntry {
                kind: "module",
                path: Some(module.path),
                depth: Some(module.depth as u64),
                ..ModuleEntry::new(module.name, module.total, module.own)
            });
            table.extend(Output::Data, rows);
        }
        let others = tree.others.iter().map(|(place, sums)| ModuleEntry {
            kind: place.as_str(),
            ..ModuleEntry::new(place_name(place), *sums, *sums)
        });
        table.extend(Output::All, others);
        let (before, then) = (&device.before_attach, tree.peak.before_attach);
        let now = before.live.0.saturating_sub(tree.labeled.live.0);
        let unaccounted = [device.unaccounted, tree.peak.unaccounted];
        for rest in remainders([now, then.0], unaccounted) {
            let blocks = match (rest.kind, &rest.bytes[0]) {
                (_, Cell::Bytes(0) | Cell::Signed(0)) => Some(0),
                ("before_attach", _) => {
                    let labeled = tree.labeled.live_blocks;
                    let blocks = before.live_blocks();
                    blocks.map(|blocks| blocks.saturating_sub(labeled))
                }
                _ => None,
            };
            let row = ModuleEntry {
                kind: rest.kind,
                name: rest.name.to_owned(),
                rest: (rest.bytes, blocks),
                ..ModuleEntry::default()
            };
            table.push(Output::All, row);
        }
        let whole = tree.peak.totals.allocated;
        let total = ModuleEntry {
            name: total_name(device.index, self.replay.snapshot.cuda.layer),
            rest: ([device.totals.allocated.into(), whole.into()], None),
            ..ModuleEntry::default()
        };
        table.push(Output::Text, total);
        for entry in &mut table.rows {
            entry.row.device = device.index.into();
            entry.row.whole = whole.0;
        }
        table
    }
}

/// Rows in tree order, siblings sorted by `options.sort`.
fn ordered(mut rows: Vec<ModuleRow>, options: &ReportOptions) -> Vec<ModuleOutlineRow> {
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

/// Adds the top modules for text, and a row for the others. It has bytes for hidden outermost
/// modules only, as no other row contains them.
fn push_shown(table: &mut Table<ModuleEntry>, modules: Vec<ModuleRow>, options: &ReportOptions) {
    let rows = ordered(folded(modules, options.alike), options);
    let mut ranked: Vec<usize> = (0..rows.len()).collect();
    // The top rows include their ancestors, which rank no lower.
    ranked.sort_by_key(|at| Reverse(rank(&rows[*at].total.all, options.sort).0));
    let hidden: HashSet<usize> = ranked.drain(options.top.of(rows.len())..).collect();
    let mut outermost: Option<Sums> = None;
    for (at, row) in rows.into_iter().enumerate() {
        if !hidden.contains(&at) {
            table.push(Output::Text, ModuleEntry::new(row.name, row.total, row.own));
        } else if row.depth == 0 {
            outermost = Some(outermost.map_or(row.total, |sums| sums.and(&row.total)));
        }
    }
    let others = counted(hidden.len() as u64, "other module");
    if let Some(sums) = outermost {
        table.push(
            Output::Text,
            ModuleEntry::new(format!("({others})"), sums, sums),
        );
    } else if !hidden.is_empty() {
        let row = ModuleEntry {
            name: format!("({others}, included above)"),
            ..ModuleEntry::default()
        };
        table.push(Output::Text, row);
    }
}

#[cfg(test)]
mod tests;

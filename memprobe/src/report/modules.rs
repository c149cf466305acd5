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
use crate::attribution::allocation_groups::Pass;
use crate::attribution::modules::{Additive, ModuleLedger, ModuleRow, ModuleTree, Sums};
use crate::attribution::peak::Holding;
use crate::event::{Bytes, DeviceIndex};
use crate::ledger::snapshot::DeviceSnapshot;
use crate::recording::Reader;
use crate::view::table::{Cell, Column, Output, Page, Table};
use crate::view::{
    ModuleCells, ModuleTreeCells, OfModule, RECOMPUTE, counted, duration, folded, module_columns,
};

const PARAMETERS: &str =
    "Parameters are made outside of module calls: `memprobe snapshot --by module` lists them.";

type ModuleOutlineRow = outline::OutlineRow<Sums>;

/// One row. `kind` is `module`, `outside`, `unknown`, `backward_unknown`, `too_many`,
/// `before_attach` or `unaccounted`.
#[derive(Default)]
struct ModuleEntry {
    device: Option<DeviceIndex>,
    kind: &'static str,
    path: Option<String>,
    /// 0 for an outermost module.
    depth: Option<u64>,
    /// Indented name, for text.
    name: String,
    sums: Option<OfModule<Sums>>,
    /// Bytes now and at the peak, and blocks now, of a row without sums.
    rest: ([Cell<'static>; 2], Option<u64>),
    /// Allocated bytes of the device at its peak.
    whole: u64,
}

impl ModuleEntry {
    fn new(name: String, sums: OfModule<Sums>) -> Self {
        Self {
            name,
            sums: Some(sums),
            ..Self::default()
        }
    }

    /// Returns bytes of a module, or those of a row without sums.
    fn bytes(&self, of_sums: fn(&OfModule<Sums>) -> Bytes, moment: usize) -> Cell<'static> {
        match &self.sums {
            Some(sums) => of_sums(sums).into(),
            None => self.rest.0[moment].clone(),
        }
    }

    fn blocks(&self, of_sums: fn(&OfModule<Sums>) -> u64) -> Cell<'static> {
        self.sums.as_ref().map(of_sums).or(self.rest.1).into()
    }
}

impl ModuleTreeCells for ModuleEntry {
    fn device(&self) -> Option<DeviceIndex> {
        self.device
    }

    fn kind(&self) -> &'static str {
        self.kind
    }

    fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    fn depth(&self) -> Option<u64> {
        self.depth
    }

    fn name(&self) -> Cell<'_> {
        (&*self.name).into()
    }
}

impl ModuleCells for ModuleEntry {
    fn sums(&self) -> Option<OfModule<&Sums>> {
        let sums = self.sums.as_ref()?;
        Some(OfModule {
            total: &sums.total,
            own: &sums.own,
        })
    }

    fn live(&self) -> Cell<'_> {
        self.bytes(|sums| sums.total.all.live, 0)
    }

    fn at_peak(&self) -> Cell<'_> {
        self.bytes(|sums| sums.total.all.at_peak, 1)
    }

    fn live_blocks(&self) -> Cell<'_> {
        self.blocks(|sums| sums.total.all.live_blocks)
    }

    fn own_live(&self) -> Cell<'_> {
        self.bytes(|sums| sums.own.all.live, 0)
    }

    fn own_at_peak(&self) -> Cell<'_> {
        self.bytes(|sums| sums.own.all.at_peak, 1)
    }

    fn own_live_blocks(&self) -> Cell<'_> {
        self.blocks(|sums| sums.own.all.live_blocks)
    }

    fn share(&self) -> Cell<'_> {
        let sums = self.sums.as_ref();
        sums.map(|sums| Cell::share(sums.total.all.at_peak.0, self.whole))
            .into()
    }

    fn own(&self) -> Cell<'_> {
        self.sums.as_ref().map(|sums| sums.own.all.at_peak).into()
    }

    fn pass(&self, pass: Pass) -> Cell<'_> {
        let sums = self.sums.as_ref();
        sums.map(|sums| sums.total.pass(pass).at_peak).into()
    }
}

type ModuleColumn = Column<ModuleEntry>;

fn columns(recomputed: bool) -> Vec<ModuleColumn> {
    let mut columns = Vec::from(module_columns());
    columns.retain(|column| recomputed || column.head != RECOMPUTE);
    columns
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
                "AT PEAK to BACKWARD: at the peak of {} since attach, {} after the start. A module's numbers include its \
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
        let recomputed = totals.any(|sums| sums.pass(Pass::Recompute).allocs > 0);
        let mut table = Table::new(columns(recomputed));
        if self.options.format == ReportFormat::Text {
            push_shown(&mut table, tree.modules.clone(), self.options);
        } else {
            let modules = ordered(tree.modules.clone(), self.options).into_iter();
            let rows = modules.map(|module| ModuleEntry {
                kind: "module",
                path: Some(module.path.clone()),
                depth: Some(module.depth as u64),
                ..ModuleEntry::new(module.name.clone(), module.figures())
            });
            table.extend(Output::Data, rows);
        }
        let others = tree.others.iter().map(|(place, sums)| ModuleEntry {
            kind: place.as_str(),
            ..ModuleEntry::new(place_name(place), OfModule::whole(*sums))
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
            entry.row.device = Some(device.index);
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
            let sums = row.figures();
            table.push(Output::Text, ModuleEntry::new(row.name, sums));
        } else if row.depth == 0 {
            outermost = Some(outermost.map_or(row.total, |sums| sums.and(&row.total)));
        }
    }
    let others = counted(hidden.len() as u64, "other module");
    if let Some(sums) = outermost {
        table.push(
            Output::Text,
            ModuleEntry::new(format!("({others})"), OfModule::whole(sums)),
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

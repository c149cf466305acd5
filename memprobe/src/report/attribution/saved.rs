//! Table of memory saved for backward passes, by module, operation and line.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::numbered_modules::NumberedPaths;
use super::{Notes, missing};
use crate::attribution::AttributionLedger;
use crate::attribution::peak::Holding;
use crate::attribution::view::{DeviceView, SavedRow};
use crate::event::bytes::human;
use crate::event::{Bytes, DeviceIndex, Module};
use crate::ledger::snapshot::Site;
use crate::report::{Alike, ReportFormat, ReportOptions, cells};
use crate::view::table::{Cell, Column, Output, Table, columns};
use crate::view::{BLOCKS, FileNames, counted};

/// One module, several that differ only in a number, or a sum.
#[derive(Default)]
pub(super) struct SavedEntry {
    device: Cell<'static>,
    /// First of these modules; `None` for a sum.
    first: Option<SavedRow>,
    name: String,
    names: Rc<FileNames>,
    count: u64,
    holding: Holding,
    least: Bytes,
    most: Bytes,
}

type SavedColumn = Column<SavedEntry>;

pub(super) fn columns() -> Vec<SavedColumn> {
    columns![|row: SavedEntry|
        data("device") => row.device.clone(),
        number("live", "LIVE") => row.holding.live,
        number("at_peak", "AT PEAK") => row.holding.at_peak,
        figure("PER MODULE").priority(2) => row.each(),
        number("live_blocks", BLOCKS) => row.holding.live_blocks,
        number("allocs", "ALLOCS") => row.holding.allocs,
        data("file") => cells::file(row.site()),
        data("line") => cells::line(row.site()),
        data("function") => cells::function(row.site()),
        text("module", "MODULE") => &*row.name,
        text("operations", "OPERATION").priority(1) => match &row.first {
            Some(first) => Cell::list(first.operations.iter().map(|it| &**it)),
            None => Cell::Blank,
        },
        label("LINE") => row.site().map_or(Cell::Blank, |site| row.names.site(site).into()),
    ]
    .into()
}

pub(super) fn notes(ledger: &AttributionLedger, options: &ReportOptions) -> Notes {
    let mut legend = vec![
        "Memory that a forward pass allocated for its backward pass, inferred from when it was freed.".to_owned(),
    ];
    if options.format == ReportFormat::Text && options.alike == Alike::Folded {
        let folded = "Modules that differ only in a number share one row (PER MODULE: one); --no-fold shows each.";
        legend.push(folded.to_owned());
    }
    let operations = if ledger.coverage().nodes {
        "OPERATION: operations of the same stack; a line with several names all."
    } else {
        "This recording has no operations of backward passes (\"-\")."
    };
    legend.push(operations.to_owned());
    Notes {
        legend,
        facts: missing(ledger.coverage()),
    }
}

pub(super) fn table(
    index: DeviceIndex,
    view: DeviceView<'_>,
    options: &ReportOptions,
) -> Table<SavedEntry> {
    let mut saved = view.saved(options.grouping);
    saved.retain(|SavedRow { holding, .. }| {
        holding.live.0 > 0 || holding.at_peak.0 > 0 || holding.allocs > 0
    });
    let plain = FileNames::default();
    saved.sort_by_cached_key(|row| {
        (
            rank(&row.holding),
            name(&row.module).to_owned(),
            plain.site(&row.site),
            row.operations.clone(),
        )
    });
    let mut table = Table::new(columns());
    if options.format == ReportFormat::Text {
        push_shown(&mut table, &saved, options);
    } else {
        table.extend(Output::Data, saved.iter().map(SavedEntry::new));
    }
    let frames = saved.iter().filter_map(|row| row.site.frame());
    let names = Rc::new(FileNames::of(frames.map(|frame| &frame.file)));
    for entry in &mut table.rows {
        entry.row.device = index.into();
        entry.row.names = names.clone();
    }
    table
}

/// Adds the largest rows, and sums of the others and of all.
fn push_shown(table: &mut Table<SavedEntry>, saved: &[SavedRow], options: &ReportOptions) {
    let mut modules = merged(saved, options.alike);
    let hidden = modules.split_off(options.top.of(modules.len()));
    table.extend(Output::Text, modules);
    if !hidden.is_empty() {
        let others = format!("({})", counted(hidden.len() as u64, "other row"));
        table.push(
            Output::Text,
            sum(hidden.iter().map(|row| &row.holding), others),
        );
    }
    let total = "(total saved for backward)".to_owned();
    table.push(
        Output::Text,
        sum(saved.iter().map(|row| &row.holding), total),
    );
}

fn rank(held: &Holding) -> Reverse<(Bytes, Bytes, u64)> {
    Reverse((held.at_peak, held.live, held.allocs))
}

/// Merges rows with equal lines and operations whose modules differ only in a number; largest
/// first.
fn merged(saved: &[SavedRow], alike: Alike) -> Vec<SavedEntry> {
    let paths = saved.iter().filter_map(|row| row.module.path());
    let paths = NumberedPaths::of(paths.map(|path| &**path));
    let mut rows: Vec<SavedEntry> = Vec::new();
    let mut known: HashMap<(String, &Site, &[Arc<str>]), usize> = HashMap::new();
    for row in saved {
        let path = row.module.path().filter(|_| alike == Alike::Folded);
        let at = path.map(|path| {
            let key = (paths.pattern(path), &row.site, &row.operations[..]);
            *known.entry(key).or_insert(rows.len())
        });
        match at.and_then(|at| rows.get_mut(at)) {
            Some(known) => known.join(row),
            None => rows.push(SavedEntry::new(row)),
        }
    }
    for row in rows.iter_mut().filter(|row| row.count > 1) {
        let path = row.first.as_ref().and_then(|first| first.module.path());
        if let Some(path) = path {
            row.name = format!("{} * {}", row.count, paths.pattern(path));
        }
    }
    rows.sort_by_key(|row| rank(&row.holding));
    rows
}

impl SavedEntry {
    fn new(row: &SavedRow) -> Self {
        Self {
            first: Some(row.clone()),
            name: name(&row.module).to_owned(),
            count: 1,
            holding: row.holding,
            least: row.holding.at_peak,
            most: row.holding.at_peak,
            ..Self::default()
        }
    }

    fn site(&self) -> Option<&Site> {
        self.first.as_ref().map(|first| &first.site)
    }

    fn join(&mut self, row: &SavedRow) {
        self.count = self.count.saturating_add(1);
        self.holding = self.holding.and(row.holding);
        self.least = self.least.min(row.holding.at_peak);
        self.most = self.most.max(row.holding.at_peak);
    }

    /// Bytes of each module at the peak; blank for a single one.
    fn each(&self) -> Cell<'_> {
        if self.count < 2 {
            Cell::Blank
        } else if self.least == self.most {
            self.most.into()
        } else {
            format!("{} to {}", human(self.least), human(self.most)).into()
        }
    }
}

fn name(module: &Module) -> &str {
    match module {
        Module::Outside => "(outside modules)",
        Module::Called(path) => path,
        Module::Unknown => "(unknown)",
    }
}

fn sum<'a>(rows: impl Iterator<Item = &'a Holding>, name: String) -> SavedEntry {
    let mut row = SavedEntry {
        name,
        ..SavedEntry::default()
    };
    rows.for_each(|holding| row.holding = row.holding.and(*holding));
    row
}

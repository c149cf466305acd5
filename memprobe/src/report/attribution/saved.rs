//! Table of memory saved for backward passes, by module, operation and line.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use super::grid::{Cell, Column, Grid, Row, RowAudience};
use super::missing;
use super::numbered_modules::Paths;
use crate::attribution::AttributionLedger;
use crate::attribution::rows::Holding;
use crate::attribution::view::{DeviceView, SavedRow};
use crate::event::bytes::human;
use crate::event::{Bytes, DeviceIndex, Module};
use crate::ledger::snapshot::Site;
use crate::report::structured::known_line;
use crate::report::{Alike, Format, ReportOptions, Top};
use crate::view::{BLOCKS, FileNames, counted};

pub(super) const COLUMNS: &[Column] = &[
    Column::programs("device"),
    Column::all("live", "LIVE"),
    Column::all("at_peak", "AT PEAK"),
    Column::people("PER MODULE"),
    Column::all("live_blocks", BLOCKS),
    Column::all("allocs", "ALLOCS"),
    Column::programs("file"),
    Column::programs("line"),
    Column::programs("function"),
    Column::all("module", "MODULE"),
    Column::wide("operations", "OPERATION", 1),
    Column::people("LINE"),
];

pub(super) fn notes(ledger: &AttributionLedger, options: &ReportOptions) -> Vec<String> {
    let mut notes = vec![
        "Memory that a forward pass allocated and a backward pass frees, without parameters, gradients and inputs; \
         inferred from when it was freed. AT PEAK: at the device's peak."
            .to_owned(),
    ];
    if options.format == Format::Text && options.alike == Alike::Folded {
        notes.push(
            "Modules that differ only in a number share one row: PER MODULE is AT PEAK for one of them; --no-fold \
             shows each.".to_owned(),
        );
    }
    if ledger.coverage().nodes {
        notes.push(
            "OPERATION: operations of the same stack; a line with several names all.".to_owned(),
        );
    } else {
        notes.push("This recording has no operations of backward passes (\"-\").".to_owned());
    }
    notes.extend(missing(ledger.coverage()));
    notes
}

pub(super) fn grid(index: DeviceIndex, view: DeviceView<'_>, options: &ReportOptions) -> Grid {
    let mut saved = view.saved(options.grouping);
    saved.retain(|row| row.holding.live > 0 || row.holding.at_peak > 0 || row.holding.allocs > 0);
    let plain = FileNames::default();
    saved.sort_by_cached_key(|row| {
        (
            rank(&row.holding),
            name(&row.module).to_owned(),
            plain.site(&row.site),
            row.operations.clone(),
        )
    });
    let frames = saved.iter().filter_map(|row| row.site.frame());
    let names = FileNames::of(frames.map(|frame| &frame.file));
    let layers = layers(&saved, options.alike);
    let most = match options.top {
        Top::All => layers.len(),
        Top::Rows(most) => most.min(layers.len()),
    };
    let (shown, hidden) = layers.split_at(most);
    let of_people = shown.iter().map(|layer| layer.row(index, &names));
    let mut rows: Vec<Row> = of_people.map(|row| row.seen(RowAudience::People)).collect();
    let each = saved.iter().map(|it| Layers::of(it).row(index, &names));
    rows.extend(each.map(|row| row.seen(RowAudience::Programs)));
    if !hidden.is_empty() {
        let others = counted(hidden.len() as u64, "other row");
        rows.push(sum(
            index,
            hidden.iter().map(|it| &it.holding),
            format!("({others})"),
        ));
    }
    let total = "(total saved for backward)".to_owned();
    rows.push(sum(index, saved.iter().map(|row| &row.holding), total));
    Grid {
        columns: COLUMNS,
        rows,
    }
}

/// A displayed row: one module, or several that differ only in a number.
struct Layers<'a> {
    /// First of these modules.
    first: &'a SavedRow,
    name: String,
    count: u64,
    /// Sum of all.
    holding: Holding,
    /// Smallest and largest share at the peak.
    least: u64,
    most: u64,
}

fn rank(held: &Holding) -> Reverse<(u64, u64, u64)> {
    Reverse((held.at_peak, held.live, held.allocs))
}

/// Merges rows with equal lines and operations whose modules differ only in a number; largest
/// first.
fn layers(saved: &[SavedRow], alike: Alike) -> Vec<Layers<'_>> {
    let paths = saved.iter().filter_map(|row| row.module.path());
    let paths = Paths::of(paths.map(|path| &**path));
    let mut layers: Vec<Layers<'_>> = Vec::new();
    let mut known: HashMap<(String, &Site, &[Arc<str>]), usize> = HashMap::new();
    for row in saved {
        let path = row.module.path().filter(|_| alike == Alike::Folded);
        let at = path.map(|path| {
            let key = (paths.pattern(path), &row.site, &row.operations[..]);
            *known.entry(key).or_insert(layers.len())
        });
        match at.and_then(|at| layers.get_mut(at)) {
            Some(known) => known.join(row),
            None => layers.push(Layers::of(row)),
        }
    }
    for layer in &mut layers {
        if let (Some(path), 2..) = (layer.first.module.path(), layer.count) {
            layer.name = format!("{} * {}", layer.count, paths.pattern(path));
        }
    }
    layers.sort_by_key(|layer| rank(&layer.holding));
    layers
}

impl<'a> Layers<'a> {
    fn of(row: &'a SavedRow) -> Self {
        Self {
            first: row,
            name: name(&row.module).to_owned(),
            count: 1,
            holding: row.holding,
            least: row.holding.at_peak,
            most: row.holding.at_peak,
        }
    }

    fn join(&mut self, row: &SavedRow) {
        self.count = self.count.saturating_add(1);
        self.holding.join(row.holding);
        self.least = self.least.min(row.holding.at_peak);
        self.most = self.most.max(row.holding.at_peak);
    }

    /// Bytes of each module at the peak; blank for a single one.
    fn each(&self) -> Cell {
        match (self.count, self.least == self.most) {
            (..2, _) => Cell::Blank,
            (_, true) => Cell::Bytes(self.most),
            (_, false) => Cell::Share(format!(
                "{} to {}",
                human(Bytes(self.least)),
                human(Bytes(self.most))
            )),
        }
    }

    fn row(&self, index: DeviceIndex, names: &FileNames) -> Row {
        let (held, row) = (&self.holding, self.first);
        let frame = row.site.frame();
        let operations = row.operations.iter().map(|name| name.to_string());
        Row::new(vec![
            Cell::Device(index),
            Cell::Bytes(held.live),
            Cell::Bytes(held.at_peak),
            self.each(),
            Cell::Count(held.blocks),
            Cell::Count(held.allocs),
            frame.map_or(Cell::None, |frame| Cell::words(&frame.file)),
            frame
                .and_then(known_line)
                .map_or(Cell::None, |line| Cell::Count(line.into())),
            frame.map_or(Cell::None, |frame| Cell::words(&frame.function)),
            Cell::words(&self.name),
            Cell::List(operations.collect()),
            Cell::Words(names.site(&row.site)),
        ])
    }
}

fn name(module: &Module) -> &str {
    match module {
        Module::Outside => "(outside modules)",
        Module::Called(path) => path,
        Module::Unknown => "(unknown)",
    }
}

fn sum<'a>(index: DeviceIndex, rows: impl Iterator<Item = &'a Holding>, what: String) -> Row {
    let mut all = Holding::default();
    rows.for_each(|row| all.join(*row));
    let cells = vec![
        Cell::Device(index),
        Cell::Bytes(all.live),
        Cell::Bytes(all.at_peak),
        Cell::Blank,
        Cell::Count(all.blocks),
        Cell::Count(all.allocs),
        Cell::None,
        Cell::None,
        Cell::None,
        Cell::Words(what),
        Cell::Blank,
        Cell::Blank,
    ];
    Row::new(cells).seen(RowAudience::People)
}

//! Rows of the module tree, in order, as far as it is open.

use super::super::table_screen::{Fold, Query, RowOf, TableOf, TableRow};
use super::ModuleList;
use super::subject::{ModuleFigures, ModuleTables};
use crate::attribution::tables::{CoverageStart, ModuleScope};
use crate::view::{OfModule, UNACCOUNTED, before, clean, no_module};

type ModuleRow = crate::attribution::tables::ModuleRow<ModuleFigures>;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ModuleKey {
    Module(String),
    /// Memory outside known modules.
    Other(ModuleScope),
    /// Memory live before attribution started.
    Before(CoverageStart),
    Unaccounted,
}

#[derive(Clone, PartialEq, Debug)]
pub struct ModuleData {
    pub(super) name: String,
    /// Number of modules that the row stands for.
    pub(super) count: u64,
    /// Bytes at the moment shown, submodules included.
    pub(super) live: i128,
    /// Bytes at the peak of the device, submodules included.
    pub(super) at_peak: i128,
    pub(super) allocated: i128,
    /// `None` for rows beside the modules.
    pub(super) figures: Option<OfModule<ModuleFigures>>,
}

pub fn table(
    content: &ModuleList,
    subject: &ModuleTables,
    query: &Query<ModuleKey>,
) -> TableOf<ModuleList> {
    let modules = &subject.modules[..];
    let others = other_rows(subject);
    let allocated = subject.allocated.0.into();
    let mut making = Making {
        content,
        query,
        allocated,
        table: TableOf::<ModuleList>::default(),
    };
    making.table.all = others.len() + count(modules);
    let outermost = modules
        .iter()
        .map(|module| (row(module, "", 0, allocated), Some(module)));
    let mut entries: Vec<_> = outermost
        .chain(others.into_iter().map(|row| (row, None)))
        .collect();
    making.table.all_bytes = entries.iter().map(|(row, _)| row.data.live).sum();
    making.sort(&mut entries);
    for (row, module) in entries {
        making.push(row, module, Above::NoMatch);
    }
    making.table
}

pub fn is_recomputed(subject: &ModuleTables) -> bool {
    let others = subject.others.iter().map(|(_, figures)| figures);
    let totals = subject.modules.iter().map(|module| &module.total);
    totals.chain(others).any(ModuleFigures::recomputed)
}

/// Returns the keys of all modules with submodules at and beneath `path`; of all modules if `path` is empty.
pub fn keys_beneath(modules: &[ModuleRow], path: &str) -> Vec<ModuleKey> {
    let mut keys = Vec::new();
    let mut left: Vec<(&ModuleRow, String)> = modules
        .iter()
        .map(|module| (module, joined("", module)))
        .collect();
    while let Some((module, at)) = left.pop() {
        let is_beneath = path.is_empty()
            || at == path
            || at
                .strip_prefix(path)
                .is_some_and(|rest| rest.starts_with('.'));
        left.extend(module.parts.iter().map(|part| (part, joined(&at, part))));
        if is_beneath && !module.parts.is_empty() {
            keys.push(ModuleKey::Module(at));
        }
    }
    keys
}

fn count(modules: &[ModuleRow]) -> usize {
    let mut left: Vec<&ModuleRow> = modules.iter().collect();
    let mut count = 0;
    while let Some(module) = left.pop() {
        count += 1;
        left.extend(&module.parts);
    }
    count
}

fn joined(path: &str, module: &ModuleRow) -> String {
    let name = clean(&module.name);
    if path.is_empty() {
        name
    } else {
        format!("{path}.{name}")
    }
}

fn row(module: &ModuleRow, above: &str, depth: usize, allocated: i128) -> RowOf<ModuleList> {
    let fold = if module.parts.is_empty() {
        Fold::Leaf
    } else {
        Fold::Closed
    };
    let data = ModuleData {
        name: clean(&module.name),
        count: module.count,
        live: module.total.bytes().0.into(),
        at_peak: module.total.at_peak().0.into(),
        allocated,
        figures: Some(OfModule {
            total: module.total,
            own: module.own,
        }),
    };
    TableRow::leaf(ModuleKey::Module(joined(above, module)), data).at(depth, fold)
}

/// Returns the rows beside the modules: memory outside them, before attach and unaccounted.
fn other_rows(subject: &ModuleTables) -> Vec<RowOf<ModuleList>> {
    let plain = |key, name: &str, [live, at_peak]: [i128; 2], figures| {
        let data = ModuleData {
            name: name.to_owned(),
            count: 1,
            live,
            at_peak,
            allocated: subject.allocated.0.into(),
            figures,
        };
        TableRow::leaf(key, data)
    };
    // The tree of live memory has all blocks since attach; layers start at `subject.since`.
    let since = match subject.moment {
        Some(_) => subject.since,
        None => CoverageStart::Attach,
    };
    let mut rows = Vec::new();
    for (place, figures) in &subject.others {
        let bytes = [figures.bytes(), figures.at_peak()].map(|bytes| bytes.0.into());
        let figures = Some(OfModule::whole(*figures));
        rows.push(plain(
            ModuleKey::Other(place.clone()),
            no_module(place),
            bytes,
            figures,
        ));
    }
    for (key, name, bytes) in [
        (
            ModuleKey::Before(since),
            before(since),
            subject.before_attach,
        ),
        (ModuleKey::Unaccounted, UNACCOUNTED, subject.unaccounted),
    ] {
        if bytes != [0; 2] {
            rows.push(plain(key, name, bytes, None));
        }
    }
    rows
}

/// States if an ancestor of a row matches the filter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Above {
    Match,
    NoMatch,
}

struct Making<'a> {
    content: &'a ModuleList,
    query: &'a Query<ModuleKey>,
    allocated: i128,
    table: TableOf<ModuleList>,
}

impl Making<'_> {
    fn sort<T>(&self, entries: &mut [(RowOf<ModuleList>, T)]) {
        // Ties are broken by values that do not swing.
        entries.sort_by(|(one, _), (other, _)| {
            let at_peak = other.data.at_peak.cmp(&one.data.at_peak);
            at_peak.then_with(|| one.data.name.cmp(&other.data.name))
        });
        self.query.arrange(self.content, entries, |(row, _)| row);
    }

    /// Adds a row and its open descendants; returns true if any is shown. The ledger bounds the recursion.
    fn push(&mut self, row: RowOf<ModuleList>, module: Option<&ModuleRow>, above: Above) -> bool {
        let (path, depth) = match &row.key {
            ModuleKey::Module(path) => (path.clone(), row.depth + 1),
            _ => (row.data.name.clone(), 0),
        };
        let hit = above == Above::NoMatch && self.query.filter.shows(&path);
        let is_shown = above == Above::Match || hit;
        if hit {
            self.table.shown += 1;
            self.table.shown_bytes += row.data.live;
        }
        let at = self.table.rows.len();
        let is_open = self.query.open.contains(&row.key);
        self.table.rows.push(row);
        // Descendants of a row that does not match may match.
        let below = if is_shown {
            Above::Match
        } else {
            Above::NoMatch
        };
        let mut found = false;
        if let Some(module) = module.filter(|_| is_open || !is_shown) {
            let parts = module.parts.iter();
            let mut parts: Vec<_> = parts
                .map(|part| (self::row(part, &path, depth, self.allocated), part))
                .collect();
            self.sort(&mut parts);
            for (row, part) in parts {
                found |= self.push(row, Some(part), below);
            }
        }
        if !is_shown && !found {
            self.table.rows.truncate(at);
        } else if found {
            self.table.rows[at].fold = Fold::Open;
        }
        is_shown || found
    }
}

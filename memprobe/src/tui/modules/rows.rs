//! Rows of the module tree, in order, as far as it is open.

use std::cmp::{Ordering, Reverse};
use std::collections::HashSet;

use super::super::filter::Filter;
use super::super::table::Fold;
use super::columns::Column;
use super::subject::{Figures, Subject};
use crate::attribution::tables::{CoverageStart, ModuleScope};
use crate::view::{UNACCOUNTED, before, clean, no_module};

type ModuleRow = crate::attribution::tables::ModuleRow<Figures>;

/// Key of a row across tables.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum RowKey {
    /// Module, by its path.
    Module(String),
    /// Memory outside known modules.
    Other(ModuleScope),
    /// Memory live before attribution started.
    Before(CoverageStart),
    /// Unaccounted memory.
    Unaccounted,
}

/// Row of the table.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    pub(super) key: RowKey,
    pub(super) name: String,
    /// Number of modules that the row stands for.
    pub(super) count: u64,
    pub(super) depth: usize,
    pub(super) fold: Fold,
    /// Bytes at the moment shown, submodules included.
    pub(super) live: i128,
    /// Bytes at the peak of the device, submodules included.
    pub(super) at_peak: i128,
    /// Figures of the module itself, and with its submodules; `None` for memory before attribution and
    /// unaccounted memory.
    pub(super) figures: Option<(Figures, Figures)>,
}

/// Visible rows, and their sums.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Table {
    pub(super) rows: Vec<Row>,
    /// Bytes of the rows that match the filter.
    pub(super) shown_live: i128,
    /// Bytes of all rows.
    pub(super) all_live: i128,
    /// Rows that match the filter, without their descendants.
    pub(super) shown: usize,
    /// Modules, and the rows beside them.
    pub(super) all: usize,
    /// True if any module has recomputed memory.
    pub(super) recomputed: bool,
}

/// Sort order, filter and open rows of the table.
pub struct ModuleTableOptions<'a> {
    pub(super) order: Column,
    pub(super) reversed: bool,
    pub(super) filter: &'a Filter,
    pub(super) open: &'a HashSet<RowKey>,
}

impl ModuleTableOptions<'_> {
    fn compare(&self, one: &Row, other: &Row) -> Ordering {
        let key = |row: &Row| Reverse((self.order.figure(row), row.live, row.at_peak));
        let order = match self.order {
            Column::Module => one.name.cmp(&other.name),
            _ => key(one).cmp(&key(other)),
        };
        if self.reversed {
            order.reverse()
        } else {
            order
        }
    }
}

/// Builds the table of a device.
pub fn table(subject: &Subject, wish: &ModuleTableOptions) -> Table {
    let modules = &subject.modules[..];
    let mut making = Making {
        wish,
        table: Table::default(),
    };
    let others = other_rows(subject);
    let outermost = modules.iter().map(|module| row(module, "", 0));
    let mut entries: Vec<(Row, Option<&ModuleRow>)> =
        outermost.zip(modules.iter().map(Some)).collect();
    making.table.recomputed = entries
        .iter()
        .map(|(row, _)| row)
        .chain(&others)
        .any(recomputed);
    entries.extend(others.into_iter().map(|row| (row, None)));
    making.table.all_live = entries.iter().map(|(row, _)| row.live).sum();
    making.table.all = entries
        .iter()
        .filter(|(_, module)| module.is_none())
        .count()
        + count(modules);
    entries.sort_by(|(one, _), (other, _)| wish.compare(one, other));
    for (row, module) in entries {
        making.push(row, module, Above::NoMatch);
    }
    making.table
}

/// Returns the keys of all modules with submodules at and beneath `path`; of all modules if `path` is empty.
pub fn keys_beneath(modules: &[ModuleRow], path: &str) -> Vec<RowKey> {
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
            keys.push(RowKey::Module(at));
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

fn recomputed(row: &Row) -> bool {
    let figures = row.figures.as_ref();
    figures.is_some_and(|(_, total)| total.recomputed())
}

fn joined(path: &str, module: &ModuleRow) -> String {
    let name = clean(&module.name);
    if path.is_empty() {
        name
    } else {
        format!("{path}.{name}")
    }
}

fn row(module: &ModuleRow, above: &str, depth: usize) -> Row {
    Row {
        key: RowKey::Module(joined(above, module)),
        name: clean(&module.name),
        count: module.count,
        depth,
        fold: if module.parts.is_empty() {
            Fold::Leaf
        } else {
            Fold::Closed
        },
        live: module.total.bytes().0.into(),
        at_peak: module.total.at_peak().0.into(),
        figures: Some((module.own, module.total)),
    }
}

/// Returns the rows beside the modules: memory outside them, before attach and unaccounted.
fn other_rows(subject: &Subject) -> Vec<Row> {
    let plain = |key, name: &str, [live, at_peak]: [i128; 2]| Row {
        key,
        name: name.to_owned(),
        count: 1,
        depth: 0,
        fold: Fold::Leaf,
        live,
        at_peak,
        figures: None,
    };
    // The tree of live memory has all blocks since attach; layers start at `subject.since`.
    let since = match subject.moment {
        Some(_) => subject.since,
        None => CoverageStart::Attach,
    };
    let mut rows: Vec<Row> = Vec::new();
    for (place, figures) in &subject.others {
        let bytes = [figures.bytes(), figures.at_peak()].map(|bytes| bytes.0.into());
        rows.push(Row {
            figures: Some((*figures, *figures)),
            ..plain(RowKey::Other(place.clone()), no_module(place), bytes)
        });
    }
    for (key, name, bytes) in [
        (RowKey::Before(since), before(since), subject.before_attach),
        (RowKey::Unaccounted, UNACCOUNTED, subject.unaccounted),
    ] {
        if bytes != [0; 2] {
            rows.push(plain(key, name, bytes));
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
    wish: &'a ModuleTableOptions<'a>,
    table: Table,
}

impl Making<'_> {
    /// Adds a row and its open descendants; returns true if any of them is shown. Recursion is bounded: the
    /// ledger limits the number of levels.
    fn push(&mut self, row: Row, module: Option<&ModuleRow>, above: Above) -> bool {
        let filters = self.wish.filter.is_active();
        let matches = match &row.key {
            RowKey::Module(path) => self.wish.filter.shows(path),
            _ => self.wish.filter.shows(&row.name),
        };
        let hit = above == Above::NoMatch && (!filters || matches);
        let is_shown = above == Above::Match || hit;
        if hit {
            self.table.shown += 1;
            self.table.shown_live += row.live;
        }
        let at = self.table.rows.len();
        let is_open = self.wish.open.contains(&row.key);
        let (path, depth) = match &row.key {
            RowKey::Module(path) => (path.clone(), row.depth + 1),
            _ => (String::new(), 0),
        };
        self.table.rows.push(row);
        // Descendants of a row that does not match may match.
        let below = if is_shown {
            Above::Match
        } else {
            Above::NoMatch
        };
        let mut found = false;
        if let Some(module) = module.filter(|_| is_open || !is_shown) {
            let mut parts: Vec<(Row, &ModuleRow)> = module
                .parts
                .iter()
                .map(|part| (self::row(part, &path, depth), part))
                .collect();
            parts.sort_by(|(one, _), (other, _)| self.wish.compare(one, other));
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

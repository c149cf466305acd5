//! The rows of the tree of modules, in order, as far as branches are open.

use std::cmp::{Ordering, Reverse};
use std::collections::HashSet;

use super::super::filter::Filter;
use super::super::table::Fold;
use super::columns::Column;
use super::subject::{Figures, Subject};
use crate::label::{UNACCOUNTED, before, clean, no_module};
use crate::model::snapshot::why::{Place, Since};

type ModuleRow = crate::model::snapshot::why::ModuleRow<Figures>;

/// Knows a row again in the next table.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum RowKey {
    /// A module, by its path.
    Module(String),
    /// What is no module's.
    Other(Place),
    /// What was live before anything was known.
    Before(Since),
    /// What nothing explains.
    Unaccounted,
}

/// A row of the table.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    pub(super) key: RowKey,
    pub(super) name: String,
    /// How many modules it stands for.
    pub(super) count: u64,
    pub(super) depth: usize,
    pub(super) fold: Fold,
    /// Bytes at the moment that is told of, of it and its parts.
    pub(super) live: i128,
    /// Bytes when the device held most, likewise.
    pub(super) at_peak: i128,
    /// What it asked for itself, and with its parts; `None` of what no module asked for.
    pub(super) figures: Option<(Figures, Figures)>,
}

/// What is shown, and what it adds up to.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Table {
    pub(super) rows: Vec<Row>,
    /// Bytes of what matches the filter.
    pub(super) shown_live: i128,
    /// Bytes of all.
    pub(super) all_live: i128,
    /// Rows that match the filter, without what lies beneath them.
    pub(super) shown: usize,
    /// Modules, and rows beside them.
    pub(super) all: usize,
    /// Whether anything was computed again.
    pub(super) recomputed: bool,
}

/// How the table is to be made.
pub struct Wish<'a> {
    pub(super) order: Column,
    pub(super) reversed: bool,
    pub(super) filter: &'a Filter,
    pub(super) open: &'a HashSet<RowKey>,
}

impl Wish<'_> {
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

/// The table of a device.
pub fn table(subject: &Subject, wish: &Wish) -> Table {
    let modules = &subject.modules[..];
    let mut making = Making {
        wish,
        table: Table::default(),
    };
    let beside = beside(subject);
    let outermost = modules.iter().map(|module| row(module, "", 0));
    let mut entries: Vec<(Row, Option<&ModuleRow>)> =
        outermost.zip(modules.iter().map(Some)).collect();
    making.table.recomputed = entries
        .iter()
        .map(|(row, _)| row)
        .chain(&beside)
        .any(recomputed);
    entries.extend(beside.into_iter().map(|row| (row, None)));
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

/// All keys of modules that can be opened at and beneath one; of no path those of all.
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

/// The rows beside the modules: what they do not explain.
fn beside(subject: &Subject) -> Vec<Row> {
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
    // The tree of now has a place for whatever was asked for since attach.
    let since = match subject.moment {
        Some(_) => subject.since,
        None => Since::Attach,
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

/// Whether a module that a row is part of matches the filter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Above {
    Match,
    NoMatch,
}

struct Making<'a> {
    wish: &'a Wish<'a>,
    table: Table,
}

impl Making<'_> {
    /// Adds a row and what is open beneath it; says whether anything of it is shown. The ledger tells few levels apart,
    /// so this goes no deeper.
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
        // What matches may lie beneath what does not.
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

//! The rows of the tree of modules, in order, as far as branches are open.

use std::cmp::{Ordering, Reverse};
use std::collections::HashSet;

use super::super::filter::Filter;
use super::super::table::Fold;
use super::columns::Column;
use crate::event::Bytes;
use crate::label::{BEFORE_ATTACH, UNACCOUNTED, clean, no_module};
use crate::model::snapshot::why::{DeviceModules, ModuleRow, Pass, Place, Sums};

/// Knows a row again in the next table.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum RowKey {
    /// A module, by its path.
    Module(String),
    /// What is no module's.
    Other(Place),
    /// What was live when memprobe came.
    BeforeAttach,
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
    /// Bytes now, of it and its parts.
    pub(super) live: i128,
    /// Bytes when the device held most, likewise.
    pub(super) at_peak: i128,
    /// What it asked for itself, and with its parts; `None` of what no module asked for.
    pub(super) sums: Option<(Sums, Sums)>,
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

/// The table of a device, of whose modules those alike may have been made one.
pub fn table(device: &DeviceModules, modules: &[ModuleRow], wish: &Wish) -> Table {
    let mut making = Making {
        wish,
        table: Table::default(),
    };
    let beside = beside(device);
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
    row.sums
        .as_ref()
        .is_some_and(|(_, total)| total.pass(Pass::Recompute).allocs > 0)
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
        live: module.total.all.live.0.into(),
        at_peak: module.total.all.at_peak.0.into(),
        sums: Some((module.own, module.total)),
    }
}

/// The rows beside the modules: what they do not explain.
fn beside(device: &DeviceModules) -> Vec<Row> {
    let plain = |key, name: &str, live: i128, at_peak: i128| Row {
        key,
        name: name.to_owned(),
        count: 1,
        depth: 0,
        fold: Fold::Leaf,
        live,
        at_peak,
        sums: None,
    };
    let tree = &device.tree;
    let bytes = |bytes: Bytes| i128::from(bytes.0);
    let mut rows: Vec<Row> = Vec::new();
    for (place, sums) in &tree.others {
        let (live, at_peak) = (bytes(sums.all.live), bytes(sums.all.at_peak));
        rows.push(Row {
            sums: Some((*sums, *sums)),
            ..plain(
                RowKey::Other(place.clone()),
                no_module(place),
                live,
                at_peak,
            )
        });
    }
    let (now, then) = (bytes(device.before_attach), bytes(tree.peak.before_attach));
    if now != 0 || then != 0 {
        rows.push(plain(RowKey::BeforeAttach, BEFORE_ATTACH, now, then));
    }
    let (now, then) = (device.unaccounted.into(), tree.peak.unaccounted.into());
    if now != 0 || then != 0 {
        rows.push(plain(RowKey::Unaccounted, UNACCOUNTED, now, then));
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

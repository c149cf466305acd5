//! Rows of a difference: a key before and after, and the rows that complete the sum.

use super::{CompareBy, ComparedKey, ComparedRow, DeviceDifference, DiffOptions};
use crate::compare::KeyMemory;
use crate::event::DeviceIndex;
use crate::ledger::snapshot::{PurposeInfo, Site};
use crate::report::cells::{self, OTHERS, purpose_kind};
use crate::report::peak::{Called, called_name, place_name};
use crate::report::{RowLimit, shapes};
use crate::view::table::{Cell, Column, Output, Table, columns};
use crate::view::{BEFORE_ATTACH, FileNames, UNACCOUNTED, clean, counted};

/// One row. `kind` is `others` and `unchanged` for sums of rows, `before_attach` or `unaccounted` for what completes the
/// allocator's total.
#[derive(Clone, Default)]
pub(super) struct DifferenceRow {
    device: Cell<'static>,
    kind: &'static str,
    key: Option<ComparedKey>,
    inferred_from: Option<ComparedKey>,
    /// `None` for sums of rows and remainders.
    presence: Option<&'static str>,
    before: i64,
    after: i64,
    blocks: [Option<u64>; 2],
    name: String,
}

pub(super) fn columns(head: &'static str) -> Vec<Column<DifferenceRow>> {
    columns![|row: DifferenceRow|
        data("device") => row.device.clone(),
        data("kind") => row.kind,
        data("match") => row.presence,
        data("file") => cells::file(row.site()),
        data("line") => cells::line(row.site()),
        data("function") => cells::function(row.site()),
        data("file_before") => cells::file(row.site_before()),
        data("line_before") => cells::line(row.site_before()),
        data("thread") => cells::thread(row.site()),
        data("reason") => cells::reason(row.site()),
        data("node") => cells::node(row.site()),
        data("category") => row.category(),
        data("module") => row.module(),
        data("pass") => row.pass(),
        data("shape") => cells::shape(row.tensor()),
        data("dtype") => cells::dtype(row.tensor()),
        data("purpose") => cells::purpose(row.tensor()),
        data("blocks_before") => row.blocks[0],
        data("blocks_after") => row.blocks[1],
        number("before", "BEFORE") => bytes(row.before),
        number("after", "AFTER") => bytes(row.after),
        number("change", "CHANGE") => Cell::Signed(row.after.wrapping_sub(row.before)),
        label(head) => &*row.name,
    ]
    .into()
}

/// A sum of bytes, which only rows without known blocks have below 0.
fn bytes(sum: i64) -> Cell<'static> {
    u64::try_from(sum).map_or(Cell::Signed(sum), Cell::Bytes)
}

pub(super) const fn name(by: CompareBy) -> &'static str {
    match by {
        CompareBy::Line => "line",
        CompareBy::Tensor => "tensor",
        CompareBy::Module => "module",
        CompareBy::Category => "category",
    }
}

const fn head(by: CompareBy) -> &'static str {
    match by {
        CompareBy::Line => "LINE",
        CompareBy::Tensor => "TENSOR",
        CompareBy::Module => "MODULE",
        CompareBy::Category => "CATEGORY",
    }
}

impl DifferenceRow {
    fn site(&self) -> Option<&Site> {
        site_of(self.key.as_ref())
    }

    fn site_before(&self) -> Option<&Site> {
        site_of(self.inferred_from.as_ref())
    }

    fn tensor(&self) -> Option<&PurposeInfo> {
        match &self.key {
            Some(ComparedKey::Tensor(tensor)) => Some(tensor),
            _ => None,
        }
    }

    fn category(&self) -> Option<&'static str> {
        match &self.key {
            Some(ComparedKey::Category(category)) => Some(category.key()),
            _ => None,
        }
    }

    fn module(&self) -> Option<String> {
        match &self.key {
            Some(ComparedKey::Module { place, .. }) if self.kind == "module" => {
                Some(place_name(place))
            }
            _ => None,
        }
    }

    fn pass(&self) -> Option<&'static str> {
        match &self.key {
            Some(ComparedKey::Module { pass, .. }) => Some(pass.as_str()),
            _ => None,
        }
    }

    fn sum(kind: &'static str, name: String, rows: &[Self]) -> Self {
        let add = |of: fn(&Self) -> i64| rows.iter().map(of).fold(0, i64::wrapping_add);
        Self {
            kind,
            name,
            before: add(|row| row.before),
            after: add(|row| row.after),
            ..Self::default()
        }
    }
}

fn site_of(key: Option<&ComparedKey>) -> Option<&Site> {
    match key {
        Some(ComparedKey::Line(site)) => Some(site),
        _ => None,
    }
}

/// All rows, for CSV and JSON.
pub(super) fn data(device: &DeviceDifference) -> Table<DifferenceRow> {
    let mut table = Table::new(columns(""));
    table.extend(Output::All, rows(device));
    table.extend(Output::All, remainders(device));
    complete(&mut table, device.index());
    table
}

/// The rows that have changed, the largest change first, and sums of the others.
pub(super) fn text(device: &DeviceDifference, options: &DiffOptions) -> Table<DifferenceRow> {
    let mut table = Table::new(columns(head(options.by)));
    let (mut changed, unchanged): (Vec<_>, Vec<_>) = rows(device)
        .into_iter()
        .partition(|row| row.before != row.after);
    let shown = match options.top {
        RowLimit::All => changed.len(),
        RowLimit::Rows(most) => most.min(changed.len()),
    };
    let hidden = changed.split_off(shown);
    table.extend(Output::All, changed);
    let sums = [
        (OTHERS, hidden, "other changed row"),
        ("unchanged", unchanged, "unchanged row"),
    ];
    for (kind, rows, noun) in sums {
        if !rows.is_empty() {
            let name = format!("({})", counted(rows.len() as u64, noun));
            table.push(Output::All, DifferenceRow::sum(kind, name, &rows));
        }
    }
    table.extend(Output::All, remainders(device));
    let [before, after] = &device.sums;
    table.push(
        Output::Text,
        DifferenceRow {
            before: before.allocated.cast_signed(),
            after: after.allocated.cast_signed(),
            name: "(total of the allocator)".to_owned(),
            ..DifferenceRow::default()
        },
    );
    table
}

fn complete(table: &mut Table<DifferenceRow>, device: DeviceIndex) {
    for entry in &mut table.rows {
        entry.row.device = device.into();
    }
}

fn rows(device: &DeviceDifference) -> Vec<DifferenceRow> {
    let sites = device.rows.iter();
    let frames = sites.filter_map(|row| site_of(Some(&row.key))?.frame());
    let names = FileNames::of(frames.map(|frame| &frame.file));
    let rows = device.rows.iter();
    rows.map(|row| row_of(row, &names)).collect()
}

fn row_of(row: &ComparedRow, names: &FileNames) -> DifferenceRow {
    let bytes = |memory: Option<KeyMemory>| memory.unwrap_or_default().bytes.cast_signed();
    let blocks = |memory: Option<KeyMemory>| match (memory, &row.key) {
        (None, ComparedKey::Category(_)) => None,
        (memory, _) => memory.map_or(Some(0), |memory| memory.blocks),
    };
    let presence = match (&row.before, &row.after, &row.inferred_from) {
        (_, _, Some(_)) => "inferred",
        (Some(_), Some(_), None) => "same",
        (_, None, None) => "before_only",
        (None, _, None) => "after_only",
    };
    DifferenceRow {
        kind: kind(&row.key),
        presence: Some(presence),
        before: bytes(row.before),
        after: bytes(row.after),
        blocks: [blocks(row.before), blocks(row.after)],
        name: key_name(row, names),
        key: Some(row.key.clone()),
        inferred_from: row.inferred_from.clone(),
        ..DifferenceRow::default()
    }
}

fn kind(key: &ComparedKey) -> &'static str {
    match key {
        ComparedKey::Line(site) => site.as_str(),
        ComparedKey::Tensor(tensor) => purpose_kind(tensor),
        ComparedKey::Module { place, .. } => place.as_str(),
        ComparedKey::Category(_) => "category",
    }
}

fn key_name(row: &ComparedRow, names: &FileNames) -> String {
    match (&row.key, site_of(row.inferred_from.as_ref())) {
        (ComparedKey::Line(site), Some(before)) => {
            format!("{}{}", names.site(site), was(site, before))
        }
        (ComparedKey::Line(site), None) => names.site(site),
        (ComparedKey::Tensor(tensor), _) => shapes::tensor(tensor),
        (ComparedKey::Module { place, pass }, _) => called_name(&Called {
            place: place.clone(),
            pass: *pass,
        }),
        (ComparedKey::Category(category), _) => category.as_str().to_owned(),
    }
}

/// Place before of a line that has moved.
fn was(site: &Site, before: &Site) -> String {
    match (site.frame(), before.frame()) {
        (Some(frame), Some(before)) if frame.file == before.file => {
            format!("  ~ was line {}", before.line)
        }
        (_, Some(before)) => format!("  ~ was {}:{}", clean(&before.file), before.line),
        _ => String::new(),
    }
}

/// Bytes that no row has, if there are any.
fn remainders(device: &DeviceDifference) -> Vec<DifferenceRow> {
    let [before, after] = &device.sums;
    let row = |kind, name: &str, before, after| DifferenceRow {
        kind,
        name: name.to_owned(),
        before,
        after,
        ..DifferenceRow::default()
    };
    let attach = [before, after].map(|sums| sums.before_attach.cast_signed());
    let rest = [before, after].map(|sums| sums.unaccounted);
    let mut rows = vec![
        row("before_attach", BEFORE_ATTACH, attach[0], attach[1]),
        row("unaccounted", UNACCOUNTED, rest[0], rest[1]),
    ];
    rows.retain(|row| row.before != 0 || row.after != 0);
    rows
}

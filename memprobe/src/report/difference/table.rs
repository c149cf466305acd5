//! Rows of a difference: a key before and after, and the rows that complete the sum.

use super::keys::{
    category_of, file_names, head_of_table, kind_of, module_of, name_of, pass_of, site_of,
    tensor_of,
};
use super::{ComparedKey, ComparedRow, DeviceDifference, DiffOptions};
use crate::compare::KeyMemory;
use crate::event::DeviceIndex;
use crate::ledger::snapshot::Site;
use crate::report::RowLimit;
use crate::report::cells::{self, OTHERS};
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
        data("file") => cells::file(site_of(row.key.as_ref())),
        data("line") => cells::line(site_of(row.key.as_ref())),
        data("function") => cells::function(site_of(row.key.as_ref())),
        data("file_before") => cells::file(site_of(row.inferred_from.as_ref())),
        data("line_before") => cells::line(site_of(row.inferred_from.as_ref())),
        data("thread") => cells::thread(site_of(row.key.as_ref())),
        data("reason") => cells::reason(site_of(row.key.as_ref())),
        data("node") => cells::node(site_of(row.key.as_ref())),
        data("category") => category_of(row.key.as_ref()),
        data("module") => module_of(row.key.as_ref()),
        data("pass") => pass_of(row.key.as_ref()),
        data("shape") => cells::shape(tensor_of(row.key.as_ref())),
        data("dtype") => cells::dtype(tensor_of(row.key.as_ref())),
        data("purpose") => cells::purpose(tensor_of(row.key.as_ref())),
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

impl DifferenceRow {
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
    let mut table = Table::new(columns(head_of_table(options.by)));
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
    let names = file_names(device.rows.iter().map(|row| &row.key));
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
        kind: kind_of(&row.key),
        presence: Some(presence),
        before: bytes(row.before),
        after: bytes(row.after),
        blocks: [blocks(row.before), blocks(row.after)],
        name: name(row, names),
        key: Some(row.key.clone()),
        inferred_from: row.inferred_from.clone(),
        ..DifferenceRow::default()
    }
}

fn name(row: &ComparedRow, names: &FileNames) -> String {
    let name = name_of(&row.key, names);
    match (site_of(Some(&row.key)), site_of(row.inferred_from.as_ref())) {
        (Some(site), Some(before)) => format!("{name}{}", was(site, before)),
        _ => name,
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

//! Difference of two tensor tables.

use super::columns::{GroupRow, GroupText, change_columns, signed as signed_bytes};
use super::text::{file_names, group_text, what};
use super::{TensorOptions, heading};
use crate::event::Bytes;
use crate::event::bytes::{human, signed};
use crate::event::tensors::TensorDevice;
use crate::report::RowLimit;
use crate::report::preamble::target_lines;
use crate::tensors::{Account, DeviceDiff, DeviceTable, SnapshotRows, TensorDiff, groups_of};
use crate::view::table::{Cell, Output, Page, Table};
use crate::view::{
    FileNames, TensorGroup, counted, duration, tensor_kind, tensor_label, tensor_name,
};

const CAME: &str = "+";
const WENT: &str = "-";
const SAME: &str = "~";

/// The changes of all devices, for CSV.
pub(super) fn table<'a>(diff: &'a TensorDiff, options: &TensorOptions) -> Table<GroupRow<'a>> {
    let mut table = Table::new(change_columns());
    for change in &diff.devices {
        let both = Both::new(diff, change);
        for (sign, rows, which) in both.parts(change) {
            let groups = groups_of(rows, which.iter().copied(), options.by, options.order);
            let rows = groups
                .iter()
                .map(|group| GroupRow::new(rows, group).signed(sign));
            table.extend(Output::Data, rows);
        }
        let resized = change.resized.iter().map(|&(was, is)| GroupRow {
            sign: SAME,
            rows: both.after,
            group: vec![is],
            size: both.after.at(is).size,
            allocated: signed_bytes(both.after.at(is).holds)
                - signed_bytes(both.before.at(was).holds),
            ..GroupRow::default()
        });
        table.extend(Output::Data, resized);
        let before = diff.before_on(change.device).and_then(GroupRow::remainder);
        table.extend(Output::Data, before.map(|row| row.signed(WENT)));
        let after = diff.after_on(change.device).and_then(GroupRow::remainder);
        table.extend(Output::Data, after.map(|row| row.signed(CAME)));
    }
    table
}

impl GroupRow<'_> {
    fn signed(mut self, sign: &'static str) -> Self {
        if sign == WENT {
            self.allocated = self.allocated.saturating_neg();
        }
        Self { sign, ..self }
    }
}

pub(super) fn push(page: &mut Page, diff: &TensorDiff, options: &TensorOptions) {
    heading::push_target(page, &diff.after.target);
    if !diff.same_process {
        let other = target_lines(&diff.before.target, env!("CARGO_PKG_VERSION")).join("  ");
        page.warning(&format!(
            "note: the first snapshot is of another process ({other}): tensors are compared by name, kind, shape and \
             dtype only"
        ));
    }
    page.note(&moments(diff));
    for note in heading::notes(&diff.after) {
        page.warning(&note);
    }
    for change in &diff.devices {
        if change.device != TensorDevice::Meta {
            push_device(page, diff, change, options);
        }
    }
    if diff.devices.is_empty() {
        page.blank();
        page.line("No tensors on a GPU in either.");
    }
}

fn moments(diff: &TensorDiff) -> String {
    let (before, after) = (diff.before.taken_ms, diff.after.taken_ms);
    let length = std::time::Duration::from_millis(before.abs_diff(after));
    let order = if after < before { "earlier" } else { "later" };
    format!(
        "from {} to {} ({} {order})",
        heading::moment(before),
        heading::moment(after),
        duration(length)
    )
}

fn push_device(page: &mut Page, diff: &TensorDiff, change: &DeviceDiff, options: &TensorOptions) {
    let (before, after) = (diff.before_on(change.device), diff.after_on(change.device));
    page.blank();
    page.fitted_strong(&title(change.device, before, after));
    let mut rows = Both::new(diff, change).rows(change, options);
    rows.extend(remainder(before, after));
    if rows.is_empty() {
        page.line("no change");
    } else {
        let mut table = Table::new(change_columns());
        table.extend(Output::Text, rows);
        page.table(&table);
    }
    let moved = change.moved;
    if moved.tensors > 0 {
        page.note(&format!(
            "at another address, because freed and allocated again or moved: {} of {}",
            counted(moved.tensors, "equal tensor"),
            human(moved.holds)
        ));
    }
}

/// Such as `cuda:0  allocated 4.12 GiB, was 4.00 GiB: +0.12 GiB`.
fn title(
    device: TensorDevice,
    before: Option<&DeviceTable>,
    after: Option<&DeviceTable>,
) -> String {
    let allocated = |table: Option<&DeviceTable>| {
        let account: &Account = &table?.account;
        account.totals.map(|totals| totals.allocated)
    };
    let held = |table: Option<&DeviceTable>| table.map_or(Bytes(0), |table| table.account.held());
    let (words, was, is) = match (allocated(before), allocated(after)) {
        (None, None) => ("in tensors", held(before), held(after)),
        (was, is) => ("allocated", was.unwrap_or_default(), is.unwrap_or_default()),
    };
    format!(
        "{device}  {words} {}, was {}: {}",
        human(is),
        human(was),
        signed(difference(is, was))
    )
}

fn difference(is: Bytes, was: Bytes) -> i64 {
    let difference = i128::from(is.0) - i128::from(was.0);
    let difference = difference.clamp(i64::MIN.into(), i64::MAX.into());
    i64::try_from(difference).unwrap_or(0)
}

/// Row for a changed remainder, so that the rows add up to the total's change.
fn remainder(
    before: Option<&DeviceTable>,
    after: Option<&DeviceTable>,
) -> Option<GroupRow<'static>> {
    let rest = |table: Option<&DeviceTable>| table.and_then(|table| table.account.remainder);
    let (was, is) = (rest(before).unwrap_or(0), rest(after).unwrap_or(0));
    let reason = |table: Option<&DeviceTable>| table.and_then(|table| table.account.reason);
    let reason = reason(after).or(reason(before));
    let change = is.saturating_sub(was);
    (change != 0).then(|| {
        let reason = reason.map_or("not explained", |reason| reason.as_str());
        row(
            SAME,
            change,
            Default::default(),
            format!("(remainder: {reason})"),
        )
    })
}

struct Both<'a> {
    before: SnapshotRows<'a>,
    after: SnapshotRows<'a>,
}

impl<'a> Both<'a> {
    fn new(diff: &'a TensorDiff, change: &DeviceDiff) -> Self {
        let rows =
            |table: Option<&'a DeviceTable>| table.map(DeviceTable::rows).unwrap_or_default();
        Self {
            before: rows(diff.before_on(change.device)),
            after: rows(diff.after_on(change.device)),
        }
    }

    /// Rows that came, and rows that went.
    fn parts<'c>(
        &self,
        change: &'c DeviceDiff,
    ) -> [(&'static str, SnapshotRows<'a>, &'c [usize]); 2] {
        [
            (CAME, self.after, &change.came),
            (WENT, self.before, &change.went),
        ]
    }

    fn what(&self, at: usize) -> [String; 4] {
        what(TensorGroup {
            rows: self.after,
            group: &[at],
            names: &FileNames::default(),
        })
    }

    fn rows(&self, change: &DeviceDiff, options: &TensorOptions) -> Vec<GroupRow<'a>> {
        let mut cells = Vec::new();
        for (sign, rows, which) in self.parts(change) {
            let names = file_names(rows);
            for group in groups_of(rows, which.iter().copied(), options.by, options.order) {
                let bytes = signed_bytes(group.holds).saturating_add(signed_bytes(group.outside));
                let mut text = group_text(rows, &group.rows, options.by, &names);
                text.bytes = Cell::Signed(if sign == WENT { -bytes } else { bytes });
                if group.rows.len() == 1 {
                    text.what[1] = format!("1 * {}", text.what[1]);
                }
                if rows.at(group.rows[0]).site().is_none() {
                    text.site = None;
                }
                cells.push(GroupRow {
                    sign,
                    ..text.into()
                });
            }
        }
        for &(was, is) in &change.resized {
            let (old, new) = (self.before.at(was), self.after.at(is));
            let words = match (old.holds.0, new.holds.0) {
                (0, _) => "now has the bytes of its storage",
                (_, 0) if new.owner.is_some() => "another row now has the bytes of its storage",
                (_, 0) => "its storage is now outside every live block",
                _ => "its storage now has another size",
            };
            let name = format!("{} ({words})", tensor_label(self.after, is));
            let change = difference(new.holds, old.holds);
            cells.push(row(SAME, change, self.what(is), name));
        }
        for &(was, is) in &change.renamed {
            let (old, new) = (self.before.at(was), self.after.at(is));
            let mut before = tensor_name(old);
            if old.kind != new.kind {
                before = format!("{} {before}", tensor_kind(old.kind));
            }
            let name = format!("{} (was {before})", tensor_label(self.after, is));
            cells.push(row(SAME, 0, self.what(is), name));
        }
        if let RowLimit::Rows(most) = options.top
            && cells.len() > most
        {
            let hidden = cells.len() - most;
            cells.truncate(most);
            let words = format!("({}: --limit all)", counted(hidden as u64, "other change"));
            let mut rest = row("", 0, Default::default(), words);
            rest.text.bytes = Cell::Blank;
            cells.push(rest);
        }
        cells
    }
}

fn row<'a>(sign: &'static str, change: i64, what: [String; 4], name: String) -> GroupRow<'a> {
    let text = GroupText {
        bytes: Cell::Signed(change),
        what,
        name,
        ..GroupText::default()
    };
    GroupRow {
        sign,
        ..text.into()
    }
}

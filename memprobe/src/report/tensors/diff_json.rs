//! Difference of two tensor tables, as JSON.

use super::TensorOptions;
use crate::report::cells::frame;
use crate::tensors::{
    DeviceDiff, DeviceTable, Group, SnapshotRows, TensorDiff, TensorTable, groups_of,
};
use crate::view::table::Cell;

pub(super) fn document<'a>(diff: &'a TensorDiff, options: &TensorOptions) -> Cell<'a> {
    let devices = diff.devices.iter();
    let devices = devices.map(|change| device(diff, change, options));
    Cell::Object(vec![
        ("same_process", diff.same_process.into()),
        ("before", moment(&diff.before)),
        ("after", moment(&diff.after)),
        ("devices", Cell::list(devices)),
    ])
}

fn moment(table: &TensorTable) -> Cell<'_> {
    let unread = table.unread.iter().map(|words| &**words);
    Cell::Object(vec![
        ("pid", table.target.tgid.map(|tgid| tgid.0).into()),
        ("command", (&*table.target.command).into()),
        ("taken_ms", table.taken_ms.into()),
        ("unread", Cell::list(unread)),
    ])
}

fn device<'a>(diff: &'a TensorDiff, change: &DeviceDiff, options: &TensorOptions) -> Cell<'a> {
    let (before, after) = (diff.before_on(change.device), diff.after_on(change.device));
    let allocated = |table: Option<&DeviceTable>| {
        let totals = table.and_then(|table| table.account.totals);
        totals.map(|totals| totals.allocated).into()
    };
    let remainder = |table: Option<&DeviceTable>| table.and_then(|it| it.account.remainder).into();
    let (old, new) = (rows(before), rows(after));
    let groups = |rows: SnapshotRows<'a>, which: &[usize]| {
        let groups = groups_of(rows, which.iter().copied(), options.by, options.order);
        Cell::list(groups.iter().map(|group| item(rows, group)))
    };
    let changed = |pairs: &[(usize, usize)]| {
        Cell::list(pairs.iter().map(|&(was, is)| {
            Cell::Object(vec![
                ("before", single(old, was)),
                ("after", single(new, is)),
            ])
        }))
    };
    Cell::Object(vec![
        ("device", change.device.to_string().into()),
        // Null if the allocator was not read.
        ("allocated_before", allocated(before)),
        ("allocated_after", allocated(after)),
        ("remainder_before", remainder(before)),
        ("remainder_after", remainder(after)),
        ("added", groups(new, &change.came)),
        ("removed", groups(old, &change.went)),
        // Tensors with another number of allocator bytes.
        ("resized", changed(&change.resized)),
        // Tensors with another best name or kind.
        ("renamed", changed(&change.renamed)),
        ("moved_tensors", change.moved.tensors.into()),
        ("moved_bytes", change.moved.holds.into()),
    ])
}

fn rows(table: Option<&DeviceTable>) -> SnapshotRows<'_> {
    table.map(DeviceTable::rows).unwrap_or_default()
}

/// A group of rows; its properties are those of the first.
fn item<'a>(rows: SnapshotRows<'a>, group: &Group) -> Cell<'a> {
    let row = rows.at(group.rows[0]);
    let shape = row.shape().map(|sizes| Cell::Shape(sizes.into()));
    let storage = row.storage.map(|address| address.to_string());
    Cell::Object(vec![
        ("count", Cell::Count(group.rows.len() as u64)),
        ("name", row.name().map(|name| &*name.text).into()),
        ("kind", row.kind.as_str().into()),
        ("shape", shape.into()),
        ("dtype", row.dtype().map(|dtype| dtype.to_string()).into()),
        ("bytes", group.size.into()),
        ("allocated", group.holds.into()),
        // Bytes outside the allocator.
        ("outside", group.outside.into()),
        ("storage", storage.into()),
        ("requires_grad", row.requires_grad().into()),
        ("grad_fn", row.grad_fn().map(|name| &**name).into()),
        ("saved_by", row.saved_by().map(|name| &**name).into()),
        ("module", row.module().map(|path| &**path).into()),
        ("site", row.site().map_or(Cell::Unknown, frame)),
    ])
}

fn single(rows: SnapshotRows<'_>, at: usize) -> Cell<'_> {
    let row = rows.at(at);
    let group = Group {
        rows: vec![at],
        holds: row.holds,
        outside: row.outside.unwrap_or_default(),
        size: row.size,
    };
    item(rows, &group)
}

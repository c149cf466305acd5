//! Difference of two tensor tables, as JSON.

use std::io::{self, Write};

use serde::Serialize;

use super::super::document_old::json;
use super::super::structured::FrameRow;
use super::TensorOptions;
use crate::event::Bytes;
use crate::tensors::{DeviceDiff, DeviceTable, Row, TensorDiff, TensorTable, groups_of};

#[derive(Serialize)]
struct Document<'a> {
    same_process: bool,
    before: Moment<'a>,
    after: Moment<'a>,
    devices: Vec<Device<'a>>,
}

#[derive(Serialize)]
struct Moment<'a> {
    pid: Option<u32>,
    command: &'a str,
    taken_ms: u64,
    unread: Vec<&'a str>,
}

impl<'a> Moment<'a> {
    fn of(table: &'a TensorTable) -> Self {
        Self {
            pid: table.target.tgid.map(|tgid| tgid.0),
            command: &table.target.command,
            taken_ms: table.taken_ms,
            unread: table.unread.iter().map(|words| &**words).collect(),
        }
    }
}

#[derive(Serialize)]
struct Device<'a> {
    device: String,
    /// `null` if the allocator was not read.
    allocated_before: Option<u64>,
    allocated_after: Option<u64>,
    remainder_before: Option<i64>,
    remainder_after: Option<i64>,
    added: Vec<Item<'a>>,
    removed: Vec<Item<'a>>,
    /// Tensors with another number of allocator bytes.
    resized: Vec<Changed<'a>>,
    /// Tensors with another best name or kind.
    renamed: Vec<Changed<'a>>,
    moved_tensors: u64,
    moved_bytes: u64,
}

#[derive(Serialize)]
struct Changed<'a> {
    before: Item<'a>,
    after: Item<'a>,
}

/// A group of rows; its properties are those of the first.
#[derive(Serialize)]
struct Item<'a> {
    count: u64,
    name: Option<&'a str>,
    kind: &'static str,
    shape: Option<&'a [u64]>,
    dtype: Option<String>,
    bytes: Option<u64>,
    allocated: u64,
    /// Bytes outside the allocator.
    outside: u64,
    storage: Option<String>,
    requires_grad: bool,
    grad_fn: Option<&'a str>,
    saved_by: Option<&'a str>,
    module: Option<&'a str>,
    site: Option<FrameRow<'a>>,
}

pub(super) fn write(
    diff: &TensorDiff,
    options: &TensorOptions,
    out: &mut impl Write,
) -> io::Result<()> {
    let devices = diff.devices.iter();
    let document = Document {
        same_process: diff.same_process,
        before: Moment::of(&diff.before),
        after: Moment::of(&diff.after),
        devices: devices
            .map(|change| device(diff, change, options))
            .collect(),
    };
    json(&document, out)?;
    out.flush()
}

fn device<'a>(diff: &'a TensorDiff, change: &DeviceDiff, options: &TensorOptions) -> Device<'a> {
    let (before, after) = (diff.before_on(change.device), diff.after_on(change.device));
    let allocated = |table: Option<&DeviceTable>| Some(table?.account.totals?.allocated.0);
    let (old, new) = (rows(before), rows(after));
    let groups = |rows: &'a [Row], which: &[usize]| -> Vec<Item<'a>> {
        let groups = groups_of(rows, which.iter().copied(), options.by, options.order);
        let groups = groups.into_iter().map(|group| Item {
            count: group.rows.len() as u64,
            bytes: group.size.map(|bytes| bytes.0),
            allocated: group.holds.0,
            outside: group.outside.0,
            ..Item::of(&rows[group.rows[0]])
        });
        groups.collect()
    };
    let changed = |pairs: &[(usize, usize)]| -> Vec<Changed<'a>> {
        let pairs = pairs.iter().map(|&(was, is)| Changed {
            before: Item::of(&old[was]),
            after: Item::of(&new[is]),
        });
        pairs.collect()
    };
    Device {
        device: change.device.to_string(),
        allocated_before: allocated(before),
        allocated_after: allocated(after),
        remainder_before: before.and_then(|table| table.account.remainder),
        remainder_after: after.and_then(|table| table.account.remainder),
        added: groups(new, &change.came),
        removed: groups(old, &change.went),
        resized: changed(&change.resized),
        renamed: changed(&change.renamed),
        moved_tensors: change.moved.tensors,
        moved_bytes: change.moved.holds.0,
    }
}

fn rows(table: Option<&DeviceTable>) -> &[Row] {
    table.map_or(&[], |table| &table.rows)
}

impl<'a> Item<'a> {
    fn of(row: &'a Row) -> Self {
        let bytes = |bytes: Bytes| bytes.0;
        Self {
            count: 1,
            name: row.name().map(|name| &*name.text),
            kind: row.kind.as_str(),
            shape: row.shape.as_deref(),
            dtype: row.dtype.map(|dtype| dtype.to_string()),
            bytes: row.size.map(bytes),
            allocated: row.holds.0,
            outside: row.outside.map_or(0, bytes),
            storage: row.storage.map(|address| address.to_string()),
            requires_grad: row.requires_grad,
            grad_fn: row.grad_fn.as_deref(),
            saved_by: row.saved_by.as_deref(),
            module: row.module.as_deref(),
            site: row.site.as_ref().map(FrameRow::from),
        }
    }
}

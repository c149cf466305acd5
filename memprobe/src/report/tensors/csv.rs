//! Tables of tensors as comma-separated values. `allocated` of all rows of a device adds up to the
//! allocator's total. Numbers are bytes; unknown is empty.

use std::io::{self, Write};

use serde::Serialize;

use super::super::document_old::csv;
use super::super::structured::signed;
use super::TensorOptions;
use super::text::common_site;
use crate::tensors::{
    DeviceDiff, DeviceTable, Group, Row, TensorDiff, TensorTable, groups, groups_of,
};
use crate::view::{shape, tensors_label};

#[derive(Serialize, Default)]
struct Line {
    /// `+`, `-` or `~`; in differences only.
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<&'static str>,
    device: String,
    kind: String,
    count: u64,
    name: String,
    names: String,
    shape: String,
    dtype: String,
    bytes: Option<u64>,
    allocated: i64,
    outside: Option<u64>,
    storage: String,
    storage_bytes: Option<u64>,
    requires_grad: Option<bool>,
    grad_fn: String,
    saved_by: String,
    module: String,
    file: String,
    line: Option<u32>,
    function: String,
}

/// Columns, except `change`.
const HEADINGS: [&str; 19] = [
    "device",
    "kind",
    "count",
    "name",
    "names",
    "shape",
    "dtype",
    "bytes",
    "allocated",
    "outside",
    "storage",
    "storage_bytes",
    "requires_grad",
    "grad_fn",
    "saved_by",
    "module",
    "file",
    "line",
    "function",
];

/// Writes a table.
pub(super) fn write(
    table: &TensorTable,
    options: &TensorOptions,
    out: &mut impl Write,
) -> io::Result<()> {
    let lines = table.devices.iter().flat_map(|device| {
        let groups = groups(&device.rows, options.by, options.order).into_iter();
        let lines = groups.map(|group| of_group(&device.rows, &group));
        lines.chain(remainder(device))
    });
    csv(&HEADINGS, lines, out)
}

/// Writes a difference. Its rows add up to the change of the allocator's total.
pub(super) fn write_diff(
    diff: &TensorDiff,
    options: &TensorOptions,
    out: &mut impl Write,
) -> io::Result<()> {
    let headings: Vec<&str> = ["change"].into_iter().chain(HEADINGS).collect();
    let lines = diff.devices.iter();
    let lines = lines.flat_map(|change| changes(diff, change, options));
    csv(&headings, lines, out)
}

fn changes(diff: &TensorDiff, change: &DeviceDiff, options: &TensorOptions) -> Vec<Line> {
    let (before, after) = (diff.before_on(change.device), diff.after_on(change.device));
    let old = before.map_or(&[][..], |table| &table.rows);
    let new = after.map_or(&[][..], |table| &table.rows);
    let mut lines = Vec::new();
    for (sign, rows, which) in [(came as Sign, new, &change.came), (went, old, &change.went)] {
        let groups = groups_of(rows, which.iter().copied(), options.by, options.order);
        lines.extend(groups.iter().map(|group| sign(of_group(rows, group))));
    }
    lines.extend(change.resized.iter().map(|&(was, is)| Line {
        change: Some("~"),
        bytes: new[is].size.map(|bytes| bytes.0),
        allocated: signed(new[is].holds.0) - signed(old[was].holds.0),
        ..of(new, &[is])
    }));
    lines.extend(before.and_then(remainder).map(went));
    lines.extend(after.and_then(remainder).map(came));
    lines
}

/// Marks a row with its kind of change.
type Sign = fn(Line) -> Line;

fn came(line: Line) -> Line {
    let change = Some("+");
    Line { change, ..line }
}

fn went(line: Line) -> Line {
    Line {
        change: Some("-"),
        allocated: line.allocated.saturating_neg(),
        ..line
    }
}

fn of_group(rows: &[Row], group: &Group) -> Line {
    Line {
        bytes: group.size.map(|bytes| bytes.0),
        allocated: signed(group.holds.0),
        outside: (group.outside.0 > 0).then_some(group.outside.0),
        ..of(rows, &group.rows)
    }
}

/// Row for bytes of the allocator that no other row explains.
fn remainder(device: &DeviceTable) -> Option<Line> {
    let allocated = device.account.remainder.filter(|rest| *rest != 0)?;
    Some(Line {
        device: device.device.to_string(),
        kind: "remainder".to_owned(),
        name: device
            .account
            .reason
            .map_or("", |reason| reason.as_str())
            .to_owned(),
        allocated,
        ..Line::default()
    })
}

/// Common properties of a group's rows; the name is the first row's.
fn of(rows: &[Row], group: &[usize]) -> Line {
    let first = &rows[group[0]];
    let common = |text: fn(&Row) -> String| {
        let shared = text(first);
        let same = group.iter().all(|&at| text(&rows[at]) == shared);
        if same { shared } else { String::new() }
    };
    let alone = group.len() == 1;
    let names: Vec<&str> = first.names.iter().map(|name| &*name.text).collect();
    let site = common_site(rows, group).and_then(|row| row.site.as_ref());
    Line {
        device: first.device.to_string(),
        kind: common(|row| row.kind.as_str().to_owned()),
        count: group.len() as u64,
        name: tensors_label(rows, group),
        names: if alone {
            names.join("; ")
        } else {
            String::new()
        },
        shape: common(|row| row.shape.as_deref().map(shape).unwrap_or_default()),
        dtype: common(|row| row.dtype.map(|dtype| dtype.to_string()).unwrap_or_default()),
        storage: match first.storage {
            Some(storage) if alone => storage.to_string(),
            _ => String::new(),
        },
        storage_bytes: first.storage_bytes.filter(|_| alone).map(|bytes| bytes.0),
        requires_grad: first.shape.as_ref().map(|_| first.requires_grad),
        grad_fn: common(|row| row.grad_fn.as_deref().unwrap_or_default().to_owned()),
        saved_by: common(|row| row.saved_by.as_deref().unwrap_or_default().to_owned()),
        module: common(|row| row.module.as_deref().unwrap_or_default().to_owned()),
        file: site.map(|site| site.file.to_string()).unwrap_or_default(),
        line: site.map(|site| site.line).filter(|line| *line != 0),
        function: site
            .map(|site| site.function.to_string())
            .unwrap_or_default(),
        ..Line::default()
    }
}

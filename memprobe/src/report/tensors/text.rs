//! Table of a process's tensors.

use std::collections::HashSet;
use std::io::{self, Write};

use super::columns::{GroupRow, GroupText, columns};
use super::{TensorNames, TensorOptions, account, heading};
use crate::event::bytes::human;
use crate::event::tensors::TensorDevice;
use crate::tensors::{
    DeviceTable, Group, GroupBy, Row, RowKind, SnapshotRows, TensorTable, groups, groups_of,
};
use crate::view::table::{Cell, CsvWriter, Output, Page, Table};
use crate::view::{FileNames, TensorGroup, counted, full_retainer, whole_tensor_name, wrap};

const FOR_WHAT: &str = "The purpose of blocks without a tensor is known only for allocations that memprobe watched: \
                        `snapshot --watch 5s --detail full`, or `t` in `attach --detail full`.";

/// Writes the rows of all devices as CSV. Each is made when it is written: there may be a million.
pub(super) fn write_csv(
    table: &TensorTable,
    options: &TensorOptions,
    out: &mut impl Write,
) -> io::Result<()> {
    let columns = columns("NAME");
    let mut csv = CsvWriter::new(&columns, out)?;
    for device in &table.devices {
        for group in groups(device.rows(), options.by, options.order) {
            csv.row(&GroupRow::new(device.rows(), &group))?;
        }
        if let Some(row) = GroupRow::remainder(device) {
            csv.row(&row)?;
        }
    }
    csv.flush()
}

pub(super) fn push(page: &mut Page, table: &TensorTable, options: &TensorOptions) {
    heading::push_target(page, &table.target);
    page.note(&heading::taken(table));
    for note in heading::notes(table) {
        page.warning(&note);
    }
    let mut shown = false;
    for device in &table.devices {
        if device.device == TensorDevice::Meta {
            page.blank();
            let tensors = counted(device.account.tensor_count, "tensor");
            page.line(&format!("meta   {tensors} without memory"));
        } else {
            shown = true;
            push_device(page, device, table.limit, options);
        }
    }
    if !shown {
        page.blank();
        page.line("No tensors on a GPU. To see tensors of the host, give --cpu.");
    }
}

fn push_device(page: &mut Page, table: &DeviceTable, limit: Option<u64>, options: &TensorOptions) {
    page.blank();
    page.fitted_strong(&account::title(table));
    let names = file_names(table.rows());
    let is_outside = |at: &usize| table.rows().at(*at).outside.is_some();
    let (outside, ours): (Vec<usize>, Vec<usize>) = (0..table.rows().len()).partition(is_outside);
    let first = page.table(&group_table(table, ours, &names, options)).first;
    for (bytes, words) in account::sum(&table.account, limit) {
        let mut bytes = &*bytes;
        for line in wrap(&words, options.width.saturating_sub(first + 4)) {
            page.line(&format!("{bytes:>first$}  {line}"));
            bytes = "";
        }
    }
    let is_unknown =
        |row: Row<'_>| row.kind == RowKind::Block && row.purpose.is_none() && row.site().is_none();
    if table.rows().iter().any(is_unknown) {
        page.note(FOR_WHAT);
    }
    if !outside.is_empty() {
        page.blank();
        page.fitted_strong(&format!(
            "{}  {} outside the allocator: memory of another library or process",
            table.device,
            human(table.account.outside)
        ));
        page.table(&group_table(table, outside, &names, options));
    }
}

fn group_table<'a>(
    device: &'a DeviceTable,
    rows: Vec<usize>,
    names: &FileNames,
    options: &TensorOptions,
) -> Table<GroupRow<'a>> {
    let mut groups = groups_of(device.rows(), rows, options.by, options.order);
    let hidden = groups.split_off(options.top.of(groups.len()));
    let mut table = Table::new(columns(match options.by {
        GroupBy::Module => "MODULE",
        GroupBy::Site => "ALLOCATED AT",
        GroupBy::Retainer => "RETAINED BY",
        _ => "NAME",
    }));
    for group in &groups {
        let mut text = group_text(device.rows(), &group.rows, options.by, names);
        text.bytes = Cell::Bytes(group.holds.0.saturating_add(group.outside.0));
        text.size = group.size.into();
        table.push(Output::Text, text.into());
        if options.names == TensorNames::All && group.rows.len() == 1 {
            let row = device.rows().at(group.rows[0]);
            let others = row.names().iter().skip(1);
            let others = others.map(|name| format!("also {}", whole_tensor_name(name)));
            let retainer = row.retainer().into_iter();
            let retainer =
                retainer.map(|retainer| format!("retained by {}", full_retainer(retainer)));
            let remarks = others.chain(retainer);
            let remarks = remarks.map(|name| GroupRow::sum(Cell::Blank, name));
            table.extend(Output::Remark, remarks);
        }
    }
    let is_minor = |group: &Group| group.is_minor(device.rows(), options.by);
    let (minor, others): (Vec<Group>, Vec<Group>) = hidden.into_iter().partition(is_minor);
    let minor = hidden_row(&minor, "other tensor", ", whose bytes other rows have");
    table.extend(
        Output::Text,
        hidden_row(&others, "other row", "")
            .into_iter()
            .chain(minor),
    );
    table
}

/// Row for hidden groups, with a description; `None` if there are none.
fn hidden_row<'a>(hidden: &[Group], what: &str, words: &str) -> Option<GroupRow<'a>> {
    let count = hidden.iter().map(|group| group.rows.len() as u64).sum();
    let bytes = hidden
        .iter()
        .map(|group| group.holds.0.saturating_add(group.outside.0));
    let bytes = Cell::Bytes(bytes.fold(0, u64::saturating_add));
    let name = format!("({}{words}: --limit all)", counted(count, what));
    (!hidden.is_empty()).then(|| GroupRow::sum(bytes, name))
}

impl From<GroupText> for GroupRow<'_> {
    fn from(text: GroupText) -> Self {
        Self {
            text,
            ..Self::default()
        }
    }
}

impl GroupRow<'_> {
    fn sum(bytes: Cell<'static>, name: String) -> Self {
        let text = GroupText {
            bytes,
            size: Cell::Blank,
            name,
            ..GroupText::default()
        };
        text.into()
    }
}

pub(super) fn file_names(rows: SnapshotRows<'_>) -> FileNames {
    let sites = rows.iter().filter_map(|row| row.site());
    FileNames::of(
        sites
            .map(|site| &site.file)
            .collect::<HashSet<_>>()
            .into_iter(),
    )
}

/// Cells of a group, without its bytes.
pub(super) fn group_text(
    rows: SnapshotRows<'_>,
    group: &[usize],
    by: GroupBy,
    names: &FileNames,
) -> GroupText {
    let texts = TensorGroup { rows, group, names };
    let site = texts.site().filter(|_| !by.is_apart_from_lines());
    GroupText {
        what: what(texts),
        name: texts.name(by),
        site: site.filter(|site| !site.is_empty()),
        ..GroupText::default()
    }
}

/// Kind, shape, element type and `requires_grad`.
pub(super) fn what(group: TensorGroup<'_>) -> [String; 4] {
    [
        group.kind().to_owned(),
        group.shape(),
        group.dtype(),
        group.grad().to_owned(),
    ]
}

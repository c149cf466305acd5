//! Table of a process's tensors.

use std::collections::HashSet;

use super::columns::{GroupRow, GroupText, columns};
use super::{TensorNames, TensorOptions, account, heading};
use crate::event::bytes::human;
use crate::event::tensors::Device;
use crate::tensors::{DeviceTable, Group, GroupBy, Row, RowKind, TensorTable, groups, groups_of};
use crate::view::table::{Cell, Output, Page, Table};
use crate::view::{
    BEFORE_ATTACH, FileNames, clean, counted, full_retainer, retainer, shape, tensor_kind,
    tensor_label, tensors_label, whole_tensor_name, wrap,
};

/// Note if purposes of blocks are unknown.
const FOR_WHAT: &str = "The purpose of blocks without a tensor is known only for allocations that memprobe watched: \
                        `snapshot --watch 5s --detail full`, or `t` in `attach --detail full`.";

/// The rows of all devices, for CSV.
pub(super) fn table<'a>(table: &'a TensorTable, options: &TensorOptions) -> Table<GroupRow<'a>> {
    let mut all = Table::new(columns("NAME"));
    for device in &table.devices {
        let groups = groups(&device.rows, options.by, options.order).into_iter();
        all.extend(
            Output::Data,
            groups.map(|group| GroupRow::new(&device.rows, &group)),
        );
        all.extend(Output::Data, GroupRow::remainder(device));
    }
    all
}

/// Adds the whole report.
pub(super) fn push(page: &mut Page, table: &TensorTable, options: &TensorOptions) {
    heading::push_target(page, &table.target);
    page.note(&heading::taken(table));
    for note in heading::notes(table) {
        page.warning(&note);
    }
    let mut shown = false;
    for device in &table.devices {
        if device.device == Device::Meta {
            page.blank();
            let tensors = counted(device.account.tensor_count, "tensor");
            page.line(&format!("meta   {tensors} without memory"));
        } else {
            shown = true;
            push_device(page, device, options);
        }
    }
    if !shown {
        page.blank();
        page.line("No tensors on a GPU. To see tensors of the host, give --cpu.");
    }
}

fn push_device(page: &mut Page, table: &DeviceTable, options: &TensorOptions) {
    page.blank();
    page.fitted_strong(&account::title(table));
    let names = file_names(&table.rows);
    let is_outside = |at: &usize| table.rows[*at].outside.is_some();
    let (outside, ours): (Vec<usize>, Vec<usize>) = (0..table.rows.len()).partition(is_outside);
    let first = page.table(&group_table(table, ours, &names, options)).first;
    for (bytes, words) in account::sum(&table.account) {
        let mut bytes = &*bytes;
        for line in wrap(&words, options.width.saturating_sub(first + 4)) {
            page.line(&format!("{bytes:>first$}  {line}"));
            bytes = "";
        }
    }
    let is_unknown =
        |row: &Row| row.kind == RowKind::Block && row.purpose.is_none() && row.site.is_none();
    if table.rows.iter().any(is_unknown) {
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

/// Table of the groups of `rows`.
fn group_table<'a>(
    device: &'a DeviceTable,
    rows: Vec<usize>,
    names: &FileNames,
    options: &TensorOptions,
) -> Table<GroupRow<'a>> {
    let mut groups = groups_of(&device.rows, rows, options.by, options.order);
    let hidden = groups.split_off(options.top.of(groups.len()));
    let mut table = Table::new(columns(match options.by {
        GroupBy::Module => "MODULE",
        GroupBy::Site => "ALLOCATED AT",
        GroupBy::Retainer => "RETAINED BY",
        _ => "NAME",
    }));
    for group in &groups {
        let mut text = group_text(&device.rows, &group.rows, options.by, names);
        text.bytes = Cell::Bytes(group.holds.0.saturating_add(group.outside.0));
        text.size = group.size.into();
        table.push(Output::Text, text.into());
        if options.names == TensorNames::All && group.rows.len() == 1 {
            let row = &device.rows[group.rows[0]];
            let others = row.names.iter().skip(1);
            let others = others.map(|name| format!("also {}", whole_tensor_name(name)));
            let retainer = row.retainer.iter();
            let retainer =
                retainer.map(|retainer| format!("retained by {}", full_retainer(retainer)));
            let remarks = others.chain(retainer).map(GroupRow::remark);
            table.extend(Output::Remark, remarks);
        }
    }
    let is_minor = |group: &Group| group.is_minor(&device.rows, options.by);
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
    let text = GroupText {
        bytes: Cell::Bytes(bytes.fold(0, u64::saturating_add)),
        size: Cell::Blank,
        name: format!("({}{words}: --limit all)", counted(count, what)),
        ..GroupText::default()
    };
    (!hidden.is_empty()).then(|| text.into())
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
    /// A line below a row.
    fn remark(name: String) -> Self {
        let text = GroupText {
            bytes: Cell::Blank,
            size: Cell::Blank,
            name,
            ..GroupText::default()
        };
        text.into()
    }
}

/// Short names for the files of all lines.
pub(super) fn file_names(rows: &[Row]) -> FileNames {
    let sites = rows.iter().filter_map(|row| row.site.as_ref());
    FileNames::of(
        sites
            .map(|site| &site.file)
            .collect::<HashSet<_>>()
            .into_iter(),
    )
}

/// Cells of a group, without its bytes.
pub(super) fn group_text(
    rows: &[Row],
    group: &[usize],
    by: GroupBy,
    names: &FileNames,
) -> GroupText {
    let site_of = common_site(rows, group).filter(|_| !by.is_apart_from_lines());
    let site = site_of.map(|row| site(row, names));
    GroupText {
        what: what(rows, group),
        name: group_name(rows, group, by, names),
        site: site.filter(|site| !site.is_empty()),
        ..GroupText::default()
    }
}

fn unknown() -> String {
    "-".to_owned()
}

/// Kind, shape, element type and `requires_grad`; `-` if rows differ.
pub(super) fn what(rows: &[Row], group: &[usize]) -> [String; 4] {
    let first = &rows[group[0]];
    let all = |same: fn(&Row, &Row) -> bool| group.iter().all(|&at| same(&rows[at], first));
    let kind = if all(|one, other| one.kind == other.kind) {
        tensor_kind(first.kind).to_owned()
    } else {
        unknown()
    };
    let count = match group.len() {
        1 => String::new(),
        more => format!("{more} * "),
    };
    let same_shape = all(|one, other| one.shape == other.shape && one.size == other.size);
    let shape = match &first.shape {
        Some(sizes) if same_shape => format!("{count}{}", shape(sizes)),
        None if same_shape => {
            let bytes = first.size.map_or_else(unknown, human);
            format!("{count}{bytes}")
        }
        _ => counted(group.len() as u64, "row"),
    };
    let dtype = match first.dtype {
        Some(dtype) if all(|one, other| one.dtype == other.dtype) => dtype.to_string(),
        _ => unknown(),
    };
    let grad = if !matches!(first.kind, RowKind::Tensor(_)) {
        unknown()
    } else if !all(|one, other| one.requires_grad == other.requires_grad) {
        "some".to_owned()
    } else if first.requires_grad {
        "yes".to_owned()
    } else {
        "no".to_owned()
    };
    [kind, shape, dtype, grad]
}

/// Name of a group.
fn group_name(rows: &[Row], group: &[usize], by: GroupBy, names: &FileNames) -> String {
    let row = &rows[group[0]];
    match by {
        GroupBy::Module => row
            .module
            .as_ref()
            .map_or_else(|| "(no module)".to_owned(), |module| clean(module)),
        GroupBy::Site => site(row, names),
        GroupBy::Retainer => retainer(row.retainer.as_deref()),
        GroupBy::Kind => counted(group.len() as u64, "row"),
        GroupBy::Unnamed | GroupBy::Nothing => tensors_label(rows, group),
        GroupBy::Shape => {
            let named = group.iter().any(|&at| rows[at].name().is_some());
            match group.len() {
                2.. if named => {
                    let first = tensor_label(rows, group[0]);
                    format!("{first} and {} more", group.len() - 1)
                }
                _ => tensors_label(rows, group),
            }
        }
    }
}

/// A row of a group that one line allocated; `None` if lines differ.
pub(super) fn common_site<'a>(rows: &'a [Row], group: &[usize]) -> Option<&'a Row> {
    let first = &rows[group[0]];
    let same = |at: &usize| rows[*at].site == first.site;
    group.iter().all(same).then_some(first)
}

/// Line that allocated a row; for blocks of unknown lines "before attach".
fn site(row: &Row, names: &FileNames) -> String {
    match (&row.site, row.kind) {
        (Some(frame), _) => names.frame(frame),
        (None, RowKind::Block) => BEFORE_ATTACH.to_owned(),
        (None, _) => String::new(),
    }
}

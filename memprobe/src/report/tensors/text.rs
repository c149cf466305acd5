//! Table of a process's tensors as text.

use std::collections::HashSet;

use super::columns::{Align, Cells, push};
use super::{TensorNames, TensorOptions, account, heading};
use crate::event::Bytes;
use crate::event::bytes::human;
use crate::event::tensors::Device;
use crate::report::table::{push_line, strong, warning, wrap};
use crate::tensors::{DeviceTable, Group, GroupBy, Row, RowKind, TensorTable, groups_of};
use crate::view::{
    BEFORE_ATTACH, CUT, FileNames, clean, counted, fit, full_retainer, retainer, shape,
    tensor_kind, tensor_label, tensors_label, whole_tensor_name,
};

const HEAD: [(&str, Align); 6] = [
    ("ALLOCATED", Align::Right),
    ("SIZE", Align::Right),
    ("KIND", Align::Left),
    ("SHAPE", Align::Left),
    ("DTYPE", Align::Left),
    ("GRAD", Align::Left),
];

/// Note if purposes of blocks are unknown.
const FOR_WHAT: &str = "The purpose of blocks without a tensor is known only for allocations that memprobe watched: \
                        `snapshot --watch 5s --detail full`, or `t` in `attach --detail full`.";

/// Returns the whole report.
pub(super) fn render(table: &TensorTable, options: &TensorOptions) -> String {
    let mut text = String::new();
    for line in heading::target(&table.target) {
        push_line(&mut text, &fit(&line, options.width, CUT));
    }
    for line in wrap(&heading::taken(table), options.width) {
        push_line(&mut text, &line);
    }
    for note in heading::notes(table) {
        for line in wrap(&note, options.width) {
            push_line(&mut text, &warning(options.colour, &line));
        }
    }
    let mut shown = false;
    for device in &table.devices {
        if device.device == Device::Meta {
            push_line(&mut text, "");
            let tensors = counted(device.account.tensor_count, "tensor");
            push_line(&mut text, &format!("meta   {tensors} without memory"));
        } else {
            shown = true;
            push_device(&mut text, device, options);
        }
    }
    if !shown {
        push_line(&mut text, "");
        push_line(
            &mut text,
            "No tensors on a GPU. To see tensors of the host, give --cpu.",
        );
    }
    text
}

fn push_device(text: &mut String, table: &DeviceTable, options: &TensorOptions) {
    push_line(text, "");
    let title = account::title(table);
    push_line(
        text,
        &strong(options.colour, &fit(&title, options.width, CUT)),
    );
    let names = file_names(&table.rows);
    let is_outside = |at: &usize| table.rows[*at].outside.is_some();
    let (outside, ours): (Vec<usize>, Vec<usize>) = (0..table.rows.len()).partition(is_outside);
    let first = push_groups(text, table, ours, &names, options);
    for (bytes, words) in account::sum(&table.account) {
        let indent = format!("{:first$}  ", "");
        for (at, line) in wrap(&words, options.width.saturating_sub(first + 4))
            .iter()
            .enumerate()
        {
            let line = match at {
                0 => format!("{bytes:>first$}  {line}"),
                _ => format!("{indent}{line}"),
            };
            push_line(text, &line);
        }
    }
    let is_unknown =
        |row: &Row| row.kind == RowKind::Block && row.purpose.is_none() && row.site.is_none();
    if table.rows.iter().any(is_unknown) {
        for line in wrap(FOR_WHAT, options.width) {
            push_line(text, &line);
        }
    }
    if !outside.is_empty() {
        push_line(text, "");
        let held = human(table.account.outside);
        let title = format!(
            "{}  {held} outside the allocator: memory of another library or process",
            table.device
        );
        push_line(
            text,
            &strong(options.colour, &fit(&title, options.width, CUT)),
        );
        push_groups(text, table, outside, &names, options);
    }
}

/// Adds the groups of `rows`; returns the width of the first column.
fn push_groups(
    text: &mut String,
    table: &DeviceTable,
    rows: Vec<usize>,
    names: &FileNames,
    options: &TensorOptions,
) -> usize {
    let mut groups = groups_of(&table.rows, rows, options.by, options.order);
    let hidden = groups.split_off(options.top.of(groups.len()));
    let mut cells: Vec<Cells> = groups
        .iter()
        .map(|group| group_cells(&table.rows, group, names, options))
        .collect();
    let is_minor = |group: &Group| group.is_minor(&table.rows, options.by);
    let (minor, others): (Vec<Group>, Vec<Group>) = hidden.into_iter().partition(is_minor);
    cells.extend(hidden_cells(&others, "other row", ""));
    cells.extend(hidden_cells(
        &minor,
        "other tensor",
        ", whose bytes other rows have",
    ));
    push(
        text,
        &HEAD,
        last_title(options.by),
        &cells,
        options.width,
        options.colour,
    )
}

/// Row for hidden groups, with a description; `None` if there are none.
fn hidden_cells(hidden: &[Group], what: &str, words: &str) -> Option<Cells> {
    let count = hidden.iter().map(|group| group.rows.len() as u64).sum();
    let held = hidden
        .iter()
        .map(|group| group.holds.0.saturating_add(group.outside.0));
    let held = held.fold(0, u64::saturating_add);
    let mut cells = vec![String::new(); HEAD.len()];
    cells[0] = human(Bytes(held));
    (!hidden.is_empty()).then(|| Cells {
        cells,
        name: format!("({}{words}: --limit all)", counted(count, what)),
        ..Cells::default()
    })
}

fn last_title(by: GroupBy) -> &'static str {
    match by {
        GroupBy::Module => "MODULE",
        GroupBy::Site => "ALLOCATED AT",
        GroupBy::Retainer => "RETAINED BY",
        _ => "NAME",
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

fn group_cells(rows: &[Row], group: &Group, names: &FileNames, options: &TensorOptions) -> Cells {
    let holds = human(Bytes(group.holds.0.saturating_add(group.outside.0)));
    let mut cells = vec![holds, group.size.map_or_else(unknown, human)];
    cells.extend(what(rows, &group.rows));
    let row = &rows[group.rows[0]];
    let mut shown = Cells {
        cells,
        name: group_name(rows, &group.rows, options.by, names),
        ..Cells::default()
    };
    if !options.by.is_apart_from_lines() {
        shown.site =
            common_site(rows, &group.rows).map_or_else(String::new, |row| site(row, names));
    }
    if options.names == TensorNames::All && group.rows.len() == 1 {
        let others = row.names.iter().skip(1);
        shown.more = others
            .map(|name| format!("also {}", whole_tensor_name(name)))
            .chain(
                row.retainer
                    .iter()
                    .map(|retainer| format!("retained by {}", full_retainer(retainer))),
            )
            .collect();
    }
    shown
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
pub(super) fn group_name(rows: &[Row], group: &[usize], by: GroupBy, names: &FileNames) -> String {
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

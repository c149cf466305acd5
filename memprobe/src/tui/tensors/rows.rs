//! Rows of the table of tensors, and the details of each.

use std::cell::OnceCell;
use std::rc::Rc;

use ratatui::text::Line;

use super::super::overlay::entry;
use super::super::table_screen::{Query, TableOf, TableRow};
use super::super::theme::Theme;
use super::{TensorData, TensorKey, TensorList};
use crate::event::bytes::human;
use crate::tensors::{Group, Order, Row, RowKind, SnapshotRows, groups_of};
use crate::view::{
    clean, counted, full_retainer, shape, tensor_kind, tensor_label, whole_frame, whole_tensor_name,
};

pub fn table(
    list: &TensorList,
    order: Order,
    is_reversed: bool,
    query: &Query<TensorKey>,
) -> TableOf<TensorList> {
    let Some(device) = &list.shown else {
        return TableOf::<TensorList>::default();
    };
    let rows = device.rows();
    let bytes = |places: &[usize]| {
        let bytes = places.iter().map(|at| i128::from(rows.at(*at).holds.0));
        bytes.sum()
    };
    let mut places: Vec<usize> = (0..rows.len()).collect();
    let (all, all_bytes) = (places.clone(), bytes(&places));
    if query.filter.is_active() {
        places.retain(|at| query.filter.shows(&searched(rows, *at)));
    }
    let shown_bytes = bytes(&places);
    // Memory outside the allocator is listed last, so that the rows before it add up to the allocator's total.
    let grouped = |places: Vec<usize>| {
        let (theirs, ours): (Vec<usize>, Vec<usize>) = places
            .into_iter()
            .partition(|at| rows.at(*at).outside.is_some());
        let mut groups = Vec::new();
        for places in [ours, theirs] {
            let mut part = groups_of(rows, places, list.by, order);
            if is_reversed {
                part.reverse();
            }
            groups.extend(part);
        }
        groups
    };
    let groups = grouped(places);
    let shown = groups.len();
    // The numbers are those of visible rows: a row may be several equal tensors.
    let all = if query.filter.is_active() {
        grouped(all).len()
    } else {
        shown
    };
    let row = |group: Group| {
        let key = key(rows.at(group.rows[0]));
        let data = TensorData {
            device: Rc::clone(device),
            by: list.by,
            group,
            large: OnceCell::new(),
        };
        TableRow::leaf(key, data)
    };
    TableOf::<TensorList> {
        rows: groups.into_iter().map(row).collect(),
        shown,
        all,
        shown_bytes,
        all_bytes,
    }
}

fn key(row: Row<'_>) -> TensorKey {
    let name = row.name().map(|name| name.text.clone());
    let object = if name.is_some() { 0 } else { row.object() };
    (row.kind, name, row.storage, object)
}

fn searched(rows: SnapshotRows<'_>, at: usize) -> String {
    let Some(row) = rows.get(at) else {
        return String::new();
    };
    let mut parts = vec![tensor_label(rows, at), tensor_kind(row.kind).to_owned()];
    parts.extend(row.names().iter().skip(1).map(|name| clean(&name.text)));
    parts.extend(row.shape().map(shape));
    parts.extend(row.dtype().map(|dtype| dtype.to_string()));
    parts.extend(row.module().map(|path| clean(path)));
    parts.extend(row.grad_fn().map(|name| clean(name)));
    parts.extend(row.site().map(whole_frame));
    parts.join(" ")
}

/// Most rows of a group, and most tensors sharing a storage, that are listed.
const MOST: usize = 200;

pub fn summary(data: &TensorData) -> String {
    let (rows, group) = (data.device.rows(), &data.group);
    let row = rows.at(group.rows[0]);
    let mut facts = vec![data.label()];
    if group.rows.len() > 1 {
        facts.push(counted(group.rows.len() as u64, "row"));
    }
    let others = row.names().len().saturating_sub(1);
    if others > 0 {
        facts.push(counted(others as u64, "other name"));
    }
    facts.extend(row.grad_fn().map(|name| clean(name)));
    let site = data.site().filter(|site| !site.is_empty());
    facts.extend(site.map(|site| format!("at {site}")));
    facts.join("   ")
}

pub fn detail(data: &TensorData, theme: &Theme) -> Vec<Line<'static>> {
    let (rows, group) = (data.device.rows(), &data.group);
    let first = group.rows[0];
    let mut lines = Vec::new();
    if group.rows.len() > 1 {
        let together = format!(
            "{}, {} together; the details below are of the first",
            counted(group.rows.len() as u64, "row"),
            human(group.holds)
        );
        lines.push(entry("group", &together, theme));
    }
    facts(rows.at(first), &mut |key, text| {
        lines.push(entry(key, &text, theme))
    });
    lines.extend(sharing(rows, first, theme));
    if group.rows.len() > 1 {
        lines.push(Line::default());
        for &at in group.rows.iter().take(MOST) {
            let row = rows.at(at);
            let what = row.shape().map(shape).unwrap_or_default();
            let text = format!("{what} {}", tensor_label(rows, at));
            lines.push(entry(&human(row.holds), &text, theme));
        }
        lines.extend(left_out(group.rows.len(), theme));
    }
    lines
}

fn facts(row: Row<'_>, tell: &mut impl FnMut(&str, String)) {
    for (at, name) in row.names().iter().take(MOST).enumerate() {
        tell(
            if at == 0 { "name" } else { "also" },
            whole_tensor_name(name),
        );
    }
    let class = row.class().map(|class| format!(", a {}", clean(class)));
    tell(
        "kind",
        format!("{}{}", tensor_kind(row.kind), class.unwrap_or_default()),
    );
    if let (Some(sizes), Some(dtype)) = (row.shape(), row.dtype()) {
        tell(
            "shape",
            format!("{} of {dtype} on {}", shape(sizes), row.device),
        );
        let grad = if row.requires_grad() { "yes" } else { "no" };
        tell("needs grad", grad.to_owned());
    }
    let optional = [
        ("grad_fn", row.grad_fn()),
        ("saved by", row.saved_by()),
        ("module", row.module()),
    ];
    for (key, text) in optional {
        if let Some(text) = text {
            tell(key, clean(text));
        }
    }
    if let Some(retainer) = row.retainer() {
        tell("retained by", full_retainer(retainer));
    }
    if let Some(size) = row.size {
        tell("size", format!("{} ({} bytes)", human(size), size.0));
    }
    tell(
        "allocated",
        format!("{} of the allocator", human(row.holds)),
    );
    if let Some(outside) = row.outside {
        tell(
            "",
            format!("{} of another library or process", human(outside)),
        );
    }
    if !matches!(row.kind, RowKind::Block | RowKind::BlockUnread)
        && let (Some(data), Some(bytes)) = (row.storage, row.storage_bytes)
    {
        let offset = match row.offset() {
            0 => String::new(),
            offset => format!(", from element {offset} on"),
        };
        tell("storage", format!("{data}, {} bytes{offset}", bytes.0));
    }
    if let Some((addr, size)) = row.block() {
        tell("block", format!("{addr}, {} bytes", size.0));
    }
    let site = row.site();
    let site = site.map_or_else(|| "unknown, before attach".to_owned(), whole_frame);
    tell("line", site);
}

fn sharing(rows: SnapshotRows<'_>, first: usize, theme: &Theme) -> Vec<Line<'static>> {
    let owner = rows.at(first).owner.unwrap_or(first);
    let shares = |at: &usize| *at != first && (*at == owner || rows.at(*at).owner == Some(owner));
    let others: Vec<usize> = (0..rows.len()).filter(shares).collect();
    let mut lines: Vec<Line> = others
        .iter()
        .take(MOST)
        .map(|&at| {
            let what = rows.at(at).shape().map(shape).unwrap_or_default();
            let text = format!("{what} {}", tensor_label(rows, at));
            entry("shared with", &text, theme)
        })
        .collect();
    lines.extend(left_out(others.len(), theme));
    lines
}

fn left_out(all: usize, theme: &Theme) -> Option<Line<'static>> {
    let more = all.checked_sub(MOST).filter(|more| *more > 0)?;
    Some(entry("", &format!("and {more} more"), theme))
}

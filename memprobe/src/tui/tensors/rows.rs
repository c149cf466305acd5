//! Rows of the table of tensors, and their cells.

use super::super::table_screen::{Cell, Query, Row, TableOf};
use super::{Key, TensorList};
use crate::event::bytes::human;
use crate::tensors::{Group, GroupBy, Order, Row as TensorRow, RowKind, groups_of};
use crate::view::{
    BEFORE_ATTACH, clean, counted, retainer, shape, tensor_kind, tensor_label, tensors_label,
    whole_frame,
};

/// Builds the table of the device shown.
pub fn table(
    list: &TensorList,
    order: Order,
    is_reversed: bool,
    query: &Query<Key>,
) -> TableOf<TensorList> {
    let rows = list.rows();
    let bytes = |places: &[usize]| {
        let bytes = places.iter().map(|at| i128::from(rows[*at].holds.0));
        bytes.sum()
    };
    let mut places: Vec<usize> = (0..rows.len()).collect();
    let (all, all_bytes) = (places.len(), bytes(&places));
    if query.filter.is_active() {
        places.retain(|at| query.filter.shows(&searched(rows, *at)));
    }
    let (shown, shown_bytes) = (places.len(), bytes(&places));
    // Memory outside the allocator is listed last, so that the rows before it add up to the allocator's total.
    let (theirs, ours): (Vec<usize>, Vec<usize>) = places
        .into_iter()
        .partition(|at| rows[*at].outside.is_some());
    let mut groups = Vec::new();
    for places in [ours, theirs] {
        let mut part = groups_of(rows, places, list.by, order);
        if is_reversed {
            part.reverse();
        }
        groups.extend(part);
    }
    let row = |group: Group| Row::leaf(key(&rows[group.rows[0]]), group);
    TableOf::<TensorList> {
        rows: groups.into_iter().map(row).collect(),
        shown,
        all,
        shown_bytes,
        all_bytes,
    }
}

fn key(row: &TensorRow) -> Key {
    let name = row.name().map(|name| name.text.clone());
    let object = if name.is_some() { 0 } else { row.object };
    (row.kind, name, row.storage, object)
}

/// Returns the text that the filter matches.
fn searched(rows: &[TensorRow], at: usize) -> String {
    let Some(row) = rows.get(at) else {
        return String::new();
    };
    let mut parts = vec![tensor_label(rows, at), tensor_kind(row.kind).to_owned()];
    parts.extend(row.names.iter().skip(1).map(|name| clean(&name.text)));
    parts.extend(row.shape.as_deref().map(shape));
    parts.extend(row.dtype.map(|dtype| dtype.to_string()));
    parts.extend(row.module.as_deref().map(clean));
    parts.extend(row.grad_fn.as_deref().map(clean));
    parts.extend(row.site.as_ref().map(whole_frame));
    parts.join(" ")
}

fn first<'a>(list: &'a TensorList, group: &Group) -> &'a TensorRow {
    &list.rows()[group.rows[0]]
}

/// Returns true if all rows of a group have the same property.
fn is_common<T: PartialEq>(list: &TensorList, group: &Group, of: fn(&TensorRow) -> T) -> bool {
    let rows = list.rows();
    let mut properties = group.rows.iter().map(|&at| of(&rows[at]));
    let first = properties.next();
    properties.all(|property| Some(property) == first)
}

pub fn kind(list: &TensorList, group: &Group) -> Cell {
    let kind = tensor_kind(first(list, group).kind).to_owned();
    Cell::text(is_common(list, group, |row| row.kind).then_some(kind))
}

/// Returns the number of tensors and their shape.
pub fn shape_of(list: &TensorList, group: &Group) -> Cell {
    let row = first(list, group);
    let count = match group.rows.len() {
        1 => String::new(),
        more => format!("{more} * "),
    };
    let is_same = is_common(list, group, |row| (row.shape.clone(), row.size));
    Cell::Text(match (&row.shape, row.size) {
        _ if !is_same => counted(group.rows.len() as u64, "row"),
        (Some(sizes), _) => format!("{count}{}", shape(sizes)),
        (None, size) => format!("{count}{}", size.map_or_else(|| "-".to_owned(), human)),
    })
}

pub fn dtype(list: &TensorList, group: &Group) -> Cell {
    let dtype = first(list, group).dtype.map(|dtype| dtype.to_string());
    Cell::text(dtype.filter(|_| is_common(list, group, |row| row.dtype)))
}

pub fn grad(list: &TensorList, group: &Group) -> Cell {
    let row = first(list, group);
    let text = match row.kind {
        RowKind::Tensor(_) if !is_common(list, group, |row| row.requires_grad) => "some",
        RowKind::Tensor(_) if row.requires_grad => "yes",
        RowKind::Tensor(_) => "no",
        RowKind::Storage | RowKind::Block => "-",
    };
    Cell::Text(text.to_owned())
}

pub fn common_site(list: &TensorList, group: &Group) -> Cell {
    let is_common = is_common(list, group, |row| row.site.clone());
    Cell::text(is_common.then(|| site(list, first(list, group))))
}

/// Returns the name of a group by what its rows have in common.
pub fn name(list: &TensorList, group: &Group) -> Cell {
    let rows = list.rows();
    let row = first(list, group);
    let name = match list.by {
        GroupBy::Module => match &row.module {
            Some(module) => clean(module),
            None => "(no module)".to_owned(),
        },
        GroupBy::Site => match site(list, row) {
            unknown if unknown.is_empty() => "(not seen)".to_owned(),
            site => site,
        },
        GroupBy::Retainer => retainer(row.retainer.as_deref()),
        GroupBy::Kind => counted(group.rows.len() as u64, "row"),
        GroupBy::Unnamed | GroupBy::Nothing | GroupBy::Shape => {
            let is_named = group.rows.iter().any(|&at| rows[at].name().is_some());
            match group.rows.len() {
                2.. if is_named => {
                    let first = tensor_label(rows, group.rows[0]);
                    format!("{first} and {} more", group.rows.len() - 1)
                }
                _ => tensors_label(rows, &group.rows),
            }
        }
    };
    Cell::Text(match row.outside {
        Some(_) => format!("{name} (not the allocator's)"),
        None => name,
    })
}

/// Returns the allocation site of a row.
pub fn site(list: &TensorList, row: &TensorRow) -> String {
    match (&row.site, row.kind) {
        (Some(frame), _) => list.names.frame(frame),
        (None, RowKind::Block) => BEFORE_ATTACH.to_owned(),
        (None, _) => String::new(),
    }
}

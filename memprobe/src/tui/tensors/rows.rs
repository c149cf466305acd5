//! Rows of the table of tensors, and their cells.

use std::rc::Rc;

use super::super::table_screen::{Query, TableOf, TableRow};
use super::{TensorData, TensorKey, TensorList};
use crate::tensors::{Group, Order, Row as TensorRow, groups_of};
use crate::view::{clean, shape, tensor_kind, tensor_label, whole_frame};

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
    let row = |group: Group| {
        let key = key(&rows[group.rows[0]]);
        let data = TensorData {
            device: Rc::clone(device),
            by: list.by,
            group,
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

fn key(row: &TensorRow) -> TensorKey {
    let name = row.name().map(|name| name.text.clone());
    let object = if name.is_some() { 0 } else { row.object };
    (row.kind, name, row.storage, object)
}

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

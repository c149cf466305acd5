//! Details of the selected row.

use ratatui::text::Line;

use super::super::overlay::entry;
use super::super::theme::Theme;
use super::TensorData;
use crate::event::bytes::human;
use crate::tensors::{Row, RowKind};
use crate::view::{
    clean, counted, full_retainer, shape, tensor_kind, tensor_label, tensors_label, whole_frame,
    whole_tensor_name,
};

/// Most rows of a group, and most tensors sharing a storage, that are listed.
const MOST: usize = 200;

pub fn summary(data: &TensorData) -> String {
    let (rows, group) = (data.device.rows(), &data.group);
    let row = &rows[group.rows[0]];
    let mut facts = vec![tensors_label(rows, &group.rows)];
    if group.rows.len() > 1 {
        facts.push(counted(group.rows.len() as u64, "row"));
    }
    let others = row.names.len().saturating_sub(1);
    if others > 0 {
        facts.push(counted(others as u64, "other name"));
    }
    facts.extend(row.grad_fn.as_deref().map(clean));
    let site = data.texts().site().filter(|site| !site.is_empty());
    facts.extend(site.map(|site| format!("at {site}")));
    facts.join("   ")
}

/// Returns all that is known of the selected row.
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
    facts(&rows[first], &mut |key, text| {
        lines.push(entry(key, &text, theme))
    });
    lines.extend(sharing(rows, first, theme));
    if group.rows.len() > 1 {
        lines.push(Line::default());
        for &at in group.rows.iter().take(MOST) {
            let row = &rows[at];
            let what = row.shape.as_deref().map(shape).unwrap_or_default();
            let text = format!("{what} {}", tensor_label(rows, at));
            lines.push(entry(&human(row.holds), &text, theme));
        }
        lines.extend(left_out(group.rows.len(), theme));
    }
    lines
}

fn facts(row: &Row, tell: &mut impl FnMut(&str, String)) {
    for (at, name) in row.names.iter().take(MOST).enumerate() {
        tell(
            if at == 0 { "name" } else { "also" },
            whole_tensor_name(name),
        );
    }
    let class = row
        .class
        .as_deref()
        .map(|class| format!(", a {}", clean(class)));
    tell(
        "kind",
        format!("{}{}", tensor_kind(row.kind), class.unwrap_or_default()),
    );
    if let (Some(sizes), Some(dtype)) = (&row.shape, row.dtype) {
        tell(
            "shape",
            format!("{} of {dtype} on {}", shape(sizes), row.device),
        );
        let grad = if row.requires_grad { "yes" } else { "no" };
        tell("needs grad", grad.to_owned());
    }
    let optional = [
        ("grad_fn", &row.grad_fn),
        ("saved by", &row.saved_by),
        ("module", &row.module),
    ];
    for (key, text) in optional {
        if let Some(text) = text {
            tell(key, clean(text));
        }
    }
    if let Some(retainer) = &row.retainer {
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
    if row.kind != RowKind::Block
        && let (Some(data), Some(bytes)) = (row.storage, row.storage_bytes)
    {
        let offset = match row.offset {
            0 => String::new(),
            offset => format!(", from element {offset} on"),
        };
        tell("storage", format!("{data}, {} bytes{offset}", bytes.0));
    }
    if let Some((addr, size)) = row.block {
        tell("block", format!("{addr}, {} bytes", size.0));
    }
    let site = row.site.as_ref();
    let site = site.map_or_else(|| "unknown, before attach".to_owned(), whole_frame);
    tell("line", site);
}

/// Lists the tensors that share the row's storage.
fn sharing(rows: &[Row], first: usize, theme: &Theme) -> Vec<Line<'static>> {
    let owner = rows[first].owner.unwrap_or(first);
    let shares = |at: &usize| *at != first && (*at == owner || rows[*at].owner == Some(owner));
    let others: Vec<usize> = (0..rows.len()).filter(shares).collect();
    let mut lines: Vec<Line> = others
        .iter()
        .take(MOST)
        .map(|&at| {
            let what = rows[at].shape.as_deref().map(shape).unwrap_or_default();
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

//! Details of the selected row, and help.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

use super::super::overlay::{draw_box, entry};
use super::super::theme::Theme;
use super::state::{Overlay, TensorsState};
use super::table::site;
use crate::event::bytes::human;
use crate::tensors::{Row, RowKind};
use crate::view::{
    clean, counted, full_retainer, shape, tensor_kind, tensor_label, tensors_label, whole_frame,
    whole_tensor_name,
};

/// Most rows of a group, and most tensors sharing a storage, that are listed.
const MOST: usize = 200;

/// Draws the overlay if one is open.
pub fn draw_overlay(buffer: &mut Buffer, area: Rect, state: &TensorsState, theme: &Theme) {
    match state.overlay {
        Overlay::None => {}
        Overlay::Help(scroll) => draw_box(buffer, area, " Help ", &help(theme), scroll, theme),
        Overlay::Detail(scroll) => {
            draw_box(
                buffer,
                area,
                " Tensor ",
                &detail(state, theme),
                scroll,
                theme,
            );
        }
    }
}

/// Summarizes the selected row in one line.
pub fn summary(state: &TensorsState) -> String {
    let Some(group) = state.selected() else {
        return String::new();
    };
    let rows = state.rows();
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
    let site = site(state, row);
    let is_common = group.rows.iter().all(|&at| rows[at].site == row.site);
    if is_common && !site.is_empty() {
        facts.push(format!("at {site}"));
    }
    facts.join("   ")
}

fn detail(state: &TensorsState, theme: &Theme) -> Vec<Line<'static>> {
    let Some(group) = state.selected() else {
        return Vec::new();
    };
    let rows = state.rows();
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

/// Returns the help text: keys, columns and terms.
fn help(theme: &Theme) -> Vec<Line<'static>> {
    let keys = [
        (
            theme.glyphs.arrows,
            "or j k, PgUp PgDn, Home End, wheel: move",
        ),
        ("Enter", "all names, storage, block, and who shares it"),
        (
            "R or F5",
            "read the process again; it is paused for a moment",
        ),
        ("t or Esc", "back to lines; this reading stays"),
        ("/", "filter by regular expression     Esc  clear it"),
        (
            "< > or F6",
            "sort: ALLOCATED SIZE KIND COUNT NAME; or click on a head",
        ),
        ("r", "reverse the order"),
        (
            "i",
            "group: tensor, shape, kind, module, line, retainer, no fold",
        ),
        ("Tab or d", "next device; tensors of the host are on cpu"),
        ("q Ctrl-C", "quit; the process runs on"),
        ("", ""),
        ("ALLOCATED", "bytes of the allocator, rounding included"),
        ("SIZE", "bytes of its elements; a view may be small"),
        ("(->name)", "it shares the storage whose bytes `name` has"),
        ("3 * (8, 8)", "three equal tensors in one row"),
        ("saved", "saved for the backward pass, by this operation"),
        ("(no tensor)", "a block without a tensor: workspaces, NCCL"),
        (
            "(inferred)",
            "a name that does not follow from references alone",
        ),
    ];
    keys.iter()
        .map(|(key, text)| entry(key, text, theme))
        .collect()
}

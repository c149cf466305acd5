//! Drawing of the table of tensors.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::super::list::{self, Side};
use super::super::sort::Order;
use super::super::theme::Theme;
use super::columns::{Column, columns};
use super::state::{Direction, TensorsState};
use crate::event::Bytes;
use crate::event::bytes::human;
use crate::tensors::{Group, GroupBy, Row, RowKind};
use crate::view::{
    BEFORE_ATTACH, clean, counted, fit, fit_middle, percent, retainer, shape, tensor_kind,
    tensor_label, tensors_label, whole_frame,
};

/// Sums of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    pub rows: usize,
    /// Bytes of the allocator that the rows account for.
    pub holds: Bytes,
}

impl Totals {
    /// Sums the rows at these indices.
    pub fn of(rows: &[Row], places: impl IntoIterator<Item = usize>) -> Self {
        let mut totals = Self::default();
        for row in places.into_iter().filter_map(|at| rows.get(at)) {
            totals.rows += 1;
            totals.holds = Bytes(totals.holds.0.saturating_add(row.holds.0));
        }
        totals
    }
}

/// Returns the text that the filter matches.
pub fn searched(rows: &[Row], at: usize) -> String {
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

/// Draws the column heads, with an arrow at the sort column.
pub fn draw_head(buffer: &mut Buffer, area: Rect, state: &TensorsState, theme: &Theme) {
    if area.is_empty() {
        return;
    }
    buffer.set_style(area, theme.bar());
    for place in columns(area.width) {
        let orders = place.column.order() == Some(state.order);
        let orders = orders.then_some(match state.direction {
            Direction::Natural => Order::Falling,
            Direction::Reversed => Order::Climbing,
        });
        let head = match (place.column, state.by) {
            (Column::Name, GroupBy::Module) => "MODULE",
            (Column::Name, GroupBy::Site) => "ALLOCATED AT",
            (Column::Name, GroupBy::Retainer) => "RETAINED BY",
            (column, _) => column.head(),
        };
        let head = (head, place.column.side());
        list::draw_head(buffer, area, &place, head, orders, theme);
    }
    let by = format!("{} (i) ", grouping(state.by));
    let heads = columns(area.width);
    let free = heads.last().map_or(0, |place| place.wide);
    if usize::from(free) > by.len() + 14 {
        buffer.set_string(area.right() - by.len() as u16, area.y, by, theme.bar());
    }
}

/// Describes a grouping in a few words.
pub fn grouping(by: GroupBy) -> &'static str {
    match by {
        GroupBy::Unnamed => "by tensor",
        GroupBy::Nothing => "no fold",
        GroupBy::Shape => "by shape",
        GroupBy::Kind => "by kind",
        GroupBy::Module => "by module",
        GroupBy::Site => "by line",
        GroupBy::Retainer => "by retainer",
    }
}

/// Draws the visible rows.
pub fn draw_rows(buffer: &mut Buffer, area: Rect, state: &TensorsState, theme: &Theme) {
    if area.is_empty() {
        return;
    }
    let places = columns(area.width);
    let groups = state.groups.iter().enumerate().skip(state.selection.offset);
    for ((at, group), y) in groups.zip(area.y..area.bottom()) {
        let line = Rect {
            y,
            height: 1,
            ..area
        };
        if at == state.selection.cursor {
            list::draw_selected(buffer, line, theme);
        }
        for place in &places {
            let available = usize::from(place.wide.min(area.width.saturating_sub(place.start)));
            let text = cell(state, group, place.column);
            let text = match place.column {
                Column::Name => fit_middle(&text, available, theme.glyphs.cut),
                _ => fit(&text, available, theme.glyphs.cut),
            };
            let text = if place.column.side() == Side::Right {
                format!("{text:>available$}")
            } else {
                text
            };
            let style = match place.column {
                Column::Holds => theme.strong(),
                Column::Site => theme.faint(),
                _ => Style::new(),
            };
            buffer.set_stringn(area.x + place.start, y, text, available, style);
        }
    }
}

fn cell(state: &TensorsState, group: &Group, column: Column) -> String {
    let rows = state.rows();
    let row = &rows[group.rows[0]];
    let all = |same: fn(&Row, &Row) -> bool| group.rows.iter().all(|&at| same(&rows[at], row));
    let unknown = || "-".to_owned();
    match column {
        Column::Holds => human(Bytes(group.holds.0.saturating_add(group.outside.0))),
        Column::Size => group.size.map_or_else(unknown, human),
        Column::Kind if all(|one, other| one.kind == other.kind) => {
            tensor_kind(row.kind).to_owned()
        }
        Column::Shape => {
            let count = match group.rows.len() {
                1 => String::new(),
                more => format!("{more} * "),
            };
            let same = all(|one, other| one.shape == other.shape && one.size == other.size);
            match &row.shape {
                Some(sizes) if same => format!("{count}{}", shape(sizes)),
                None if same => format!("{count}{}", row.size.map_or_else(unknown, human)),
                _ => counted(group.rows.len() as u64, "row"),
            }
        }
        Column::DType if all(|one, other| one.dtype == other.dtype) => {
            row.dtype.map_or_else(unknown, |dtype| dtype.to_string())
        }
        Column::Grad if !matches!(row.kind, RowKind::Tensor(_)) => unknown(),
        Column::Grad if !all(|one, other| one.requires_grad == other.requires_grad) => {
            "some".to_owned()
        }
        Column::Grad => (if row.requires_grad { "yes" } else { "no" }).to_owned(),
        Column::Name if row.outside.is_some() => {
            format!("{} (not the allocator's)", name(state, group))
        }
        Column::Name => name(state, group),
        Column::Site if all(|one, other| one.site == other.site) => site(state, row),
        Column::Kind | Column::DType | Column::Site => unknown(),
    }
}

fn name(state: &TensorsState, group: &Group) -> String {
    let rows = state.rows();
    let row = &rows[group.rows[0]];
    match state.by {
        GroupBy::Module => match &row.module {
            Some(module) => clean(module),
            None => "(no module)".to_owned(),
        },
        GroupBy::Site => match site(state, row) {
            unknown if unknown.is_empty() => "(not seen)".to_owned(),
            site => site,
        },
        GroupBy::Retainer => retainer(row.retainer.as_deref()),
        GroupBy::Kind => counted(group.rows.len() as u64, "row"),
        GroupBy::Unnamed | GroupBy::Nothing | GroupBy::Shape => {
            let named = group.rows.iter().any(|&at| rows[at].name().is_some());
            match group.rows.len() {
                2.. if named => {
                    let first = tensor_label(rows, group.rows[0]);
                    format!("{first} and {} more", group.rows.len() - 1)
                }
                _ => tensors_label(rows, &group.rows),
            }
        }
    }
}

/// Returns the allocation site of a row.
pub fn site(state: &TensorsState, row: &Row) -> String {
    match (&row.site, row.kind) {
        (Some(frame), _) => state.names.frame(frame),
        (None, RowKind::Block) => BEFORE_ATTACH.to_owned(),
        (None, _) => String::new(),
    }
}

/// Draws the sum of the rows, and its difference to the allocator's total if there is one.
pub fn draw_sum(buffer: &mut Buffer, area: Rect, state: &TensorsState, theme: &Theme) {
    let Some(table) = state.shown_device() else {
        return;
    };
    if area.is_empty() {
        return;
    }
    let dot = theme.glyphs.dot;
    let rows = counted(state.all.rows as u64, "row");
    let remainder = table.account.remainder.unwrap_or(0);
    let (text, style) = if state.filter.is_active() {
        let (shown, all) = (state.shown, state.all);
        let share = percent(shown.holds.0.into(), all.holds.0.into());
        let text = format!(
            "shown {} of {} ({share}) {dot} {} of {rows} {dot} filter /{}/ (Esc: all)",
            human(shown.holds),
            human(all.holds),
            shown.rows,
            clean(state.filter.pattern()),
        );
        (text, theme.strong())
    } else if table.account.totals.is_none() {
        let text = format!("sum {} {dot} {rows}", human(state.all.holds));
        (text, theme.faint())
    } else if remainder == 0 {
        let text = format!("sum {} = allocated {dot} {rows}", human(state.all.holds));
        (text, theme.faint())
    } else {
        let reason = table.account.reason.map_or("", |reason| reason.as_str());
        let off = crate::event::bytes::signed(remainder);
        let text = format!(
            "sum {} {dot} {off} to what is allocated: {reason}",
            human(state.all.holds)
        );
        (text, theme.strong())
    };
    let text = format!("  {text}");
    let available = usize::from(area.width);
    let text = fit(&text, available, theme.glyphs.cut);
    buffer.set_stringn(area.x, area.y, text, available, style);
}

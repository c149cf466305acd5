//! Drawing of the table of processes.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::super::list::{self, ColumnPosition, Side};
use super::super::theme::Theme;
use super::rows::Sums;
use super::sort::Column;
use super::state::HostState;
use crate::event::Bytes;
use crate::event::bytes::short;
use crate::ledger::snapshot::host::{ProcessRow, ProcessState, Trend};
use crate::view::{
    clean, counted, device_list, fit, process_state, rank, short_command, top_line, width,
};

/// Returns the alignment of a column.
fn side(column: Column) -> Side {
    match column {
        Column::Pid
        | Column::Rank
        | Column::Devices
        | Column::Allocated
        | Column::Reserved
        | Column::Driver
        | Column::Peak => Side::Right,
        _ => Side::Left,
    }
}

/// Draws the column heads, with an arrow at the sort column.
pub fn draw_head(buffer: &mut Buffer, area: Rect, state: &HostState, theme: &Theme) {
    if area.is_empty() {
        return;
    }
    buffer.set_style(area, theme.bar());
    for place in state.columns().0 {
        let orders = (place.column == state.sort.column).then_some(state.sort.order);
        let head = (place.column.head(), side(place.column));
        list::draw_head(buffer, area, &place, head, orders, theme);
    }
}

/// Draws a cell's text. Right-aligned text may extend into the gap before the cell.
fn draw_cell(
    buffer: &mut Buffer,
    line: Rect,
    place: ColumnPosition<Column>,
    text: &str,
    style: Style,
) {
    let start = if side(place.column) == Side::Right {
        (line.x + place.start + place.wide).saturating_sub(width(text) as u16)
    } else {
        line.x + place.start
    };
    let end = (line.x + place.start + place.wide).min(line.right());
    let available = usize::from(end.saturating_sub(start));
    buffer.set_stringn(start, line.y, text, available, style);
}

/// Draws the visible rows.
pub fn draw_rows(buffer: &mut Buffer, area: Rect, state: &HostState, theme: &Theme) {
    let columns = state.columns();
    for (place, y) in (state.selection.offset..).zip(area.y..area.bottom()) {
        let Some(row) = state.row(place) else { return };
        let line = Rect {
            y,
            height: 1,
            ..area
        };
        let selected = place == state.selection.cursor;
        if selected {
            list::draw_selected(buffer, line, theme);
        }
        let plain = match row.state {
            _ if selected => theme.bar(),
            ProcessState::Probed => Style::new(),
            _ => theme.faint(),
        };
        buffer.set_string(area.x + 1, y, mark(&row.state), plain);
        for place in &columns.0 {
            let style = match place.column {
                Column::Allocated if !selected => theme.strong(),
                Column::Trend if !selected => theme.allocated(),
                _ => plain,
            };
            let text = text(row, *place, state, theme);
            let text = fit(&text, usize::from(place.wide), theme.glyphs.cut);
            draw_cell(buffer, line, *place, &text, style);
        }
    }
}

/// Returns the mark of a process's state; help explains it.
fn mark(state: &ProcessState) -> &'static str {
    match state {
        ProcessState::Probed => " ",
        ProcessState::Waiting(_) => "?",
        ProcessState::Refused(_) => "!",
        ProcessState::Ended => "x",
    }
}

fn text(
    row: &ProcessRow,
    place: ColumnPosition<Column>,
    state: &HostState,
    theme: &Theme,
) -> String {
    let totals = row.totals();
    let amount = |bytes: Option<Bytes>| bytes.map(short);
    let text = match place.column {
        Column::Pid => Some(row.tgid.0.to_string()),
        Column::User => row.facts.user.as_deref().map(clean),
        Column::Container => row.target.container.as_deref().map(clean),
        Column::Rank => row.facts.rank.map(rank),
        Column::Devices => device_list(row),
        Column::Allocated => amount(totals.map(|totals| totals.allocated)),
        Column::Reserved => amount(totals.map(|totals| totals.reserved)),
        Column::Driver => amount(row.driver_total()),
        Column::Peak => amount(totals.map(|_| row.peak.allocated)),
        Column::Trend => sparkline(&row.trend, usize::from(place.wide), theme),
        Column::Command => Some(short_command(&row.target.command)),
        Column::Top => top_or_state(row, state),
    };
    text.unwrap_or_else(|| "-".to_owned())
}

fn top_or_state(row: &ProcessRow, state: &HostState) -> Option<String> {
    match (&row.state, process_state(row), top_line(row, &state.names)) {
        (ProcessState::Ended, Some(ended), Some(top)) => Some(format!("{ended}: {}", top.trim())),
        (_, Some(state), _) => Some(state),
        (_, None, top) => top,
    }
}

/// Draws a trend as a sparkline: the highest point of each column, relative to the highest of all.
fn sparkline(trend: &Trend, columns: usize, theme: &Theme) -> Option<String> {
    let points = &trend.points;
    let top = points.iter().max()?.0;
    let steps = crate::ledger::snapshot::host::TREND_STEPS;
    // The newest point is at the right; columns before the first point stay empty.
    let height = |column: usize| {
        let missing = steps.saturating_sub(points.len());
        let from = (column * steps / columns).saturating_sub(missing);
        let to = ((column + 1) * steps / columns).saturating_sub(missing);
        let highest = points.get(from..to.min(points.len()))?.iter().max()?;
        let eighths = match u128::from(top) {
            0 => 0,
            top => (u128::from(highest.0) * 7).div_ceil(top) as usize,
        };
        // Zero is drawn as the lowest step, unlike a missing point.
        Some(eighths.clamp(0, 7) + 1)
    };
    let glyph = |column| theme.glyphs.rising[height(column).unwrap_or(0)];
    Some((0..columns).map(glyph).collect())
}

/// Draws the sums of the table.
pub fn draw_sum(buffer: &mut Buffer, area: Rect, state: &HostState, theme: &Theme) {
    if area.is_empty() || state.shown.processes.is_empty() {
        return;
    }
    let dot = theme.glyphs.dot;
    let (text, style) = if state.filter.is_active() {
        let pattern = clean(state.filter.pattern());
        let rows = format!("shown {} of {}", state.sums.rows, state.all.rows);
        let text = format!(
            "{rows}: {} {dot} filter /{pattern}/ (Esc: all)",
            in_words(&state.sums)
        );
        (text, theme.strong())
    } else {
        let rows = match state.all.rows {
            1 => "1 process".to_owned(),
            number => format!("{number} processes"),
        };
        let hidden = match state.left_out() {
            0 => String::new(),
            hidden => format!(" {dot} {hidden} without memory (a: all)"),
        };
        let text = format!("{rows}: {}{hidden}", in_words(&state.all));
        (text, theme.faint())
    };
    let available = usize::from(area.width);
    let text = fit(&format!("  {text}"), available, theme.glyphs.cut);
    buffer.set_stringn(area.x, area.y, &text, available, style);
    let hidden = state.order.len().saturating_sub(state.selection.offset);
    let height = usize::from(state.layout().map_or(0, |layout| layout.rows.height));
    let below = hidden.saturating_sub(height);
    let more = format!("{} below ", counted(below as u64, "row"));
    if below > 0 && width(&text) + width(&more) + 2 <= available {
        let start = area.right() - width(&more) as u16;
        buffer.set_string(start, area.y, more, theme.faint());
    }
}

fn in_words(sums: &Sums) -> String {
    let mut text = format!(
        "allocated {}, reserved {}",
        short(sums.totals.allocated),
        short(sums.totals.reserved)
    );
    if let Some(driver) = sums.driver {
        text += &format!(", driver {}", short(driver));
        if sums.driver_is_partial {
            text += "+";
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::super::test_support::COLOUR;
    use super::*;

    fn drawn(points: &[u64]) -> Option<String> {
        let trend = Trend {
            step: 1,
            points: points.iter().copied().map(Bytes).collect(),
        };
        sparkline(&trend, 10, &COLOUR)
    }

    #[test]
    fn a_trend_keeps_short_peaks_and_ends_at_the_right() {
        assert_eq!(drawn(&[]), None);
        assert_eq!(drawn(&[5; 6]).unwrap(), "         █");
        assert_eq!(drawn(&[0; 60]).unwrap(), "▁▁▁▁▁▁▁▁▁▁");
        let mut points = [1; 60];
        points[20] = 100;
        assert_eq!(drawn(&points).unwrap(), "▂▂▂█▂▂▂▂▂▂");
        assert_eq!(
            drawn(&[u64::MAX; 600]).map(|text| text.chars().count()),
            Some(10)
        );
    }
}

//! The whole screen of the host, drawn from its state.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;

use super::super::layout::{SMALLEST, are_within};
use super::super::theme::Theme;
use super::layout::Layout;
use super::state::HostState;
use super::{detail, header, help, status, table};
use crate::bytes::human;
use crate::label::{clean, fit, width};

/// Draws everything into a screen of the size that the state knows. Says where the cursor of the
/// terminal belongs, if it is to be seen.
pub fn draw(buffer: &mut Buffer, state: &HostState, theme: &Theme) -> Option<Position> {
    let area = buffer.area;
    let is_within = |it: &Layout| are_within(area, it.header, [it.status, it.keys]);
    let Some(layout) = state.layout().filter(is_within) else {
        draw_too_small(buffer, state);
        return None;
    };
    header::draw_header(buffer, layout.header, state, theme);
    header::draw_devices(buffer, layout.devices, state, theme);
    table::draw_head(buffer, layout.head, state, theme);
    if state.order.is_empty() {
        draw_nothing(buffer, layout.rows, state, theme);
    }
    table::draw_rows(buffer, layout.rows, state, theme);
    table::draw_sum(buffer, layout.sum, state, theme);
    detail::draw_detail(buffer, layout.detail, state, theme);
    status::draw_status(buffer, layout.status, state, theme);
    let cursor = status::draw_keys(buffer, layout.keys, state, theme);
    let body = Rect {
        y: 1,
        height: layout.status.y.saturating_sub(1),
        ..buffer.area
    };
    help::draw_help(buffer, body, state, theme);
    cursor
}

/// The most important number, and what would help.
fn draw_too_small(buffer: &mut Buffer, state: &HostState) {
    let area = buffer.area;
    let (least_width, least_height) = SMALLEST;
    let texts = [
        human(state.all.totals.allocated),
        "memprobe".to_owned(),
        format!("needs {least_width}x{least_height}"),
        "q quit".to_owned(),
    ];
    for (text, y) in texts.iter().zip(area.y..area.bottom()) {
        buffer.set_stringn(area.x, y, text, usize::from(area.width), Style::new());
    }
}

/// Why there are no rows, and what to do.
fn draw_nothing(buffer: &mut Buffer, area: Rect, state: &HostState, theme: &Theme) {
    let (first, second) = if state.all.rows > 0 {
        (
            format!("No process matches /{}/", clean(state.filter.pattern())),
            "Esc shows all processes.",
        )
    } else {
        (
            "No process on this host has loaded CUDA.".to_owned(),
            "The first that does will appear here.",
        )
    };
    let top = area.y + area.height.saturating_sub(2) / 2;
    let columns = usize::from(area.width);
    let texts = [(first, theme.strong()), (second.to_owned(), theme.faint())];
    for ((text, style), y) in texts.into_iter().zip(top..area.bottom()) {
        let text = fit(&text, columns, theme.glyphs.cut);
        let start = area.x + (area.width - width(&text).min(columns) as u16) / 2;
        buffer.set_stringn(start, y, text, columns, style);
    }
}

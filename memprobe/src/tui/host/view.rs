//! Drawing of the whole host screen from its state.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use super::super::layout::{are_within, beneath};
use super::super::notice::{draw_too_small, draw_words};
use super::super::theme::Theme;
use super::layout::Layout;
use super::state::HostState;
use super::{detail, header, help, status, table};
use crate::event::bytes::human;
use crate::view::clean;

/// Draws the screen at the size that `state` was given. Returns the position of the visible cursor, if any.
pub fn draw(buffer: &mut Buffer, state: &HostState, theme: &Theme) -> Option<Position> {
    let area = buffer.area;
    let is_within = |it: &Layout| are_within(area, it.header, [it.status, it.keys]);
    let Some(layout) = state.layout().filter(is_within) else {
        draw_too_small(buffer, &human(state.all.totals.allocated));
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
    let body = beneath(layout.header, layout.status);
    help::draw_help(buffer, body, state, theme);
    cursor
}

/// Draws the reason for an empty table, and a remedy.
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
    draw_words(buffer, area, &first, second, theme);
}

//! Drawing of the whole screen of lines from its state.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use super::SourceText;
use super::layout::{Layout, are_within, beneath};
use super::state::{Overlay, State};
use super::tabs::{Tab, draw_tabs};
use super::theme::Theme;
use super::{graph, header, lines, notice, overlay, source, status};
use crate::event::bytes::human;
use crate::ledger::snapshot::TargetState;
use crate::view::clean;

/// Draws the screen at the size that `state` was given. Returns the position of the visible cursor, if any.
pub fn draw(
    buffer: &mut Buffer,
    state: &State,
    sources: &mut dyn SourceText,
    theme: &Theme,
) -> Option<Position> {
    let area = buffer.area;
    let is_within = |it: &Layout| are_within(area, it.header, [it.status, it.keys]);
    let Some(layout) = state.layout().filter(is_within) else {
        draw_too_small(buffer, state);
        return None;
    };
    header::draw_header(buffer, layout.header, state, theme);
    let tab = match state.overlay {
        Overlay::Probes(_) => Tab::Probes,
        Overlay::Outside(_) => Tab::Outside,
        _ => Tab::Lines,
    };
    draw_tabs(buffer, layout.tabs, tab, theme);
    header::draw_devices(buffer, layout.devices, state, theme);
    header::draw_totals(buffer, layout.totals, state, theme);
    graph::draw_graph(buffer, layout.graph, state, theme);
    if state.device().is_none() {
        let body = Rect {
            y: layout.header.bottom(),
            ..layout.rows
        };
        let height = layout.rows.bottom().saturating_sub(body.y);
        draw_nothing(buffer, Rect { height, ..body }, state, theme);
    } else {
        lines::draw_head(buffer, layout.head, state, theme);
        if state.table.rows.is_empty() {
            draw_nothing(buffer, layout.rows, state, theme);
        }
        lines::draw_rows(buffer, layout.rows, state, sources, theme);
    }
    lines::draw_sum(buffer, layout.sum, state, theme);
    status::draw_detail(buffer, layout.detail, state, sources, theme);
    source::draw_source(buffer, layout.source, state, sources, theme);
    status::draw_status(buffer, layout.status, state, state.note, theme);
    let cursor = status::draw_keys(buffer, layout.keys, state, theme);
    let body = beneath(layout.tabs, layout.status);
    overlay::draw_overlay(buffer, body, state, theme);
    cursor
}

/// Draws the message of a process's screen that is too small.
pub(super) fn draw_too_small(buffer: &mut Buffer, state: &State) {
    let device = state.device();
    let allocated = device.map_or_else(|| "-".to_owned(), |it| human(it.totals.allocated));
    notice::draw_too_small(buffer, &allocated);
}

/// Draws the reason for an empty table, and a remedy.
fn draw_nothing(buffer: &mut Buffer, area: Rect, state: &State, theme: &Theme) {
    let health = &state.shown.health;
    let (first, second) = match &health.state {
        _ if state.filter.is_active() && state.table.all > 0 => (
            format!("No line matches /{}/", clean(state.filter.pattern())),
            "Esc shows all lines.".to_owned(),
        ),
        TargetState::Waiting(what) => (
            format!("Waiting for {}", clean(what)),
            "memprobe continues as soon as that happens.".to_owned(),
        ),
        _ if state.device().is_some() => (
            "Nothing is allocated on this device.".to_owned(),
            String::new(),
        ),
        TargetState::Exited => (
            "The target has ended.".to_owned(),
            "memprobe saw no GPU memory of it.".to_owned(),
        ),
        TargetState::Recording => (
            "This recording has no GPU memory.".to_owned(),
            "Was it taken while the target trained?".to_owned(),
        ),
        TargetState::Running => (
            "No GPU memory was allocated since memprobe attached.".to_owned(),
            match &health.unread_at_attach {
                Some(reason) => format!("Memory from before is unknown: {}", clean(reason)),
                None => "The first allocation will appear here.".to_owned(),
            },
        ),
    };
    notice::draw_words(buffer, area, &first, &second, theme);
}

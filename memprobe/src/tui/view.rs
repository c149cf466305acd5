//! The whole screen, drawn from the state.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use super::SourceText;
use super::layout::{Layout, SMALLEST, are_within};
use super::state::State;
use super::theme::Theme;
use super::{graph, header, lines, overlay, source, status};
use crate::bytes::human;
use crate::label::{clean, fit};
use crate::model::snapshot::TargetState;

/// Draws everything into a screen of the size that the state knows. Says where the cursor of the
/// terminal belongs, if it is to be seen.
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
    let body = Rect {
        y: 1,
        height: layout.status.y.saturating_sub(1),
        ..buffer.area
    };
    overlay::draw_overlay(buffer, body, state, theme);
    cursor
}

/// The most important number, and what would help.
fn draw_too_small(buffer: &mut Buffer, state: &State) {
    let area = buffer.area;
    let allocated = state
        .device()
        .map_or_else(|| "-".to_owned(), |device| human(device.totals.allocated));
    let (width, height) = SMALLEST;
    let texts = [
        allocated,
        "memprobe".to_owned(),
        format!("needs {width}x{height}"),
        "q quit".to_owned(),
    ];
    for (text, y) in texts.iter().zip(area.y..area.bottom()) {
        buffer.set_stringn(
            area.x,
            y,
            text,
            usize::from(area.width),
            ratatui::style::Style::new(),
        );
    }
}

/// Why there are no rows, and what to do.
fn draw_nothing(buffer: &mut Buffer, area: Rect, state: &State, theme: &Theme) {
    let health = &state.shown.health;
    let (first, second) = match &health.state {
        _ if state.filter.is_active() && state.table.all > 0 => (
            format!("No line matches /{}/", clean(state.filter.pattern())),
            "Esc shows all lines.".to_owned(),
        ),
        TargetState::Waiting(what) => (
            format!("Waiting for {}", clean(what)),
            "It goes on by itself as soon as that happens.".to_owned(),
        ),
        _ if state.device().is_some() => (
            "Nothing is allocated on this device.".to_owned(),
            String::new(),
        ),
        TargetState::Exited => (
            "The target has ended.".to_owned(),
            "It held no GPU memory that memprobe knew of.".to_owned(),
        ),
        TargetState::Recording => (
            "This recording holds no GPU memory.".to_owned(),
            "Was it taken while the target trained?".to_owned(),
        ),
        TargetState::Running => (
            "No GPU memory was allocated since memprobe attached.".to_owned(),
            match &health.unread_at_attach {
                Some(why) => format!("What was before is not known: {}", clean(why)),
                None => "The first allocation will appear here.".to_owned(),
            },
        ),
    };
    let top = area.y + area.height.saturating_sub(2) / 2;
    let columns = usize::from(area.width);
    for ((text, style), y) in [(first, theme.strong()), (second, theme.faint())]
        .into_iter()
        .zip(top..area.bottom())
    {
        let text = fit(&text, columns, theme.glyphs.cut);
        let start = area.x + (area.width - crate::label::width(&text).min(columns) as u16) / 2;
        buffer.set_stringn(start, y, text, columns, style);
    }
}

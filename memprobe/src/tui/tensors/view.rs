//! Drawing of the whole screen of tensors from its state.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::text::{Line, Span};

use super::super::input::Focus;
use super::super::layout::{are_within, beneath};
use super::super::notice::{draw_detail, draw_too_small, draw_words};
use super::super::status::{Prompt, draw_last_line};
use super::super::tabs::{Tab, draw_tabs};
use super::super::theme::Theme;
use super::layout::Layout;
use super::state::TensorsState;
use super::{Tensors, account, detail, table};
use crate::event::Target;
use crate::event::bytes::human;
use crate::view::{clean, consistency, counted, fit};

/// Draws the screen at the size that `state` was given. `target` is the process that was read. Returns the
/// position of the visible cursor, if any.
pub fn draw(
    buffer: &mut Buffer,
    state: &TensorsState,
    target: &Target,
    theme: &Theme,
) -> Option<Position> {
    let area = buffer.area;
    let is_within = |it: &Layout| are_within(area, it.header, [it.status, it.keys]);
    let Some(layout) = state.layout().filter(is_within) else {
        let totals = state.shown_device().and_then(|table| table.account.totals);
        let allocated = totals.map_or_else(|| "-".to_owned(), |it| human(it.allocated));
        draw_too_small(buffer, &allocated);
        return None;
    };
    account::draw_header(buffer, layout.header, target, theme);
    draw_tabs(buffer, layout.tabs, Tab::Tensors, theme);
    if state.table.is_some() {
        account::draw_devices(buffer, layout.devices, state, theme);
        account::draw_account(buffer, layout.account, state, theme);
        table::draw_head(buffer, layout.head, state, theme);
    }
    if state.groups.is_empty() {
        draw_nothing(buffer, layout.rows, state, theme);
    }
    table::draw_rows(buffer, layout.rows, state, theme);
    table::draw_sum(buffer, layout.sum, state, theme);
    draw_detail(buffer, layout.detail, &detail::summary(state), theme);
    draw_status(buffer, layout.status, state, theme);
    let cursor = draw_keys(buffer, layout.keys, state, theme);
    let body = beneath(layout.tabs, layout.status);
    detail::draw_overlay(buffer, body, state, theme);
    cursor
}

/// Draws the reason for an empty table, and a remedy.
fn draw_nothing(buffer: &mut Buffer, area: Rect, state: &TensorsState, theme: &Theme) {
    let (first, second) = match (&state.news, &state.table) {
        (_, Some(_)) if state.filter.is_active() && state.all.rows > 0 => (
            format!("No tensor matches /{}/", clean(state.filter.pattern())),
            "Esc shows all tensors.".to_owned(),
        ),
        (Tensors::Failed(reason), None) => {
            let reason = clean(reason);
            let (first, rest) = reason
                .split_once("\\n")
                .unwrap_or((&reason, "R tries again."));
            (first.to_owned(), rest.to_owned())
        }
        (_, Some(_)) => (
            "No tensors on this device.".to_owned(),
            "Tab shows the next device.".to_owned(),
        ),
        (_, None) => (
            "Reading the tensors of the process.".to_owned(),
            "The process is paused for a moment, then goes on.".to_owned(),
        ),
    };
    draw_words(buffer, area, &first, &second, theme);
}

/// Draws the time of the snapshot, the length of the pause, and any error.
fn draw_status(buffer: &mut Buffer, area: Rect, state: &TensorsState, theme: &Theme) {
    let (word, style) = match &state.news {
        Tensors::Taking | Tensors::Unasked => ("READING", theme.still()),
        Tensors::Taken(_) => ("SNAPSHOT", theme.good()),
        Tensors::Failed(_) => ("FAILED", theme.bad()),
    };
    let mut spans = vec![Span::styled(format!(" {word} "), style), Span::raw(" ")];
    let text = match (state.note, &state.news, &state.table) {
        (Some(note), ..) => note.to_owned(),
        (None, Tensors::Failed(reason), Some(_)) => {
            format!("the last reading is shown: {}", clean(reason))
        }
        (None, Tensors::Failed(_), None) => "R tries again".to_owned(),
        (None, _, Some(table)) => {
            let mut facts = vec![format!(
                "{}; {}",
                time_of_day(table.taken_ms),
                consistency(table.consistency)
            )];
            facts.push(counted(table.objects, "object"));
            if let Some(unread) = table.unread.first() {
                let more = table.unread.len() - 1;
                let more = if more > 0 {
                    format!(" (and {more} more)")
                } else {
                    String::new()
                };
                facts.push(format!("UNREAD: {}{more}", clean(unread)));
            }
            facts.join("   ")
        }
        (None, _, None) => String::new(),
    };
    let used: usize = spans.iter().map(Span::width).sum();
    let available = usize::from(area.width).saturating_sub(used);
    spans.push(Span::raw(fit(&text, available, theme.glyphs.cut)));
    buffer.set_line(area.x, area.y, &Line::from(spans), area.width);
}

/// Formats `16:00:05 UTC`.
fn time_of_day(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000 % 86_400;
    format!(
        "{:02}:{:02}:{:02} UTC",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

/// Draws the key hints, or the prompt. Returns the position of the prompt's cursor.
fn draw_keys(
    buffer: &mut Buffer,
    area: Rect,
    state: &TensorsState,
    theme: &Theme,
) -> Option<Position> {
    let mut keys = vec![
        // Key, its action, and its drop rank: the highest is dropped first where space is short.
        (theme.glyphs.arrows, "move", 6),
        ("Enter", "detail", 2),
        ("R", "read again", 1),
        ("/", "filter", 3),
        ("<>", "sort", 4),
        ("r", "reverse", 9),
        ("i", "group", 4),
        ("?", "help", 2),
        ("q", "quit", 0),
    ];
    if state.devices().len() > 1 {
        keys.insert(7, ("d", "device", 5));
    }
    let prompt = (state.focus() == Focus::Prompt).then_some(Prompt {
        filter: &state.filter,
        looks_in: "names, kind, shape, module and line",
        shown: state.shown.rows,
        all: state.all.rows,
    });
    draw_last_line(buffer, area, prompt, keys, theme)
}

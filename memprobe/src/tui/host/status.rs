//! Bottom of the host screen: status of the measurement, and key hints.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};

use super::super::input::Focus;
use super::super::state::Follow;
use super::super::status::{Prompt, StatusLine, draw_last_line};
use super::super::theme::Theme;
use super::state::HostState;
use crate::view::{clean, count, counted, rate};

/// Draws events, losses and accounting errors.
pub fn draw_status(buffer: &mut Buffer, area: Rect, state: &HostState, theme: &Theme) {
    let line = StatusLine {
        word: match state.follow {
            Follow::Paused => ("PAUSED", theme.still()),
            Follow::Live => ("LIVE", theme.good()),
        },
        losses: &state.shown.health.losses,
        note: state.note.as_deref().map(clean),
        facts: facts(state),
    };
    line.draw(buffer, area, theme);
}

/// Returns the status facts, each with its drop rank: the highest is dropped first where space is short.
fn facts(state: &HostState) -> Vec<(u8, String)> {
    let health = &state.shown.health;
    let mut facts = Vec::new();
    if state.follow == Follow::Paused {
        facts.push((1, "Space: continue".to_owned()));
    }
    facts.push((3, format!("{} ev/s", rate(health.events_per_second))));
    facts.push((5, counted(health.events, "event")));
    if !health.losses.any() {
        facts.push((2, "lost 0".to_owned()));
    }
    if health.disagreements > 0 {
        let text = format!("LEDGER OFF {}x", count(health.disagreements));
        facts.push((0, text));
    }
    if health.untracked > 0 {
        let text = format!("{} more without room", count(health.untracked));
        facts.push((0, text));
    }
    facts
}

/// Draws the key hints, or the prompt. Returns the position of the prompt's cursor.
pub fn draw_keys(
    buffer: &mut Buffer,
    area: Rect,
    state: &HostState,
    theme: &Theme,
) -> Option<Position> {
    let keys = vec![
        // Key, its action, and its drop rank: the highest is dropped first where space is short.
        (theme.glyphs.arrows, "move", 3),
        ("Enter", "open process", 1),
        ("/", "filter", 2),
        ("<>", "sort", 2),
        ("r", "reverse", 9),
        ("a", "all", 8),
        ("Space", "pause", 4),
        ("?", "help", 1),
        ("q", "quit", 0),
    ];
    let prompt = (state.focus == Focus::Prompt).then_some(Prompt {
        filter: &state.filter,
        looks_in: "PID, user, command, container, rank, line",
        shown: state.sums.rows,
        all: state.all.rows,
    });
    draw_last_line(buffer, area, prompt, keys, theme)
}

//! Bottom of a screen: status of the measurement, key hints or the prompt.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::filter::Filter;
use super::table_screen::{KeyHint, draw_text};
use super::theme::Theme;
use crate::event::Losses;
use crate::view::{clean, counted, fit, fit_end, width};

/// Status of a measurement, in one line.
#[derive(Default)]
pub(super) struct StatusLine {
    pub(super) word: (&'static str, Style),
    pub(super) losses: Losses,
    /// Text in place of the facts, such as a note about the last key.
    pub(super) text: Option<String>,
    /// Facts with their drop ranks: the highest is dropped first where space is short.
    pub(super) facts: Vec<(u8, String)>,
}

impl StatusLine {
    pub(super) fn draw(&self, buffer: &mut Buffer, area: Rect, theme: &Theme) {
        if area.is_empty() {
            return;
        }
        let (word, style) = self.word;
        let mut spans = vec![Span::styled(format!(" {word} "), style), Span::raw(" ")];
        if self.losses.any() {
            // Losses come first, so that they are never cut off.
            let text = format!(" LOST {} ", lost(&self.losses));
            spans.push(Span::styled(text, theme.bad()));
            spans.push(Span::raw(" "));
        }
        let used: usize = spans.iter().map(Span::width).sum();
        let available = usize::from(area.width).saturating_sub(used);
        spans.push(match &self.text {
            Some(text) => Span::styled(fit(text, available, theme.glyphs.cut), theme.strong()),
            None => Span::raw(fitting(&self.facts, available)),
        });
        buffer.set_line(area.x, area.y, &Line::from(spans), area.width);
    }
}

/// Returns the facts that fit, in their order. Facts of the lowest rank are kept first.
fn fitting(facts: &[(u8, String)], available: usize) -> String {
    let joined = |places: &[usize]| {
        let texts: Vec<&str> = places.iter().map(|at| facts[*at].1.as_str()).collect();
        format!(" {}", texts.join("   "))
    };
    let mut by_rank: Vec<usize> = (0..facts.len()).collect();
    by_rank.sort_by_key(|at| facts[*at].0);
    let mut taken: Vec<usize> = Vec::new();
    for at in by_rank {
        let mut more = taken.clone();
        more.push(at);
        more.sort_unstable();
        if width(&joined(&more)) <= available {
            taken = more;
        }
    }
    joined(&taken)
}

fn lost(losses: &Losses) -> String {
    let Losses {
        events,
        stacks,
        malformed,
        uses,
    } = *losses;
    let part = |number: u64, noun| (number > 0).then(|| counted(number, noun));
    let parts = [
        part(events, "event"),
        part(stacks, "stack"),
        part(malformed, "bad record"),
        part(uses, "block use"),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Draws the prompt if given, or else the key hints. Returns the position of the prompt's cursor.
pub(super) fn draw_last_line(
    buffer: &mut Buffer,
    area: Rect,
    prompt: Option<Prompt<'_>>,
    keys: Vec<KeyHint>,
    theme: &Theme,
) -> Option<Position> {
    if area.is_empty() {
        return None;
    }
    if prompt.is_none() {
        draw_key_list(buffer, area, keys, theme);
    }
    prompt.map(|prompt| draw_prompt(buffer, area, &prompt, theme))
}

/// Draws key hints: key, action, and drop rank. The highest rank is dropped first where space is short.
fn draw_key_list(buffer: &mut Buffer, area: Rect, mut keys: Vec<KeyHint>, theme: &Theme) {
    if area.is_empty() {
        return;
    }
    let wide = |keys: &[KeyHint]| -> usize {
        keys.iter()
            .map(|(key, verb, _)| width(key) + verb.len() + 3)
            .sum::<usize>()
    };
    while wide(&keys) > usize::from(area.width) && keys.len() > 1 {
        let last = keys.iter().map(|(.., rank)| *rank).max();
        let place = keys
            .iter()
            .rposition(|(.., rank)| Some(*rank) == last)
            .unwrap_or(0);
        keys.remove(place);
    }
    let spans = keys.iter().flat_map(|(key, verb, _)| {
        [
            Span::styled(format!(" {key}"), theme.strong()),
            Span::raw(format!(" {verb} ")),
        ]
    });
    buffer.set_line(
        area.x,
        area.y,
        &Line::from(spans.collect::<Vec<_>>()),
        area.width,
    );
}

/// Prompt of a filter, with the text beside the pattern.
pub(super) struct Prompt<'a> {
    pub(super) filter: &'a Filter,
    /// Description of the text that the pattern is matched against.
    pub(super) looks_in: &'static str,
    pub(super) shown: usize,
    pub(super) all: usize,
}

fn draw_prompt(buffer: &mut Buffer, area: Rect, prompt: &Prompt<'_>, theme: &Theme) -> Position {
    let filter = prompt.filter;
    let said = match filter.error() {
        Some(error) => format!("invalid: {}", clean(error)),
        None if filter.pattern().is_empty() => {
            format!("regular expression on {}", prompt.looks_in)
        }
        None => format!("{} of {} rows", prompt.shown, prompt.all),
    };
    let all = usize::from(area.width);
    let said = format!("{said}   Enter keep  Esc clear ");
    // The pattern takes precedence over the text beside it.
    let pattern = fit_end(
        &clean(filter.pattern()),
        all.saturating_sub(2),
        theme.glyphs.cut,
    );
    let typed = format!("/{pattern}");
    buffer.set_stringn(area.x, area.y, &typed, all, theme.strong());
    let cursor = area.x + (width(&typed) as u16).min(area.width - 1);
    let available = all.saturating_sub(width(&typed) + 3);
    let style = if filter.error().is_some() {
        theme.bad()
    } else {
        theme.faint()
    };
    if available >= 12 {
        let area = Rect::new(cursor + 3, area.y, available as u16, 1);
        draw_text(buffer, area, &said, style, theme);
    }
    Position {
        x: cursor,
        y: area.y,
    }
}

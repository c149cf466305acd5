//! Bottom of the screen: status of the measurement, summary of the selected line, key hints.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::SourceText;
use super::filter::Filter;
use super::input::Focus;
use super::notice;
use super::state::{Follow, State, WayBack};
use super::table::Subject;
use super::theme::Theme;
use crate::event::ProbeStatus;
use crate::event::{Detail, Losses};
use crate::ledger::snapshot::{Health, Site, TargetState};
use crate::view::{clean, count, counted, fit, fit_end, rate, whole_frame, width};

/// Returns the status word and its style.
fn word(state: &State, theme: &Theme) -> (&'static str, Style) {
    match (&state.shown.health.state, state.follow) {
        (_, Follow::Paused) => ("PAUSED", theme.still()),
        (TargetState::Waiting(_), _) => ("WAITING", theme.still()),
        (TargetState::Running, _) => ("LIVE", theme.good()),
        (TargetState::Exited, _) => ("TARGET GONE", theme.bad()),
        (TargetState::Recording, _) => ("RECORDING", theme.good()),
    }
}

/// Draws events, losses, probes and accounting errors.
pub fn draw_status(
    buffer: &mut Buffer,
    area: Rect,
    state: &State,
    note: Option<&str>,
    theme: &Theme,
) {
    let health = &state.shown.health;
    let line = StatusLine {
        word: word(state, theme),
        losses: &health.losses,
        note: note.map(str::to_owned),
        facts: facts(health, state),
    };
    line.draw(buffer, area, theme);
}

/// Status of a measurement, in one line.
pub(super) struct StatusLine<'a> {
    /// Status word and its style.
    pub(super) word: (&'static str, Style),
    pub(super) losses: &'a Losses,
    /// Note about the last key, in place of the facts.
    pub(super) note: Option<String>,
    /// Facts with their drop ranks: the highest is dropped first where space is short.
    pub(super) facts: Vec<(u8, String)>,
}

impl StatusLine<'_> {
    pub(super) fn draw(&self, buffer: &mut Buffer, area: Rect, theme: &Theme) {
        if area.is_empty() {
            return;
        }
        let (word, style) = self.word;
        let mut spans = vec![Span::styled(format!(" {word} "), style), Span::raw(" ")];
        if self.losses.any() {
            // Losses come first, so that they are never cut off.
            let text = format!(" LOST {} ", lost(self.losses));
            spans.push(Span::styled(text, theme.bad()));
            spans.push(Span::raw(" "));
        }
        let used: usize = spans.iter().map(Span::width).sum();
        let available = usize::from(area.width).saturating_sub(used);
        spans.push(match &self.note {
            Some(note) => Span::styled(fit(note, available, theme.glyphs.cut), theme.strong()),
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

/// Describes the losses in words.
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

/// Returns the status facts, each with its drop rank: the highest is dropped first where space is short.
fn facts(health: &Health, state: &State) -> Vec<(u8, String)> {
    let mut facts = Vec::new();
    if state.follow == Follow::Paused {
        facts.push((1, "Space: continue".to_owned()));
    }
    match &health.state {
        TargetState::Waiting(what) => facts.push((0, format!("for {}", clean(what)))),
        TargetState::Running => facts.push((3, format!("{} ev/s", rate(health.events_per_second)))),
        TargetState::Exited => facts.push((4, "last state shown".to_owned())),
        TargetState::Recording => {}
    }
    facts.push((5, counted(health.events, "event")));
    if !health.losses.any() {
        facts.push((2, "lost 0".to_owned()));
    }
    if health.disagreements > 0 {
        facts.push((0, format!("LEDGER OFF {}x", count(health.disagreements))));
    }
    if health.capture.detail > Detail::Lines {
        facts.push((4, format!("detail {}", health.capture.detail.as_str())));
    }
    facts.extend(probes(health));
    facts
}

fn probes(health: &Health) -> Option<(u8, String)> {
    if health.state != TargetState::Running {
        return None;
    }
    let is_slow = |probe: &&ProbeStatus| !probe.emulated && probe.is_busy();
    let stepped = health.probes.iter().filter(is_slow).count();
    Some(match (health.probes.len(), stepped) {
        (0, _) => (0, "NO PROBES".to_owned()),
        (1, 0) if health.missing.is_empty() => (4, "1 probe ok".to_owned()),
        (all, 0) if !health.missing.is_empty() => (
            1,
            format!("{all} probes, {} MISSING (p)", health.missing.len()),
        ),
        (all, 0) => (4, format!("{all} probes ok")),
        (all, _) => (1, format!("{all} probes, {stepped} SLOW (p)")),
    })
}

/// Draws the path and the source text of the selected line.
pub fn draw_detail(
    buffer: &mut Buffer,
    area: Rect,
    state: &State,
    sources: &mut dyn SourceText,
    theme: &Theme,
) {
    let Some(row) = state.selected() else { return };
    if area.is_empty() {
        return;
    }
    let available = usize::from(area.width.saturating_sub(2));
    let text = match (&row.subject, row.subject.frame()) {
        (_, Some(frame)) => {
            let kind = match &row.subject {
                Subject::Site(Site::Backward(_) | Site::Node { .. }) => "backward of ",
                _ => "",
            };
            let place = format!("{kind}{}", whole_frame(frame));
            let source = sources.line(&frame.file, frame.line);
            let source = source
                .map(|text| clean(text.trim()).trim().to_owned())
                .unwrap_or_default();
            // The path is cut in favour of the source text, but keeps half of the width.
            let least = (available / 2).max(available.saturating_sub(width(&source) + 2));
            let place = fit_end(&place, least, theme.glyphs.cut);
            format!("{place}  {source}")
        }
        (Subject::BeforeAttach(None), _) => {
            "live when memprobe attached: its lines are unknown".to_owned()
        }
        (Subject::BeforeAttach(Some(unread)), _) => {
            format!(
                "live when memprobe attached, one row for all: {}",
                clean(unread)
            )
        }
        (Subject::Unaccounted, _) => {
            "the allocator's total less all known blocks: events were lost".to_owned()
        }
        (Subject::Site(Site::NoLine { thread, reason }), _) if thread.is_empty() => {
            format!("no line is known: {reason}")
        }
        (Subject::Site(Site::NoLine { thread, reason }), _) => {
            format!("thread {} allocated: {reason}", clean(thread))
        }
        _ => String::new(),
    };
    notice::draw_detail(buffer, area, &text, theme);
}

/// Draws the key hints, or the prompt. Returns the position of the prompt's cursor.
pub fn draw_keys(
    buffer: &mut Buffer,
    area: Rect,
    state: &State,
    theme: &Theme,
) -> Option<Position> {
    let mut keys = vec![
        // Key, its action, and its drop rank: the highest is dropped first where space is short.
        (theme.glyphs.arrows, "move", 3),
        ("Enter", "open", 2),
        ("s", "source", 3),
        ("/", "filter", 2),
        ("<>", "sort", 4),
        ("r", "reverse", 9),
        ("i", "group", 8),
        ("Space", "pause", 3),
        ("?", "help", 1),
        ("q", "quit", 0),
    ];
    if state.shown.devices.len() > 1 {
        keys.insert(7, ("d", "device", 5));
    }
    if state.way_back == WayBack::Host {
        keys.insert(keys.len() - 1, ("Esc", "back", 1));
    }
    let prompt = (state.focus == Focus::Prompt).then_some(Prompt {
        filter: &state.filter,
        looks_in: "path, line and function",
        shown: state.table.shown,
        all: state.table.all,
    });
    draw_last_line(buffer, area, prompt, keys, theme)
}

/// Draws the prompt if given, or else the key hints. Returns the position of the prompt's cursor.
pub(super) fn draw_last_line(
    buffer: &mut Buffer,
    area: Rect,
    prompt: Option<Prompt<'_>>,
    keys: Vec<(&str, &str, u8)>,
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
pub(super) fn draw_key_list(
    buffer: &mut Buffer,
    area: Rect,
    mut keys: Vec<(&str, &str, u8)>,
    theme: &Theme,
) {
    if area.is_empty() {
        return;
    }
    let wide = |keys: &[(&str, &str, u8)]| -> usize {
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
    /// Rows that match.
    pub(super) shown: usize,
    /// All rows.
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
        buffer.set_stringn(
            cursor + 3,
            area.y,
            fit(&said, available, theme.glyphs.cut),
            available,
            style,
        );
    }
    Position {
        x: cursor,
        y: area.y,
    }
}

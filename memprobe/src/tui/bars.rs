//! Bars at the top and bottom of a screen: title, tabs of screens and devices, status, key hints, prompt.

use ratatui::buffer::Buffer;
use ratatui::layout::{Position, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::filter::Filter;
use super::table_screen::{DeviceTabs, KeyHint, PromptKind, ScreenTitle, draw_text};
use super::theme::Theme;
use crate::attribution::tables::Breakdown;
use crate::event::Losses;
use crate::view::{BreakdownView, clean, counted, fit, fit_end, width};

/// Minimum height in rows of a screen with a tab bar.
pub(super) const MIN_HEIGHT: u16 = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tab {
    Lines,
    Modules,
    Layers,
    Categories,
    Tensors,
    Outside,
    Owners,
    Segments,
    Breakdown(Breakdown),
    Probes,
}

/// A screen, its key, its name, and its rank: where space is short, the highest rank loses its name first.
type TabEntry = (Tab, &'static str, &'static str, usize);

/// Screens before the breakdowns.
const SCREENS: [TabEntry; 8] = [
    (Tab::Lines, "Esc", "lines", 0),
    (Tab::Modules, "m", "modules", 1),
    (Tab::Layers, "L", "layers", 2),
    (Tab::Categories, "c", "categories", 3),
    (Tab::Tensors, "t", "tensors", 4),
    (Tab::Outside, "o", "outside", 6),
    (Tab::Owners, "W", "owners", 7),
    (Tab::Segments, "M", "segments", 8),
];

const PROBES: TabEntry = (Tab::Probes, "p", "probes", 5);

impl Tab {
    fn entries() -> impl Iterator<Item = TabEntry> {
        // The ranks of all others are below.
        let ranks = SCREENS.len() + 1..;
        let breakdowns = Breakdown::ALL.iter().zip(ranks).map(|(breakdown, rank)| {
            let BreakdownView { key, plural, .. } = BreakdownView::of(*breakdown);
            (Self::Breakdown(*breakdown), *key, *plural, rank)
        });
        SCREENS.into_iter().chain(breakdowns).chain([PROBES])
    }

    #[cfg(test)]
    pub(super) fn all() -> impl Iterator<Item = Self> {
        Self::entries().map(|(tab, ..)| tab)
    }

    pub(super) fn name(self) -> &'static str {
        let entry = Self::entries().find(|(tab, ..)| *tab == self);
        entry.map_or("", |(_, _, name, _)| name)
    }

    /// Returns the screen that a letter opens.
    pub(super) fn of_key(letter: char) -> Option<Self> {
        let mut encoded = [0; 4];
        let letter = &*letter.encode_utf8(&mut encoded);
        let entry = Self::entries().find(|(_, key, ..)| *key == letter);
        entry.map(|(tab, ..)| tab)
    }

    /// Returns the letters that open screens from elsewhere.
    pub(super) fn keys(is_there: impl Fn(Self) -> bool) -> String {
        let entries = Self::entries().filter(|(tab, ..)| *tab != Self::Lines && is_there(*tab));
        entries.map(|(_, key, ..)| key).collect()
    }
}

/// Draws the tab bar. Where space is short, less important screens have their key alone.
pub(super) fn draw_tabs(buffer: &mut Buffer, area: Rect, current: Tab, theme: &Theme) {
    let line = (0..=Tab::entries().count()).rev();
    let line = line
        .map(|named| bar(current, named, theme))
        .find(|line| line.width() <= usize::from(area.width));
    let line = line.unwrap_or_else(|| Line::from(vec![Span::raw(" "), marked(current, theme)]));
    if !area.is_empty() {
        buffer.set_line(area.x, area.y, &line, area.width);
    }
}

/// Names the screens of a rank below `named`.
fn bar(current: Tab, named: usize, theme: &Theme) -> Line<'static> {
    let mut spans = Vec::new();
    for (tab, key, name, rank) in Tab::entries() {
        let between = if spans.is_empty() { " " } else { "  " };
        spans.push(Span::raw(between));
        if tab == current {
            spans.push(marked(tab, theme));
            continue;
        }
        spans.push(Span::styled(key, theme.strong()));
        if rank < named {
            spans.push(Span::raw(format!(" {name}")));
        }
    }
    Line::from(spans)
}

fn marked(tab: Tab, theme: &Theme) -> Span<'static> {
    Span::styled(format!("[{}]", tab.name()), theme.strong())
}

const BETWEEN_TABS: usize = 2;
/// Minimum width for facts that narrow screens leave out.
const WIDE: u16 = 110;
/// Columns kept for the text on every screen; wider ones keep a third of their width.
const TEXT_COLUMNS: usize = 12;

/// Draws the title: the name of the screen, the text, and the facts that leave space for the text.
pub fn draw_title(buffer: &mut Buffer, area: Rect, title: &ScreenTitle, theme: &Theme) {
    buffer.set_style(area, theme.bar());
    let name = format!(" {}  ", title.name);
    let columns = usize::from(area.width);
    let text = clean(&title.text);
    let wanted = width(&text).min(TEXT_COLUMNS.max(columns / 3));
    let mut facts: Vec<&(u8, String)> = title.facts.iter().collect();
    facts.retain(|(rank, _)| *rank < ScreenTitle::WIDE_ONLY || area.width >= WIDE);
    let right = loop {
        let texts: Vec<&str> = facts.iter().map(|(_, fact)| fact.as_str()).collect();
        let right = format!("  {} ", texts.join("  "));
        let last = facts.iter().map(|(rank, _)| *rank).max();
        let place = facts.iter().position(|(rank, _)| Some(*rank) == last);
        match place {
            None => break String::new(),
            Some(_) if width(&name) + wanted + width(&right) <= columns => break right,
            Some(place) => drop(facts.remove(place)),
        }
    };
    let available = columns.saturating_sub(width(&name) + width(&right));
    let text = fit(&text, available, theme.glyphs.cut);
    buffer.set_stringn(area.x, area.y, &name, columns, theme.bar_strong());
    let after = area.x + (width(&name) as u16).min(area.width);
    buffer.set_stringn(after, area.y, text, available, theme.bar());
    let start = area.right().saturating_sub(width(&right) as u16);
    buffer.set_stringn(start, area.y, &right, width(&right), theme.bar());
}

pub fn draw_device_tabs(buffer: &mut Buffer, area: Rect, devices: &DeviceTabs, theme: &Theme) {
    if area.is_empty() || devices.tabs.is_empty() {
        return;
    }
    let mut spans = vec![Span::raw(" ")];
    for (at, tab) in devices.tabs.iter().enumerate() {
        spans.push(match at == devices.shown {
            true => Span::styled(format!("[{tab}]"), theme.strong()),
            false => Span::raw(format!(" {tab} ")),
        });
        spans.push(Span::raw(" ".repeat(BETWEEN_TABS)));
    }
    let line = Line::from(spans);
    let hint = "Tab: next device ";
    buffer.set_line(area.x, area.y, &line, area.width);
    if usize::from(area.width) >= line.width() + hint.len() {
        let start = area.right() - hint.len() as u16;
        buffer.set_string(start, area.y, hint, theme.faint());
    }
}

pub fn tab_at(tabs: &[String], x: u16) -> Option<usize> {
    let mut start = 1;
    tabs.iter().position(|tab| {
        let end = start + tab.len() + 2;
        let is_at = (start..end).contains(&usize::from(x));
        start = end + BETWEEN_TABS;
        is_at
    })
}

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
    let part = |number: u64, noun| (number > 0).then(|| counted(number, noun));
    let parts = [
        part(losses.events, "event"),
        part(losses.stacks, "stack"),
        part(losses.malformed, "bad record"),
        part(losses.uses, "block use"),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Draws key hints: key, action, and drop rank. The highest rank is dropped first where space is short.
pub(super) fn draw_key_list(
    buffer: &mut Buffer,
    area: Rect,
    mut keys: Vec<KeyHint>,
    theme: &Theme,
) {
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
    let line = Line::from_iter(spans);
    buffer.set_line(area.x, area.y, &line, area.width);
}

/// Prompt of a filter or a search, with the text beside the pattern.
pub(super) struct Prompt<'a> {
    pub(super) kind: PromptKind,
    pub(super) filter: &'a Filter,
    /// Description of the text that the pattern is matched against.
    pub(super) looks_in: &'static str,
    pub(super) shown: usize,
    pub(super) all: usize,
}

/// Draws the prompt. Returns the position of its cursor.
pub(super) fn draw_prompt(
    buffer: &mut Buffer,
    area: Rect,
    prompt: &Prompt<'_>,
    theme: &Theme,
) -> Position {
    let filter = prompt.filter;
    let said = match filter.error() {
        Some(error) => format!("invalid: {}", clean(error)),
        None if filter.pattern().is_empty() => {
            format!("regular expression on {}", prompt.looks_in)
        }
        None => format!("{} of {} rows", prompt.shown, prompt.all),
    };
    let all = usize::from(area.width);
    let (sign, keys) = match prompt.kind {
        PromptKind::Filter => ("/", "Enter keep  Esc clear"),
        PromptKind::Search => ("search: ", "Enter go  Esc back"),
    };
    let said = format!("{said}   {keys} ");
    // The pattern takes precedence over the text beside it.
    let pattern = fit_end(
        &clean(filter.pattern()),
        all.saturating_sub(sign.len() + 1),
        theme.glyphs.cut,
    );
    let typed = format!("{sign}{pattern}");
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
    Position::new(cursor, area.y)
}

#[cfg(test)]
mod tests {
    use super::super::test_support::COLOUR;
    use super::*;

    fn drawn(width: u16, current: Tab) -> String {
        let area = Rect::new(0, 0, width, 1);
        let mut buffer = Buffer::empty(area);
        draw_tabs(&mut buffer, area, current, &COLOUR);
        let cells = buffer.content().iter().map(|cell| cell.symbol());
        cells.collect::<String>().trim_end().to_owned()
    }

    #[test]
    fn every_screen_has_its_key_and_the_current_one_is_marked() {
        let lines = [drawn(80, Tab::Modules), drawn(110, Tab::Lines)];
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn every_key_is_of_one_screen_and_all_fit_into_the_help() {
        let keys = Tab::keys(|_| true);
        assert!(keys.len() < 12, "{keys}");
        for (tab, key, ..) in Tab::entries().filter(|(tab, ..)| *tab != Tab::Lines) {
            assert_eq!(keys.matches(key).count(), 1, "{key}");
            assert_eq!(Tab::of_key(key.chars().next().unwrap()), Some(tab));
        }
        assert_eq!(Tab::of_key('E'), None);
    }

    #[test]
    fn a_narrow_bar_has_names_as_far_as_they_fit() {
        let lines = [56, 42, 41].map(|width| drawn(width, Tab::Categories));
        let narrowest = drawn(24, Tab::Lines);
        insta::assert_snapshot!(format!("{}\n{narrowest}", lines.join("\n")));
    }
}

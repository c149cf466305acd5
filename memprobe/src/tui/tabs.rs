//! Tab bar of the screens of one process: each screen with its key, the current one in brackets.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::theme::Theme;

/// Minimum height in rows of a screen with a tab bar.
pub(super) const MIN_HEIGHT: u16 = 16;

/// One of the screens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tab {
    Lines,
    Modules,
    Layers,
    Categories,
    Tensors,
    Outside,
    Threads,
    Probes,
}

impl Tab {
    /// Each screen with its key and its name. Where space is short, the highest rank loses its name first.
    const ALL: [(Self, &'static str, &'static str, usize); 8] = [
        (Self::Lines, "Esc", "lines", 0),
        (Self::Modules, "m", "modules", 1),
        (Self::Layers, "L", "layers", 2),
        (Self::Categories, "c", "categories", 3),
        (Self::Tensors, "t", "tensors", 4),
        (Self::Outside, "o", "outside", 6),
        (Self::Threads, "T", "threads", 7),
        (Self::Probes, "p", "probes", 5),
    ];

    pub(super) fn name(self) -> &'static str {
        let mut all = Self::ALL.iter();
        let entry = all.find(|(tab, ..)| *tab == self);
        entry.map_or("", |(_, _, name, _)| name)
    }
}

/// Draws the tab bar. Where space is short, less important screens have their key alone.
pub(super) fn draw_tabs(buffer: &mut Buffer, area: Rect, current: Tab, theme: &Theme) {
    let line = (0..=Tab::ALL.len()).rev();
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
    for (tab, key, name, rank) in Tab::ALL {
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
        assert_eq!(
            drawn(80, Tab::Modules),
            " Esc lines  [modules]  L layers  c categories  t tensors  o outside  T  p probes"
        );
        assert_eq!(
            drawn(100, Tab::Lines),
            " [lines]  m modules  L layers  c categories  t tensors  o outside  T threads  p probes"
        );
    }

    #[test]
    fn a_narrow_bar_has_names_as_far_as_they_fit() {
        assert_eq!(
            drawn(50, Tab::Categories),
            " Esc lines  m modules  L  [categories]  t  o  T  p"
        );
        assert_eq!(
            drawn(36, Tab::Categories),
            " Esc  m  L  [categories]  t  o  T  p"
        );
        assert_eq!(drawn(35, Tab::Categories), " [categories]");
        assert_eq!(drawn(24, Tab::Lines), " [lines]");
    }
}

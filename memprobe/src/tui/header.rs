//! Top of a screen: title and device tabs.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::table_screen::{DeviceTabs, ScreenTitle};
use super::theme::Theme;
use crate::view::{clean, fit, width};

/// Columns between two device tabs.
const BETWEEN_TABS: usize = 2;
/// Minimum width for facts that narrow screens leave out.
const WIDE: u16 = 110;
/// Columns kept for the text; facts at the right are dropped to make space for it.
const TEXT_COLUMNS: usize = 12;

/// Draws the first line: name, text, and facts at the right.
pub fn draw_title(buffer: &mut Buffer, area: Rect, title: &ScreenTitle, theme: &Theme) {
    buffer.set_style(area, theme.bar());
    let name = format!(" {}  ", title.name);
    let columns = usize::from(area.width);
    let mut facts = title.facts.clone();
    if area.width >= WIDE {
        facts.splice(0..0, title.more_facts.iter().cloned());
    }
    // The last fact is dropped last.
    while facts.len() > 1 && width(&facts.join("  ")) + width(&name) + TEXT_COLUMNS > columns {
        facts.remove(0);
    }
    let right = format!("  {} ", facts.join("  "));
    let available = columns.saturating_sub(width(&name) + width(&right));
    let text = fit(&clean(&title.text), available, theme.glyphs.cut);
    buffer.set_stringn(area.x, area.y, &name, columns, theme.bar_strong());
    let after = area.x + (width(&name) as u16).min(area.width);
    buffer.set_stringn(after, area.y, text, available, theme.bar());
    let start = area.right().saturating_sub(width(&right) as u16);
    if start >= after {
        buffer.set_stringn(start, area.y, &right, width(&right), theme.bar());
    }
}

/// Draws the device tabs; the selected one is in brackets.
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

//! Table of the latest iterations.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::super::theme::Theme;
use crate::attribution::tables::{DeviceCategories, IterationRow, Source};
use crate::event::bytes::short;
use crate::view::{count, duration, fit, iteration, iterations_by, span};

/// Columns: head, width, and minimum width of a table that shows the column.
const COLUMNS: [(&str, usize, u16); 5] = [
    ("TOOK", 12, 0),
    ("PEAK", 9, 0),
    ("LIVE AT END", 12, 54),
    ("CACHED", 9, 64),
    ("ALLOCS", 9, 74),
];

const NAME: usize = 14;

/// Draws the head and as many iterations as fit, latest first.
pub fn draw_iterations(buffer: &mut Buffer, area: Rect, device: &DeviceCategories, theme: &Theme) {
    if area.is_empty() {
        return;
    }
    let available = usize::from(area.width);
    let head = Rect { height: 1, ..area };
    buffer.set_style(head, theme.bar());
    let mut text = format!("  {:<NAME$}", "ITERATION");
    for (head, wide, _) in shown(area.width) {
        text.push_str(&format!(" {head:>wide$}"));
    }
    let by = format!("   by {}", iterations_by(device.source));
    if device.source != Source::Nothing && text.len() + by.len() < available {
        text.push_str(&by);
    }
    buffer.set_stringn(area.x, area.y, text, available, theme.bar());
    if device.iterations.is_empty() || device.source == Source::Nothing {
        let none = "  Nothing marks iterations: no step, zero_grad() or batch was seen.";
        if area.height > 1 {
            let text = fit(none, available, theme.glyphs.cut);
            buffer.set_stringn(area.x, area.y + 1, text, available, theme.faint());
        }
        return;
    }
    for (row, y) in device.iterations.iter().zip(area.y + 1..area.bottom()) {
        let text = fit(&line(row, area.width), available, theme.glyphs.cut);
        buffer.set_stringn(area.x, y, text, available, Style::new());
    }
}

fn shown(width: u16) -> impl Iterator<Item = (&'static str, usize, u16)> {
    let all = COLUMNS.into_iter();
    all.filter(move |(.., least)| width >= *least)
}

fn line(row: &IterationRow, width: u16) -> String {
    let cells = [
        took(Duration::from_nanos(row.length)),
        short(row.peak),
        short(row.end.allocated),
        short(row.end.cached()),
        count(row.allocs),
    ];
    let mut text = format!("  {:<NAME$}", iteration(row.number, row.kind));
    for ((_, wide, least), cell) in COLUMNS.into_iter().zip(cells) {
        if width >= least {
            text.push_str(&format!(" {cell:>wide$}"));
        }
    }
    text
}

/// Formats a duration; one below a second in milliseconds.
fn took(length: Duration) -> String {
    match length.as_secs() {
        0 => span(length),
        _ => duration(length),
    }
}

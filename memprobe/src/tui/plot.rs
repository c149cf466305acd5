//! Frame of a graph over time: labels at the left, an axis in the last row.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

use super::theme::Theme;
use crate::event::Bytes;
use crate::event::bytes::human;
use crate::view::span;

const LABELS: u16 = 12;

/// Draws labels up to `top`, and an axis of so many nanoseconds. Returns the area between; `None` without space.
pub fn draw_frame(
    buffer: &mut Buffer,
    area: Rect,
    top: Bytes,
    length: u64,
    legend: &Line,
    theme: &Theme,
) -> Option<Rect> {
    if area.height < 2 || area.width <= LABELS {
        return None;
    }
    let (wide, high) = (area.width - LABELS, area.height - 1);
    let plot = Rect::new(area.x + LABELS, area.y, wide, high);
    let (rows, glyphs) = (plot.height, &theme.glyphs);
    for row in 0..rows {
        let text = match row {
            0 => human(top),
            _ if rows >= 4 && rows.is_multiple_of(2) && row == rows / 2 => human(Bytes(top.0 / 2)),
            _ => String::new(),
        };
        let text = format!("{text:>11}{}", glyphs.wall);
        buffer.set_string(area.x, area.y + row, text, theme.faint());
    }
    let y = plot.bottom();
    let rule = glyphs.rule.repeat(usize::from(plot.width));
    buffer.set_string(plot.x, y, rule, theme.faint());
    let zero = format!("0 {}", glyphs.wall);
    buffer.set_string(plot.x - 3, y, zero, theme.faint());
    let ago = format!(" {} ago ", span(Duration::from_nanos(length)));
    let now = " now ";
    if length > 0 && ago.len() + legend.width() + now.len() + 6 <= usize::from(plot.width) {
        buffer.set_string(plot.x + 1, y, &ago, theme.faint());
        let end = plot.right() - 1 - now.len() as u16;
        buffer.set_string(end, y, now, theme.faint());
    }
    let middle = plot.x + plot.width.saturating_sub(legend.width() as u16) / 2;
    buffer.set_line(middle, y, legend, plot.right() - middle);
    Some(plot)
}

/// Returns one value for each column: the highest of its points. Fewer points than columns are stretched.
pub fn columns<'a, T, U>(points: &'a [T], width: u16, highest: impl Fn(&'a [T]) -> U) -> Vec<U> {
    let width = usize::from(width);
    let column = |x: usize| {
        let from = x * points.len() / width;
        let to = ((x + 1) * points.len() / width).max(from + 1);
        points.get(from..to).map(&highest)
    };
    (0..width).map_while(column).collect()
}

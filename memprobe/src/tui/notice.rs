//! Messages in place of a table.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::table_screen::SMALLEST;
use super::theme::Theme;
use crate::view::{fit, width};

/// Draws two centred lines: the problem, and a remedy.
pub fn draw_words(buffer: &mut Buffer, area: Rect, first: &str, second: &str, theme: &Theme) {
    let top = area.y + area.height.saturating_sub(2) / 2;
    let columns = usize::from(area.width);
    let texts = [(first, theme.strong()), (second, theme.faint())];
    for ((text, style), y) in texts.into_iter().zip(top..area.bottom()) {
        let text = fit(text, columns, theme.glyphs.cut);
        let start = area.x + (area.width - width(&text).min(columns) as u16) / 2;
        buffer.set_stringn(start, y, text, columns, style);
    }
}

/// Draws the message of a screen too small for any layout: the most important number, and the minimum size.
pub fn draw_too_small(buffer: &mut Buffer, number: &str) {
    let area = buffer.area;
    let (least_width, least_height) = SMALLEST;
    let needs = format!("needs {least_width}x{least_height}");
    let texts = [number, "memprobe", &needs, "q quit"];
    for (text, y) in texts.into_iter().zip(area.y..area.bottom()) {
        buffer.set_stringn(area.x, y, text, usize::from(area.width), Style::new());
    }
}

//! Source text around the selected line.

use std::cell::RefMut;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::super::SourceText;
use super::super::table_screen::draw_text;
use super::super::theme::Theme;
use crate::event::Frame;
use crate::view::{clean, fit, fit_end, width};

/// Draws the title, and as many lines around the selected one as fit.
pub fn draw_source(
    buffer: &mut Buffer,
    area: Rect,
    frame: Option<&Frame>,
    mut sources: RefMut<Box<dyn SourceText + Send>>,
    theme: &Theme,
) {
    if area.is_empty() {
        return;
    }
    let cut = theme.glyphs.cut;
    let columns = usize::from(area.width);
    let title = |buffer: &mut Buffer, text: &str| {
        let text = format!(" {text} ");
        let rule = theme
            .glyphs
            .rule
            .repeat(columns.saturating_sub(width(&text) + 1));
        let text = format!("{}{text}{rule}", theme.glyphs.rule);
        buffer.set_stringn(area.x, area.y, text, columns, theme.strong());
    };
    let Some(frame) = frame else {
        title(buffer, "source: select a line");
        return;
    };
    let place = clean(&format!("{}:{}", frame.file, frame.line));
    title(buffer, &fit_end(&place, columns.saturating_sub(4), cut));
    let body = Rect {
        y: area.y + 1,
        height: area.height - 1,
        ..area
    };
    let radius = u32::from(body.height / 2);
    let Some(lines) = sources
        .around(&frame.file, frame.line, radius)
        .filter(|lines| !lines.is_empty())
    else {
        let text = " The source cannot be read: no such file, or it has changed.";
        draw_text(buffer, body, text, theme.faint(), theme);
        return;
    };
    for ((number, text), y) in lines.iter().zip(body.y..body.bottom()) {
        let own = *number == frame.line;
        let style = if own { theme.strong() } else { Style::new() };
        let mark = if own { theme.glyphs.cursor } else { " " };
        let text = format!(
            "{mark}{number:>5} {} {}",
            theme.glyphs.wall,
            clean(text.trim_end())
        );
        buffer.set_stringn(body.x, y, fit(&text, columns, cut), columns, style);
    }
}

//! Source text around the selected line.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::SourceText;
use super::state::State;
use super::theme::Theme;
use crate::view::{clean, fit, fit_end, width};

/// Draws the title, and as many lines around the selected one as fit.
pub fn draw_source(
    buffer: &mut Buffer,
    area: Rect,
    state: &State,
    sources: &mut dyn SourceText,
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
    let Some(frame) = state.selected().and_then(|row| row.subject.frame()) else {
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
        if !body.is_empty() {
            buffer.set_stringn(
                body.x,
                body.y,
                fit(text, columns, cut),
                columns,
                theme.faint(),
            );
        }
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

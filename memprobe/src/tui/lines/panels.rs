//! Parts around the table of lines: totals, source text.

use std::cell::RefMut;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::super::SourceText;
use super::super::table_screen::{cut_at, draw_text};
use super::super::theme::Theme;
use crate::event::bytes::{human, short};
use crate::event::{Bytes, Frame, Losses};
use crate::ledger::snapshot::DeviceSnapshot;
use crate::view::{clean, count, fit, fit_end, percent, width};

/// Minimum width for the peak if the totals have one line.
const MIN_WIDTH_FOR_PEAK: u16 = 60;

pub fn draw_totals(
    buffer: &mut Buffer,
    area: Rect,
    (device, losses): (&DeviceSnapshot, &Losses),
    outside: Bytes,
    theme: &Theme,
) {
    let lines = if area.height >= 2 {
        in_two_lines(device, losses, outside, theme)
    } else {
        [in_one_line(device, area.width, theme), Vec::new()]
    };
    for (y, parts) in (area.y..area.bottom()).zip(lines) {
        let line = fitting(parts, area.width);
        buffer.set_line(area.x, y, &line, area.width);
    }
}

/// Part of a line, which is shown as a whole or not at all.
type LinePart = Vec<Span<'static>>;

/// Joins the parts that fit, and at least the first.
fn fitting(parts: Vec<LinePart>, width: u16) -> Line<'static> {
    let mut line = Line::default();
    for part in parts {
        let wide: usize = part.iter().map(Span::width).sum();
        if line.spans.is_empty() || line.width() + wide <= usize::from(width) {
            line.spans.extend(part);
        }
    }
    line
}

fn in_two_lines(
    device: &DeviceSnapshot,
    losses: &Losses,
    outside: Bytes,
    theme: &Theme,
) -> [Vec<LinePart>; 2] {
    let total = |name: &str, style: Style, now: Bytes, peak: Bytes| {
        let now = vec![
            Span::styled(format!(" {name} "), style),
            Span::styled(format!("{:>11}", human(now)), theme.strong()),
        ];
        let peak = vec![Span::raw(format!("  peak {:>11}", human(peak)))];
        vec![now, peak]
    };
    let (now, peak) = (device.totals, device.peak);
    let mut first = total(
        "allocated",
        theme.allocated(),
        now.allocated,
        peak.allocated,
    );
    let mut second = total("reserved ", theme.reserved(), now.reserved, peak.reserved);
    let cached = now.cached();
    let share = percent(cached.0.into(), now.reserved.0.into());
    first.push(vec![Span::raw(format!("   cached {}", human(cached)))]);
    first.push(vec![Span::raw(format!(" ({share} of reserved)"))]);
    if device.ooms > 0 {
        let text = format!(" {} ", ooms(device.ooms));
        second.push(vec![Span::raw("   "), Span::styled(text, theme.bad())]);
    }
    let blocks = device.all_live_blocks(losses);
    let blocks = blocks.map_or_else(|| "?".to_owned(), count);
    second.push(vec![Span::raw(format!("   {blocks} live blocks"))]);
    if let Some(growth) = device.growth.filter(|growth| growth.is_steady) {
        let (bytes, per) = match device.iterations_per_minute {
            Some(iterations) => (growth.per_iteration(iterations), "it"),
            None => (growth.per_minute, "min"),
        };
        let bytes = short(Bytes(bytes.unsigned_abs()));
        let text = format!("   grows {bytes}/{per}");
        second.push(vec![Span::styled(text, theme.strong())]);
    }
    if outside > Bytes(0) {
        second.push(vec![Span::raw(format!(
            "   outside {} (o)",
            human(outside)
        ))]);
    }
    [first, second]
}

fn in_one_line(device: &DeviceSnapshot, width: u16, theme: &Theme) -> Vec<LinePart> {
    let mut parts = Vec::new();
    if device.ooms > 0 {
        let text = format!(" {} ", ooms(device.ooms));
        parts.push(vec![Span::styled(text, theme.bad())]);
    }
    parts.push(vec![
        Span::styled(" alloc ", theme.allocated()),
        Span::styled(human(device.totals.allocated), theme.strong()),
    ]);
    if width >= MIN_WIDTH_FOR_PEAK {
        let text = format!(" peak {}", human(device.peak.allocated));
        parts.push(vec![Span::raw(text)]);
    }
    parts.push(vec![
        Span::styled("  reserved ", theme.reserved()),
        Span::styled(human(device.totals.reserved), theme.strong()),
    ]);
    parts
}

fn ooms(number: u64) -> String {
    format!("OUT OF MEMORY {}x", count(number))
}

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
    let (_, body) = cut_at(area, 1);
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

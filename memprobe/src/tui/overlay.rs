//! Texts in a box over the table or in its place, and the list of probes.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Widget};

use super::table_screen::SMALLEST;
use super::theme::{ASCII, Theme};
use crate::event::{CaptureOptions, Detail, GraphTracking, ProbeStatus};
use crate::ledger::snapshot::Health;
use crate::view::{clean, fit, width, wrap};

const WIDEST: u16 = 78;

/// Draws text in a box in the middle of the area, scrolled down by `scroll` lines.
pub(super) fn draw_box(
    buffer: &mut Buffer,
    area: Rect,
    title: &str,
    lines: &[Line],
    scroll: usize,
    theme: &Theme,
) {
    let width = area.width.min(WIDEST);
    let height = area
        .height
        .min(lines.len().saturating_add(2).min(usize::from(u16::MAX)) as u16);
    if width < 4 || height < 3 {
        return;
    }
    let (x, y) = ((area.width - width) / 2, (area.height - height) / 2);
    let frame = Rect::new(area.x + x, area.y + y, width, height);
    Clear.render(frame, buffer);
    let mut block = Block::bordered().title(Span::styled(title, theme.strong()));
    if theme.glyphs == ASCII {
        block = block.border_set(ratatui::symbols::border::Set {
            top_left: "+",
            top_right: "+",
            bottom_left: "+",
            bottom_right: "+",
            vertical_left: "|",
            vertical_right: "|",
            horizontal_top: "-",
            horizontal_bottom: "-",
        });
    }
    let inner = block.inner(frame);
    let available = usize::from(inner.height);
    let scroll = scroll.min(lines.len().saturating_sub(available));
    let more = if scroll + available < lines.len() {
        " more below: Down "
    } else {
        " Esc: close "
    };
    block
        .title_bottom(Line::from(more).right_aligned())
        .render(frame, buffer);
    for (line, y) in lines.iter().skip(scroll).take(available).zip(inner.y..) {
        buffer.set_line(inner.x, y, line, inner.width);
    }
}

/// Formats a help entry: a key or a term, and its meaning.
pub(super) fn entry(key: &str, text: &str, theme: &Theme) -> Line<'static> {
    Line::from(vec![
        Span::styled(format!(" {key:<12}"), theme.strong()),
        Span::raw(text.to_owned()),
    ])
}

/// Describes what the probes record, and how to record more.
fn capture_lines(capture: CaptureOptions) -> Vec<Line<'static>> {
    let blocks = match capture.detail {
        Detail::Lines => "its line (--detail tensors: the tensor too)",
        Detail::Tensors => "its line and tensor (--detail full: workspaces too)",
        Detail::Full => "its line and tensor, or its purpose",
    };
    let backward = match capture.graph {
        GraphTracking::Off => "not attributed to forward lines",
        GraphTracking::On => "attributed to forward lines",
    };
    vec![
        Line::from(format!(" detail of each block: {blocks}")),
        Line::from(format!(" backward passes: {backward}")),
    ]
}

/// Lists what is not probed and why, then the probes of each library with their cost.
pub(super) fn probes(health: &Health, theme: &Theme) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for missing in &health.missing {
        let sentence = format!("missing: {}", clean(missing));
        let wrapped = wrap(&sentence, usize::from(WIDEST) - 4).into_iter();
        lines.extend(wrapped.map(|line| Line::styled(format!(" {line}"), theme.bad())));
    }
    if health.probes.is_empty() {
        lines.push(Line::from(" No probe is attached."));
        return lines;
    }
    lines.extend(capture_lines(health.capture));
    let mut libraries: Vec<&str> = Vec::new();
    for probe in &health.probes {
        if !libraries.contains(&probe.library.as_str()) {
            libraries.push(&probe.library);
        }
    }
    for library in libraries {
        let name = crate::view::fit_end(&clean(library), 72, theme.glyphs.cut);
        lines.push(Line::styled(format!(" {name}"), theme.faint()));
        let probes = health.probes.iter();
        let probes = probes.filter(|probe| probe.library == library);
        lines.extend(probes.map(|probe| probe_line(probe, theme)));
    }
    lines
}

fn probe_line(probe: &ProbeStatus, theme: &Theme) -> Line<'static> {
    let function = fit(&clean(&probe.function), 50, theme.glyphs.cut);
    let (cost, style) = if probe.emulated {
        ("emulated", theme.good())
    } else {
        ("stepped, SLOW", theme.bad())
    };
    Line::from(vec![
        Span::raw("   "),
        Span::styled(function, theme.strong()),
        Span::raw(format!(" +{:#x} ", probe.offset)),
        Span::styled(format!(" {cost} "), style),
    ])
}

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

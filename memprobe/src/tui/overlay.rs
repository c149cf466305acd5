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

/// Draws text in a box in the middle of the area, scrolled down by `scroll` lines. Long lines are wrapped. Returns the
/// largest useful value of `scroll`.
pub(super) fn draw_box(
    buffer: &mut Buffer,
    area: Rect,
    title: &str,
    lines: &[Line<'static>],
    scroll: usize,
    theme: &Theme,
) -> usize {
    let width = area.width.min(WIDEST);
    if width < 4 || area.height < 3 {
        return 0;
    }
    let columns = usize::from(width) - 2;
    let wrapped = lines.iter().flat_map(|line| wrap_line(line, columns));
    let lines: Vec<Line> = wrapped.collect();
    let height = lines.len().saturating_add(2);
    let height = area.height.min(u16::try_from(height).unwrap_or(u16::MAX));
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
    let last = lines.len().saturating_sub(available);
    let scroll = scroll.min(last);
    let more = if scroll < last {
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
    last
}

/// Minimum columns for text beside a key or a term.
const MIN_ENTRY_TEXT: usize = 12;

/// Wraps a line at spaces. Further lines begin below the text of an entry, or two cells further in than the first.
fn wrap_line(line: &Line<'static>, columns: usize) -> Vec<Line<'static>> {
    if line.width() <= columns {
        return vec![line.clone()];
    }
    let key = line.spans.first().map_or(0, Span::width);
    let is_entry = line.spans.len() > 1 && key + MIN_ENTRY_TEXT <= columns;
    let text: String = line
        .spans
        .iter()
        .map(|span| span.content.as_ref())
        .collect();
    let leading = text.len() - text.trim_start().len();
    let indent = if is_entry { key } else { leading + 2 };
    let indent = indent.min(columns / 2);
    let mut lines: Vec<Line<'static>> = vec![Line::default().style(line.style)];
    for (at, span) in line.spans.iter().enumerate() {
        // The key stays as it is, with the spaces behind it.
        if at == 0 && is_entry {
            lines[0].push_span(span.clone());
            continue;
        }
        for word in span.content.split_inclusive(' ') {
            let last = lines.len() - 1;
            let used = lines[last].width();
            if used + width(word.trim_end()) > columns && used > indent {
                let start = Line::from(" ".repeat(indent)).style(line.style);
                lines.push(start);
            }
            let last = lines.len() - 1;
            lines[last].push_span(Span::styled(word.to_owned(), span.style));
        }
    }
    lines
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

/// Draws one line: the screen is too small, and `q` quits. The most important number is below it, if there is space.
pub fn draw_too_small(buffer: &mut Buffer, number: &str) {
    let area = buffer.area;
    let (least_width, least_height) = SMALLEST;
    let least = format!("{least_width}x{least_height}");
    let texts = [
        format!(
            "memprobe needs a terminal of {least}, this one has {}x{}: q quits",
            area.width, area.height
        ),
        format!("needs {least}, q quits"),
        format!("{least} q"),
        "q".to_owned(),
    ];
    let columns = usize::from(area.width);
    let fits = |text: &&String| width(text) <= columns;
    let text = texts.iter().find(fits).map_or("", String::as_str);
    for (text, y) in [text, number].into_iter().zip(area.y..area.bottom()) {
        buffer.set_stringn(area.x, y, text, columns, Style::new());
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::COLOUR;
    use super::*;

    fn texts(lines: &[Line]) -> Vec<String> {
        lines.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_entry_is_wrapped_to_the_right_of_its_key() {
        let line = entry("f", "freeze the order: rows stay where they are", &COLOUR);
        assert_eq!(
            texts(&wrap_line(&line, 36)),
            [
                " f           freeze the order: rows ",
                "             stay where they are",
            ]
        );
        assert_eq!(wrap_line(&line, 76).len(), 1);
    }

    #[test]
    fn other_lines_are_wrapped_with_an_indent() {
        let line = Line::from(" missing: the verifier of this kernel");
        let wrapped = texts(&wrap_line(&line, 20));
        assert_eq!(
            wrapped,
            [" missing: the ", "   verifier of this ", "   kernel"]
        );
        // A word that is longer than the line stays alone, and is cut.
        let line = Line::from("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa b");
        assert_eq!(texts(&wrap_line(&line, 10)).len(), 2);
    }
}

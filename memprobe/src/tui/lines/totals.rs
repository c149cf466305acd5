//! The allocator's totals on a device.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::super::theme::Theme;
use crate::event::Bytes;
use crate::event::bytes::human;
use crate::ledger::snapshot::DeviceSnapshot;
use crate::view::{count, percent};

/// Minimum width for the peak if the totals have one line.
const MIN_WIDTH_FOR_PEAK: u16 = 60;

pub fn draw_totals(
    buffer: &mut Buffer,
    area: Rect,
    device: &DeviceSnapshot,
    outside: Bytes,
    theme: &Theme,
) {
    let lines = if area.height >= 2 {
        in_two_lines(device, outside, theme)
    } else {
        vec![in_one_line(device, area.width, theme)]
    };
    for (y, line) in (area.y..area.bottom()).zip(lines) {
        buffer.set_line(area.x, y, &line, area.width);
    }
}

fn in_two_lines(device: &DeviceSnapshot, outside: Bytes, theme: &Theme) -> Vec<Line<'static>> {
    let total = |name: &str, style: Style, now: Bytes, peak: Bytes| {
        vec![
            Span::styled(format!(" {name} "), style),
            Span::styled(format!("{:>11}", human(now)), theme.strong()),
            Span::raw(format!("  peak {:>11}", human(peak))),
        ]
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
    first.push(Span::raw(format!(
        "   cached {} ({share} of reserved)",
        human(cached)
    )));
    second.push(Span::raw(format!(
        "   {} live blocks",
        count(device.live_blocks)
    )));
    if outside > Bytes(0) {
        second.push(Span::raw(format!("   outside {} (o)", human(outside))));
    }
    if device.ooms > 0 {
        second.push(Span::raw("   "));
        second.push(Span::styled(
            format!(" {} ", ooms(device.ooms)),
            theme.bad(),
        ));
    }
    vec![Line::from(first), Line::from(second)]
}

fn in_one_line(device: &DeviceSnapshot, width: u16, theme: &Theme) -> Line<'static> {
    let mut spans = Vec::new();
    if device.ooms > 0 {
        let text = format!(" {} ", ooms(device.ooms));
        spans.push(Span::styled(text, theme.bad()));
    }
    spans.push(Span::styled(" alloc ", theme.allocated()));
    spans.push(Span::styled(human(device.totals.allocated), theme.strong()));
    if width >= MIN_WIDTH_FOR_PEAK {
        spans.push(Span::raw(format!(" peak {}", human(device.peak.allocated))));
    }
    spans.push(Span::styled("  reserved ", theme.reserved()));
    spans.push(Span::styled(human(device.totals.reserved), theme.strong()));
    Line::from(spans)
}

fn ooms(number: u64) -> String {
    format!("OUT OF MEMORY {}x", count(number))
}

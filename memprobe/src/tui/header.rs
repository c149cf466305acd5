//! Top of the screen of lines: process, devices, totals.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::state::State;
use super::theme::Theme;
use crate::event::Bytes;
use crate::event::Target;
use crate::event::bytes::human;
use crate::ledger::snapshot::{DeviceSnapshot, Layer, Snapshot, TargetState};
use crate::view::{clean, clock, count, fit, percent, process, width};

/// Columns between two device tabs.
pub const BETWEEN_TABS: usize = 2;
/// Minimum width for the versions of Python and PyTorch.
const MIN_WIDTH_FOR_VERSIONS: u16 = 110;
/// Minimum width for the peak if the totals have one line.
const MIN_WIDTH_FOR_PEAK: u16 = 60;
/// Columns kept for the command; facts at the right are dropped to make space for it.
const COMMAND_COLUMNS: usize = 12;

/// Draws program, command, process, device and clock.
pub fn draw_header(buffer: &mut Buffer, area: Rect, state: &State, theme: &Theme) {
    if area.is_empty() {
        return;
    }
    let snapshot = &state.shown;
    buffer.set_style(area, theme.bar());
    let mut right = facts(
        snapshot,
        state.device(),
        area.width >= MIN_WIDTH_FOR_VERSIONS,
    );
    let name = " memprobe  ";
    let columns = usize::from(area.width);
    // The device is dropped last.
    while right.len() > 1 && width(&right.join("  ")) + width(name) + COMMAND_COLUMNS > columns {
        right.remove(0);
    }
    let right = format!("  {} ", right.join("  "));
    let available = columns.saturating_sub(width(name) + width(&right));
    let command = fit(
        &clean(&snapshot.target.command),
        available,
        theme.glyphs.cut,
    );
    buffer.set_stringn(area.x, area.y, name, columns, theme.bar_strong());
    let after = area.x + name.len() as u16;
    buffer.set_stringn(after, area.y, command, available, theme.bar());
    let start = area.right().saturating_sub(width(&right) as u16);
    if start >= after {
        buffer.set_stringn(start, area.y, &right, width(&right), theme.bar());
    }
}

/// Draws the first line of another screen: its name, the command, and `right` at the right.
pub(super) fn draw_title(
    buffer: &mut Buffer,
    area: Rect,
    name: &str,
    target: &Target,
    right: &[String],
    theme: &Theme,
) {
    if area.is_empty() {
        return;
    }
    buffer.set_style(area, theme.bar());
    let name = format!(" {name}  ");
    let columns = usize::from(area.width);
    let right = match right {
        [] => String::new(),
        right => format!("  {} ", right.join("  ")),
    };
    buffer.set_stringn(area.x, area.y, &name, columns, theme.bar_strong());
    let available = columns.saturating_sub(width(&name) + width(&right));
    let command = fit(&clean(&target.command), available, theme.glyphs.cut);
    let after = area.x + (width(&name) as u16).min(area.width);
    buffer.set_stringn(after, area.y, command, available, theme.bar());
    let start = area.right().saturating_sub(width(&right) as u16);
    if start >= after {
        buffer.set_stringn(start, area.y, &right, width(&right), theme.bar());
    }
}

/// Returns the facts at the right, least important first.
fn facts(snapshot: &Snapshot, device: Option<&DeviceSnapshot>, versions: bool) -> Vec<String> {
    let Target { python, torch, .. } = &snapshot.target;
    let mut facts = Vec::new();
    if versions {
        facts.extend(
            python
                .as_ref()
                .map(|version| format!("Python {}", fit(&clean(version), 12, ""))),
        );
        facts.extend(
            torch
                .as_ref()
                .map(|version| format!("torch {}", fit(&clean(version), 20, ""))),
        );
    }
    facts.extend(process(&snapshot.target));
    facts.extend(match snapshot.cuda.layer {
        Layer::Runtime | Layer::Driver | Layer::Tracepoints => {
            Some(snapshot.cuda.layer.as_str().to_owned())
        }
        Layer::Allocator | Layer::None => None,
    });
    let since = match snapshot.health.state {
        TargetState::Recording => "recorded",
        TargetState::Waiting(_) => "waiting",
        TargetState::Running | TargetState::Exited => "attached",
    };
    let time = Duration::from_nanos(snapshot.now.0.saturating_sub(snapshot.started.0));
    facts.push(format!("{since} {}", clock(time)));
    facts.extend(device.map(|device| device.index.to_string()));
    facts
}

/// Returns the text of each device's tab.
pub fn tabs(devices: &[DeviceSnapshot]) -> Vec<String> {
    let tab =
        |device: &DeviceSnapshot| format!(" {} {} ", device.index, human(device.totals.allocated));
    devices.iter().map(tab).collect()
}

/// Draws the device tabs; the selected one is in brackets.
pub fn draw_devices(buffer: &mut Buffer, area: Rect, state: &State, theme: &Theme) {
    if area.is_empty() {
        return;
    }
    let shown = state.device().map(|device| device.index);
    let mut spans = vec![Span::raw(" ")];
    for (device, tab) in state.shown.devices.iter().zip(tabs(&state.shown.devices)) {
        if Some(device.index) == shown {
            spans.push(Span::styled(
                format!("[{}]", &tab[1..tab.len() - 1]),
                theme.strong(),
            ));
        } else {
            spans.push(Span::raw(tab));
        }
        spans.push(Span::raw(" ".repeat(BETWEEN_TABS)));
    }
    let line = Line::from(spans);
    let hint = "Tab: next device ";
    let available = usize::from(area.width).saturating_sub(line.width());
    buffer.set_line(area.x, area.y, &line, area.width);
    if available >= hint.len() {
        buffer.set_string(
            area.right() - hint.len() as u16,
            area.y,
            hint,
            theme.faint(),
        );
    }
}

/// Draws the allocator's totals.
pub fn draw_totals(buffer: &mut Buffer, area: Rect, state: &State, theme: &Theme) {
    let Some(device) = state.device() else { return };
    let lines = if area.height >= 2 {
        in_two_lines(device, state.shown.cuda.live(), theme)
    } else {
        vec![in_one_line(device, area.width, theme)]
    };
    for (y, line) in (area.y..area.bottom()).zip(lines) {
        buffer.set_line(area.x, y, &line, area.width);
    }
}

fn cached(device: &DeviceSnapshot) -> Bytes {
    Bytes(
        device
            .totals
            .reserved
            .0
            .saturating_sub(device.totals.allocated.0),
    )
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
    let share = percent(cached(device).0.into(), now.reserved.0.into());
    first.push(Span::raw(format!(
        "   cached {} ({share} of reserved)",
        human(cached(device))
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

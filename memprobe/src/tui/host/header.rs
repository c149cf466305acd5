//! Top of the host screen: the number of processes, and the devices as the driver reports them.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::super::theme::Theme;
use super::layout::devices_a_line;
use super::rows::is_within;
use super::state::HostState;
use crate::event::bytes::short;
use crate::ledger::snapshot::host::{DriverDevice, DriverSnapshot, ProcessRow, ProcessState};
use crate::view::{clean, clock, counted, device_gaps, fit, percent, width};

/// Columns of a device's bar.
const BAR: usize = 8;

/// Draws program, process counts and clock.
pub fn draw_header(buffer: &mut Buffer, area: Rect, state: &HostState, theme: &Theme) {
    if area.is_empty() {
        return;
    }
    buffer.set_style(area, theme.bar());
    let columns = usize::from(area.width);
    let name = format!(" {}  ", state.name);
    buffer.set_stringn(area.x, area.y, &name, columns, theme.bar_strong());
    let snapshot = &state.shown;
    let time = Duration::from_nanos(snapshot.now.0.saturating_sub(snapshot.started.0));
    let right = format!("  {} ", clock(time));
    let start = area.right().saturating_sub(width(&right) as u16);
    let after = area.x + width(&name) as u16;
    if start < after {
        return;
    }
    buffer.set_string(start, area.y, &right, theme.bar());
    let available = usize::from(start - after);
    let text = fit(&processes(state), available, theme.glyphs.cut);
    buffer.set_stringn(after, area.y, text, available, theme.bar());
}

/// Returns `6 processes: 4 probed, 1 waiting, 1 not probed`.
fn processes(state: &HostState) -> String {
    let host = &state.shown;
    let rows = host.processes.iter();
    let within = |row: &&ProcessRow| is_within(host, state.extent, row);
    let states: Vec<&ProcessState> = rows.filter(within).map(|row| &row.state).collect();
    let count = |is: fn(&ProcessState) -> bool| states.iter().filter(|state| is(state)).count();
    let parts = [
        (count(|state| *state == ProcessState::Probed), "probed"),
        (
            count(|state| matches!(state, ProcessState::Waiting(_))),
            "waiting",
        ),
        (
            count(|state| matches!(state, ProcessState::Refused(_))),
            "not probed",
        ),
        (count(|state| *state == ProcessState::Ended), "ended"),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, word)| format!("{number} {word}"))
        .collect();
    let processes = match states.len() {
        1 => "1 process".to_owned(),
        number => format!("{number} processes"),
    };
    if parts.is_empty() {
        return processes;
    }
    format!("{processes}: {}", parts.join(", "))
}

/// Draws the devices side by side, or the driver's error.
pub fn draw_devices(buffer: &mut Buffer, area: Rect, state: &HostState, theme: &Theme) {
    if area.is_empty() {
        return;
    }
    let devices = match &state.shown.driver {
        DriverSnapshot::Devices(devices) => devices,
        DriverSnapshot::Unasked => return,
        DriverSnapshot::Silent(reason) => {
            let text = format!(" DRIVER is -: {}", clean(reason));
            let available = usize::from(area.width);
            let text = fit(&text, available, theme.glyphs.cut);
            buffer.set_stringn(area.x, area.y, text, available, theme.faint());
            return;
        }
    };
    let a_line = devices_a_line(area.width, devices.len());
    let cell = area.width / u16::try_from(a_line).unwrap_or(1).max(1);
    let available = a_line * usize::from(area.height);
    for (at, device) in devices.iter().take(available).enumerate() {
        let x = area.x + cell * (at % a_line) as u16;
        let y = area.y + (at / a_line) as u16;
        let hidden = devices.len().saturating_sub(available);
        if hidden > 0 && at + 1 == available {
            let text = format!(" and {} more", counted(hidden as u64 + 1, "GPU"));
            buffer.set_stringn(x, y, text, usize::from(cell), theme.faint());
        } else {
            let line = device_line(device, usize::from(cell), theme);
            buffer.set_line(x, y, &line, cell);
        }
    }
}

/// Returns ` GPU 0  ███      31.0 GiB/80.0 GiB  38.8% NVIDIA H100`. Reasons come before the name.
fn device_line(device: &DriverDevice, columns: usize, theme: &Theme) -> Line<'static> {
    let memory = device.memory.as_ref().ok();
    let memory = memory.map(|memory| (memory.used, memory.total));
    let eighths = match memory {
        Some((used, total)) if total.0 > 0 => {
            let filled = u128::from(used.0) * (BAR as u128 * 8) / u128::from(total.0);
            filled.min(BAR as u128 * 8) as usize
        }
        _ => 0,
    };
    let bar: String = (0..BAR)
        .map(|cell| theme.glyphs.growing[eighths.saturating_sub(cell * 8).min(8)])
        .collect();
    let head = format!(" GPU {:<2} ", device.index);
    let figures = match memory {
        Some((used, total)) => format!(
            " {:>8}/{:<8} {:>6} ",
            short(used),
            short(total),
            percent(used.0.into(), total.0.into())
        ),
        // The reason takes the place.
        None => " ".to_owned(),
    };
    let available = columns.saturating_sub(width(&head) + BAR + width(&figures) + 1);
    let mut texts = device_gaps(device);
    texts.push(clean(&device.name));
    let name = texts.join("; ");
    let name = if available >= 8 {
        fit(&name, available, theme.glyphs.cut)
    } else {
        String::new()
    };
    Line::from(vec![
        Span::styled(head, theme.strong()),
        Span::styled(bar, theme.reserved()),
        Span::raw(figures),
        Span::styled(name, theme.faint()),
    ])
}

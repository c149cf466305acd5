//! Top of the host screen: the number of processes, and the devices as the driver reports them.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::super::table_screen::{ScreenTitle, bar, draw_text};
use super::super::theme::Theme;
use super::processes::{HostContext, processes};
use crate::event::bytes::short;
use crate::ledger::snapshot::host::{
    DriverDevice, DriverSnapshot, HostSnapshot, ProcessRow, ProcessState,
};
use crate::view::{HostExtent, clean, clock, counted, device_gaps, fit, percent, width};

const BAR: usize = 8;
/// Minimum width of one device of the driver.
const DEVICE: u16 = 40;

/// Returns the number of devices drawn side by side.
fn devices_a_line(width: u16, devices: usize) -> usize {
    usize::from(width / DEVICE).min(devices).max(1)
}

pub fn device_lines(width: u16, devices: usize) -> u16 {
    let lines = devices.div_ceil(devices_a_line(width, devices)).max(1);
    u16::try_from(lines).unwrap_or(u16::MAX)
}

pub fn title(context: &HostContext) -> ScreenTitle {
    let snapshot = &context.feed.shown;
    let time = Duration::from_nanos(snapshot.now.0.saturating_sub(snapshot.started.0));
    ScreenTitle {
        name: context.name.clone(),
        text: states(snapshot, context.extent),
        facts: vec![clock(time)],
        more_facts: Vec::new(),
    }
}

/// Returns `6 processes: 4 probed, 1 waiting, 1 not probed`.
fn states(host: &HostSnapshot, extent: HostExtent) -> String {
    let rows = host.processes.iter();
    let within = |row: &&ProcessRow| extent.includes(host, row);
    let state = |row: &ProcessRow| match row.state {
        ProcessState::Probed => "probed",
        ProcessState::Waiting(_) => "waiting",
        ProcessState::Refused(_) => "not probed",
        ProcessState::Ended => "ended",
    };
    let states: Vec<&str> = rows.filter(within).map(state).collect();
    let part = |word: &&str| match states.iter().filter(|state| *state == word).count() {
        0 => None,
        number => Some(format!("{number} {word}")),
    };
    let words = ["probed", "waiting", "not probed", "ended"];
    let parts: Vec<String> = words.iter().filter_map(part).collect();
    let processes = processes(states.len());
    if parts.is_empty() {
        return processes;
    }
    format!("{processes}: {}", parts.join(", "))
}

pub fn draw_devices(buffer: &mut Buffer, area: Rect, driver: &DriverSnapshot, theme: &Theme) {
    if area.is_empty() {
        return;
    }
    let devices = match driver {
        DriverSnapshot::Devices(devices) => devices,
        DriverSnapshot::Unasked => return,
        DriverSnapshot::Silent(reason) => {
            let text = format!(" DRIVER is -: {}", clean(reason));
            return draw_text(buffer, area, &text, theme.faint(), theme);
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
    let (used, total) = memory.map_or((0, 0), |(used, total)| (used.0, total.0));
    let bar = bar(used.into(), total.into(), BAR, theme);
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

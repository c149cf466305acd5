//! Parts around the table of processes: title, devices, sums, and the summary of a process.

use std::fmt;
use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::super::table_screen::{ScreenTitle, bar, draw_text};
use super::super::theme::Theme;
use super::processes::{HostContext, processes};
use crate::event::bytes::{human, short};
use crate::event::{Bytes, Totals};
use crate::ledger::snapshot::host::{
    DriverDevice, DriverSnapshot, Holder, HostSnapshot, ProcessRow, ProcessState,
};
use crate::view::{
    self, BEFORE_ATTACH, HostExtent, clean, clock, counted, device_gaps, device_name,
    doubtful_devices, driver_gap, fit, named_site, percent, process_state, whole_frame, width,
};

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
        facts: vec![(0, clock(time))],
    }
}

/// Returns `6 processes: 4 probed, 1 waiting, 1 not probed`.
fn states(host: &HostSnapshot, extent: HostExtent) -> String {
    let rows = host.processes.iter();
    let within = |row: &&ProcessRow| extent.includes(host, row);
    let state = |row: &ProcessRow| match row.state {
        ProcessState::Found | ProcessState::Probed | ProcessState::Waiting(_)
            if row.stopped.is_some() =>
        {
            "stopped"
        }
        ProcessState::Probed => "probed",
        ProcessState::Found | ProcessState::Waiting(_) => "waiting",
        ProcessState::Refused(_) => "not probed",
        ProcessState::Ended => "ended",
    };
    let states: Vec<&str> = rows.filter(within).map(state).collect();
    let part = |word: &&str| match states.iter().filter(|state| *state == word).count() {
        0 => None,
        number => Some(format!("{number} {word}")),
    };
    let words = ["probed", "stopped", "waiting", "not probed", "ended"];
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

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProcessSums {
    pub rows: usize,
    pub totals: Totals,
    /// Sum of the driver's figures; `None` if the driver reports none.
    pub driver: Option<Bytes>,
    /// The driver says only a part: of some row or device it gives no bytes.
    pub driver_is_partial: bool,
}

impl ProcessSums {
    pub fn of<'a>(rows: impl Iterator<Item = &'a ProcessRow>) -> Self {
        let mut sums = Self::default();
        for row in rows {
            sums.rows += 1;
            let totals = row.totals().unwrap_or_default();
            let add = |sum: &mut Bytes, bytes: Bytes| sum.0 = sum.0.saturating_add(bytes.0);
            add(&mut sums.totals.allocated, totals.allocated);
            add(&mut sums.totals.reserved, totals.reserved);
            if let Some(bytes) = row.driver_at_least() {
                add(sums.driver.get_or_insert_default(), bytes);
            }
            let has_gap = row.driver.iter().any(|held| held.bytes.is_none());
            sums.driver_is_partial |= has_gap || row.driver_is_partial;
        }
        sums
    }
}

impl fmt::Display for ProcessSums {
    /// Writes `allocated 4.00 GiB, reserved 5.00 GiB, driver 7.00 GiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [allocated, reserved] = [self.totals.allocated, self.totals.reserved].map(short);
        write!(f, "allocated {allocated}, reserved {reserved}")?;
        if let Some(driver) = self.driver {
            let more = if self.driver_is_partial { "+" } else { "" };
            write!(f, ", driver {}{more}", short(driver))?;
        }
        Ok(())
    }
}

pub fn searched(row: &ProcessRow) -> String {
    let facts = &row.facts;
    let top = row.top.as_ref().map(|top| match &top.holder {
        Holder::Site(site) => named_site(site, whole_frame),
        Holder::BeforeAttach => BEFORE_ATTACH.to_owned(),
    });
    let parts = [
        Some(row.tgid.0.to_string()),
        facts.user.as_deref().map(clean),
        row.target.container.as_deref().map(clean),
        facts.rank.map(|rank| format!("rank {}", rank.global)),
        Some(clean(&row.target.command)),
        top,
        process_state(row),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Returns two lines: state or top line, then the facts of the process.
pub fn summary(row: &ProcessRow, driver: &DriverSnapshot) -> Vec<String> {
    vec![first_line(row), summary_facts(row, driver).join("  ")]
}

fn first_line(row: &ProcessRow) -> String {
    let top = row.top.as_ref().map(|top| {
        let name = match &top.holder {
            Holder::Site(site) => named_site(site, whole_frame),
            Holder::BeforeAttach => "allocated before attach: its lines are unknown".to_owned(),
        };
        let whole = row.totals().unwrap_or_default().allocated;
        let share = percent(top.live.0.into(), whole.0.into());
        format!("{} ({share}) {name}", human(top.live))
    });
    match (process_state(row), top) {
        (Some(state), Some(top)) => format!("{state}; {top}"),
        (Some(text), None) | (None, Some(text)) => text,
        (None, None) => "nothing is allocated".to_owned(),
    }
}

fn summary_facts(row: &ProcessRow, driver: &DriverSnapshot) -> Vec<String> {
    let facts = &row.facts;
    let mut texts: Vec<String> = row.note.as_deref().map(clean).into_iter().collect();
    texts.push(clean(&row.target.command));
    if let Some(inside) = row.target.inner_tgid {
        texts.push(format!("PID {} inside", inside.0));
    }
    if let Some(rank) = facts.rank {
        let local = rank.local.map(|local| format!(" (local {local})"));
        let local = local.unwrap_or_default();
        texts.push(format!("rank {}{local}", view::rank(rank)));
    }
    texts.extend(
        row.target
            .container
            .as_deref()
            .map(|name| format!("in {}", clean(name))),
    );
    for device in row.devices.iter().filter(|_| row.devices.len() > 1) {
        let allocated = human(device.totals.allocated);
        texts.push(format!(
            "{} {allocated}",
            device_name(&row.target, device.index)
        ));
    }
    texts.extend(doubtful_devices(row));
    for held in &row.driver {
        let bytes = held.bytes.map_or_else(|| "-".to_owned(), human);
        texts.push(format!("driver: GPU {} {bytes}", held.device));
    }
    texts.extend(driver_gap(row, driver));
    let version = |name: &str, version: &Option<String>| {
        let version = version.as_deref().map(clean);
        version.map(|version| format!("{name} {version}"))
    };
    texts.extend(version("Python", &row.target.python));
    texts.extend(version("torch", &row.target.torch));
    texts
}

#[cfg(test)]
mod tests {
    use super::super::super::filter::Filter;
    use super::super::samples;
    use super::*;

    #[test]
    fn sums_are_those_of_the_rows() {
        let host = samples::busy();
        let sums = ProcessSums::of(host.processes.iter());
        let all = host.processes.iter().filter_map(ProcessRow::totals);
        let allocated: u64 = all.map(|totals| totals.allocated.0).sum();
        assert_eq!(sums.totals.allocated.0, allocated);
        assert_eq!(ProcessSums::of(std::iter::empty()).driver, None);
    }

    #[test]
    fn a_process_is_found_by_whatever_a_person_knows_of_it() {
        let host = samples::busy();
        let found = |pattern: &str| -> Vec<u32> {
            let filter = Filter::new(pattern);
            let rows = host.processes.iter();
            let found = rows.filter(|row| filter.shows(&searched(row)));
            found.map(|row| row.tgid.0).collect()
        };
        assert_eq!(found("1234"), [1234]);
        assert_eq!(found("grace"), [5120]);
        assert_eq!(found("rank 1"), [2002]);
        assert_eq!(found("gpt/model.py"), [1234]);
        assert_eq!(found("llm-serving"), [6001]);
        assert_eq!(found("not supported"), [5120]);
        assert_eq!(found("[").len(), host.processes.len());
    }
}

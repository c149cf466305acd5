//! Text for processes on the host screen: state, top line, command, rank and device list.

use std::sync::Arc;

use super::cells::frame;
use super::command::short_command;
use super::gpus::{gpu_fields, gpu_number, identity_line};
use super::names::{BEFORE_ATTACH, FileNames};
use super::number::{counted, percent, span};
use super::table::{Cell, Column, SortOrder, Tone, columns};
use super::text::clean;
use crate::event::bytes::short;
use crate::event::{Bytes, Rank};
use crate::ledger::snapshot::host::{
    DeviceRow, DriverDevice, DriverSnapshot, DriverUse, Holder, HostSnapshot, ProcessRow,
    ProcessState, TREND_STEPS,
};

#[derive(Clone)]
pub struct ProcessEntry {
    pub host: Arc<HostSnapshot>,
    /// Index of the process in the snapshot.
    pub at: usize,
    /// Names of the files of all top lines.
    pub names: Arc<FileNames>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HostExtent {
    /// Processes that hold memory, or may.
    #[default]
    Holders,
    /// All processes that have loaded CUDA.
    All,
}

impl HostExtent {
    pub fn includes(self, host: &HostSnapshot, row: &ProcessRow) -> bool {
        self == Self::All || !host.holds_nothing(row)
    }
}

const CLIMBING: Option<SortOrder> = Some(SortOrder::Climbing);

pub const PROCESS_COLUMNS: [Column<ProcessEntry>; 30] = columns![|row: ProcessEntry|
    number("pid", "PID").screen(7, 0).order(CLIMBING) => row.process().tgid.0,
    data("pid_inside") => row.process().target.inner_tgid.map(|inner| inner.0),
    text("user", "USER").priority(4).screen(8, 72) => row.process().facts.user.as_deref(),
    data("command") => &*row.process().target.command,
    text("container", "CONTAINER").priority(3).screen(12, 112) => row.process().target.container.as_deref(),
    figure("RANK").priority(2).screen(5, 90).order(CLIMBING) => row.rank(),
    data("rank") => row.process().facts.rank.map(|rank| rank.global),
    data("local_rank") => row.process().facts.rank.and_then(|rank| rank.local),
    data("world_size") => row.process().facts.rank.and_then(|rank| rank.world),
    data("python") => row.process().target.python.as_deref(),
    data("torch") => row.process().target.torch.as_deref(),
    data("state") => row.state().0,
    data("reason") => row.state().1,
    data("note") => row.process().note.as_deref(),
    figure("DEV").priority(1).screen(6, 56).order(CLIMBING) => row.device_list(),
    number("allocated", "ALLOC").short().screen(8, 0).tone(Tone::Strong) =>
        row.process().totals().map(|totals| totals.allocated),
    number("reserved", "RESERVED").priority(5).short().screen(8, 64) => row.process().totals().map(|totals| totals.reserved),
    number("driver", "DRIVER").short().screen(8, 40) => row.process().driver_total(),
    data("driver_unknown") => driver_gap(row.process(), &row.host.driver),
    data("peak_allocated").headed("PEAK").short().screen(8, 72) =>
        row.process().totals().map(|_| row.process().peak.allocated),
    figure("GROWTH/min").not_in_text().screen(10, 108) => row.process().growth,
    data("peak_reserved") => row.process().totals().map(|_| row.process().peak.reserved),
    data("totals_age_ns") => row.process().totals_age.map(|age| Cell::Nanoseconds(age.as_nanos() as u64)),
    data("devices") => row.devices(),
    data("driver_devices") => row.driver_devices(),
    data("top") => row.top(),
    data("events") => row.process().events,
    figure("TREND 1m").not_in_text().screen(10, 124).tone(Tone::Graph) => row.trend(),
    label("COMMAND").width(10, 40).screen(0, 0) => clean(&short_command(&row.process().target.command)),
    label("TOP LINE").screen(0, 96) => row.state_or_top_line(),
];

impl ProcessEntry {
    pub fn process(&self) -> &ProcessRow {
        &self.host.processes[self.at]
    }

    /// State, and the reason for it.
    fn state(&self) -> (&'static str, Option<&str>) {
        let row = self.process();
        match &row.state {
            ProcessState::Found | ProcessState::Probed | ProcessState::Waiting(_)
                if row.stopped.is_some() =>
            {
                ("stopped", row.stopped.as_deref())
            }
            ProcessState::Probed => ("probed", row.totals_age.map(|_| PROBES_OFF)),
            ProcessState::Found => ("waiting", Some(NOT_LOOKED_AT)),
            ProcessState::Waiting(what) => ("waiting", Some(what)),
            ProcessState::Refused(reason) => ("refused", Some(reason)),
            ProcessState::Ended => ("ended", row.totals_age.map(|_| PROBES_OFF)),
        }
    }

    fn rank(&self) -> Option<Cell<'_>> {
        let of = self.process().facts.rank?;
        Some(Cell::Ranked(of.global.into(), rank(of).into()))
    }

    fn device_list(&self) -> Option<Cell<'_>> {
        let row = self.process();
        let own = row.devices.first().map(|device| device.index);
        let number = own.map(|own| row.target.gpu(own).and_then(|gpu| gpu.index));
        // Ordinals come after the numbers of GPUs.
        let number = number.map(|index| index.unwrap_or(u32::MAX));
        let first = number.or_else(|| row.driver.first().map(|held| held.device))?;
        Some(Cell::Ranked(first.into(), device_list(row)?.into()))
    }

    fn trend(&self) -> Cell<'_> {
        match &self.process().trend.points[..] {
            [] => Cell::Unknown,
            points => Cell::Trend(points, TREND_STEPS),
        }
    }

    /// Line that holds most. `kind` is one of a report, or `before_attach`.
    fn top(&self) -> Option<Cell<'_>> {
        let top = self.process().top.as_ref()?;
        let (kind, line) = match &top.holder {
            Holder::Site(site) => (site.as_str(), site.frame()),
            Holder::BeforeAttach => ("before_attach", None),
        };
        let mut fields = vec![("kind", kind.into())];
        if let Some(Cell::Object(line)) = line.map(frame) {
            fields.extend(line);
        }
        fields.push(("live", top.live.into()));
        Some(Cell::Object(fields))
    }

    fn devices(&self) -> Cell<'_> {
        let row = self.process();
        let device = |device: &DeviceRow| {
            let mut fields = vec![("device", u32::from(device.index.0).into())];
            fields.extend(gpu_fields(&row.target, device.index));
            fields.extend([
                ("allocated", device.totals.allocated.into()),
                ("reserved", device.totals.reserved.into()),
                ("driver", row.driver_bytes(device.index).into()),
            ]);
            Cell::Object(fields)
        };
        Cell::List(row.devices.iter().map(device).collect())
    }

    fn driver_devices(&self) -> Cell<'_> {
        let device = |held: &DriverUse| {
            Cell::Object(vec![
                ("gpu", held.device.into()),
                ("bytes", held.bytes.into()),
            ])
        };
        Cell::List(self.process().driver.iter().map(device).collect())
    }

    fn state_or_top_line(&self) -> Option<String> {
        let row = self.process();
        match (process_state(row), top_line(row, &self.names)) {
            (Some(state), Some(top)) => match row.state {
                ProcessState::Probed if row.stopped.is_none() => Some(format!("{top}; {state}")),
                ProcessState::Ended | ProcessState::Probed => {
                    Some(format!("{state}: {}", top.trim()))
                }
                _ => Some(state),
            },
            (state, top) => state.or(top),
        }
    }
}

pub fn top_line_names(processes: &[ProcessRow]) -> FileNames {
    let frames = processes
        .iter()
        .filter_map(|row| match &row.top.as_ref()?.holder {
            Holder::Site(site) => site.frame(),
            Holder::BeforeAttach => None,
        });
    FileNames::of(frames.map(|frame| &frame.file))
}

/// State of a process that was found a moment ago.
const NOT_LOOKED_AT: &str = "not looked at yet";

const PROBES_OFF: &str = "the probes are off for --max-overhead";

/// Returns the reason why a process has no figures or old ones, or that it has ended or is stopped; `None` for others.
pub fn process_state(row: &ProcessRow) -> Option<String> {
    match &row.state {
        ProcessState::Found | ProcessState::Probed | ProcessState::Waiting(_)
            if row.stopped.is_some() =>
        {
            Some("stopped".to_owned())
        }
        ProcessState::Found => Some(NOT_LOOKED_AT.to_owned()),
        ProcessState::Waiting(what) => Some(format!("waiting for {}", clean(what))),
        ProcessState::Refused(reason) => Some(format!("not probed: {}", clean(reason))),
        ProcessState::Ended => Some(match row.totals_age {
            Some(age) => format!("ended, totals {} old (probes off)", span(age)),
            None => "ended".to_owned(),
        }),
        ProcessState::Probed => {
            (row.totals_age).map(|age| format!("totals {} old (probes off)", span(age)))
        }
    }
}

/// Returns the source line with the most live bytes, preceded by its share of the process's allocated bytes.
fn top_line(row: &ProcessRow, names: &FileNames) -> Option<String> {
    let top = row.top.as_ref()?;
    let name = match &top.holder {
        Holder::Site(site) => names.site(site),
        Holder::BeforeAttach => BEFORE_ATTACH.to_owned(),
    };
    let whole = row.totals().unwrap_or_default().allocated;
    let share = percent(top.live.0.into(), whole.0.into());
    Some(format!("{share:>6} {name}"))
}

/// Returns the global rank: `3/8`, or `3` if the world size is unknown.
pub fn rank(rank: Rank) -> String {
    match rank.world {
        Some(world) => format!("{}/{world}", rank.global),
        None => rank.global.to_string(),
    }
}

/// Returns the GPUs as `nvidia-smi` numbers them, such as `0-3` or `0,2`. A device whose GPU is unknown has the ordinal of
/// the process, marked: `cuda:0`.
fn device_list(row: &ProcessRow) -> Option<String> {
    let mut whole = Vec::new();
    let mut others = Vec::new();
    let mut ordinals = Vec::new();
    for device in &row.devices {
        match row.target.gpu(device.index) {
            Some(gpu) => match gpu_number(gpu).parse::<u32>() {
                Ok(index) => whole.push(index),
                Err(_) => others.push(gpu_number(gpu)),
            },
            None => ordinals.push(u32::from(device.index.0)),
        }
    }
    if row.devices.is_empty() {
        whole.extend(row.driver.iter().map(|held| held.device));
    }
    whole.sort_unstable();
    let mut parts = Vec::new();
    parts.extend((!whole.is_empty()).then(|| ranges(whole.into_iter())));
    parts.extend(others);
    parts.extend((!ordinals.is_empty()).then(|| format!("cuda:{}", ranges(ordinals.into_iter()))));
    (!parts.is_empty()).then(|| parts.join(","))
}

/// Returns a line for each device whose GPU is inferred or unknown.
pub fn doubtful_devices(row: &ProcessRow) -> impl Iterator<Item = String> {
    let identities = row.target.gpus.iter();
    identities
        .filter(|identity| !identity.is_certain())
        .map(identity_line)
}

/// Reason why the driver's sum over all devices is unknown; `None` where it is known or names no device.
pub fn driver_gap(row: &ProcessRow, driver: &DriverSnapshot) -> Option<String> {
    let silent = row.driver.iter().filter(|held| held.bytes.is_none());
    let silent = ranges(silent.map(|held| held.device));
    if !silent.is_empty() {
        return Some(format!(
            "the driver reports no bytes on GPU {silent} ([N/A])"
        ));
    }
    let unlisted = driver.unlisted().next().filter(|_| row.driver_is_partial)?;
    let reason = unlisted.processes.as_ref().err()?;
    let index = unlisted.index;
    Some(format!(
        "processes of GPU {index} are unknown: {}",
        clean(reason)
    ))
}

/// Bytes of no listed process that are worth words. Every driver has a few MiB of its own on a GPU.
const MIN_OTHERS: Bytes = Bytes(64 << 20);

/// Reasons why something about a device is unknown, and what its memory is the sum of.
pub fn device_gaps(device: &DriverDevice) -> Vec<String> {
    let mut gaps = Vec::new();
    if let Some(number) = device.mig_devices {
        gaps.push(format!("sum of {}", counted(number.into(), "MIG device")));
    }
    let others = device.others.filter(|bytes| *bytes >= MIN_OTHERS);
    gaps.extend(others.map(|bytes| format!("{} of no listed process", short(bytes))));
    match (&device.memory, &device.processes) {
        (Err(reason), Err(same)) if reason == same => {
            gaps.push(format!("memory and processes unknown: {}", clean(reason)));
        }
        (memory, processes) => {
            let unread = [
                ("memory", memory.as_ref().err()),
                ("processes", processes.as_ref().err()),
            ];
            for (what, reason) in unread {
                gaps.extend(reason.map(|reason| format!("{what} unknown: {}", clean(reason))));
            }
        }
    }
    gaps
}

/// Formats ascending numbers as ranges.
fn ranges(numbers: impl Iterator<Item = u32>) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let text = |(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_in_ranges() {
        assert_eq!(ranges([0].into_iter()), "0");
        assert_eq!(ranges([0, 1].into_iter()), "0,1");
        assert_eq!(ranges([0, 1, 2, 3, 5].into_iter()), "0-3,5");
    }
}

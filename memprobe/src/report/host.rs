//! Report of the processes of a host, as text or JSON.

use std::fmt::Write as _;
use std::io::{self, Write};

use serde::Serialize;

use super::Colour;
use super::document_old::json;
use super::structured::FrameRow;
use crate::event::bytes::short;
use crate::ledger::snapshot::Site;
use crate::ledger::snapshot::host::{
    DriverSnapshot, Holder, HostSnapshot, ProcessRow, ProcessState,
};
use crate::view::{
    self, CUT, FileNames, clean, device_gaps, device_list, driver_gap, fit, percent, process_state,
    short_command, top_line, width as columns,
};

/// Content and format of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostOptions {
    pub format: HostFormat,
    pub extent: HostExtent,
    /// Width of text, in columns; `None` for unlimited.
    pub width: Option<usize>,
    pub colour: Colour,
}

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostFormat {
    Text,
    /// One JSON document.
    Json,
}

/// Selection of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostExtent {
    /// Processes that hold memory, or may.
    Holders,
    /// All processes that have loaded CUDA.
    All,
}

/// Writes the processes of a host, the one that holds most first.
///
/// # Errors
/// If `out` cannot be written.
pub fn write_host(
    snapshot: &HostSnapshot,
    options: &HostOptions,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut rows: Vec<&ProcessRow> = snapshot
        .processes
        .iter()
        .filter(|row| options.extent == HostExtent::All || !snapshot.holds_nothing(row))
        .collect();
    let held = |row: &ProcessRow| {
        (
            row.totals().map(|totals| totals.allocated),
            row.driver_total(),
        )
    };
    rows.sort_by_key(|row| (std::cmp::Reverse(held(row)), row.tgid));
    match options.format {
        HostFormat::Text => out.write_all(text(snapshot, &rows, options).as_bytes()),
        HostFormat::Json => json(&document(snapshot, &rows), out),
    }
}

/// A column: heading, right alignment, and the cell of a process.
type Column<'a> = (
    &'static str,
    bool,
    Box<dyn Fn(&ProcessRow) -> Option<String> + 'a>,
);

fn text(snapshot: &HostSnapshot, rows: &[&ProcessRow], options: &HostOptions) -> String {
    let mut text = String::new();
    let gaps = unavailable(rows);
    for line in devices(snapshot)
        .iter()
        .chain(&gaps)
        .chain(&warnings(snapshot))
    {
        push(&mut text, line, options.width);
    }
    if rows.is_empty() {
        let none = match snapshot.driver.unlisted().next() {
            None => "No process on this host has CUDA memory.",
            Some(_) => "No process on this host is known to have CUDA memory.",
        };
        push(&mut text, none, options.width);
        return text;
    }
    text.push('\n');
    let frames = rows
        .iter()
        .filter_map(|row| match &row.top.as_ref()?.holder {
            Holder::Site(site) => site.frame(),
            Holder::BeforeAttach => None,
        });
    let names = FileNames::of(frames.map(|frame| &frame.file));
    let table: Vec<Vec<String>> = rows.iter().map(|row| cells(row, rows, &names)).collect();
    let heads: Vec<String> = table_columns(rows, &names)
        .iter()
        .map(|(head, ..)| (*head).to_owned())
        .collect();
    let widths: Vec<usize> = (0..heads.len())
        .map(|column| {
            let cells = table
                .iter()
                .chain([&heads])
                .map(|cells| columns(&cells[column]));
            cells.max().unwrap_or(0)
        })
        .collect();
    let right: Vec<bool> = table_columns(rows, &names)
        .iter()
        .map(|(_, right, _)| *right)
        .collect();
    for (at, cells) in [&heads].into_iter().chain(&table).enumerate() {
        let mut line = String::new();
        for ((cell, width), right) in cells.iter().zip(&widths).zip(&right) {
            let space = " ".repeat(width - columns(cell));
            // Writing to a string cannot fail.
            let _ = match right {
                true => write!(line, "{space}{cell}  "),
                false => write!(line, "{cell}{space}  "),
            };
        }
        let line = match options.width {
            Some(width) => fit(line.trim_end(), width, CUT),
            None => line.trim_end().to_owned(),
        };
        match (at, options.colour) {
            (0, Colour::Ansi) => {
                let _ = writeln!(text, "\x1b[1m{line}\x1b[0m");
            }
            _ => {
                let _ = writeln!(text, "{line}");
            }
        }
    }
    text
}

fn push(text: &mut String, line: &str, width: Option<usize>) {
    let line = width.map_or_else(|| line.to_owned(), |width| fit(line, width, CUT));
    text.push_str(line.trim_end());
    text.push('\n');
}

/// Devices as the driver reports them, or the reason that it cannot be queried.
fn devices(snapshot: &HostSnapshot) -> Vec<String> {
    match &snapshot.driver {
        DriverSnapshot::Unasked => Vec::new(),
        DriverSnapshot::Silent(reason) => vec![format!("DRIVER is -: {}", clean(reason))],
        DriverSnapshot::Devices(devices) => devices
            .iter()
            .map(|device| {
                let mut parts = vec![format!("GPU {}", device.index)];
                parts.extend(device.memory.as_ref().ok().map(|memory| {
                    let share = percent(memory.used.0.into(), memory.total.0.into());
                    let (used, total) = (short(memory.used), short(memory.total));
                    format!("{used} of {total} ({share})")
                }));
                parts.push(clean(&device.name));
                parts.extend(device_gaps(device));
                parts.join("  ")
            })
            .collect(),
    }
}

/// Says why the driver's column has no number for processes that the driver names without bytes.
fn unavailable(rows: &[&ProcessRow]) -> Option<String> {
    let has_gap = |row: &&&ProcessRow| row.driver.iter().any(|held| held.bytes.is_none());
    let number = rows.iter().filter(has_gap).count() as u64;
    let processes = match number {
        0 => return None,
        1 => "1 process".to_owned(),
        number => format!("{number} processes"),
    };
    Some(format!(
        "DRIVER is - for {processes}: the driver does not report the bytes on every GPU ([N/A])"
    ))
}

fn warnings(snapshot: &HostSnapshot) -> Vec<String> {
    let health = &snapshot.health;
    let mut warnings = Vec::new();
    let losses = health.losses;
    if losses.events > 0 || losses.stacks > 0 || losses.malformed > 0 {
        warnings.push(format!(
            "warning: {} were lost: totals are the allocators' own and right; lines may miss memory",
            view::counted(health.losses.events, "event")
        ));
    }
    if health.untracked > 0 {
        let more = view::counted(health.untracked, "more process");
        warnings.push(format!("warning: there was no room for {more}es"));
    }
    warnings
}

fn table_columns<'a>(rows: &[&ProcessRow], names: &'a FileNames) -> Vec<Column<'a>> {
    let mut columns: Vec<Column> = vec![
        ("PID", true, Box::new(|row| Some(row.tgid.0.to_string()))),
        (
            "USER",
            false,
            Box::new(|row| row.facts.user.as_deref().map(clean)),
        ),
    ];
    if rows.iter().any(|row| row.target.container.is_some()) {
        let container = |row: &ProcessRow| row.target.container.as_deref().map(clean);
        columns.push(("CONTAINER", false, Box::new(container)));
    }
    if rows.iter().any(|row| row.facts.rank.is_some()) {
        let rank = |row: &ProcessRow| row.facts.rank.map(view::rank);
        columns.push(("RANK", true, Box::new(rank)));
    }
    columns.push(("DEV", true, Box::new(device_list)));
    let allocated = |row: &ProcessRow| row.totals().map(|totals| short(totals.allocated));
    columns.push(("ALLOC", true, Box::new(allocated)));
    let reserved = |row: &ProcessRow| row.totals().map(|totals| short(totals.reserved));
    columns.push(("RESERVED", true, Box::new(reserved)));
    columns.push((
        "DRIVER",
        true,
        Box::new(|row| row.driver_total().map(short)),
    ));
    columns.push((
        "COMMAND",
        false,
        Box::new(|row| Some(short_command(&row.target.command))),
    ));
    let top = |row: &ProcessRow| process_state(row).or_else(|| top_line(row, names));
    columns.push(("TOP LINE", false, Box::new(top)));
    columns
}

/// Maximum width of a command, so that the column of the top line stays on the screen.
const LONGEST_COMMAND: usize = 40;

fn cells(row: &ProcessRow, rows: &[&ProcessRow], names: &FileNames) -> Vec<String> {
    let columns = table_columns(rows, names);
    let cell = |(head, _, say): &Column| {
        let text = say(row).unwrap_or_else(|| "-".to_owned());
        match *head {
            "COMMAND" => fit(&text, LONGEST_COMMAND, CUT),
            _ => text,
        }
    };
    columns.iter().map(cell).collect()
}

#[derive(Serialize)]
struct Document<'a> {
    time_ns: u64,
    driver: Option<String>,
    gpus: Vec<Gpu<'a>>,
    events: u64,
    lost_events: u64,
    lost_stacks: u64,
    lost_uses: u64,
    malformed: u64,
    disagreements: u64,
    processes: Vec<Process<'a>>,
}

#[derive(Serialize)]
struct Gpu<'a> {
    gpu: u32,
    name: &'a str,
    used: Option<u64>,
    total: Option<u64>,
    /// Reason why `used` and `total` are null.
    memory_unknown: Option<&'a str>,
    /// MIG devices that `used` and `total` are the sum of.
    mig_devices: Option<u32>,
    /// Reason why the driver's list of processes is missing or has gaps.
    processes_unknown: Option<&'a str>,
}

#[derive(Serialize)]
struct Process<'a> {
    pid: u32,
    pid_inside: Option<u32>,
    user: Option<&'a str>,
    command: &'a str,
    container: Option<&'a str>,
    rank: Option<u32>,
    local_rank: Option<u32>,
    world_size: Option<u32>,
    python: Option<&'a str>,
    torch: Option<&'a str>,
    state: &'static str,
    reason: Option<&'a str>,
    note: Option<&'a str>,
    allocated: Option<u64>,
    reserved: Option<u64>,
    driver: Option<u64>,
    /// Reason why `driver` is null for a process in the driver's list.
    driver_unknown: Option<String>,
    peak_allocated: Option<u64>,
    peak_reserved: Option<u64>,
    devices: Vec<Device>,
    driver_devices: Vec<DriverDevice>,
    top: Option<Top<'a>>,
    events: u64,
}

#[derive(Serialize)]
struct Device {
    device: u8,
    allocated: u64,
    reserved: u64,
}

#[derive(Serialize)]
struct DriverDevice {
    gpu: u32,
    bytes: Option<u64>,
}

/// Line that holds most. `kind` is one of a report: `line`, `backward`, `backward_of`, `no_line` or
/// `before_attach`.
#[derive(Serialize)]
struct Top<'a> {
    kind: &'static str,
    #[serde(flatten)]
    frame: Option<FrameRow<'a>>,
    live: u64,
}

fn document<'a>(snapshot: &'a HostSnapshot, rows: &[&'a ProcessRow]) -> Document<'a> {
    let health = &snapshot.health;
    let (driver, gpus) = match &snapshot.driver {
        DriverSnapshot::Unasked => (Some("not asked".to_owned()), Vec::new()),
        DriverSnapshot::Silent(reason) => (Some(reason.clone()), Vec::new()),
        DriverSnapshot::Devices(devices) => {
            let gpus = devices.iter().map(|device| Gpu {
                gpu: device.index,
                name: &device.name,
                used: device.memory.as_ref().ok().map(|memory| memory.used.0),
                total: device.memory.as_ref().ok().map(|memory| memory.total.0),
                memory_unknown: device.memory.as_ref().err().map(String::as_str),
                mig_devices: device.mig_devices,
                processes_unknown: device.processes.as_ref().err().map(String::as_str),
            });
            (None, gpus.collect())
        }
    };
    Document {
        time_ns: snapshot.now.0,
        driver,
        gpus,
        events: health.events,
        lost_events: health.losses.events,
        lost_stacks: health.losses.stacks,
        lost_uses: health.losses.uses,
        malformed: health.losses.malformed,
        disagreements: health.disagreements,
        processes: rows
            .iter()
            .map(|row| process(row, &snapshot.driver))
            .collect(),
    }
}

fn process<'a>(row: &'a ProcessRow, driver: &DriverSnapshot) -> Process<'a> {
    let totals = row.totals();
    let (state, reason) = match &row.state {
        ProcessState::Probed => ("probed", None),
        ProcessState::Waiting(what) => ("waiting", Some(what.as_str())),
        ProcessState::Refused(reason) => ("refused", Some(reason.as_str())),
        ProcessState::Ended => ("ended", None),
    };
    Process {
        pid: row.tgid.0,
        pid_inside: row.target.inner_tgid.map(|inner| inner.0),
        user: row.facts.user.as_deref(),
        command: &row.target.command,
        container: row.target.container.as_deref(),
        rank: row.facts.rank.map(|rank| rank.global),
        local_rank: row.facts.rank.and_then(|rank| rank.local),
        world_size: row.facts.rank.and_then(|rank| rank.world),
        python: row.target.python.as_deref(),
        torch: row.target.torch.as_deref(),
        state,
        reason,
        note: row.note.as_deref(),
        allocated: totals.map(|totals| totals.allocated.0),
        reserved: totals.map(|totals| totals.reserved.0),
        driver: row.driver_total().map(|bytes| bytes.0),
        driver_unknown: driver_gap(row, driver),
        peak_allocated: totals.map(|_| row.peak.allocated.0),
        peak_reserved: totals.map(|_| row.peak.reserved.0),
        devices: row
            .devices
            .iter()
            .map(|device| Device {
                device: device.index.0,
                allocated: device.totals.allocated.0,
                reserved: device.totals.reserved.0,
            })
            .collect(),
        driver_devices: row
            .driver
            .iter()
            .map(|held| DriverDevice {
                gpu: held.device,
                bytes: held.bytes.map(|bytes| bytes.0),
            })
            .collect(),
        top: row.top.as_ref().map(|top| {
            let (kind, frame) = match &top.holder {
                Holder::Site(Site::Line(frame)) => ("line", Some(frame.into())),
                Holder::Site(Site::Backward(frame)) => ("backward", Some(frame.into())),
                Holder::Site(Site::Node { forward, .. }) => ("backward_of", Some(forward.into())),
                Holder::Site(Site::NoLine { .. }) => ("no_line", None),
                Holder::BeforeAttach => ("before_attach", None),
            };
            Top {
                kind,
                frame,
                live: top.live.0,
            }
        }),
        events: row.events,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Target;
    use crate::event::{Bytes, DeviceIndex, Frame, Tgid, TimeNs, Totals};
    use crate::ledger::snapshot::host::{
        self as model, DeviceRow, DriverMemory, DriverUse, HostHealth, ProcessFacts, Rank,
        TopHolder, Trend,
    };

    fn row(tgid: u32, mib: u64) -> ProcessRow {
        let totals = Totals {
            allocated: Bytes(mib << 20),
            reserved: Bytes((mib + 1) << 20),
        };
        let frame = Frame {
            library: None,
            file: "/srv/model.py".into(),
            line: 88,
            function: "forward\x1b".into(),
        };
        ProcessRow {
            tgid: Tgid(tgid),
            target: Target {
                tgid: Some(Tgid(tgid)),
                command: "/opt/venv/bin/python train.py".to_owned(),
                ..Target::default()
            },
            facts: ProcessFacts {
                user: Some("ada".to_owned()),
                ..ProcessFacts::default()
            },
            state: ProcessState::Probed,
            devices: vec![DeviceRow {
                index: DeviceIndex(0),
                totals,
                peak: totals,
            }],
            peak: totals,
            driver: vec![DriverUse {
                device: 2,
                bytes: Some(Bytes((mib + 400) << 20)),
            }],
            driver_is_partial: false,
            trend: Trend::default(),
            top: Some(TopHolder {
                holder: Holder::Site(Site::Line(frame)),
                live: Bytes(mib << 19),
            }),
            note: None,
            events: 7,
            events_per_second: 1.0,
        }
    }

    fn host() -> HostSnapshot {
        let mut old = row(30, 0);
        old.devices.clear();
        old.top = None;
        old.state = ProcessState::Refused("Python 3.8 is not supported".to_owned());
        let mut ranked = row(20, 900);
        ranked.facts.rank = Some(Rank {
            global: 3,
            local: None,
            world: Some(4),
        });
        let mut worker = old.clone();
        worker.tgid = Tgid(40);
        worker.state = ProcessState::Probed;
        worker.driver.clear();
        worker.events = 0;
        HostSnapshot {
            started: TimeNs(0),
            now: TimeNs(5),
            processes: vec![row(10, 100), ranked, old, worker],
            driver: DriverSnapshot::Silent("libnvidia-ml.so.1 was not found".to_owned()),
            health: HostHealth::default(),
        }
    }

    fn written(options: HostOptions) -> String {
        let mut out = Vec::new();
        write_host(&host(), &options, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    const TEXT: HostOptions = HostOptions {
        format: HostFormat::Text,
        extent: HostExtent::Holders,
        width: None,
        colour: Colour::Plain,
    };

    #[test]
    fn the_table_begins_with_the_largest_and_names_the_reason_of_an_unprobed_one() {
        insta::assert_snapshot!("host_table", written(TEXT));
    }

    /// The second process has no bytes; of the second device the processes are unknown.
    fn with_gaps() -> HostSnapshot {
        let mut host = host();
        let device = |index, memory, processes| model::DriverDevice {
            index,
            name: "NVIDIA A100".to_owned(),
            memory,
            mig_devices: None,
            processes,
        };
        let memory = DriverMemory {
            used: Bytes(3 << 30),
            total: Bytes(40 << 30),
        };
        let lost = "the driver does not answer: the GPU is lost".to_owned();
        host.driver = DriverSnapshot::Devices(vec![
            model::DriverDevice {
                mig_devices: Some(2),
                ..device(0, Ok(memory), Ok(()))
            },
            device(1, Ok(memory), Err("the driver is too old".to_owned())),
            device(2, Err(lost.clone()), Err(lost)),
        ]);
        for row in &mut host.processes {
            row.driver_is_partial = true;
        }
        host.processes[1].driver[0].bytes = None;
        host
    }

    #[test]
    fn what_the_driver_does_not_say_has_a_reason() {
        let mut out = Vec::new();
        write_host(&with_gaps(), &TEXT, &mut out).unwrap();
        insta::assert_snapshot!("host_gaps", String::from_utf8(out).unwrap());
        let mut out = Vec::new();
        let options = HostOptions {
            format: HostFormat::Json,
            ..TEXT
        };
        write_host(&with_gaps(), &options, &mut out).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(json["gpus"][0]["mig_devices"], 2);
        assert_eq!(
            json["gpus"][1]["processes_unknown"],
            "the driver is too old"
        );
        assert!(json["gpus"][2]["used"].is_null());
        let reason = json["gpus"][2]["memory_unknown"].as_str().unwrap();
        assert!(reason.contains("lost"), "{reason}");
        for process in json["processes"].as_array().unwrap() {
            assert!(process["driver"].is_null());
            assert!(process["driver_unknown"].is_string(), "{process}");
        }
    }

    #[test]
    fn a_terminal_gets_lines_that_fit_it() {
        let text = written(HostOptions {
            width: Some(60),
            ..TEXT
        });
        assert!(text.lines().all(|line| columns(line) <= 60), "{text}");
    }

    #[test]
    fn all_processes_are_written_where_they_are_asked_for() {
        let all = HostOptions {
            extent: HostExtent::All,
            ..TEXT
        };
        assert_eq!(
            written(all).lines().count(),
            written(TEXT).lines().count() + 1
        );
    }

    #[test]
    fn programs_get_bytes_and_null_where_nothing_is_known() {
        let json = written(HostOptions {
            format: HostFormat::Json,
            ..TEXT
        });
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let processes = json["processes"].as_array().unwrap();
        assert_eq!(processes[0]["allocated"], 900_u64 << 20);
        assert_eq!(processes[0]["world_size"], 4);
        assert_eq!(processes[0]["top"]["line"], 88);
        assert_eq!(processes[0]["driver_devices"][0]["gpu"], 2);
        assert!(processes[2]["allocated"].is_null());
        assert_eq!(processes[2]["state"], "refused");
        assert!(json["driver"].as_str().unwrap().contains("not found"));
    }
}

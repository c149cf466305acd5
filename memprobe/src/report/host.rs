//! Report of the processes of a host, as text or JSON.

use std::cmp::Reverse;
use std::io::{self, Write};
use std::sync::Arc;

use super::{Colour, DocumentFormat};
use crate::event::Gpu;
use crate::event::bytes::short;
use crate::ledger::snapshot::host::{DriverDevice, DriverSnapshot, HostSnapshot, ProcessRow};
pub use crate::view::HostExtent;
use crate::view::table::{Cell, Output, Page, Table, json_document};
use crate::view::{
    self, PROCESS_COLUMNS, ProcessEntry, clean, device_gaps, percent, top_line_names,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostOptions {
    pub format: DocumentFormat,
    pub extent: HostExtent,
    /// Width of text, in columns; `None` for unlimited.
    pub width: Option<usize>,
    pub colour: Colour,
}

/// Writes the processes of a host, the one that holds most first.
pub fn write_host(
    snapshot: &HostSnapshot,
    options: &HostOptions,
    out: &mut impl Write,
) -> io::Result<()> {
    let processes = &snapshot.processes;
    let mut places: Vec<usize> = (0..processes.len()).collect();
    places.retain(|at| options.extent.includes(snapshot, &processes[*at]));
    places.sort_by_key(|at| {
        let row = &processes[*at];
        let allocated = row.totals().map(|totals| totals.allocated);
        (Reverse((allocated, row.driver_total())), row.tgid)
    });
    let names = Arc::new(top_line_names(processes));
    let host = Arc::new(snapshot.clone());
    let mut table = Table::new(PROCESS_COLUMNS);
    let rows = places.into_iter().map(|at| ProcessEntry {
        host: Arc::clone(&host),
        at,
        names: Arc::clone(&names),
    });
    table.extend(Output::All, rows);
    match options.format {
        DocumentFormat::Text => {
            let mut page = Page::new(options.width.unwrap_or(usize::MAX), options.colour);
            push(&mut page, snapshot, &table);
            out.write_all(page.into_text().as_bytes())
        }
        DocumentFormat::Json => json_document(&document(snapshot, table), out),
    }
}

fn push(page: &mut Page, snapshot: &HostSnapshot, table: &Table<ProcessEntry>) {
    let gaps = unavailable(table).into_iter().chain(numbering(table));
    let lines = devices(snapshot).into_iter().chain(gaps);
    for line in lines.chain(warnings(snapshot)) {
        page.fitted(&line);
    }
    if table.rows.is_empty() {
        page.fitted(match snapshot.driver.unlisted().next() {
            None => "No process on this host has CUDA memory.",
            Some(_) => "No process on this host is known to have CUDA memory.",
        });
    } else {
        page.blank();
        page.table(table);
    }
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
fn unavailable(table: &Table<ProcessEntry>) -> Option<String> {
    let has_gap =
        |row: &&ProcessEntry| row.process().driver.iter().any(|held| held.bytes.is_none());
    let number = table.data_rows().filter(has_gap).count() as u64;
    let processes = match number {
        0 => return None,
        1 => "1 process".to_owned(),
        number => format!("{number} processes"),
    };
    Some(format!(
        "DRIVER is - for {processes}: the driver does not report the bytes on every GPU ([N/A])"
    ))
}

/// Returns the GPU of each device, `None` for one that is not known.
fn gpus(row: &ProcessRow) -> impl Iterator<Item = Option<&Gpu>> {
    let devices = row.devices.iter();
    devices.map(|device| row.target.gpu(device.index))
}

/// Says what the marks in the column of devices mean, if there are some.
fn numbering(table: &Table<ProcessEntry>) -> Vec<String> {
    let rows = || table.data_rows().map(ProcessEntry::process);
    let is_unknown = rows().any(|row| gpus(row).any(|gpu| gpu.is_none()));
    let is_inferred = |gpu: &Gpu| gpu.source.is_inferred();
    let is_inferred = rows().any(|row| gpus(row).flatten().any(is_inferred));
    let unknown = "DEV with cuda: the process's own number; its GPU is not known";
    let inferred = "DEV with ?: inferred from CUDA_VISIBLE_DEVICES";
    let notes = [(is_unknown, unknown), (is_inferred, inferred)];
    let notes = notes.into_iter().filter(|(is_shown, _)| *is_shown);
    notes.map(|(_, note)| note.to_owned()).collect()
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

fn document<'a>(snapshot: &'a HostSnapshot, processes: Table<ProcessEntry>) -> Cell<'a> {
    let health = &snapshot.health;
    let (driver, gpus) = match &snapshot.driver {
        DriverSnapshot::Unasked => ("not asked".into(), Vec::new()),
        DriverSnapshot::Silent(reason) => ((&**reason).into(), Vec::new()),
        DriverSnapshot::Devices(devices) => (Cell::Unknown, devices.iter().map(gpu).collect()),
    };
    Cell::Object(vec![
        ("time_ns", snapshot.now.0.into()),
        ("driver", driver),
        ("gpus", Cell::List(gpus)),
        ("events", health.events.into()),
        ("lost_events", health.losses.events.into()),
        ("lost_stacks", health.losses.stacks.into()),
        ("lost_uses", health.losses.uses.into()),
        ("malformed", health.losses.malformed.into()),
        ("disagreements", health.disagreements.into()),
        ("processes", processes.into()),
    ])
}

fn gpu(device: &DriverDevice) -> Cell<'_> {
    let memory = device.memory.as_ref();
    Cell::Object(vec![
        ("gpu", device.index.into()),
        ("name", (&*device.name).into()),
        ("uuid", device.uuid.as_deref().into()),
        ("pci_bus_id", device.pci_bus_id.as_deref().into()),
        ("used", memory.ok().map(|memory| memory.used).into()),
        ("total", memory.ok().map(|memory| memory.total).into()),
        // Reason why `used` and `total` are null.
        ("memory_unknown", memory.err().into()),
        // MIG devices that `used` and `total` are the sum of.
        ("mig_devices", device.mig_devices.into()),
        // Bytes in use that no listed process has: other containers, processes that have ended, the driver itself.
        ("others", device.others.into()),
        // Reason why the driver's list of processes is missing or has gaps.
        ("processes_unknown", device.processes.as_ref().err().into()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Bytes, DeviceIdentity, DeviceIndex, Frame, Rank, Target, Tgid};
    use crate::event::{IdentitySource, TimeNs, Totals};
    use crate::ledger::snapshot::Site;
    use crate::ledger::snapshot::host::{
        self as model, DeviceRow, DriverMemory, DriverUse, Holder, HostHealth, ProcessFacts,
        ProcessRow, ProcessState, TopHolder, Trend,
    };
    use crate::view::width as columns;

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
                gpus: vec![DeviceIdentity {
                    device: DeviceIndex(0),
                    gpu: Some(Gpu {
                        index: Some(2),
                        uuid: Some("GPU-8932f937".to_owned()),
                        pci_bus_id: None,
                        mig: None,
                        memory: None,
                        source: IdentitySource::Properties,
                    }),
                    unknown: None,
                }],
                ..Target::default()
            },
            facts: ProcessFacts {
                user: Some("ada".to_owned()),
                ..ProcessFacts::default()
            },
            state: ProcessState::Probed,
            stopped: None,
            devices: vec![DeviceRow {
                index: DeviceIndex(0),
                totals,
                peak: totals,
            }],
            totals_age: None,
            peak: totals,
            driver: vec![DriverUse {
                device: 2,
                bytes: Some(Bytes((mib + 400) << 20)),
            }],
            driver_is_partial: false,
            trend: Trend::default(),
            growth: None,
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
        if let Some(gpu) = &mut ranked.target.gpus[0].gpu {
            gpu.source = IdentitySource::Environment;
        }
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
        format: DocumentFormat::Text,
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
            uuid: None,
            pci_bus_id: None,
            memory,
            mig_devices: None,
            processes,
            others: None,
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
            format: DocumentFormat::Json,
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
    fn a_device_without_a_known_gpu_is_marked() {
        let mut host = host();
        host.processes[0].target.gpus = vec![DeviceIdentity::unknown(DeviceIndex(0), "no driver")];
        let mut out = Vec::new();
        write_host(&host, &TEXT, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains("DEV with cuda: the process's own number"),
            "{text}"
        );
        assert!(text.contains("DEV with ?: inferred"), "{text}");
        let device = |pid: &str| {
            let line = text
                .lines()
                .find(|line| line.trim_start().starts_with(pid))?;
            line.split_whitespace().nth(3).map(str::to_owned)
        };
        assert_eq!(device("10 ").as_deref(), Some("cuda:0"));
        assert_eq!(device("20 ").as_deref(), Some("2?"));
    }

    #[test]
    fn programs_get_bytes_and_null_where_nothing_is_known() {
        let json = written(HostOptions {
            format: DocumentFormat::Json,
            ..TEXT
        });
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let processes = json["processes"].as_array().unwrap();
        assert_eq!(processes[0]["allocated"], 900_u64 << 20);
        assert_eq!(processes[0]["world_size"], 4);
        assert_eq!(processes[0]["top"]["line"], 88);
        assert_eq!(processes[0]["driver_devices"][0]["gpu"], 2);
        let device = &processes[0]["devices"][0];
        assert_eq!(device["device"], 0);
        assert_eq!(device["gpu"], 2);
        assert_eq!(device["driver"], 1300_u64 << 20);
        assert_eq!(device["gpu_source"], "environment");
        assert!(processes[2]["allocated"].is_null());
        assert_eq!(processes[2]["state"], "refused");
        assert!(json["driver"].as_str().unwrap().contains("not found"));
    }
}

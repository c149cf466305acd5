//! The page about all processes of a machine.

use std::cmp::Reverse;
use std::io::Write;

use super::ExplainOptions;
use crate::event::Bytes;
use crate::event::bytes::human;
use crate::ledger::snapshot::host::{DriverDevice, DriverSnapshot, HostSnapshot, ProcessRow};
use crate::report::{DocumentFormat, ReportError, unless_closed};
use crate::view::table::{Cell, Page, Table, columns, json_document};
use crate::view::{clean, counted, device_gaps, percent, short_command};

/// Cells of the bar of a GPU.
const BAR: usize = 48;
/// Most rows of each section.
const MAX_GPUS: usize = 12;
const MAX_PROCESSES: usize = 12;

/// Writes the page. Returns `None` if the reader closes the output early.
pub fn write_host_explanation(
    snapshot: &HostSnapshot,
    options: ExplainOptions,
    out: &mut impl Write,
) -> Result<Option<()>, ReportError> {
    let processes = holders(snapshot);
    let written = match options.format {
        DocumentFormat::Text => {
            let mut page = Page::new(options.width, options.colour);
            push(&mut page, snapshot, &processes);
            out.write_all(page.into_text().as_bytes())
        }
        DocumentFormat::Json => json_document(&document(snapshot, &processes), out),
    };
    unless_closed(written.and_then(|()| out.flush()).map_err(Into::into))
}

/// Processes that hold memory, the largest first.
fn holders(snapshot: &HostSnapshot) -> Vec<&ProcessRow> {
    let rows = snapshot.processes.iter();
    let mut rows: Vec<_> = rows.filter(|row| !snapshot.holds_nothing(row)).collect();
    rows.sort_by_key(|row| (Reverse(bytes(row)), row.tgid));
    rows
}

/// Bytes of a process: by the driver or, without it, as its allocator reserved them.
fn bytes(row: &ProcessRow) -> Option<Bytes> {
    row.driver_total().or_else(|| Some(row.totals()?.reserved))
}

fn gpus(snapshot: &HostSnapshot) -> &[DriverDevice] {
    match &snapshot.driver {
        DriverSnapshot::Devices(devices) => devices,
        DriverSnapshot::Silent(_) | DriverSnapshot::Unasked => &[],
    }
}

fn verdict(snapshot: &HostSnapshot, processes: &[&ProcessRow]) -> String {
    let Some(first) = processes.first() else {
        return "No process on this machine is known to have GPU memory.".to_owned();
    };
    let mut sentences = Vec::new();
    let fullest = gpus(snapshot).iter().filter_map(|gpu| {
        let memory = gpu.memory.as_ref().ok()?;
        Some((memory.used, memory.total, gpu.index))
    });
    let share = |(used, total, _): &(Bytes, Bytes, u32)| {
        u128::from(used.0) * 1_000_000 / u128::from(total.0.max(1))
    };
    if let Some((used, total, index)) = fullest.max_by_key(share) {
        let share = percent(used.0.into(), total.0.into());
        let (used, total) = (human(used), human(total));
        sentences.push(format!(
            "GPU {index} is the fullest: {used} of {total} are used ({share})."
        ));
    }
    sentences.push(format!(
        "{} GPU memory; PID {} ({}) has most: {}.",
        if processes.len() == 1 {
            "1 process has".to_owned()
        } else {
            format!("{} processes have", processes.len())
        },
        first.tgid.0,
        clean(&short_command(&first.target.command)),
        bytes(first).map_or_else(|| "?".to_owned(), human),
    ));
    let growing = processes
        .iter()
        .filter_map(|row| Some((row, row.growth.filter(|growth| growth.is_steady)?)));
    if let Some((row, growth)) = growing.max_by_key(|(_, growth)| growth.per_minute) {
        sentences.push(format!(
            "PID {} grows by {} a minute.",
            row.tgid.0,
            human(Bytes(growth.per_minute.unsigned_abs()))
        ));
    }
    sentences.join(" ")
}

fn push(page: &mut Page, snapshot: &HostSnapshot, processes: &[&ProcessRow]) {
    page.note(&verdict(snapshot, processes));
    if let DriverSnapshot::Silent(reason) = &snapshot.driver {
        page.fitted(&format!(
            "note: the driver's numbers are unknown: {}",
            clean(reason)
        ));
    }
    if snapshot.health.losses.events > 0 {
        let lost = counted(snapshot.health.losses.events, "event");
        page.fitted(&format!(
            "note: {lost} lost; the totals are the allocators' own"
        ));
    }
    push_gpus(page, gpus(snapshot), processes);
    if processes.is_empty() {
        return;
    }
    page.blank();
    let columns = columns![|row: &ProcessRow|
        number("pid", "PID") => row.tgid.0,
        number("driver", "DRIVER").short() => row.driver_total(),
        number("allocated", "ALLOC").short() => row.totals().map(|totals| totals.allocated),
        number("cached", "CACHED").short() => row.totals().map(|totals| totals.cached()),
        figure("GROWTH/min") => row.growth,
        label("COMMAND").width(10, 200) => clean(&short_command(&row.target.command)),
    ];
    let shown = processes.iter().take(MAX_PROCESSES).copied();
    page.table(&Table::of(columns, shown));
    if processes.len() > MAX_PROCESSES {
        page.fitted(&format!("        {} more", processes.len() - MAX_PROCESSES));
    }
    page.blank();
    if let Some(first) = processes.first() {
        page.fitted(&format!(
            "next: memprobe explain {}   what it has, who keeps it, what grows",
            first.tgid.0
        ));
    }
}

fn push_gpus(page: &mut Page, gpus: &[DriverDevice], processes: &[&ProcessRow]) {
    if gpus.is_empty() {
        return;
    }
    page.blank();
    for gpu in gpus.iter().take(MAX_GPUS) {
        push_gpu(page, gpu, processes);
    }
    if gpus.len() > MAX_GPUS {
        let more = counted((gpus.len() - MAX_GPUS) as u64, "more GPU");
        page.fitted(&format!("{more} (all of them: --format json)"));
    }
    page.fitted(
        "a: the first process below, b: the second, ...; x: no process that memprobe knows",
    );
}

/// Draws a GPU as a bar, a letter for each process: `a` for the first, `x` for what no known process has.
fn push_gpu(page: &mut Page, gpu: &DriverDevice, processes: &[&ProcessRow]) {
    let (number, name) = (format!("GPU {:<2}", gpu.index), clean(&gpu.name));
    let Ok(memory) = &gpu.memory else {
        page.fitted(&format!("{number} {name}  {}", device_gaps(gpu).join("  ")));
        return;
    };
    let cells = |bytes: u64| {
        let whole = u128::from(memory.total.0.max(1));
        (u128::from(bytes) * BAR as u128 / whole) as usize
    };
    let mut bar = String::new();
    let mut sum = 0_u64;
    for (letter, row) in ('a'..='w').zip(processes) {
        let held = row.driver.iter().filter(|held| held.device == gpu.index);
        let held: u64 = held.filter_map(|held| Some(held.bytes?.0)).sum();
        if held > 0 {
            sum = sum.saturating_add(held);
            let end = cells(sum).max(bar.len() + 1).min(BAR);
            bar.extend(std::iter::repeat_n(letter, end.saturating_sub(bar.len())));
        }
    }
    let end = cells(memory.used.0).clamp(bar.len(), BAR);
    bar.extend(std::iter::repeat_n('x', end - bar.len()));
    bar.extend(std::iter::repeat_n('.', BAR - bar.len()));
    let (used, total) = (human(memory.used), human(memory.total));
    page.fitted(&format!("{number} [{bar}] {used} of {total}  {name}"));
}

fn document<'a>(snapshot: &'a HostSnapshot, processes: &[&'a ProcessRow]) -> Cell<'a> {
    let gpu = |gpu: &'a DriverDevice| {
        let memory = gpu.memory.as_ref();
        Cell::Object(vec![
            ("gpu", gpu.index.into()),
            ("name", (&*gpu.name).into()),
            ("uuid", gpu.uuid.as_deref().into()),
            ("used", memory.ok().map(|memory| memory.used).into()),
            ("total", memory.ok().map(|memory| memory.total).into()),
        ])
    };
    let process = |row: &&'a ProcessRow| {
        let totals = row.totals();
        Cell::Object(vec![
            ("pid", row.tgid.0.into()),
            ("command", (&*row.target.command).into()),
            ("driver", row.driver_total().into()),
            ("allocated", totals.map(|totals| totals.allocated).into()),
            ("reserved", totals.map(|totals| totals.reserved).into()),
            ("cached", totals.map(|totals| totals.cached()).into()),
            (
                "growth_per_minute",
                row.growth.map(|growth| growth.per_minute).into(),
            ),
        ])
    };
    let next = processes.first();
    let next = next.map(|row| format!("memprobe explain {}", row.tgid.0));
    Cell::Object(vec![
        ("memprobe", env!("CARGO_PKG_VERSION").into()),
        ("source", "machine".into()),
        (
            "verdict",
            Cell::Object(vec![("text", verdict(snapshot, processes).into())]),
        ),
        ("gpus", Cell::List(gpus(snapshot).iter().map(gpu).collect())),
        (
            "processes",
            Cell::List(processes.iter().map(process).collect()),
        ),
        ("next", Cell::list(next)),
    ])
}

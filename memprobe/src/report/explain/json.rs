//! The page as JSON: the same facts, with keys that stay the same.

use super::parts::MemoryPart;
use super::verdict::{next_commands, suspect_name, verdict};
use super::{
    DeviceExplanation, Explanation, ExplanationSource, FailedRequest, FreeList, Measure,
    MemoryOwner,
};
use crate::attribution::growth::{Growth, StepUnit, Suspect};
use crate::event::{Bytes, LoadedLibrary, ProcessGroup, UseSign};
use crate::recording::DumpedProcess;
use crate::tensors::KvTable;
use crate::view::table::Cell;
use crate::view::{gpu_fields, library_family, use_signs};

pub(super) fn document(explanation: &Explanation) -> Cell<'_> {
    let verdict = verdict(explanation);
    let next = next_commands(explanation, verdict.cause);
    let (source, file) = match &explanation.source {
        ExplanationSource::Process { .. } => ("process", Cell::Unknown),
        ExplanationSource::Snapshot { file } => ("snapshot", file.into()),
        ExplanationSource::Recording { file, .. } => ("recording", file.into()),
    };
    let watched = match &explanation.source {
        ExplanationSource::Process { watched, .. } => {
            Cell::Nanoseconds(u64::try_from(watched.as_nanos()).unwrap_or(u64::MAX))
        }
        _ => Cell::Unknown,
    };
    let target = &explanation.target;
    Cell::Object(vec![
        ("memprobe", env!("CARGO_PKG_VERSION").into()),
        ("command", (&*target.command).into()),
        ("pid", target.tgid.map(|tgid| tgid.0).into()),
        ("source", source.into()),
        ("file", file),
        ("watched_ns", watched),
        (
            "verdict",
            Cell::Object(vec![
                ("id", verdict.cause.key().into()),
                ("text", verdict.text.into()),
            ]),
        ),
        (
            "devices",
            Cell::List(
                explanation
                    .devices
                    .iter()
                    .map(|it| device(explanation, it))
                    .collect(),
            ),
        ),
        (
            "libraries",
            Cell::List(target.libraries.iter().map(library).collect()),
        ),
        (
            "next",
            Cell::List(
                next.into_iter()
                    .map(|(command, _)| command.into())
                    .collect(),
            ),
        ),
        ("notes", Cell::list(&explanation.notes)),
    ])
}

/// A library that was loaded, and the signs that it was in use.
fn library(library: &LoadedLibrary) -> Cell<'_> {
    let signs = use_signs(&library.signs);
    let groups = library.signs.iter().filter_map(|sign| match sign {
        UseSign::ProcessGroups(groups) => Some(groups),
        _ => None,
    });
    Cell::Object(vec![
        ("name", library_family(&library.path).into()),
        ("path", (&*library.path).into()),
        ("signs", (!signs.is_empty()).then_some(signs).into()),
        (
            "process_groups",
            Cell::List(groups.flatten().map(process_group).collect()),
        ),
    ])
}

fn process_group(group: &ProcessGroup) -> Cell<'_> {
    Cell::Object(vec![
        ("name", (&*group.name).into()),
        ("size", group.size.into()),
        ("ranks", Cell::list(group.ranks.iter().copied())),
    ])
}

fn device<'a>(explanation: &'a Explanation, device: &'a DeviceExplanation) -> Cell<'a> {
    let gpu = device.gpu;
    let mut fields = vec![("device", device.index.into())];
    fields.extend(gpu_fields(&explanation.target, device.index));
    fields.extend([
        ("gpu_total", gpu.map(|gpu| gpu.total).into()),
        ("gpu_used", gpu.map(|gpu| gpu.used).into()),
        ("gpu_process", gpu.and_then(|gpu| gpu.process).into()),
        ("allocated", device.totals.allocated.into()),
        ("reserved", device.totals.reserved.into()),
        ("ooms", device.ooms.into()),
        ("failed_request", device.failed.as_ref().map(failed).into()),
        ("parts", Cell::List(device.parts.iter().map(part).collect())),
        (
            "owners",
            Cell::List(device.owners.iter().map(owner).collect()),
        ),
        ("kv_cache", device.kv.as_ref().map(kv_cache).into()),
        ("growth", device.growth.as_ref().map(growth).into()),
        (
            "measures",
            Cell::List(device.measures.iter().map(measure).collect()),
        ),
    ]);
    Cell::Object(fields)
}

fn failed(failed: &FailedRequest) -> Cell<'_> {
    let lists = failed.free_lists.as_ref();
    let largest = lists.map(|lists| lists.iter().map(|list| list.largest).max());
    let sleeping = failed.asleep.as_ref();
    let sleeping = sleeping.and_then(|asleep| asleep.largest.as_ref());
    Cell::Object(vec![
        ("cause", failed.cause.key().into()),
        ("bytes", failed.size.into()),
        ("line", (&*failed.line).into()),
        ("module", failed.module.as_deref().into()),
        (
            "function",
            failed.call.as_ref().map(|call| call.function).into(),
        ),
        (
            "library",
            failed
                .call
                .as_ref()
                .and_then(|call| call.library.as_deref())
                .into(),
        ),
        (
            "largest_hole",
            largest.map(Option::unwrap_or_default).into(),
        ),
        (
            "free_lists",
            lists
                .map(|lists| Cell::List(lists.iter().map(free_list).collect()))
                .into(),
        ),
        (
            "segments_unknown",
            failed.segments_unknown.as_deref().into(),
        ),
        ("growing_bytes", failed.growing.into()),
        (
            "asleep_bytes",
            (failed.asleep.as_ref()).map(|asleep| asleep.bytes).into(),
        ),
        (
            "asleep_line",
            sleeping.map(|largest| largest.line.as_str()).into(),
        ),
        (
            "asleep_tag",
            sleeping.and_then(|largest| largest.tag.as_deref()).into(),
        ),
        (
            "other_processes",
            failed
                .others
                .as_ref()
                .map(|others| Cell::List(others.iter().map(other_process).collect()))
                .into(),
        ),
    ])
}

fn free_list(list: &FreeList) -> Cell<'_> {
    Cell::Object(vec![
        ("pool", (&*list.name).into()),
        ("free", list.free.into()),
        ("largest", list.largest.into()),
    ])
}

fn other_process(process: &DumpedProcess) -> Cell<'_> {
    Cell::Object(vec![
        ("pid", process.pid.into()),
        ("command", (&*process.command).into()),
        ("bytes", process.bytes.map(Bytes).into()),
        ("cached", process.cached.map(Bytes).into()),
    ])
}

fn part(part: &MemoryPart) -> Cell<'_> {
    Cell::Object(vec![
        ("id", part.id.key().into()),
        ("bytes", part.bytes.into()),
    ])
}

fn owner(owner: &MemoryOwner) -> Cell<'_> {
    Cell::Object(vec![
        ("name", owner.name.as_deref().into()),
        ("class", owner.class.as_deref().into()),
        ("bytes", owner.bytes.into()),
        ("exclusive_bytes", owner.exclusive.into()),
    ])
}

fn kv_cache(table: &KvTable) -> Cell<'_> {
    let rows = table.rows.iter().map(|row| {
        Cell::Object(vec![
            ("usage", row.usage.key().into()),
            ("request", row.request.as_deref().into()),
            ("units", Cell::Count(row.units)),
            ("shared_units", Cell::Count(row.shared)),
            ("bytes", row.bytes.into()),
        ])
    });
    Cell::Object(vec![
        ("class", (&*table.class).into()),
        ("scheduler_pid", table.scheduler.map(|tgid| tgid.0).into()),
        ("unit", table.unit.as_str().into()),
        ("units", Cell::Count(table.total)),
        ("bytes", table.bytes.into()),
        ("rows", Cell::List(rows.collect())),
    ])
}

fn growth(growth: &Growth) -> Cell<'_> {
    let per = match growth.step {
        StepUnit::Iterations(_) => "iteration",
        StepUnit::Window(_) => "second",
    };
    Cell::Object(vec![
        ("per", per.into()),
        ("points", Cell::Count(growth.points as u64)),
        ("needed_points", Cell::Count(growth.needed as u64)),
        ("bytes", growth.total.map(|total| total.bytes).into()),
        (
            "lines",
            Cell::List(growth.lines.iter().map(suspect).collect()),
        ),
    ])
}

fn suspect(suspect: &Suspect) -> Cell<'_> {
    let retainer = suspect.retained.retainers.first();
    Cell::Object(vec![
        ("line", suspect_name(suspect).into()),
        ("bytes", suspect.rate.bytes.into()),
        ("live", suspect.rate.last.into()),
        ("retained_by", retainer.map(|it| &*it.by).into()),
        (
            "retained_bytes",
            retainer.map(|it| it.retained.bytes).into(),
        ),
        (
            "exclusive_bytes",
            retainer.map(|it| it.exclusive.bytes).into(),
        ),
    ])
}

fn measure(measure: &Measure) -> Cell<'_> {
    Cell::Object(vec![
        ("id", measure.id.key().into()),
        ("action", (&*measure.action).into()),
        ("bytes", measure.bytes.into()),
        ("at_most", measure.at_most.into()),
    ])
}

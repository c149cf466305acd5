//! Facts of a page beside its columns, as JSON for its scripts.

use serde::Serialize;

use super::columns::Columns;
use super::device::{DeviceColumns, DeviceWriter, microseconds};
use super::replay::PageReplay;
use super::tables::{PageTables, TableBuilder};
use super::window::{HeldEvents, RefusedRequest};
use super::{PageOptions, PagePaths};
use crate::attribution::category::Category;
use crate::attribution::growth::{Growth, GrowthRetainer, StepUnit, Suspect};
use crate::attribution::iterations::{Iteration, Iterations};
use crate::event::{DeviceIndex, TimeNs, Totals};
use crate::ledger::snapshot::Grouping;
use crate::report::explain::{DeviceExplanation, PartId};
use crate::report::purpose_name;
use crate::view::{
    FileNames, clean, counted, device_name, iteration, iterations_by, named_stack, no_module,
};

/// Most frames of the stack of a failed request.
const MAX_FRAMES: usize = 12;

#[derive(Serialize)]
pub(super) struct PageFacts {
    version: &'static str,
    /// Losses, limits and everything else that the figures do not cover.
    pub notes: Vec<String>,
    categories: Vec<CategoryFacts>,
    /// Events that divide iterations.
    iterations_by: &'static str,
    /// Unix time of the start in milliseconds; `None` if the wall clock was not set.
    wall_start_ms: Option<u64>,
    pub devices: Vec<DevicePageFacts>,
    pub tables: PageTables,
}

#[derive(Serialize)]
struct CategoryFacts {
    key: &'static str,
    name: &'static str,
}

#[derive(Serialize)]
pub(super) struct DevicePageFacts {
    pub name: String,
    /// Events of the device in the recording, and before the first one in the page.
    pub all_events: usize,
    pub first_event: usize,
    pub columns: DeviceColumns,
    pub failed: Vec<FailedFacts>,
    iterations: Vec<IterationFacts>,
    growth: Option<GrowthFacts>,
    /// Reason why the segments are not known.
    segments_unread: Option<String>,
}

#[derive(Serialize)]
pub(super) struct FailedFacts {
    pub event: usize,
    pub size: u64,
    pub line: usize,
    pub stack: String,
    /// Totals of the device then.
    #[serde(skip)]
    pub totals: Totals,
}

#[derive(Serialize)]
struct IterationFacts {
    name: String,
    kind: &'static str,
    /// First and last event, and the one with the most allocated bytes.
    first: usize,
    last: usize,
    peak_event: usize,
    peak: u64,
    at_end: u64,
    reserved: u64,
    allocs: u64,
    alloc_bytes: u64,
    begin_us: u64,
    end_us: u64,
}

#[derive(Serialize)]
struct GrowthFacts {
    /// Unit of the rates: `iteration` or `second`.
    per: &'static str,
    points: usize,
    needed: usize,
    total: Option<f64>,
    has_retainers: bool,
    suspects: Vec<SuspectFacts>,
}

#[derive(Serialize)]
struct SuspectFacts {
    by: &'static str,
    name: String,
    rate: f64,
    blocks: f64,
    /// Share of the steps with growth.
    grew: f64,
    first: u64,
    last: u64,
    retainers: Vec<(String, u64, u64)>,
    without_retainer: u64,
}

impl PageFacts {
    pub(super) fn of(replay: &PageReplay, options: &PageOptions<'_>) -> (Self, Columns) {
        let mut columns = Columns::default();
        let mut builder = TableBuilder::new(replay, options.paths);
        let mut devices = Vec::new();
        for (device, events) in &replay.history.devices {
            devices.push(DevicePageFacts::of(
                replay,
                *device,
                events,
                &mut builder,
                &mut columns,
            ));
        }
        // The device of the verdict first.
        let order: Vec<String> = replay
            .explanation
            .devices
            .iter()
            .map(|device| device.index.to_string())
            .collect();
        devices.sort_by_key(|device| {
            let at = order.iter().position(|name| *name == device.name);
            at.unwrap_or(order.len())
        });
        if options.paths == PagePaths::Whole {
            let recorded = &replay.recording.sources;
            builder.add_sources(&|file| match recorded.file(file) {
                Some(source) => Ok(source.sparse_text()),
                None => (options.source_of)(file),
            });
        }
        let notes = notes(replay, &devices);
        let facts = Self {
            version: env!("CARGO_PKG_VERSION"),
            notes,
            categories: categories(),
            iterations_by: iterations_by(replay.iterations.source),
            wall_start_ms: replay.recording.header.wall_start_ms,
            devices,
            tables: builder.tables,
        };
        (facts, columns)
    }

    /// Sentences on what the page lacks of the recording.
    pub(super) fn lacks(&self) -> Vec<String> {
        let cut = self.devices.iter().filter_map(DevicePageFacts::cut);
        cut.collect()
    }
}

impl DevicePageFacts {
    fn of<'a>(
        replay: &'a PageReplay,
        device: DeviceIndex,
        events: &'a HeldEvents,
        builder: &mut TableBuilder<'a>,
        columns: &mut Columns,
    ) -> Self {
        let explained = replay.explanation.devices.iter();
        let explained = explained.clone().find(|it| it.index == device);
        let mut writer = DeviceWriter {
            replay,
            device,
            events,
            tables: builder,
        };
        let written = writer.write(columns);
        let failed = events.failed.iter();
        let failed: Vec<FailedFacts> = failed
            .map(|it| failed_request(replay, events, it, builder))
            .collect();
        Self {
            name: device.to_string(),
            all_events: events.all,
            first_event: events.first,
            columns: written,
            failed,
            iterations: iterations(replay, device, events),
            growth: explained.and_then(|it| growth(it, &builder.names)),
            segments_unread: replay.segments.unread.as_deref().map(clean),
        }
    }

    /// Name of the iteration that an event belongs to.
    pub(super) fn iteration_at(&self, event: usize) -> Option<&str> {
        let mut rows = self.iterations.iter();
        let row = rows.find(|row| (row.first..=row.last).contains(&event))?;
        matches!(row.kind, "iteration" | "unfinished").then_some(&*row.name)
    }

    /// Sentence on events that the page leaves out.
    fn cut(&self) -> Option<String> {
        let held = self.columns.events;
        (held < self.all_events).then(|| {
            format!(
                "the page holds {} of {} of {}, from event {} on: `memprobe replay FILE` shows all of them",
                counted(held as u64, "event"),
                self.all_events,
                self.name,
                self.first_event + 1,
            )
        })
    }
}

/// Words and colours of the parts of a bar: the key of the category that each part belongs to.
pub(super) const fn colour_of(part: PartId) -> &'static str {
    match part {
        PartId::Parameters | PartId::Buffers => Category::Parameter.key(),
        PartId::Gradients => Category::Gradient.key(),
        PartId::OptimizerState => Category::OptimizerState.key(),
        PartId::Activations => Category::Activation.key(),
        PartId::Inputs => Category::Input.key(),
        PartId::KvCache => Category::KvCache.key(),
        PartId::IntermediateGradients => Category::IntermediateGradient.key(),
        PartId::Temporaries => Category::Temporary.key(),
        PartId::Workspaces => Category::Workspace.key(),
        PartId::Cached => "cached",
        PartId::Free => "free",
        PartId::BeforeAttach => "before_attach",
        PartId::Unexplained => "unaccounted",
        PartId::OtherProcesses | PartId::Others | PartId::OutsideAllocator => "others",
        PartId::OtherTensors | PartId::NoTensor | PartId::TensorsNotRead | PartId::Unknown => {
            Category::Unknown.key()
        }
    }
}

fn categories() -> Vec<CategoryFacts> {
    let categories = Category::ALL.iter().map(|category| CategoryFacts {
        key: category.key(),
        name: category.as_str(),
    });
    categories.collect()
}

fn failed_request(
    replay: &PageReplay,
    events: &HeldEvents,
    failed: &RefusedRequest,
    builder: &mut TableBuilder<'_>,
) -> FailedFacts {
    let line = builder.line(replay.ledger.site(failed.stack, Grouping::User));
    let stack = replay.ledger.stack(failed.stack);
    let event = failed.event - events.first;
    FailedFacts {
        event,
        size: failed.size.0,
        line,
        stack: named_stack(stack, MAX_FRAMES, |frame| builder.names.frame(frame)),
        totals: totals_at(events, event),
    }
}

fn totals_at(events: &HeldEvents, event: usize) -> Totals {
    let sample = events.samples.get(event);
    sample.map_or(Totals::default(), |it| {
        Totals::of(it.allocated, it.reserved)
    })
}

fn iterations(
    replay: &PageReplay,
    device: DeviceIndex,
    events: &HeldEvents,
) -> Vec<IterationFacts> {
    let Iterations { rows, .. } = &replay.iterations;
    let start = replay.recording.snapshot.started;
    let samples = &events.samples;
    let facts = rows.iter().filter_map(|row| {
        let first = samples.partition_point(|sample| sample.time < row.begin);
        let end = samples.partition_point(|sample| sample.time <= row.end);
        let (_, own) = row.devices.iter().find(|(index, _)| *index == device)?;
        let last = end.checked_sub(1).filter(|last| *last >= first)?;
        let inside = samples[first..end].iter().enumerate();
        let peak = inside.max_by_key(|(at, it)| (it.allocated, std::cmp::Reverse(*at)));
        let us = |time: TimeNs| microseconds(time, start);
        let Iteration { number, kind, .. } = row;
        Some(IterationFacts {
            name: iteration(*number, *kind),
            kind: kind.as_str(),
            first,
            last,
            peak_event: first + peak.map_or(0, |(at, _)| at),
            peak: own.peak.totals.allocated.0,
            at_end: own.end.allocated.0,
            reserved: own.peak.totals.reserved.0,
            allocs: own.allocs,
            alloc_bytes: own.alloc_bytes,
            begin_us: us(row.begin),
            end_us: us(row.end),
        })
    });
    facts.collect()
}

fn growth(device: &DeviceExplanation, names: &FileNames) -> Option<GrowthFacts> {
    let growth = device.growth.as_ref()?;
    let Growth {
        lines,
        modules,
        tensors,
        ..
    } = growth;
    let name = |by, suspect: &Suspect| match by {
        "line" => names.site(&suspect.part.origin.site),
        "module" => match suspect.part.origin.place.module() {
            Some(path) => clean(path),
            None => no_module(&suspect.part.origin.place).to_owned(),
        },
        _ => purpose_name(&suspect.part.what),
    };
    let of = |by, suspects: &[Suspect]| -> Vec<SuspectFacts> {
        let facts = suspects.iter().map(|it| suspect(by, name(by, it), it));
        facts.collect()
    };
    let mut suspects = of("line", lines);
    suspects.extend(of("module", modules));
    suspects.extend(of("tensor", tensors));
    Some(GrowthFacts {
        per: match growth.step {
            StepUnit::Iterations(_) => "iteration",
            StepUnit::Window(_) => "second",
        },
        points: growth.points,
        needed: growth.needed,
        total: growth.total.map(|total| total.bytes),
        has_retainers: growth.read.is_some(),
        suspects,
    })
}

fn suspect(by: &'static str, name: String, suspect: &Suspect) -> SuspectFacts {
    let retainers = suspect.retained.retainers.iter();
    SuspectFacts {
        by,
        name,
        rate: suspect.rate.bytes,
        blocks: suspect.rate.blocks,
        grew: suspect.rate.grew,
        first: suspect.rate.first.0,
        last: suspect.rate.last.0,
        retainers: retainers
            .map(|it| (retainer_name(it), it.retained.bytes.0, it.exclusive.bytes.0))
            .collect(),
        without_retainer: suspect.retained.nobody.bytes.0,
    }
}

fn retainer_name(retainer: &GrowthRetainer) -> String {
    let mut name = clean(&retainer.by);
    if let Some(class) = &retainer.class {
        name.push_str(&format!(" ({})", clean(class)));
    }
    if let Some(through) = &retainer.through {
        name.push_str(&format!(" through {}", clean(through)));
    }
    name
}

fn notes(replay: &PageReplay, devices: &[DevicePageFacts]) -> Vec<String> {
    let mut notes = replay.explanation.notes.clone();
    notes.extend(devices.iter().filter_map(DevicePageFacts::cut));
    let left_out = replay.history.allocations.left_out();
    if left_out > 0 {
        notes.push(format!(
            "{} beyond the limits are in no row: their bytes are not accounted for",
            counted(left_out, "allocation")
        ));
    }
    if replay.segments.left_out > 0 {
        let left_out = counted(replay.segments.left_out, "segment");
        notes.push(format!("{left_out} beyond the limit are not in the map"));
    }
    let others = replay.recording.snapshot.devices.iter();
    let others = others.filter(|it| !replay.history.devices.contains_key(&it.index));
    for device in others {
        let name = device_name(&replay.recording.snapshot.target, device.index);
        notes.push(format!(
            "{}: only calls into CUDA are known, which this page leaves out",
            clean(&name)
        ));
    }
    notes
}

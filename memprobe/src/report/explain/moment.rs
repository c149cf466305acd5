//! Explanation of one moment of a recording: a failed request, or the moment that a dump is about.

use std::io::BufRead;

use super::failure::{
    Asker, FailedCall, FailedRequest, OomCause, OomEvidence, SleepingBytes, SleepingOwner, cause,
    free_lists,
};
use super::parts::{PartId, completed};
use super::recording::part;
use super::verdict::grows;
use super::{DeviceExplanation, GpuMemory, MemoryOwner, OwnedBy, measures};
use crate::attribution::AttributionLedger;
use crate::attribution::asleep::{SleepingLine, asleep, without_sleeping};
use crate::attribution::failures::{AllocationFailure, FailureFinder};
use crate::attribution::growth::{Growth, GrowthLedger};
use crate::attribution::segments::SegmentLedger;
use crate::attribution::tables::SegmentMap;
use crate::attribution::waterfall::unbacked;
use crate::estimate::what_if::{WhatIf, WhatIfDevice};
use crate::event::{Bytes, CaptureLevel, DeviceIndex, MemoryEvent};
use crate::ledger::AnalyzedLedger;
use crate::ledger::snapshot::{DeviceSnapshot, Grouping, Snapshot};
use crate::recording::{DumpFacts, Reader, RecordingError};
use crate::view::FileNames;

type MomentLedgers = (AttributionLedger, (GrowthLedger, SegmentLedger));

/// A recording up to the moment.
type PlayedMoment = AnalyzedLedger<(MomentLedgers, WhatIf)>;

/// Moment to explain: a failed request, or the end of a dump.
pub(super) struct ExplainedMoment<'a> {
    pub(super) failure: &'a FailureFinder,
    pub(super) dump: Option<&'a DumpFacts>,
    /// Pools of segments that were read only later.
    pub(super) known: &'a SegmentLedger,
}

/// Replays a recording for its moment, if one is given, and on to its end under other settings of the allocator. Returns
/// the devices at the moment, and the results of the settings.
pub(super) fn second_replay<R: BufRead>(
    mut reader: Reader<R>,
    moment: Option<ExplainedMoment<'_>>,
    what_if: WhatIf,
) -> Result<(Option<Vec<DeviceExplanation>>, Vec<WhatIfDevice>), RecordingError> {
    let header = reader.header();
    let (target, start) = (header.target.clone(), header.start);
    let (devices, mut rest) = match moment {
        None => (None, AnalyzedLedger::new(target, start, what_if)),
        Some(moment) => {
            let growth = GrowthLedger::new(Grouping::User, None);
            let segments = SegmentLedger::with_facts_of(moment.known);
            let ledgers: MomentLedgers = (AttributionLedger::new(None), (growth, segments));
            let mut played = AnalyzedLedger::new(target, start, (ledgers, what_if));
            let failed = moment.failure.found.as_ref();
            let number = failed.map_or(u64::MAX, |failed| failed.number);
            let number = usize::try_from(number).unwrap_or(usize::MAX);
            for event in reader.by_ref().take(number) {
                played.apply(&event?);
            }
            let devices = at_moment(&played, &moment);
            let AnalyzedLedger {
                ledger,
                analyses: (_, analyses),
            } = played;
            (Some(devices), AnalyzedLedger { ledger, analyses })
        }
    };
    for event in reader.by_ref() {
        rest.apply(&event?);
    }
    let lost = rest.ledger.losses().events;
    Ok((devices, rest.analyses.results(lost)))
}

/// Explains each device at the moment.
fn at_moment(played: &PlayedMoment, moment: &ExplainedMoment<'_>) -> Vec<DeviceExplanation> {
    let (ledger, (ledgers, _)) = (&played.ledger, &played.analyses);
    let (dump, moment) = (moment.dump, moment.failure);
    let now = ledger.last_event().unwrap_or_default();
    let snapshot = ledger.snapshot(now, Grouping::User);
    let (_, (_, segments)) = ledgers;
    let maps = segments.maps(ledger, &snapshot);
    let failed_on = moment.found.as_ref().map(|failed| device_of(&failed.event));
    let known = |index| snapshot.devices.iter().any(|device| device.index == index);
    // A program without PyTorch has no device of the allocator.
    let without = failed_on.filter(|index| !known(*index));
    let without = without.map(DeviceSnapshot::without_allocator);
    let devices = snapshot.devices.iter().chain(&without);
    let explained = devices.map(|device| {
        let map = maps.iter().find(|map| map.index == device.index);
        let mut explained = explained(device, map, played, dump);
        let failed = moment.found.as_ref();
        let failed = failed.filter(|_| failed_on == Some(device.index));
        explained.failed = failed.map(|failed| {
            let others = dump.and_then(|dump| dump.gpu(device.index));
            let others = others.filter(|gpu| gpu.others_unknown.is_none());
            let mut awake = map.cloned();
            let sleeping_free = awake.as_mut().map(|map| without_sleeping(ledger, map));
            let mut request = request(failed, &explained, awake.as_ref(), &snapshot);
            request.asleep = sleeping(played, device.index);
            request.others = others.map(|gpu| gpu.others.clone());
            request.cause = judge(&request, &explained, sleeping_free.unwrap_or_default());
            request
        });
        explained.measures = measures::measures(&explained);
        explained
    });
    explained.collect()
}

fn device_of(event: &MemoryEvent) -> DeviceIndex {
    event.device.unwrap_or(DeviceIndex::UNKNOWN)
}

fn explained(
    device: &DeviceSnapshot,
    map: Option<&SegmentMap>,
    played: &PlayedMoment,
    dump: Option<&DumpFacts>,
) -> DeviceExplanation {
    let ((categories, (growth, _)), _) = &played.analyses;
    let view = categories.device(device.index);
    let rows = view.iter().flat_map(|view| view.categories());
    let parts = rows.map(|row| (part(row.rule.category()), row.live));
    let before = view.map_or(0, |view| view.now().composition.before_attach);
    let gpu = gpu_memory(device.index, played, dump);
    let totals = device.totals;
    let known = map.filter(|map| map.read.is_some() && map.unread.is_none() && map.unplaced == 0);
    DeviceExplanation {
        index: device.index,
        gpu,
        totals,
        parts: completed(parts.chain([(PartId::BeforeAttach, before)]), totals, gpu),
        owners: lines(device),
        owned: OwnedBy::LiveLine,
        ooms: device.ooms,
        failed: None,
        growth: growth.growth(device.index, growth.intervals_per_iteration()),
        returnable: known.map(SegmentMap::returnable),
        measures: Vec::new(),
        kv: None,
    }
}

/// Memory of the GPU as a dump has it, or the last answer of the driver before the moment.
fn gpu_memory(
    device: DeviceIndex,
    played: &PlayedMoment,
    dump: Option<&DumpFacts>,
) -> Option<GpuMemory> {
    let unbacked = unbacked(&played.ledger, device);
    let dumped = dump.and_then(|dump| dump.gpu(device));
    let dumped = dumped.map(|gpu| GpuMemory {
        total: Bytes(gpu.total),
        used: Bytes(gpu.used),
        process: gpu.own.map(Bytes),
        unbacked,
    });
    dumped.or_else(|| {
        let read = played.ledger.driver().devices.get(&device)?;
        Some(GpuMemory {
            total: read.total,
            used: read.used,
            process: read.process,
            unbacked,
        })
    })
}

/// Lines with their live bytes, largest first.
fn lines(device: &DeviceSnapshot) -> Vec<MemoryOwner> {
    let lines = || device.lines.iter().filter(|line| line.live.0 > 0);
    let frames = lines().filter_map(|line| line.site.frame());
    let names = FileNames::of(frames.map(|frame| &frame.file));
    let owners = lines().map(|line| MemoryOwner {
        name: Some(names.site(&line.site)),
        class: None,
        bytes: line.live,
        exclusive: None,
        kv_cache: Bytes(0),
    });
    let mut owners: Vec<MemoryOwner> = owners.collect();
    owners.sort_by(|one, other| (other.bytes, &one.name).cmp(&(one.bytes, &other.name)));
    owners
}

fn request(
    failed: &AllocationFailure,
    device: &DeviceExplanation,
    map: Option<&SegmentMap>,
    snapshot: &Snapshot,
) -> FailedRequest {
    let frame = failed.site.frame().into_iter().map(|frame| &frame.file);
    let budget = snapshot.health.budget;
    let is_paused = budget.is_some_and(|budget| budget.level == CaptureLevel::Paused);
    let unknown = match map {
        _ if is_paused => Some("the probes were off, to keep --max-overhead".to_owned()),
        None => Some("the allocator's tables were not read before".to_owned()),
        Some(map) => map.unread.as_deref().map(str::to_owned),
    };
    let call = failed.event.call.map(|call| FailedCall {
        function: call.function,
        library: failed.library.clone(),
    });
    // A call of CUDA gets no block of the allocator.
    let unknown = unknown.filter(|_| call.is_none());
    let lists = map.filter(|_| unknown.is_none() && call.is_none());
    FailedRequest {
        size: failed.event.size,
        line: FileNames::of(frame).site(&failed.site),
        module: failed.module.clone(),
        call,
        cause: OomCause::Unknown,
        free_lists: lists.map(|map| free_lists(map, failed.event.size)),
        segments_unknown: unknown,
        others: None,
        growing: device.growth.as_ref().map_or(Bytes(0), growing),
        asleep: None,
    }
}

/// Memory of a device that sleeps, with the name of its line.
fn sleeping(played: &PlayedMoment, device: DeviceIndex) -> Option<SleepingBytes> {
    let asleep = asleep(&played.ledger, device, Grouping::User)?;
    let name = |line: SleepingLine| {
        let file = line.site.frame().into_iter().map(|frame| &frame.file);
        SleepingOwner {
            line: FileNames::of(file).site(&line.site),
            tag: line.tag,
            bytes: line.bytes,
        }
    };
    Some(SleepingBytes {
        bytes: asleep.bytes,
        largest: asleep.largest.map(name),
    })
}

/// Bytes of all lines that grow.
fn growing(growth: &Growth) -> Bytes {
    let lines = growth.lines.iter().filter(|_| grows(growth));
    Bytes(lines.map(|line| line.rate.last.0).sum())
}

/// Names the cause. `sleeping_free` are free bytes that the allocator counts as cached, but that sleep.
fn judge(request: &FailedRequest, device: &DeviceExplanation, sleeping_free: Bytes) -> OomCause {
    let others = request.others.as_ref();
    cause(&OomEvidence {
        request: request.size,
        cached: Bytes(device.totals.cached().0.saturating_sub(sleeping_free.0)),
        free_lists: request.free_lists.as_deref(),
        gpu: device.gpu,
        others: others.map(|others| Bytes(others.iter().filter_map(|other| other.bytes).sum())),
        growing: request.growing,
        asleep: request.asleep.as_ref().map_or(Bytes(0), |it| it.bytes),
        asker: match request.call {
            Some(_) => Asker::Cuda,
            None => Asker::Allocator,
        },
    })
}

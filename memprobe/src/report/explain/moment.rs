//! Explanation of one moment of a recording: a failed request, or the moment that a dump is about.

use std::io::BufRead;

use super::failure::{FailedRequest, OomCause, OomEvidence, cause, free_lists};
use super::parts::{PartId, completed};
use super::recording::part;
use super::verdict::grows;
use super::{DeviceExplanation, GpuMemory, MemoryOwner, OwnedBy, measures};
use crate::attribution::AttributionLedger;
use crate::attribution::failures::{AllocationFailure, FailureFinder};
use crate::attribution::growth::{Growth, GrowthLedger};
use crate::attribution::segments::SegmentLedger;
use crate::attribution::tables::SegmentMap;
use crate::event::{Bytes, CaptureLevel};
use crate::ledger::AnalyzedLedger;
use crate::ledger::snapshot::{DeviceSnapshot, Grouping, Snapshot};
use crate::recording::{DumpFacts, Reader, RecordingError};
use crate::report::replay;
use crate::view::FileNames;

type MomentLedgers = (AttributionLedger, (GrowthLedger, SegmentLedger));

/// Explains each device at the moment, or at the end of a dump. `known` has the pools of segments that were read later.
pub(super) fn at_moment<R: BufRead>(
    reader: Reader<R>,
    moment: &FailureFinder,
    dump: Option<&DumpFacts>,
    known: &SegmentLedger,
) -> Result<Vec<DeviceExplanation>, RecordingError> {
    let growth = GrowthLedger::new(Grouping::User, None);
    let ledgers: MomentLedgers = (
        AttributionLedger::new(None),
        (growth, SegmentLedger::with_facts_of(known)),
    );
    let number = moment
        .found
        .as_ref()
        .map_or(u64::MAX, |failed| failed.number);
    let played = replay::run_until(reader, number, ledgers)?;
    let now = played.ledger.last_event().unwrap_or_default();
    let snapshot = played.ledger.snapshot(now, Grouping::User);
    let (_, (_, segments)) = &played.analyses;
    let maps = segments.maps(&played.ledger, &snapshot);
    let devices = snapshot.devices.iter();
    let explained = devices.map(|device| {
        let map = maps.iter().find(|map| map.index == device.index);
        let mut explained = explained(device, map, &played, dump);
        let failed = moment.found.as_ref();
        let failed = failed.filter(|failed| failed.event.device == Some(device.index));
        explained.failed = failed.map(|failed| {
            let others = dump.and_then(|dump| dump.gpu(device.index));
            let others = others.filter(|gpu| gpu.others_unknown.is_none());
            let mut request = request(failed, &explained, map, &snapshot);
            request.others = others.map(|gpu| gpu.others.clone());
            request.cause = judge(&request, &explained);
            request
        });
        explained.measures = measures::measures(&explained);
        explained
    });
    Ok(explained.collect())
}

fn explained(
    device: &DeviceSnapshot,
    map: Option<&SegmentMap>,
    played: &AnalyzedLedger<MomentLedgers>,
    dump: Option<&DumpFacts>,
) -> DeviceExplanation {
    let (categories, (growth, _)) = &played.analyses;
    let view = categories.device(device.index);
    let rows = view.iter().flat_map(|view| view.categories());
    let parts = rows.map(|row| (part(row.rule.category()), row.live));
    let before = view.map_or(0, |view| view.now().composition.before_attach);
    let gpu = dump.and_then(|dump| dump.gpu(device.index));
    let gpu = gpu.map(|gpu| GpuMemory {
        total: Bytes(gpu.total),
        used: Bytes(gpu.used),
        process: gpu.own.map(Bytes),
    });
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
    let lists = map.filter(|_| unknown.is_none());
    FailedRequest {
        size: failed.event.size,
        line: FileNames::of(frame).site(&failed.site),
        module: failed.module.clone(),
        cause: OomCause::Unknown,
        free_lists: lists.map(|map| free_lists(map, failed.event.size)),
        segments_unknown: unknown,
        others: None,
        growing: device.growth.as_ref().map_or(Bytes(0), growing),
    }
}

/// Bytes of all lines that grow.
fn growing(growth: &Growth) -> Bytes {
    let lines = growth.lines.iter().filter(|_| grows(growth));
    Bytes(lines.map(|line| line.rate.last.0).sum())
}

fn judge(request: &FailedRequest, device: &DeviceExplanation) -> OomCause {
    let others = request.others.as_ref();
    cause(&OomEvidence {
        request: request.size,
        cached: device.totals.cached(),
        free_lists: request.free_lists.as_deref(),
        gpu: device.gpu,
        others: others.map(|others| Bytes(others.iter().filter_map(|other| other.bytes).sum())),
        growing: request.growing,
    })
}

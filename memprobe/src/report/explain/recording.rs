//! Explanation of a recording: each device at its moment of most allocated bytes, or all at an out-of-memory error.

use std::fs::File;
use std::io::{BufRead, BufReader};

use super::moment::{ExplainedMoment, second_replay};
use super::parts::{MemoryPart, PartId, completed};
use super::{
    DeviceExplanation, Explanation, ExplanationSource, MemoryOwner, OwnedBy, RecordedMoment,
    measures,
};
use crate::attribution::category::Category;
use crate::attribution::failures::FailureFinder;
use crate::attribution::growth::GrowthLedger;
use crate::attribution::peak::{PeakLedger, PeakView};
use crate::attribution::segments::SegmentLedger;
use crate::attribution::view::DeviceView;
use crate::attribution::{AttributionLedger, WithCategories};
use crate::estimate::AllocatorSettings;
use crate::estimate::what_if::{WhatIf, WhatIfDevice, WhatIfFacts};
use crate::event::{Bytes, Totals};
use crate::ledger::snapshot::{DeviceSnapshot, Grouping, Site};
use crate::recording::{DumpFacts, Reader, RecordingDamage, RecordingError};
use crate::report::replay::{self, RecordingReplay};
use crate::view::{FileNames, counted};
use std::collections::HashMap;

/// State of a recording at its end, and the analyses behind an explanation.
pub struct RecordingEvidence<'a> {
    pub replay: &'a RecordingReplay,
    pub peaks: &'a PeakLedger,
    pub categories: &'a AttributionLedger,
    pub growth: &'a GrowthLedger,
}

/// Analyses that find the failed request, the segments at its moment, and what a replay under other settings needs.
pub type FailureEvidence = (WhatIfFacts, (SegmentLedger, FailureFinder));

/// Returns the analyses of the moment that the explanation of a recording is about.
pub fn failure_evidence<R: BufRead>(reader: &Reader<R>) -> FailureEvidence {
    let header = reader.header();
    let dump = header.dump.as_ref();
    let conf = header.target.allocator_conf.as_deref();
    let torch = header.target.torch.as_deref();
    let conf = conf.and_then(|conf| AllocatorSettings::parse_recorded(conf, torch).ok());
    let facts = WhatIfFacts::with_settings(conf.unwrap_or_default());
    let finder = FailureFinder::at(dump.map(|dump| dump.time));
    (facts, (SegmentLedger::default(), finder))
}

/// Explains a recording; `file` is its name.
pub fn explain_recording<R: BufRead>(
    reader: Reader<R>,
    file: &str,
) -> Result<Explanation, RecordingError> {
    let again = reader.reopened();
    let peaks = WithCategories {
        categories: AttributionLedger::new(None),
        table: PeakLedger::new(Grouping::User),
    };
    let growth = GrowthLedger::new(Grouping::User, None);
    let failure = failure_evidence(&reader);
    let (replay, analyses) = replay::run(reader, Grouping::User, (peaks, (growth, failure)))?;
    let (peaks, (growth, failure)) = analyses;
    let evidence = RecordingEvidence {
        replay: &replay,
        peaks: &peaks.table,
        categories: &peaks.categories,
        growth: &growth,
    };
    evidence.explain_moment(failure, again, file)
}

impl RecordingEvidence<'_> {
    /// Explains the failed request of a recording, or the moment of a dump, or else its peaks; `file` is its name. `again`
    /// reads the recording once more. A pipe cannot be read twice: then its peaks are explained.
    pub fn explain_moment(
        &self,
        failure: FailureEvidence,
        again: Option<Reader<BufReader<File>>>,
        file: &str,
    ) -> Result<Explanation, RecordingError> {
        let Some(again) = again else {
            return Ok(self.explain(file));
        };
        let (facts, (segments, finder)) = failure;
        let dump = self.replay.header.dump.as_deref();
        let has_moment = dump.is_some() || finder.found.is_some();
        let wanted = ExplainedMoment {
            failure: &finder,
            dump,
            known: &segments,
        };
        let expandable = AllocatorSettings {
            expandable: true,
            ..AllocatorSettings::default()
        };
        let what_if = WhatIf::new(facts, expandable);
        let second = second_replay(again, has_moment.then_some(wanted), what_if)?;
        let (at_moment, replayed) = second;
        let moment = match finder.found {
            Some(_) => RecordedMoment::OutOfMemory,
            None => RecordedMoment::Requested,
        };
        let mut explained = match at_moment {
            Some(devices) => explanation(self.replay, file, moment, devices),
            None => self.explain(file),
        };
        add_expandable_segments(&mut explained.devices, &replayed);
        Ok(explained)
    }

    /// Explains the peaks of the recording; `file` is its name.
    fn explain(&self, file: &str) -> Explanation {
        let Self { replay, growth, .. } = self;
        let intervals = growth.intervals_per_iteration();
        let devices = replay.snapshot.devices.iter().filter_map(|device| {
            let view = self.peaks.view(device.index, self.categories)?;
            let categories = self.categories.device(device.index)?;
            let mut explained = at_peak(device, &view, categories);
            explained.growth = growth.growth(device.index, intervals);
            explained.measures = measures::measures(&explained);
            Some(explained)
        });
        explanation(replay, file, RecordedMoment::Peak, devices.collect())
    }
}

/// Puts the device with the failed request first, then those with most memory.
fn explanation(
    replay: &RecordingReplay,
    file: &str,
    moment: RecordedMoment,
    mut devices: Vec<DeviceExplanation>,
) -> Explanation {
    devices
        .sort_by_key(|device| std::cmp::Reverse((device.failed.is_some(), device.totals.reserved)));
    let mut notes = notes(replay);
    notes.extend(devices.iter().filter_map(DeviceExplanation::unbacked_note));
    Explanation {
        target: replay.snapshot.target.clone(),
        source: ExplanationSource::Recording {
            file: file.to_owned(),
            moment,
        },
        devices,
        notes,
    }
}

/// Adds what `expandable_segments:True` saves.
fn add_expandable_segments(devices: &mut [DeviceExplanation], replayed: &[WhatIfDevice]) {
    for found in replayed {
        let mut devices = devices.iter_mut();
        let device = devices.find(|device| device.index == found.device);
        if let Some(device) = device.filter(|_| !found.recorded_settings.expandable) {
            measures::add_expandable_segments(device, found);
        }
    }
}

fn at_peak(
    device: &DeviceSnapshot,
    view: &PeakView,
    categories: DeviceView<'_>,
) -> DeviceExplanation {
    let before_attach = categories.peak().composition.before_attach;
    let rows = categories.categories().into_iter();
    let by_category = rows.map(|row| (row.rule.category(), row.at_peak));
    let totals = view.moment.totals;
    DeviceExplanation {
        index: device.index,
        gpu: None,
        totals,
        parts: parts_of_moment(by_category, before_attach, totals),
        owners: lines(view),
        owned: OwnedBy::Line,
        ooms: device.ooms,
        failed: None,
        growth: None,
        returnable: None,
        measures: Vec::new(),
        kv: None,
    }
}

/// Parts of what the allocator had reserved at a moment. They add up to it.
fn parts_of_moment(
    by_category: impl IntoIterator<Item = (Category, u64)>,
    before_attach: u64,
    totals: Totals,
) -> Vec<MemoryPart> {
    let allocated = by_category.into_iter();
    let allocated = allocated.map(|(category, bytes)| (part(category), bytes));
    let allocated = allocated.chain([(PartId::BeforeAttach, before_attach)]);
    completed(allocated, totals, None)
}

pub(super) const fn part(category: Category) -> PartId {
    match category {
        Category::Parameter => PartId::Parameters,
        Category::Gradient => PartId::Gradients,
        Category::OptimizerState => PartId::OptimizerState,
        Category::Activation => PartId::Activations,
        Category::Input => PartId::Inputs,
        Category::KvCache => PartId::KvCache,
        Category::IntermediateGradient => PartId::IntermediateGradients,
        Category::Temporary => PartId::Temporaries,
        Category::Workspace => PartId::Workspaces,
        Category::Unknown => PartId::Unknown,
    }
}

/// Lines with their bytes at the peak, largest first.
fn lines(view: &PeakView) -> Vec<MemoryOwner> {
    let mut sums: HashMap<&Site, u64> = HashMap::new();
    for (group, holding) in &view.parts {
        *sums.entry(&group.origin.site).or_default() += holding.at_peak.0;
    }
    let frames = sums.keys().filter_map(|site| site.frame());
    let names = FileNames::of(frames.map(|frame| &frame.file));
    let owner = |(site, bytes): (&Site, u64)| MemoryOwner {
        name: Some(names.site(site)),
        class: None,
        bytes: Bytes(bytes),
        exclusive: None,
        kv_cache: Bytes(0),
    };
    let mut owners: Vec<MemoryOwner> = sums.into_iter().map(owner).collect();
    owners.sort_by(|one, other| (other.bytes, &one.name).cmp(&(one.bytes, &other.name)));
    owners
}

fn notes(replay: &RecordingReplay) -> Vec<String> {
    let mut notes = Vec::new();
    if replay.truncated {
        notes.push("the end of the recording is missing".to_owned());
    }
    notes.extend(replay.damage.map(|damage| damage.to_string()));
    if let Some(dump) = &replay.header.dump {
        notes.extend(dump_notes(dump));
    }
    let losses = RecordingDamage::losses_of_recording(replay.damage, replay.snapshot.health.losses);
    if losses.events > 0 {
        notes.push(format!(
            "{} events were lost while recording: single lines may be wrong",
            losses.events
        ));
    }
    notes
}

fn dump_notes(dump: &DumpFacts) -> impl Iterator<Item = String> {
    let errors = (dump.counted_ooms > 0).then(|| {
        format!(
            "{} before this one had no dump",
            counted(dump.counted_ooms, "out-of-memory error")
        )
    });
    let objects = dump.objects_unread.as_ref();
    let objects = objects.map(|reason| format!("nothing tells what keeps memory alive: {reason}"));
    let gpus = dump.gpus_unknown.as_ref();
    let gpus = gpus.map(|reason| format!("the GPU's own memory is unknown: {reason}"));
    let blocks = (dump.blocks_left_out > 0).then(|| {
        let blocks = counted(dump.blocks_left_out, "live block");
        format!("{blocks} beyond the limit of a dump count as before attach")
    });
    [errors, gpus, objects, blocks].into_iter().flatten()
}

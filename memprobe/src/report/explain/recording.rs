//! Explanation of a recording: each device at its moment of most allocated bytes.

use std::io::BufRead;

use super::parts::{PartId, completed};
use super::{DeviceExplanation, Explanation, ExplanationSource, MemoryOwner, OwnedBy, measures};
use crate::attribution::category::Category;
use crate::attribution::growth::GrowthLedger;
use crate::attribution::peak::{PeakLedger, PeakView};
use crate::attribution::view::DeviceView;
use crate::attribution::{AttributionLedger, WithCategories};
use crate::estimate::AllocatorSettings;
use crate::estimate::what_if::{WhatIf, WhatIfFacts};
use crate::event::Bytes;
use crate::ledger::snapshot::{DeviceSnapshot, Grouping, Site};
use crate::recording::{Reader, RecordingDamage, RecordingError};
use crate::report::replay::{self, RecordingReplay};
use crate::view::FileNames;
use std::collections::HashMap;

/// Explains a recording; `file` is its name.
pub fn explain_recording<R: BufRead>(
    reader: Reader<R>,
    file: &str,
) -> Result<Explanation, RecordingError> {
    let expandable = [reader.reopened(), reader.reopened()];
    let peaks = WithCategories {
        categories: AttributionLedger::new(None),
        table: PeakLedger::new(Grouping::User),
    };
    let growth = GrowthLedger::new(Grouping::User, None);
    let (replay, (peaks, growth)) = replay::run(reader, Grouping::User, (peaks, growth))?;
    let intervals = growth.intervals_per_iteration();
    let devices = replay.snapshot.devices.iter().filter_map(|device| {
        let view = peaks.table.view(device.index, &peaks.categories)?;
        let categories = peaks.categories.device(device.index)?;
        let mut explained = at_peak(device, &view, categories);
        explained.growth = growth.growth(device.index, intervals);
        explained.measures = measures::measures(&explained);
        Some(explained)
    });
    let mut devices: Vec<DeviceExplanation> = devices.collect();
    if let [Some(first), Some(second)] = expandable {
        add_expandable_segments(&mut devices, first, second)?;
    }
    devices.sort_by_key(|device| std::cmp::Reverse(device.totals.reserved));
    Ok(Explanation {
        target: replay.snapshot.target.clone(),
        source: ExplanationSource::Recording {
            file: file.to_owned(),
        },
        devices,
        notes: notes(&replay),
    })
}

/// Replays a recording under `expandable_segments:True`, and adds what that saves.
fn add_expandable_segments<R: BufRead>(
    devices: &mut [DeviceExplanation],
    first: Reader<R>,
    second: Reader<R>,
) -> Result<(), RecordingError> {
    let (_, facts) = replay::run(first, Grouping::User, WhatIfFacts::default())?;
    let wanted = AllocatorSettings {
        expandable: true,
        ..AllocatorSettings::default()
    };
    let (replay, replayed) = replay::run(second, Grouping::User, WhatIf::new(facts, wanted))?;
    let lost = replay.snapshot.health.losses.events;
    for found in replayed.results(lost) {
        let mut devices = devices.iter_mut();
        let device = devices.find(|device| device.index == found.device);
        if let Some(device) = device.filter(|_| !found.recorded_settings.expandable) {
            measures::add_expandable_segments(device, &found);
        }
    }
    Ok(())
}

fn at_peak(
    device: &DeviceSnapshot,
    view: &PeakView,
    categories: DeviceView<'_>,
) -> DeviceExplanation {
    let composition = &categories.peak().composition;
    let rows = categories.categories();
    let allocated = rows
        .iter()
        .map(|row| (part(row.rule.category()), row.at_peak))
        .chain([(PartId::BeforeAttach, composition.before_attach)]);
    let totals = view.moment.totals;
    DeviceExplanation {
        index: device.index,
        gpu: None,
        totals,
        parts: completed(allocated, totals, None),
        owners: lines(view),
        owned: OwnedBy::Line,
        ooms: device.ooms,
        growth: None,
        returnable: None,
        measures: Vec::new(),
    }
}

const fn part(category: Category) -> PartId {
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
    let losses = RecordingDamage::losses_of_recording(replay.damage, replay.snapshot.health.losses);
    if losses.events > 0 {
        notes.push(format!(
            "{} events were lost while recording: single lines may be wrong",
            losses.events
        ));
    }
    notes
}

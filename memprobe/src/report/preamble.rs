//! Text before the tables of a report: the process, warnings, and totals of each device.

use std::time::Duration;

use super::history;
use super::replay::RecordingReplay;
use crate::event::bytes::{human, signed};
use crate::event::{DeviceIndex, Losses, Target, TimeNs};
use crate::ledger::Refused;
use crate::ledger::snapshot::{BeforeAttach, DeviceSnapshot, Snapshot, SoftwareLayer};
use crate::recording::{DroppedBeginning, RecordingDamage};
use crate::view::table::Page;
use crate::view::{
    budget_warning, clean, counted, duration, identity_line, process, width as columns,
};

pub(super) const NO_MODULES: &str = "No call of a torch.nn.Module was seen: the program makes none, or the recording \
                                     is without them.";

/// Note if a device is known only by its calls into CUDA.
pub(super) const NO_CALLS_INTO_CUDA: &str = "This table covers PyTorch's allocators. Devices with only calls into \
                                             CUDA are left out.";

/// Note on a recording that the live screen saved.
const FROM_LIVE_SCREEN: &str = "Saved from the live screen: it begins with the blocks that were live then. What was \
                                freed before is missing.";

pub(super) fn push_beginning(page: &mut Page, replay: &RecordingReplay) {
    for line in target_lines(&replay.snapshot.target, &replay.header.version) {
        page.fitted(&line);
    }
    let snapshot = &replay.snapshot;
    let devices = snapshot.devices.iter();
    for identity in devices.filter_map(|device| snapshot.target.identity(device.index)) {
        page.fitted(&identity_line(identity));
    }
    page.fitted(&extent(replay));
    for warning in warnings(replay) {
        page.warning(&format!("warning: {warning}"));
    }
    if let Some(dropped) = &replay.header.dropped {
        page.note(&dropped_note(dropped, replay.header.start));
    }
    if replay.header.from_live_screen {
        page.note(FROM_LIVE_SCREEN);
    }
    if let Some(facts) = &replay.header.history {
        page.note(&history::note(facts));
    }
    let layer = replay.snapshot.cuda.layer;
    let words = layer.as_str();
    match layer {
        SoftwareLayer::Tracepoints => page.note(&format!(
            "Probes on {words} watch the caching allocator: sizes are requested bytes, and totals their sum."
        )),
        SoftwareLayer::Runtime | SoftwareLayer::Driver => page.note(&format!(
            "No caching allocator reports its blocks here: the lines are those of {words}."
        )),
        SoftwareLayer::None | SoftwareLayer::Allocator => {}
    }
    if replay.snapshot.devices.is_empty() {
        page.blank();
        page.line("The recording has no allocation or free of GPU memory.");
    }
}

/// Describes the part of a recording that its file has no more.
fn dropped_note(dropped: &DroppedBeginning, start: TimeNs) -> String {
    let earlier = Duration::from_nanos(start.0.saturating_sub(dropped.start.0));
    format!(
        "It begins {} after the start of the recording: --max-size dropped {} before. {} were live then, and are its \
         first allocations.",
        duration(earlier),
        counted(dropped.events, "event"),
        counted(dropped.blocks, "block"),
    )
}

/// Adds the beginning, each device with its totals, and a note if devices are left out.
pub(super) fn push_devices<'a, T>(
    page: &mut Page,
    replay: &RecordingReplay,
    devices: impl IntoIterator<Item = (&'a DeviceSnapshot, T)>,
    mut push: impl FnMut(&mut Page, T),
) {
    push_beginning(page, replay);
    let mut shown = 0;
    for (device, data) in devices {
        page.blank();
        push_totals(page, device, replay.snapshot.cuda.layer);
        push(page, data);
        shown += 1;
    }
    if shown < replay.snapshot.devices.len() {
        page.blank();
        page.note(NO_CALLS_INTO_CUDA);
    }
}

pub(super) fn target_lines(target: &Target, memprobe: &str) -> [String; 2] {
    let command = match &*target.command {
        "" => "unknown command".to_owned(),
        command => clean(command),
    };
    let version = |what: &str, version: &Option<String>| {
        let version = version.as_ref();
        version.map(|version| format!("{what} {}", clean(version)))
    };
    let mut facts: Vec<String> = process(target).into_iter().collect();
    facts.extend(version("Python", &target.python));
    facts.extend(version("torch", &target.torch));
    // PyTorch's own history names no memprobe.
    if !memprobe.is_empty() {
        facts.push(format!("memprobe {}", clean(memprobe)));
    }
    [command, facts.join("  ")]
}

/// Describes the number of events, their time, losses, and the end of the recording.
fn extent(replay: &RecordingReplay) -> String {
    let end = replay.end.as_ref();
    let ended = end.map_or("end missing", |end| end.reason.as_str());
    let until = end.and_then(|end| end.time);
    let until = until.unwrap_or(replay.snapshot.now);
    format!("{}  ({ended})", events_line(&replay.snapshot, until))
}

/// Describes the number of events, the time from the start until `until`, and losses.
pub(super) fn events_line(snapshot: &Snapshot, until: TimeNs) -> String {
    let losses = &snapshot.health.losses;
    let lost = match losses.events {
        0 if losses.any() => "some details lost".to_owned(),
        0 => "none lost".to_owned(),
        lost => format!("{} lost", counted(lost, "event")),
    };
    let time = until.0.saturating_sub(snapshot.started.0);
    format!(
        "{} in {}, {lost}",
        counted(snapshot.health.events, "event"),
        duration(Duration::from_nanos(time))
    )
}

pub(super) fn warnings(replay: &RecordingReplay) -> Vec<String> {
    let mut warnings = Vec::new();
    if replay.truncated {
        warnings.push(
            "the end of the recording is missing: memprobe was killed, the disk was full, or it is still recording. \
             The report covers everything up to the last whole record."
                .to_owned(),
        );
    }
    warnings.extend(
        replay
            .damage
            .map(|damage| format!("{damage}. The report covers the rest.")),
    );
    let losses = RecordingDamage::losses_of_recording(replay.damage, replay.snapshot.health.losses);
    warnings.extend(loss_warnings(&losses));
    let budget = replay.snapshot.health.budget.as_ref();
    warnings.extend(budget_warning(budget, replay.snapshot.now));
    warnings.extend(replay.header.history.iter().flat_map(history::warnings));
    warnings.extend(limit_warning("the recording", &replay.refused));
    warnings.extend(unread(&replay.snapshot));
    let disagreements = replay.snapshot.health.disagreements;
    if disagreements > 0 {
        warnings.push(format!(
            "the ledger and the allocator disagreed {} without a loss that explains it; please \
             report this as a bug of memprobe.",
            counted(disagreements, "time")
        ));
    }
    warnings
}

/// Describes what the caps of the ledger left out; `None` if they were not reached.
pub(crate) fn limit_warning(subject: &str, refused: &Refused) -> Option<String> {
    (refused.blocks > 0 || refused.stacks > 0).then(|| {
        format!(
            "{subject} exceeds the limits of memprobe: {} and {} are in the totals but in no line.",
            counted(refused.blocks, "block"),
            counted(refused.stacks, "stack"),
        )
    })
}

/// Describes the effect of losses on the tables.
pub(super) fn loss_warnings(losses: &Losses) -> Vec<String> {
    let mut warnings = Vec::new();
    if losses.events > 0 || losses.stacks > 0 || losses.malformed > 0 {
        warnings.push(format!(
            "{}, {} and {} were lost: the totals are the allocator's own and right; lines may miss memory (see \
             unaccounted).",
            counted(losses.events, "event"),
            counted(losses.stacks, "stack"),
            counted(losses.malformed, "malformed record"),
        ));
    }
    if losses.uses > 0 {
        warnings.push(format!(
            "the purpose of {} without a tensor is unknown: the ring buffer was half full, so their stacks were left \
             out. Record with a larger --buffer-size.",
            counted(losses.uses, "block"),
        ));
    }
    warnings
}

/// Reason that blocks from before attach are one row.
fn unread(snapshot: &Snapshot) -> Option<String> {
    // Blocks of the CPU are never known; its totals line says so.
    let devices = snapshot.devices.iter();
    let mut reasons = devices
        .filter(|device| device.index != DeviceIndex::CPU)
        .map(|device| &device.before_attach.unread)
        .chain([&snapshot.health.unread_at_attach]);
    let reason = reasons.find_map(|reason| reason.as_deref())?;
    Some(format!(
        "the blocks that were live at attach could not be read one by one: {}.",
        clean(reason)
    ))
}

/// Adds the totals of a device, as many per line as fit.
pub(super) fn push_totals(page: &mut Page, device: &DeviceSnapshot, layer: SoftwareLayer) {
    let (now, peak) = (&device.totals, &device.peak);
    let pair = |what, now, peak| format!("{what} {}, peak {}", human(now), human(peak));
    let mut facts = vec![pair("allocated", now.allocated, peak.allocated)];
    if device.index == DeviceIndex::CPU {
        facts.extend(own_sum(&device.before_attach));
    } else {
        facts.push(pair("reserved", now.reserved, peak.reserved));
        facts.push(match (layer, &device.before_attach.unread) {
            (SoftwareLayer::Allocator, _) | (_, None) => before_attach(&device.before_attach),
            _ => "before attach unknown".to_owned(),
        });
    }
    if device.unaccounted != 0 {
        facts.push(format!("unaccounted {}", signed(device.unaccounted)));
    }
    if device.ooms > 0 {
        facts.push(counted(device.ooms, "out-of-memory error"));
    }
    let mut line = format!("{:<6}", device.index);
    for (at, fact) in facts.iter().enumerate() {
        if at > 0 && columns(&line) + 2 + columns(fact) > page.width {
            page.strong(&line);
            line = " ".repeat(6);
        }
        line.push_str("  ");
        line.push_str(fact);
    }
    page.strong(&line);
}

/// Remarks on totals that memprobe counted itself.
fn own_sum(before: &BeforeAttach) -> Vec<String> {
    let mut facts = vec!["as memprobe counts them".to_owned()];
    if before.unread.is_some() {
        facts.push("before attach unknown".to_owned());
    }
    if before.unseen_frees > 0 {
        let frees = counted(before.unseen_frees, "free");
        facts.push(format!("{frees} of earlier blocks"));
    }
    facts
}

fn before_attach(before: &BeforeAttach) -> String {
    let live = human(before.live);
    match before.live_blocks() {
        Some(blocks) if blocks > 0 => {
            format!("before attach {live} in {}", counted(blocks, "block"))
        }
        _ => format!("before attach {live}"),
    }
}

#[cfg(test)]
mod tests {
    use crate::event::TimeNs;
    use crate::ledger::snapshot::Grouping;
    use crate::recording::samples::{header, story};
    use crate::recording::write::trace_event::TraceWriter;
    use crate::recording::{EndReason, Reader};
    use crate::report::{ReportOptions, write};

    #[test]
    fn a_recording_lasts_until_its_end_even_if_its_last_event_was_earlier() {
        let start = header().start;
        let end = TimeNs(start.0 + 12_000_000_000);
        let mut writer = TraceWriter::new(Vec::new(), "memory", &header(), Grouping::User).unwrap();
        for event in story() {
            writer.event(&event).unwrap();
        }
        let file = writer.finish_at(EndReason::Duration, Some(end)).unwrap();
        let mut text = Vec::new();
        let reader = Reader::new(&file[..]).unwrap();
        write(reader, &ReportOptions::default(), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.contains("10 events in 12.00 s, 3 events lost  (duration over)"),
            "{text}"
        );
    }
}

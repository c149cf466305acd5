//! The page as text, of at most 40 lines.

use std::time::Duration;

use super::verdict::{grows, next_commands, rate_text, suspect_name, verdict};
use super::{
    DeviceExplanation, Explanation, ExplanationSource, MemoryOwner, OwnedBy, PartId, RecordedMoment,
};
use crate::attribution::growth::Growth;
use crate::event::bytes::human;
use crate::event::{Bytes, Target};
use crate::report::preamble::target_lines;
use crate::view::table::Page;
use crate::view::{
    clean, device_name, duration, kv_summary, kv_title, library_family, percent, short_command,
};

/// Cells of the bar.
const BAR: usize = 72;
/// Most rows of each section.
const MAX_PARTS: usize = 10;
const MAX_OWNERS: usize = 4;
const MAX_GROWING: usize = 3;
const MAX_MEASURES: usize = 3;
const MAX_NOTES: usize = 2;
const MAX_OTHER_DEVICES: usize = 2;

pub(super) fn push(page: &mut Page, explanation: &Explanation) {
    let [_, facts] = target_lines(&explanation.target, env!("CARGO_PKG_VERSION"));
    page.fitted_strong(&clean(&short_command(&explanation.target.command)));
    page.fitted(&facts);
    page.fitted(&origin(&explanation.source));
    for note in explanation.notes.iter().take(MAX_NOTES) {
        page.fitted(&format!("note: {}", clean(note)));
    }
    page.blank();
    let verdict = verdict(explanation);
    page.note(&verdict.text);
    if let Some(device) = explanation.devices.first() {
        push_device(page, device, explanation);
    }
    for other in explanation.devices.iter().skip(1).take(MAX_OTHER_DEVICES) {
        let name = clean(&device_name(&explanation.target, other.index));
        let (allocated, reserved) = (other.totals.allocated, other.totals.reserved);
        page.fitted(&format!(
            "{name}: {} allocated, {} reserved (all of it: --format json)",
            human(allocated),
            human(reserved)
        ));
    }
    page.blank();
    for (command, words) in next_commands(explanation, verdict.cause) {
        page.fitted(&format!("next: {command}   {words}"));
    }
}

fn origin(source: &ExplanationSource) -> String {
    match source {
        ExplanationSource::Process {
            watched,
            consistency,
        } => {
            let watched = match *watched {
                Duration::ZERO => String::new(),
                watched => format!("watched for {}; ", duration(watched)),
            };
            format!("{watched}{consistency}")
        }
        ExplanationSource::Snapshot { .. } => "a snapshot of tensors".to_owned(),
        ExplanationSource::Recording { moment, .. } => match moment {
            RecordedMoment::Peak => "a recording, at its moment of most allocated bytes",
            RecordedMoment::OutOfMemory => "a recording, at an out-of-memory error",
            RecordedMoment::Requested => "a dump of `memprobe watch`, at the request",
        }
        .to_owned(),
    }
}

fn push_device(page: &mut Page, device: &DeviceExplanation, explanation: &Explanation) {
    page.blank();
    page.fitted(&format!("[{}] {}", bar(device), human(device.whole())));
    for (letter, bytes, words) in rows(device, &explanation.target) {
        let share = percent(bytes.0.into(), device.whole().0.into());
        page.fitted(&format!(
            " {letter} {:>11} {share:>6}  {words}",
            human(bytes)
        ));
    }
    push_owners(page, device);
    if let Some(kv) = &device.kv {
        page.blank();
        page.fitted(&format!("KV CACHE  {}", kv_title(kv)));
        page.fitted(&format!("  {}", kv_summary(kv)));
    }
    if let Some(growth) = &device.growth {
        push_growth(page, growth, &explanation.source);
    }
    if !device.measures.is_empty() {
        page.blank();
        page.strong("WOULD GIVE BACK");
        for measure in device.measures.iter().take(MAX_MEASURES) {
            let most = if measure.at_most { "<=" } else { "" };
            let bytes = format!("{most}{}", human(measure.bytes));
            let (action, because) = (clean(&measure.action), measure.because);
            page.fitted(&format!("{bytes:>14}  {action} ({because})"));
        }
    }
}

/// Draws the parts as letters in proportion; a part has at least one cell.
fn bar(device: &DeviceExplanation) -> String {
    let whole = device.whole().0.max(1);
    let mut bar = String::new();
    let cells = |bytes: u64| (u128::from(bytes) * BAR as u128 / u128::from(whole)) as usize;
    let mut sum = 0_u64;
    for part in device.parts.iter().filter(|part| part.id != PartId::Free) {
        sum = sum.saturating_add(part.bytes.0);
        let end = cells(sum).max(bar.len() + 1).min(BAR);
        let (_, letter) = part.id.words();
        bar.extend(std::iter::repeat_n(letter, end.saturating_sub(bar.len())));
    }
    let rest = BAR.saturating_sub(bar.len());
    bar + &".".repeat(rest)
}

/// Parts with letter, bytes and words; the smallest of too many are one row.
fn rows(device: &DeviceExplanation, target: &Target) -> Vec<(char, Bytes, String)> {
    let mut parts = device.parts.clone();
    let mut merged = Bytes(0);
    let mut number = 0_u32;
    while parts.len() + usize::from(number > 0) > MAX_PARTS {
        let smallest = parts.iter().enumerate().min_by_key(|(_, part)| part.bytes);
        let Some(at) = smallest.map(|(at, _)| at) else {
            break;
        };
        merged.0 = merged.0.saturating_add(parts.remove(at).bytes.0);
        number += 1;
    }
    let rows = parts.iter().map(|part| {
        let (words, letter) = part.id.words();
        let words = match part.id {
            PartId::OutsideAllocator => outside_allocator(words, target),
            _ => words.to_owned(),
        };
        (letter, part.bytes, words)
    });
    let mut rows: Vec<_> = rows.collect();
    if number > 0 {
        rows.push((' ', merged, format!("{number} smaller parts")));
    }
    rows
}

/// Words for what the process has beside the allocator, with the libraries that show signs of use.
fn outside_allocator(words: &str, target: &Target) -> String {
    let used = target
        .libraries
        .iter()
        .filter(|library| !library.signs.is_empty());
    let used: Vec<String> = used.map(|library| library_family(&library.path)).collect();
    if used.is_empty() {
        words.to_owned()
    } else {
        let context = "this process beside PyTorch's allocator: CUDA's context";
        format!("{context}; perhaps {}", used.join(", "))
    }
}

fn push_owners(page: &mut Page, device: &DeviceExplanation) {
    if device.owners.is_empty() {
        return;
    }
    page.blank();
    page.strong(match device.owned {
        OwnedBy::Retainer => "    RETAINED    EXCLUSIVE  BY",
        OwnedBy::Line => "     AT PEAK  LINE",
        OwnedBy::LiveLine => "        LIVE  LINE",
    });
    for owner in device.owners.iter().take(MAX_OWNERS) {
        page.fitted(&owner_line(owner, device.owned));
    }
    let rest = device.owners.iter().skip(MAX_OWNERS);
    let bytes: u64 = rest.clone().map(|owner| owner.bytes.0).sum();
    if rest.len() > 0 {
        let words = format!("{} more", rest.len());
        let bytes = human(Bytes(bytes));
        page.fitted(&match device.owned {
            OwnedBy::Retainer => format!("{bytes:>12}  {:>11}  {words}", ""),
            OwnedBy::Line | OwnedBy::LiveLine => format!("{bytes:>12}  {words}"),
        });
    }
}

fn owner_line(owner: &MemoryOwner, owned: OwnedBy) -> String {
    let name = owner
        .name
        .as_deref()
        .map_or("(no name leads there)".to_owned(), clean);
    let class = owner
        .class
        .as_deref()
        .map(|class| format!("  {}", clean(class)));
    let name = format!("{name}{}", class.unwrap_or_default());
    let bytes = human(owner.bytes);
    match owned {
        OwnedBy::Line | OwnedBy::LiveLine => format!("{bytes:>12}  {name}"),
        OwnedBy::Retainer => {
            let exclusive = owner.exclusive.map_or("-".to_owned(), human);
            format!("{bytes:>12}  {exclusive:>11}  {name}")
        }
    }
}

fn push_growth(page: &mut Page, growth: &Growth, source: &ExplanationSource) {
    page.blank();
    if growth.points < growth.needed {
        let longer = match source {
            ExplanationSource::Process { .. } => "watch longer, with --duration",
            ExplanationSource::Snapshot { .. } | ExplanationSource::Recording { .. } => {
                "record longer"
            }
        };
        page.fitted(&format!("GROWS  too little happened to tell: {longer}"));
        return;
    }
    if !grows(growth) {
        page.fitted("GROWS  nothing");
        return;
    }
    page.strong("GROWS");
    for suspect in growth.lines.iter().take(MAX_GROWING) {
        let rate = rate_text(suspect.rate.bytes, growth.step);
        let retainer = suspect.retained.retainers.first();
        let retained = retainer.map(|retainer| format!("  retained by {}", clean(&retainer.by)));
        let name = suspect_name(suspect);
        page.fitted(&format!(
            "  +{rate}  {name}{}",
            retained.unwrap_or_default()
        ));
    }
}

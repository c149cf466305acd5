//! Table of lines as text.

mod outside;

use std::fmt::Write;
use std::time::Duration;

use super::lines::{Lines, Sum, callers};
use super::replay::Replay;
use super::{Colour, ReportOptions};
use crate::event::bytes::{human, signed};
use crate::event::{Bytes, DeviceIndex, Frame};
use crate::ledger::grouping::{Origin, origin_of};
use crate::ledger::snapshot::{BeforeAttach, DeviceSnapshot, Layer, LineRow, Snapshot};
pub(super) use crate::view::wrap;
use crate::view::{
    BEFORE_ATTACH, BLOCKS, CUT, FileNames, UNACCOUNTED, clean, count, counted, duration, fit,
    percent, process, width as columns,
};

/// Minimum width of a line's name.
const NARROWEST: usize = 20;

/// Width below which a caller that does not fit is dropped rather than cut.
const SHORTEST_CALLER: usize = 16;

/// Note if nothing is known of modules.
pub(super) const NO_MODULES: &str = "No call of a torch.nn.Module was seen: the program makes none, or the recording \
                                     is without them.";

/// Note if a device is known only by its calls into CUDA.
pub(super) const NO_CALLS_INTO_CUDA: &str = "This table covers PyTorch's allocators. Devices with only calls into \
                                             CUDA are left out.";

const HEADINGS: [&str; 6] = ["LIVE", "PEAK", BLOCKS, "ALLOCS", "SHARE", "LINE"];

/// One row: five numbers, the line, and its callers.
struct Row {
    numbers: [String; 5],
    line: String,
    callers: Vec<String>,
}

/// Returns the whole report.
pub(super) fn render(replay: &Replay, options: &ReportOptions) -> String {
    let style = Style(options.colour);
    let mut text = beginning(replay, options);
    for device in &replay.snapshot.devices {
        push_line(&mut text, "");
        push_totals(&mut text, device, options);
        let rows = rows(device, replay.snapshot.cuda.layer, options);
        render_rows(&mut text, &HEADINGS, &rows, options.width, style);
    }
    outside::render(&mut text, &replay.snapshot.cuda, options, style);
    text
}

/// Text before the tables: the recorded process, and warnings.
pub(super) fn beginning(replay: &Replay, options: &ReportOptions) -> String {
    let style = Style(options.colour);
    let mut text = String::new();
    for line in heading(replay) {
        push_line(&mut text, &fit(&line, options.width, CUT));
    }
    for warning in warnings(replay) {
        for line in wrap(&format!("warning: {warning}"), options.width) {
            push_line(&mut text, &style.warning(&line));
        }
    }
    let layer = replay.snapshot.cuda.layer;
    if matches!(layer, Layer::Runtime | Layer::Driver | Layer::Tracepoints) {
        let words = layer.as_str();
        let note = match layer {
            Layer::Tracepoints => format!(
                "Probes on {words} watch the caching allocator: sizes are requested bytes, and totals their sum."
            ),
            _ => format!(
                "No caching allocator reports its blocks here: the lines are those of {words}."
            ),
        };
        for line in wrap(&note, options.width) {
            push_line(&mut text, &line);
        }
    }
    if replay.snapshot.devices.is_empty() {
        push_line(&mut text, "");
        push_line(
            &mut text,
            "The recording has no allocation or free of GPU memory.",
        );
    }
    text
}

/// Adds the totals above the table of a device.
pub(super) fn push_totals(text: &mut String, device: &DeviceSnapshot, options: &ReportOptions) {
    for line in totals(device, options.width) {
        push_line(text, &Style(options.colour).strong(&line));
    }
}

fn heading(replay: &Replay) -> Vec<String> {
    let target = &replay.snapshot.target;
    let unknown = || "unknown command".to_owned();
    let command = if target.command.is_empty() {
        unknown()
    } else {
        clean(&target.command)
    };
    let mut facts = Vec::new();
    facts.extend(process(target));
    facts.extend(
        target
            .python
            .as_ref()
            .map(|version| format!("Python {}", clean(version))),
    );
    facts.extend(
        target
            .torch
            .as_ref()
            .map(|version| format!("torch {}", clean(version))),
    );
    facts.push(format!("memprobe {}", clean(&replay.header.version)));
    let ended = replay
        .end
        .as_ref()
        .map_or("end missing", |end| end.reason.as_str());
    let losses = &replay.snapshot.health.losses;
    let events = counted(replay.snapshot.health.events, "event");
    let lost = match losses.events {
        0 if losses.any() => "some details lost".to_owned(),
        0 => "none lost".to_owned(),
        lost => format!("{} lost", counted(lost, "event")),
    };
    vec![
        command,
        facts.join("  "),
        format!(
            "{events} in {}, {lost}  ({ended})",
            duration(Duration::from_nanos(replay.duration()))
        ),
    ]
}

fn warnings(replay: &Replay) -> Vec<String> {
    let mut warnings = Vec::new();
    if replay.truncated {
        warnings.push(
            "the end of the recording is missing: memprobe was killed, the disk was full, or it is still recording. \
             The report covers everything up to the last whole record."
                .to_owned(),
        );
    }
    let losses = &replay.snapshot.health.losses;
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
    let refused = &replay.refused;
    if refused.blocks > 0 || refused.stacks > 0 {
        warnings.push(format!(
            "the recording exceeds the limits of memprobe: {} and {} are in the totals but in no line.",
            counted(refused.blocks, "block"),
            counted(refused.stacks, "stack"),
        ));
    }
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

/// Totals of a device, as many per line as fit.
fn totals(device: &DeviceSnapshot, width: usize) -> Vec<String> {
    let (now, peak) = (&device.totals, &device.peak);
    let mut facts = vec![format!(
        "allocated {}, peak {}",
        human(now.allocated),
        human(peak.allocated)
    )];
    if device.index == DeviceIndex::CPU {
        facts.extend(own_sum(&device.before_attach));
    } else {
        facts.push(format!(
            "reserved {}, peak {}",
            human(now.reserved),
            human(peak.reserved)
        ));
        facts.push(before_attach(&device.before_attach));
    }
    if device.unaccounted != 0 {
        facts.push(format!("unaccounted {}", signed(device.unaccounted)));
    }
    if device.ooms > 0 {
        facts.push(counted(device.ooms, "out-of-memory error"));
    }
    let mut lines = vec![format!("{:<6}", device.index)];
    for fact in facts {
        let last = lines.len() - 1;
        let line = &mut lines[last];
        if last == 0 && line.len() <= 8 || columns(line) + 2 + columns(&fact) <= width {
            line.push_str("  ");
            line.push_str(&fact);
        } else {
            lines.push(format!("{:8}{fact}", ""));
        }
    }
    lines
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

fn rows(device: &DeviceSnapshot, layer: Layer, options: &ReportOptions) -> Vec<Row> {
    let lines = Lines::of(device, options);
    let frames = lines
        .shown
        .iter()
        .flat_map(|row| row.site.frame().into_iter().chain(shown_callers(row)));
    let names = FileNames::of(frames.map(|frame| &frame.file));
    let allocated = device.totals.allocated.0;
    let mut rows: Vec<Row> = lines
        .shown
        .iter()
        .map(|row| line_row(row, allocated, &names))
        .collect();
    if lines.hidden.lines > 0 {
        let others = format!("({})", counted(lines.hidden.lines as u64, "other line"));
        rows.push(sum_row(
            &lines.hidden,
            lines.hidden.live,
            None,
            allocated,
            others,
        ));
    }
    let before = &device.before_attach;
    if before.live.0 > 0 {
        rows.push(bytes_row(
            human(before.live),
            before.live_blocks(),
            share(before.live, allocated),
            BEFORE_ATTACH,
        ));
    }
    if device.unaccounted != 0 {
        rows.push(bytes_row(
            signed(device.unaccounted),
            None,
            "-".to_owned(),
            UNACCOUNTED,
        ));
    }
    let total = match layer {
        _ if device.index == DeviceIndex::CPU => "(total as memprobe counts)".to_owned(),
        Layer::Allocator => "(total of the allocator)".to_owned(),
        layer => format!("(total of {})", layer.as_str()),
    };
    let all = Sum {
        live_blocks: device.live_blocks,
        ..lines.all
    };
    rows.push(sum_row(
        &all,
        allocated,
        Some(device.peak.allocated),
        allocated,
        total,
    ));
    rows
}

fn line_row(row: &LineRow, allocated: u64, names: &FileNames) -> Row {
    Row {
        numbers: [
            human(row.live),
            human(row.peak),
            count(row.live_blocks),
            count(row.allocs),
            share(row.live, allocated),
        ],
        line: names.site(&row.site),
        callers: shown_callers(row)
            .into_iter()
            .map(|frame| names.frame(frame))
            .collect(),
    }
}

/// Callers worth showing. Beside a line of the user's own code these are only the user's callers,
/// if there are any; otherwise all.
fn shown_callers(row: &LineRow) -> Vec<&Frame> {
    let is_own = |frame: &&Frame| origin_of(frame) == Origin::User;
    let all = callers(row);
    let own: Vec<_> = all.iter().filter(is_own).collect();
    let line_is_own = row.site.frame().is_some_and(|line| is_own(&line));
    if line_is_own && !own.is_empty() {
        own
    } else {
        all.iter().collect()
    }
}

fn sum_row(sum: &Sum, live: u64, peak: Option<Bytes>, allocated: u64, line: String) -> Row {
    Row {
        numbers: [
            human(Bytes(live)),
            peak.map_or_else(|| "-".to_owned(), human),
            count(sum.live_blocks),
            count(sum.allocs),
            share(Bytes(live), allocated),
        ],
        line,
        callers: Vec::new(),
    }
}

/// Share of the allocated bytes.
fn share(part: Bytes, allocated: u64) -> String {
    percent(part.0.into(), allocated.into())
}

fn bytes_row(live: String, blocks: Option<u64>, share: String, line: &str) -> Row {
    let none = || "-".to_owned();
    let blocks = blocks.map_or_else(none, count);
    Row {
        numbers: [live, none(), blocks, none(), share],
        line: line.to_owned(),
        callers: Vec::new(),
    }
}

fn render_rows(text: &mut String, titles: &[&str; 6], rows: &[Row], width: usize, style: Style) {
    let widths: [usize; 5] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| columns(&row.numbers[column]));
        cells.chain([titles[column].len()]).max().unwrap_or(0)
    });
    let used: usize = widths.iter().map(|width| width + 2).sum();
    let available = width.saturating_sub(used).max(NARROWEST);
    let numbers = |cells: [&str; 5]| {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(widths) {
            // Writing to a string cannot fail.
            let _ = write!(line, "{cell:>width$}  ");
        }
        line
    };
    let headings = numbers(std::array::from_fn(|column| titles[column]));
    push_line(text, &style.strong(&format!("{headings}{}", titles[5])));
    for row in rows {
        let cells = numbers(std::array::from_fn(|column| row.numbers[column].as_str()));
        let line = fit(&row.line, available, CUT);
        let callers = callers_that_fit(&row.callers, available - columns(&line));
        push_line(text, &format!("{cells}{line}{}", style.weak(&callers)));
    }
}

/// The nearest callers that fit whole. If none fits, the nearest is cut, unless too little of it
/// would remain.
fn callers_that_fit(callers: &[String], available: usize) -> String {
    let mut text = String::new();
    for caller in callers {
        let next = format!("  <- {caller}");
        if columns(&text) + columns(&next) > available {
            if text.is_empty() && available >= SHORTEST_CALLER {
                text = fit(&next, available, CUT);
            }
            break;
        }
        text.push_str(&next);
    }
    text
}

/// Adds a note to a table.
pub(super) fn push_note(text: &mut String, note: &str, width: usize) {
    for line in wrap(note, width) {
        push_line(text, &line);
    }
}

pub(super) fn push_line(text: &mut String, line: &str) {
    text.push_str(line.trim_end());
    text.push('\n');
}

/// Formats the heading of another table.
pub(super) fn strong(colour: Colour, text: &str) -> String {
    Style(colour).strong(text)
}

/// Formats a warning outside this table.
pub(super) fn warning(colour: Colour, text: &str) -> String {
    Style(colour).warning(text)
}

/// Formats the less important part of a line.
pub(super) fn weak(colour: Colour, text: &str) -> String {
    Style(colour).weak(text)
}

#[derive(Clone, Copy)]
pub(super) struct Style(pub(super) Colour);

impl Style {
    pub(super) fn strong(self, text: &str) -> String {
        self.paint("1", text)
    }

    fn weak(self, text: &str) -> String {
        self.paint("2", text)
    }

    fn warning(self, text: &str) -> String {
        self.paint("33", text)
    }

    fn paint(self, code: &str, text: &str) -> String {
        match self.0 {
            Colour::Ansi if !text.is_empty() => format!("\x1b[{code}m{text}\x1b[0m"),
            _ => text.to_owned(),
        }
    }
}

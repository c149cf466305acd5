//! Retainers of growing memory, as text.

use std::time::Duration;

use super::OnDevice;
use crate::attribution::growth::{Amount, GrowthRetainer, RetainedGrowth};
use crate::event::bytes::human;
use crate::event::{Bytes, TimeNs};
use crate::report::columns::{self, Cells};
use crate::report::table::{self, Style};
use crate::report::{ReportOptions, Top};
use crate::view::{clean, count, counted, duration};

/// Separator of frame and variable in a name.
const IN_FRAME: &str = " -> ";

/// Placeholder for every slot of a container.
const EVERY: &str = "[*]";

/// Note if no objects were read.
const NOT_READ: &str = "To see what keeps it alive, record with --names.";

/// Note if none of the growing lines' blocks was live when objects were read.
const NOTHING_LIVE: &str = "No block of these lines was live when memprobe read the objects. To see what keeps them \
                            alive, record for longer with --names.";

/// Writes the retainers of the growing lines of a device.
pub(super) fn render(text: &mut String, on: &OnDevice<'_>, start: TimeNs, options: &ReportOptions) {
    let growth = &on.growth;
    if growth.lines.is_empty() {
        return;
    }
    table::push_line(text, "");
    let Some(read) = growth.read else {
        return table::push_note(text, NOT_READ, options.width);
    };
    let retained = &growth.retained;
    if retained.live.blocks == 0 {
        return table::push_note(text, NOTHING_LIVE, options.width);
    }
    let after = Duration::from_nanos(read.0.saturating_sub(start.0));
    let heading = format!(
        "RETAINED BY: what kept {1} of these lines alive ({2}), {0} after the start. EXCLUSIVE: bytes without another \
         known retainer.",
        duration(after),
        counted(retained.live.blocks, "block"),
        human(retained.live.bytes)
    );
    table::push_note(text, &heading, options.width);
    if let Some(sentence) = sentence(retained) {
        table::push_note(text, &sentence, options.width);
    }
    columns::lay_out(
        text,
        &rows(retained, options),
        options.width,
        Style(options.colour),
    );
}

/// Sentence about the top retainer.
fn sentence(retained: &RetainedGrowth) -> Option<String> {
    let first = retained.retainers.first()?;
    let mut all = Amount::default();
    let mut through = 0_u64;
    for retainer in retained.retainers.iter().filter(|it| it.by == first.by) {
        all.blocks = all.blocks.saturating_add(retainer.retained.blocks);
        all.bytes = Bytes(all.bytes.0.saturating_add(retainer.retained.bytes.0));
        if retainer
            .through
            .as_deref()
            .is_some_and(|step| step.starts_with("grad_fn"))
        {
            through = through.saturating_add(retainer.retained.blocks);
        }
    }
    let graph = match through {
        0 => String::new(),
        _ if through == all.blocks => ", all through grad_fn".to_owned(),
        _ => format!(", {} of them through grad_fn", count(through)),
    };
    Some(format!(
        "{} keeps {} alive ({}){graph}.",
        named(first),
        counted(all.blocks, "block"),
        human(all.bytes)
    ))
}

/// Name of a retainer, such as ``list `losses` in train.py:12 main()``.
fn named(retainer: &GrowthRetainer) -> String {
    let (frame, path) = match retainer.by.split_once(IN_FRAME) {
        Some((frame, path)) => (Some(frame), path),
        None => (None, &*retainer.by),
    };
    let name = path.split(EVERY).next().unwrap_or(path);
    let class = retainer.class.as_deref().unwrap_or("variable");
    let place = frame.map_or_else(String::new, |frame| format!(" in {}", clean(frame)));
    format!("{} `{}`{place}", clean(class), clean(name))
}

fn rows(retained: &RetainedGrowth, options: &ReportOptions) -> Vec<Cells> {
    let headings = ["BYTES", "BLOCKS", "EXCLUSIVE", "RETAINED BY"];
    let most = match options.top {
        Top::All => retained.retainers.len(),
        Top::Rows(rows) => rows.min(retained.retainers.len()),
    };
    let (shown, hidden) = retained.retainers.split_at(most);
    let mut rows: Vec<Cells> = vec![headings.map(str::to_owned).to_vec()];
    rows.extend(shown.iter().map(|retainer| {
        let alone = human(retainer.exclusive.bytes);
        row(retainer.retained, alone, words(retainer))
    }));
    let mut others = retained.others;
    for retainer in hidden {
        others.blocks = others.blocks.saturating_add(retainer.retained.blocks);
        others.bytes = Bytes(others.bytes.0.saturating_add(retainer.retained.bytes.0));
    }
    let mut rest = |amount: Amount, words: &str| {
        if amount.blocks > 0 {
            rows.push(row(amount, "-".to_owned(), words.to_owned()));
        }
    };
    rest(others, "(others: --limit all)");
    rest(
        retained.nobody,
        "(no named retainer: temporary, or kept by C++)",
    );
    rows
}

fn row(amount: Amount, alone: String, words: String) -> Cells {
    vec![human(amount.bytes), count(amount.blocks), alone, words]
}

fn words(retainer: &GrowthRetainer) -> String {
    let mut words = clean(&retainer.by);
    if let Some(class) = &retainer.class {
        words.push_str(&format!(" ({})", clean(class)));
    }
    if let Some(through) = &retainer.through {
        words.push_str(&format!(" through {}", clean(through)));
    }
    if let Some(saved_by) = retainer
        .saved_by
        .as_ref()
        .filter(|_| retainer.through.is_some())
    {
        words.push_str(&format!(", saved by {}", clean(saved_by)));
    }
    if let Some(slot) = retainer.slot.as_ref().filter(|slot| **slot != retainer.by) {
        let slot = slot.split_once(IN_FRAME).map_or(&**slot, |(_, slot)| slot);
        words.push_str(&format!("; for example {}", clean(slot)));
    }
    words
}

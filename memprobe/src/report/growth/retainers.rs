//! Retainers of growing memory.

use std::time::Duration;

use crate::attribution::growth::{Growth, GrowthRetainer, RetainedGrowth, RetainerAmount};
use crate::event::bytes::human;
use crate::event::{Bytes, TimeNs};
use crate::report::ReportOptions;
use crate::view::table::{Cell, Output, Page, Table, columns};
use crate::view::{clean, count, counted, duration};

/// Separator of frame and variable in a name.
const IN_FRAME: &str = " -> ";

/// Placeholder for every slot of a container.
const EVERY: &str = "[*]";

const NOT_READ: &str = "To see what keeps it alive, record with --names.";

const NOTHING_LIVE: &str = "No block of these lines was live when memprobe read the objects. To see what keeps them \
                            alive, record for longer with --names.";

pub(super) fn cell(retained: &RetainedGrowth) -> Cell<'_> {
    Cell::Object(vec![
        ("live_blocks", retained.live.blocks.into()),
        ("live_bytes", retained.live.bytes.into()),
        ("named", Cell::list(retained.retainers.iter().map(retainer))),
        ("others_bytes", retained.others.bytes.into()),
        ("unknown_bytes", retained.nobody.bytes.into()),
    ])
}

/// A retainer of blocks: `root`, through `slot` and then `through`.
fn retainer(retainer: &GrowthRetainer) -> Cell<'_> {
    Cell::Object(vec![
        ("root", (&*retainer.by).into()),
        ("class", retainer.class.as_deref().into()),
        ("slot", retainer.slot.as_deref().into()),
        ("through", retainer.through.as_deref().into()),
        ("saved_by", retainer.saved_by.as_deref().into()),
        ("blocks", retainer.retained.blocks.into()),
        ("bytes", retainer.retained.bytes.into()),
        ("exclusive_blocks", retainer.exclusive.blocks.into()),
        ("exclusive_bytes", retainer.exclusive.bytes.into()),
    ])
}

pub(super) fn push(page: &mut Page, growth: &Growth, start: TimeNs, options: &ReportOptions) {
    if growth.lines.is_empty() {
        return;
    }
    page.blank();
    let Some(read) = growth.read else {
        return page.note(NOT_READ);
    };
    let retained = &growth.retained;
    if retained.live.blocks == 0 {
        return page.note(NOTHING_LIVE);
    }
    let after = Duration::from_nanos(read.0.saturating_sub(start.0));
    page.note(&format!(
        "RETAINED BY: what kept {1} of these lines alive ({2}), {0} after the start. EXCLUSIVE: bytes without another \
         known retainer.",
        duration(after),
        counted(retained.live.blocks, "block"),
        human(retained.live.bytes)
    ));
    if let Some(sentence) = sentence(retained) {
        page.note(&sentence);
    }
    page.table(&table(retained, options));
}

fn sentence(retained: &RetainedGrowth) -> Option<String> {
    let first = retained.retainers.first()?;
    let mut all = RetainerAmount::default();
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

/// Blocks, their bytes without another retainer, and the name of the retainer.
type RetainerEntry = (RetainerAmount, Option<Bytes>, String);

fn table(retained: &RetainedGrowth, options: &ReportOptions) -> Table<RetainerEntry> {
    let mut table = Table::new(columns![|row: RetainerEntry|
        figure("BYTES") => row.0.bytes,
        figure("BLOCKS") => row.0.blocks,
        figure("EXCLUSIVE") => row.1,
        label("RETAINED BY") => &*row.2,
    ]);
    let top = options.top.of(retained.retainers.len());
    let (shown, hidden) = retained.retainers.split_at(top);
    let shown = shown.iter();
    table.extend(
        Output::Text,
        shown.map(|it| (it.retained, Some(it.exclusive.bytes), words(it))),
    );
    let mut others = retained.others;
    for retainer in hidden {
        others.blocks = others.blocks.saturating_add(retainer.retained.blocks);
        others.bytes = Bytes(others.bytes.0.saturating_add(retainer.retained.bytes.0));
    }
    let nobody = "(no named retainer: temporary, or kept by C++)";
    let rest = [(others, "(others: --limit all)"), (retained.nobody, nobody)];
    let rest = rest.into_iter().filter(|(amount, _)| amount.blocks > 0);
    table.extend(
        Output::Text,
        rest.map(|(amount, words)| (amount, None, words.to_owned())),
    );
    table
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

//! The table of categories: what memory is for, and by which rule.

use super::grid::{Cell, Column, Grid, Row, Seen};
use super::{missing, remainders};
use crate::event::DeviceIndex;
use crate::label::{BLOCKS, percent};
use crate::model::why::WhyLedger;
use crate::model::why::category::{Category, CategoryRule, Standing};
use crate::model::why::view::{CategoryRow, DeviceView};

pub(super) const COLUMNS: &[Column] = &[
    Column::programs("device"),
    Column::all("live", "LIVE"),
    Column::all("live_blocks", BLOCKS),
    Column::all("at_peak", "AT PEAK"),
    Column::people("SHARE"),
    Column::programs("category"),
    Column::people("CATEGORY"),
    Column::programs("provisional"),
    Column::all("rule", "BY THE RULE"),
];

pub(super) fn notes(ledger: &WhyLedger) -> Vec<String> {
    let mut notes = vec![
        "All of it is inferred, by the rule named: most from when memory was asked for and when it was freed. \
         \"?\" stands where what comes next decides. SHARE is that of the peak."
            .to_owned(),
    ];
    if !ledger.heard().marks {
        notes.push(
            "This recording has no marks of optimizer steps and batches: steps are known by their stacks alone."
                .to_owned(),
        );
    }
    notes.extend(missing(ledger.heard()));
    notes
}

pub(super) fn grid(index: DeviceIndex, view: DeviceView<'_>) -> Grid {
    let (now, peak) = (view.now(), view.peak());
    let mut rules = view.categories();
    rules.sort_by_key(|row| {
        let highest = std::cmp::Reverse((row.at_peak, row.live));
        (row.rule.category(), highest, row.rule)
    });
    let all = peak.totals.allocated.0;
    let mut rows: Vec<Row> = rules.iter().map(|it| row(index, it, all)).collect();
    let rest = |what: &str, live: Cell, at_peak: Cell, blocks: Cell| {
        Row::new(vec![
            Cell::Device(index),
            live,
            blocks,
            at_peak,
            Cell::None,
            Cell::words(what.trim_matches(['(', ')'])),
            Cell::words(what),
            Cell::None,
            Cell::Blank,
        ])
    };
    for (what, live, at_peak) in remainders(now, peak) {
        rows.push(rest(what, live, at_peak, Cell::None));
    }
    let blocks = rules.iter().map(|row| row.blocks).sum();
    let total = rest(
        "(total)",
        Cell::Bytes(now.totals.allocated.0),
        Cell::Bytes(all),
        Cell::Count(blocks),
    );
    rows.push(total.seen(Seen::People));
    Grid {
        columns: COLUMNS,
        rows,
    }
}

fn row(index: DeviceIndex, row: &CategoryRow, all: u64) -> Row {
    let rule: CategoryRule = row.rule;
    let category: Category = rule.category();
    let (mark, provisional) = match rule.standing() {
        Standing::Settled => ("", "no"),
        Standing::Provisional => ("?", "yes"),
    };
    Row::new(vec![
        Cell::Device(index),
        Cell::Bytes(row.live),
        Cell::Count(row.blocks),
        Cell::Bytes(row.at_peak),
        Cell::Share(percent(row.at_peak.into(), all.into())),
        Cell::words(category.as_str()),
        Cell::Words(format!("{}{mark}", category.as_str())),
        Cell::words(provisional),
        Cell::words(rule.as_str()),
    ])
}

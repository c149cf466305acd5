//! Table of categories, and the rule behind each.

use super::grid::{Cell, Column, Grid, Row, RowAudience};
use super::{missing, remainders};
use crate::attribution::AttributionLedger;
use crate::attribution::category::{Category, CategoryRule, RuleStatus};
use crate::attribution::named::InferenceCheck;
use crate::attribution::view::{CategoryRow, DeviceView};
use crate::event::bytes::human;
use crate::event::{Bytes, DeviceIndex};
use crate::view::{BLOCKS, percent};

pub(super) const COLUMNS: &[Column] = &[
    Column::programs("device"),
    Column::all("live", "LIVE"),
    Column::all("live_blocks", BLOCKS),
    Column::all("at_peak", "AT PEAK"),
    Column::people("SHARE"),
    Column::programs("category"),
    Column::people("CATEGORY"),
    Column::programs("provisional"),
    Column::programs("exact"),
    Column::all("rule", "RULE"),
];

pub(super) fn notes(ledger: &AttributionLedger) -> Vec<String> {
    let check = ledger.check();
    let named = check.compared() > 0 || check.before_attach > 0;
    let all = if named { "The rest" } else { "Every category" };
    let mut notes = vec![format!(
        "{all} is inferred by the named rule, mostly from when memory was allocated and freed. \"?\": later events \
         may change it. SHARE is of the peak."
    )];
    if named {
        notes.push(checked(check));
    } else {
        notes.push(
            "For exact parameters, gradients and optimizer state, record with --names.".to_owned(),
        );
    }
    if !ledger.coverage().marks {
        notes.push(
            "This recording has no marks of optimizer steps and batches: steps are inferred from stacks."
                .to_owned(),
        );
    }
    notes.extend(missing(ledger.coverage()));
    notes
}

/// Compares inferred categories with those from the process's objects.
fn checked(check: &InferenceCheck) -> String {
    let compared = check.compared();
    if compared == 0 {
        return "No category was inferred for the blocks that --names labelled.".to_owned();
    }
    let share = |bytes: u64| percent(bytes.into(), compared.into());
    let mut text = format!(
        "Check of the inferred categories against {} labelled by --names: right for {}, unknown for {}, wrong for {}",
        human(Bytes(compared)),
        share(check.right()),
        share(check.unknown()),
        share(check.wrong()),
    );
    let wrong = check
        .pairs
        .iter()
        .filter(|((inferred, named), _)| inferred != named && *inferred != Category::Unknown);
    for ((inferred, named), of) in wrong {
        text += &format!(
            "; {} of {} inferred as {}",
            human(Bytes(*of)),
            named.as_str(),
            inferred.as_str()
        );
    }
    text + "."
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
    let rest = |[kind, name]: [&str; 2], live: Cell, at_peak: Cell, blocks: Cell| {
        Row::new(vec![
            Cell::Device(index),
            live,
            blocks,
            at_peak,
            Cell::None,
            Cell::words(kind),
            Cell::words(name),
            Cell::None,
            Cell::None,
            Cell::Blank,
        ])
    };
    for row in remainders(now, peak) {
        let names = [row.kind, row.name];
        rows.push(rest(names, row.live, row.at_peak, Cell::None));
    }
    let blocks = rules.iter().map(|row| row.blocks).sum();
    let total = rest(
        ["total", "(total)"],
        Cell::Bytes(now.totals.allocated.0),
        Cell::Bytes(all),
        Cell::Count(blocks),
    );
    rows.push(total.seen(RowAudience::People));
    Grid {
        columns: COLUMNS,
        rows,
    }
}

fn row(index: DeviceIndex, row: &CategoryRow, all: u64) -> Row {
    let rule: CategoryRule = row.rule;
    let category: Category = rule.category();
    let mark = match rule.status() {
        RuleStatus::Settled => "",
        RuleStatus::Provisional => "?",
    };
    Row::new(vec![
        Cell::Device(index),
        Cell::Bytes(row.live),
        Cell::Count(row.blocks),
        Cell::Bytes(row.at_peak),
        Cell::Share(percent(row.at_peak.into(), all.into())),
        Cell::words(category.key()),
        Cell::Words(format!("{}{mark}", category.as_str())),
        Cell::Truth(rule.status() == RuleStatus::Provisional),
        Cell::Truth(rule.is_exact()),
        Cell::words(rule.as_str()),
    ])
}

//! Table of categories, and the rule behind each.

use super::{missing, remainders};
use crate::attribution::AttributionLedger;
use crate::attribution::category::{Category, CategoryRule, RuleStatus};
use crate::attribution::named::InferenceCheck;
use crate::attribution::view::{CategoryRow, DeviceView};
use crate::event::bytes::human;
use crate::event::{Bytes, DeviceIndex};
use crate::view::table::{Cell, Column, Output, Table};
use crate::view::{BLOCKS, percent};

/// A rule of a category, or bytes without a category.
#[derive(Default)]
pub(super) struct Row {
    device: Cell<'static>,
    key: &'static str,
    name: String,
    /// Bytes now, and at the peak.
    bytes: [Cell<'static>; 2],
    blocks: Option<u64>,
    share: Cell<'static>,
    rule: Option<CategoryRule>,
}

pub(super) fn columns() -> Vec<Column<Row>> {
    vec![
        Column::data("device", |row| row.device.clone()),
        Column::number("live", "LIVE", |row| row.bytes[0].clone()),
        Column::number("live_blocks", BLOCKS, |row| row.blocks.into()),
        Column::number("at_peak", "AT PEAK", |row| row.bytes[1].clone()),
        Column::figure("SHARE", |row| row.share.clone()),
        Column::data("category", |row| row.key.into()),
        Column::label("CATEGORY", |row| (&*row.name).into()),
        Column::data("provisional", |row| row.rule.map(is_provisional).into()),
        Column::data("exact", |row| row.rule.map(CategoryRule::is_exact).into()),
        Column::text("rule", "RULE", |row| match row.rule {
            Some(rule) => rule.as_str().into(),
            None => Cell::Blank,
        }),
    ]
}

fn is_provisional(rule: CategoryRule) -> bool {
    rule.status() == RuleStatus::Provisional
}

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

pub(super) fn table(index: DeviceIndex, view: DeviceView<'_>) -> Table<Row> {
    let (now, peak) = (view.now(), view.peak());
    let mut rules = view.categories();
    rules.sort_by_key(|row| {
        let highest = std::cmp::Reverse((row.at_peak, row.live));
        (row.rule.category(), highest, row.rule)
    });
    let all = peak.totals.allocated.0;
    let mut table = Table::new(columns());
    table.extend(Output::All, rules.iter().map(|rule| row(rule, all)));
    let rest = remainders(now, peak).into_iter().map(|rest| Row {
        key: rest.kind,
        name: rest.name.to_owned(),
        bytes: rest.bytes,
        ..Row::default()
    });
    table.extend(Output::All, rest);
    let total = Row {
        name: "(total)".to_owned(),
        bytes: [now, peak].map(|moment| moment.totals.allocated.into()),
        blocks: Some(rules.iter().map(|row| row.blocks).sum()),
        ..Row::default()
    };
    table.push(Output::Text, total);
    for entry in &mut table.rows {
        entry.row.device = index.into();
    }
    table
}

fn row(row: &CategoryRow, all: u64) -> Row {
    let category: Category = row.rule.category();
    let mark = if is_provisional(row.rule) { "?" } else { "" };
    Row {
        key: category.key(),
        name: format!("{}{mark}", category.as_str()),
        bytes: [row.live, row.at_peak].map(Cell::Bytes),
        blocks: Some(row.blocks),
        share: Cell::Share(row.at_peak, all),
        rule: Some(row.rule),
        ..Row::default()
    }
}

//! Table of categories, and the rule behind each.

use super::{missing, remainders};
use crate::attribution::AttributionLedger;
use crate::attribution::category::{Category, CategoryRule, RuleStatus};
use crate::attribution::named::InferenceCheck;
use crate::attribution::view::{CategoryRow, DeviceView};
use crate::event::bytes::human;
use crate::event::{Bytes, DeviceIndex};
use crate::view::table::{Cell, Column, Output, Table, columns};
use crate::view::{BLOCKS, percent};

/// A rule of a category, or bytes without a category.
#[derive(Default)]
pub(super) struct CategoryEntry {
    device: Cell<'static>,
    key: &'static str,
    name: String,
    /// Bytes now, and at the peak.
    bytes: [Cell<'static>; 2],
    blocks: Option<u64>,
    share: Cell<'static>,
    rule: Option<CategoryRule>,
}

pub(super) fn columns() -> Vec<Column<CategoryEntry>> {
    columns![|row: CategoryEntry|
        data("device") => row.device.clone(),
        number("live", "LIVE") => row.bytes[0].clone(),
        number("live_blocks", BLOCKS) => row.blocks,
        number("at_peak", "AT PEAK") => row.bytes[1].clone(),
        figure("SHARE") => row.share.clone(),
        data("category") => row.key,
        label("CATEGORY") => &*row.name,
        data("provisional") => row.rule.map(is_provisional),
        data("exact") => row.rule.map(CategoryRule::is_exact),
        text("rule", "RULE") => row.rule.map_or(Cell::Blank, |rule| rule.as_str().into()),
    ]
    .into()
}

fn is_provisional(rule: CategoryRule) -> bool {
    rule.status() == RuleStatus::Provisional
}

pub(super) fn notes(ledger: &AttributionLedger) -> Vec<String> {
    let check = &ledger.check;
    let named = check.compared() > 0 || check.before_attach > 0;
    let all = match (named, check.labeled > 0) {
        (true, _) => "The rest",
        (false, true) => "Every category but that of memory from before attach",
        (false, false) => "Every category",
    };
    let mut notes = vec![format!(
        "{all} is inferred by the named rule (\"?\": later events may change it). SHARE is of the peak."
    )];
    notes.push(if named {
        checked(check)
    } else {
        "For exact parameters, gradients and optimizer state, record with --names.".into()
    });
    if !ledger.coverage().marks {
        let unmarked =
            "This recording lacks marks of steps and batches: steps are inferred from stacks.";
        notes.push(unmarked.into());
    }
    notes.extend(missing(ledger.coverage()));
    notes
}

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

pub(super) fn table(index: DeviceIndex, view: DeviceView<'_>) -> Table<CategoryEntry> {
    let (now, peak) = (view.now(), view.peak());
    let mut rules = view.categories();
    rules.sort_by_key(|row| {
        let highest = std::cmp::Reverse((row.at_peak, row.live));
        (row.rule.category(), highest, row.rule)
    });
    let all = peak.totals.allocated.0;
    let mut table = Table::new(columns());
    table.extend(Output::All, rules.iter().map(|rule| row(rule, all)));
    let rest = remainders(now, peak).into_iter().map(|rest| CategoryEntry {
        key: rest.kind,
        name: rest.name.to_owned(),
        bytes: rest.bytes,
        ..CategoryEntry::default()
    });
    table.extend(Output::All, rest);
    let total = CategoryEntry {
        name: "(total)".to_owned(),
        bytes: [now, peak].map(|moment| moment.totals.allocated.into()),
        blocks: Some(rules.iter().map(|row| row.blocks).sum()),
        ..CategoryEntry::default()
    };
    table.push(Output::Text, total);
    for entry in &mut table.rows {
        entry.row.device = index.into();
    }
    table
}

fn row(row: &CategoryRow, all: u64) -> CategoryEntry {
    let category: Category = row.rule.category();
    let mark = if is_provisional(row.rule) { "?" } else { "" };
    CategoryEntry {
        key: category.key(),
        name: format!("{}{mark}", category.as_str()),
        bytes: [row.live, row.at_peak].map(Cell::Bytes),
        blocks: Some(row.blocks),
        share: Cell::share(row.at_peak, all),
        rule: Some(row.rule),
        ..CategoryEntry::default()
    }
}

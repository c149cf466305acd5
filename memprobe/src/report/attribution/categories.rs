//! Table of categories, and the rule behind each.

use super::{Notes, missing, remainders};
use crate::attribution::AttributionLedger;
use crate::attribution::category::{Category, CategoryRule};
use crate::attribution::named::InferenceCheck;
use crate::attribution::view::{CategoryRow, DeviceView};
use crate::event::bytes::human;
use crate::event::{Bytes, DeviceIndex};
use crate::view::table::{Cell, Output, Table};
use crate::view::{CategoryCells, category_table_columns, is_provisional, percent};

/// A rule of a category, or bytes without a category.
#[derive(Default)]
pub(super) struct CategoryEntry {
    device: Option<DeviceIndex>,
    key: &'static str,
    name: String,
    /// Bytes now, and at the peak.
    bytes: [Cell<'static>; 2],
    blocks: Option<u64>,
    share: Cell<'static>,
    rule: Option<CategoryRule>,
}

impl CategoryCells for CategoryEntry {
    fn device(&self) -> Option<DeviceIndex> {
        self.device
    }

    fn live(&self) -> Cell<'_> {
        self.bytes[0].clone()
    }

    fn at_peak(&self) -> Cell<'_> {
        self.bytes[1].clone()
    }

    fn share(&self) -> Cell<'_> {
        self.share.clone()
    }

    fn blocks(&self) -> Option<u64> {
        self.blocks
    }

    fn key(&self) -> &'static str {
        self.key
    }

    fn name(&self) -> Cell<'_> {
        (&self.name).into()
    }

    fn rule(&self) -> Option<CategoryRule> {
        self.rule
    }
}

pub(super) fn notes(ledger: &AttributionLedger) -> Notes {
    let check = &ledger.check;
    let named = check.compared() > 0 || check.before_attach > 0;
    let all = match (named, check.labeled > 0) {
        (true, _) => "The rest",
        (false, true) => "Every category but that of memory from before attach",
        (false, false) => "Every category",
    };
    let mut legend = vec![format!(
        "{all} is inferred by the named rule (\"?\": later events may change it). SHARE is of the peak."
    )];
    let mut facts = Vec::new();
    if named {
        facts.push(checked(check));
    } else {
        let exact = "For exact parameters, gradients and optimizer state, record with --names.";
        legend.push(exact.to_owned());
    }
    if !ledger.coverage().marks {
        let unmarked =
            "This recording lacks marks of steps and batches: steps are inferred from stacks.";
        facts.push(unmarked.into());
    }
    facts.extend(missing(ledger.coverage()));
    Notes { legend, facts }
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
    let mut table = Table::new(category_table_columns());
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
        entry.row.device = Some(index);
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

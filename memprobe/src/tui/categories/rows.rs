//! The rows of the table of categories: each category, and beneath it the rules that decided.

use std::cmp::Ordering;
use std::collections::HashSet;

use super::super::table::Fold;
use crate::label::{before, portion};
use crate::model::snapshot::why::{CategoryRow, DeviceCategories, Portion, PortionRow, Since};

/// A column that the table can be sorted by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Column {
    /// Bytes now.
    #[default]
    Live,
    /// Bytes when the device held most.
    AtPeak,
    /// The most of the moments that the graph keeps.
    Most,
    /// Part of all allocated bytes.
    Share,
    /// Blocks now.
    Blocks,
    /// Its name.
    Category,
    /// How sure it is.
    How,
    /// What decided.
    Rule,
}

impl Column {
    /// Those that the table can be sorted by.
    pub const ORDERS: [Self; 5] = [
        Self::Live,
        Self::AtPeak,
        Self::Most,
        Self::Blocks,
        Self::Category,
    ];

    /// Its head.
    pub const fn head(self) -> &'static str {
        match self {
            Self::Live => "LIVE",
            Self::AtPeak => "AT PEAK",
            Self::Most => "MOST",
            Self::Share => "SHARE",
            Self::Blocks => "BLOCKS",
            Self::Category => "CATEGORY",
            Self::How => "HOW",
            Self::Rule => "WHAT DECIDED",
        }
    }
}

/// A row.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    pub(super) portion: Portion,
    /// Since when what memory is for is known.
    pub(super) since: Since,
    /// The rule, of a row beneath a category.
    pub(super) rule: Option<CategoryRow>,
    pub(super) fold: Fold,
    pub(super) live: i64,
    pub(super) at_peak: i64,
    pub(super) most: Option<i64>,
    pub(super) blocks: Option<u64>,
    /// What decided, most bytes first.
    pub(super) rules: Vec<CategoryRow>,
}

/// The rows of a device.
pub fn rows(
    device: &DeviceCategories,
    order: Column,
    reversed: bool,
    open: &HashSet<Portion>,
) -> Vec<Row> {
    let mut portions: Vec<&PortionRow> = device.rows.iter().collect();
    portions.sort_by(|one, other| {
        let ordering = compare(one, other, order);
        if reversed {
            ordering.reverse()
        } else {
            ordering
        }
    });
    let mut rows = Vec::new();
    for row in portions {
        let is_open = open.contains(&row.portion);
        let whole = whole(row, device.since, is_open);
        let of_rule = |rule: &CategoryRow| of_rule(&whole, *rule);
        let beneath: Vec<Row> = row.rules.iter().filter(|_| is_open).map(of_rule).collect();
        rows.push(whole);
        rows.extend(beneath);
    }
    rows
}

impl Row {
    /// What it is called.
    pub(super) fn name(&self) -> &'static str {
        match self.portion {
            Portion::BeforeAttach => before(self.since),
            other => portion(other),
        }
    }
}

fn compare(one: &PortionRow, other: &PortionRow, order: Column) -> Ordering {
    let falling = |figure: fn(&PortionRow) -> i64| figure(other).cmp(&figure(one));
    match order {
        Column::AtPeak => falling(|row| row.at_peak),
        Column::Most => falling(|row| row.most),
        Column::Blocks => other.blocks.cmp(&one.blocks),
        Column::Category => portion(one.portion).cmp(portion(other.portion)),
        _ => falling(|row| row.live),
    }
}

fn whole(row: &PortionRow, since: Since, is_open: bool) -> Row {
    Row {
        portion: row.portion,
        since,
        rule: None,
        fold: match (row.rules.is_empty(), is_open) {
            (true, _) => Fold::Leaf,
            (false, true) => Fold::Open,
            (false, false) => Fold::Closed,
        },
        live: row.live,
        at_peak: row.at_peak,
        most: Some(row.most),
        blocks: row.blocks,
        rules: row.rules.clone(),
    }
}

fn of_rule(whole: &Row, rule: CategoryRow) -> Row {
    let signed = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
    Row {
        portion: whole.portion,
        since: whole.since,
        rule: Some(rule),
        fold: Fold::Leaf,
        live: signed(rule.live),
        at_peak: signed(rule.at_peak),
        most: None,
        blocks: Some(rule.blocks),
        rules: vec![rule],
    }
}

//! Rows of the table of categories: each category, and beneath it the rules that assigned it.

use std::cmp::Ordering;
use std::collections::HashSet;

use super::super::table::Fold;
use crate::attribution::tables::{
    CategoryRow, CoverageStart, DeviceCategories, Portion, PortionRow,
};
use crate::view::{before, portion};

/// Column of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Column {
    /// Live bytes.
    #[default]
    Live,
    /// Bytes at the peak of the device.
    AtPeak,
    /// Maximum over the points of the graph.
    Most,
    /// Share of all allocated bytes.
    Share,
    /// Live blocks.
    Blocks,
    /// Category name.
    Category,
    /// Confidence of the category.
    How,
    /// Rule that assigned the category.
    Rule,
}

impl Column {
    /// Columns that the table can be sorted by.
    pub const ORDERS: [Self; 5] = [
        Self::Live,
        Self::AtPeak,
        Self::Most,
        Self::Blocks,
        Self::Category,
    ];

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

/// Row of the table.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    pub(super) portion: Portion,
    /// Start of the attribution.
    pub(super) since: CoverageStart,
    /// The rule, for a row beneath a category.
    pub(super) rule: Option<CategoryRow>,
    pub(super) fold: Fold,
    pub(super) live: i64,
    pub(super) at_peak: i64,
    pub(super) most: Option<i64>,
    pub(super) blocks: Option<u64>,
    /// Rules that assigned the category, most bytes first.
    pub(super) rules: Vec<CategoryRow>,
}

/// Returns the rows of a device.
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

fn whole(row: &PortionRow, since: CoverageStart, is_open: bool) -> Row {
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

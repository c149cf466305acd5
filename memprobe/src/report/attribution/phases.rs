//! Table of phases of the program, by its allocations.

use super::{Notes, missing, remainders};
use crate::attribution::AttributionLedger;
use crate::attribution::view::{DeviceView, PhaseRow};
use crate::event::DeviceIndex;
use crate::view::table::{Cell, Column, Output, Table, columns};
use crate::view::{BLOCKS, percent};

#[derive(Default)]
pub(super) struct PhaseEntry {
    device: Cell<'static>,
    key: &'static str,
    name: &'static str,
    /// Bytes now, and at the peak.
    bytes: [Cell<'static>; 2],
    /// Live blocks, allocations and their bytes.
    allocations: Option<[u64; 3]>,
    rules: Cell<'static>,
}

pub(super) fn columns() -> Vec<Column<PhaseEntry>> {
    columns![|row: PhaseEntry|
        data("device") => row.device.clone(),
        number("live", "LIVE") => row.bytes[0].clone(),
        number("at_peak", "AT PEAK") => row.bytes[1].clone(),
        number("live_blocks", BLOCKS) => row.allocations.map(|it| it[0]),
        number("allocs", "ALLOCS") => row.allocations.map(|it| it[1]),
        number("alloc_bytes", "ALLOCATED") => row.allocations.map_or(Cell::Unknown, |it| Cell::Bytes(it[2])),
        data("phase") => row.key,
        label("PHASE") => row.name,
        text("rules", "RULE") => row.rules.clone(),
    ]
    .into()
}

pub(super) fn notes(ledger: &AttributionLedger) -> Notes {
    Notes {
        legend: vec!["A block belongs to the phase that allocated it.".to_owned()],
        facts: missing(ledger.coverage()),
    }
}

pub(super) fn table(index: DeviceIndex, view: DeviceView<'_>) -> Table<PhaseEntry> {
    let (now, peak) = (view.now(), view.peak());
    let phases = view.phases();
    let mut table = Table::new(columns());
    table.extend(Output::All, phases.iter().map(row));
    let rest = remainders(now, peak).into_iter().map(|rest| PhaseEntry {
        key: rest.kind,
        name: rest.name,
        bytes: rest.bytes,
        rules: Cell::Blank,
        ..PhaseEntry::default()
    });
    table.extend(Output::All, rest);
    let sum = |of: fn(&PhaseRow) -> u64| phases.iter().map(of).fold(0, u64::saturating_add);
    let total = PhaseEntry {
        name: "(total)",
        bytes: [now, peak].map(|moment| moment.totals.allocated.into()),
        allocations: Some([
            sum(|row| row.holding.live_blocks),
            sum(|row| row.holding.allocs),
            sum(|row| row.holding.alloc_bytes.0),
        ]),
        rules: Cell::Blank,
        ..PhaseEntry::default()
    };
    table.push(Output::Text, total);
    for entry in &mut table.rows {
        entry.row.device = index.into();
    }
    table
}

fn row(row: &PhaseRow) -> PhaseEntry {
    let held = &row.holding;
    let all: u64 = row.rules.iter().map(|(_, bytes)| bytes).sum();
    let mut rules = row.rules.clone();
    rules.sort_by_key(|(rule, bytes)| (std::cmp::Reverse(*bytes), *rule));
    let rules = rules.iter().map(|(rule, bytes)| match rules.len() {
        1 => rule.as_str().into(),
        _ => {
            let share = percent((*bytes).into(), all.into());
            format!("{share} {}", rule.as_str()).into()
        }
    });
    PhaseEntry {
        key: row.phase.key(),
        name: row.phase.as_str(),
        bytes: [held.live, held.at_peak].map(Cell::from),
        allocations: Some([held.live_blocks, held.allocs, held.alloc_bytes.0]),
        rules: Cell::List(rules.collect()),
        ..PhaseEntry::default()
    }
}

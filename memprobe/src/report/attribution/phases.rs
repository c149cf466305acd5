//! Table of phases of the program, by its allocations.

use super::grid::{Cell, Column, Grid, Row, RowAudience};
use super::{missing, remainders};
use crate::attribution::AttributionLedger;
use crate::attribution::view::{DeviceView, PhaseRow};
use crate::event::DeviceIndex;
use crate::view::{BLOCKS, percent};

pub(super) const COLUMNS: &[Column] = &[
    Column::programs("device"),
    Column::all("live", "LIVE"),
    Column::all("at_peak", "AT PEAK"),
    Column::all("live_blocks", BLOCKS),
    Column::all("allocs", "ALLOCS"),
    Column::all("alloc_bytes", "ALLOCATED"),
    Column::programs("phase"),
    Column::people("PHASE"),
    Column::all("rules", "RULE"),
];

pub(super) fn notes(ledger: &AttributionLedger) -> Vec<String> {
    let mut notes = vec!["A block belongs to the phase that allocated it.".to_owned()];
    notes.extend(missing(ledger.coverage()));
    notes
}

pub(super) fn grid(index: DeviceIndex, view: DeviceView<'_>) -> Grid {
    let (now, peak) = (view.now(), view.peak());
    let phases = view.phases();
    let mut rows: Vec<Row> = phases.iter().map(|phase| row(index, phase)).collect();
    let rest = |[kind, name]: [&str; 2],
                [live, at_peak]: [Cell; 2],
                [blocks, allocs, bytes]: [Cell; 3]| {
        Row::new(vec![
            Cell::Device(index),
            live,
            at_peak,
            blocks,
            allocs,
            bytes,
            Cell::words(kind),
            Cell::words(name),
            Cell::Blank,
        ])
    };
    for row in remainders(now, peak) {
        let (names, held) = ([row.kind, row.name], [row.live, row.at_peak]);
        rows.push(rest(names, held, [Cell::None, Cell::None, Cell::None]));
    }
    let sum = |of: fn(&PhaseRow) -> u64| phases.iter().map(of).fold(0, u64::saturating_add);
    let total = rest(
        ["total", "(total)"],
        [now, peak].map(|moment| Cell::Bytes(moment.totals.allocated.0)),
        [
            Cell::Count(sum(|row| row.holding.blocks)),
            Cell::Count(sum(|row| row.holding.allocs)),
            Cell::Bytes(sum(|row| row.holding.alloc_bytes)),
        ],
    );
    rows.push(total.seen(RowAudience::People));
    Grid {
        columns: COLUMNS,
        rows,
    }
}

fn row(index: DeviceIndex, row: &PhaseRow) -> Row {
    let held = &row.holding;
    let all: u64 = row.rules.iter().map(|(_, bytes)| bytes).sum();
    let mut rules = row.rules.clone();
    rules.sort_by_key(|(rule, bytes)| (std::cmp::Reverse(*bytes), *rule));
    let rules = rules.iter().map(|(rule, bytes)| match rules.len() {
        1 => rule.as_str().to_owned(),
        _ => {
            let share = percent(u64::into(*bytes), u64::into(all));
            format!("{share} {}", rule.as_str())
        }
    });
    Row::new(vec![
        Cell::Device(index),
        Cell::Bytes(held.live),
        Cell::Bytes(held.at_peak),
        Cell::Count(held.blocks),
        Cell::Count(held.allocs),
        Cell::Bytes(held.alloc_bytes),
        Cell::words(row.phase.key()),
        Cell::words(row.phase.as_str()),
        Cell::List(rules.collect()),
    ])
}

//! The table of what is saved for backward passes, by module, operation and line.

use std::cmp::Reverse;

use super::grid::{Cell, Column, Grid, Row, Seen};
use super::missing;
use crate::event::{DeviceIndex, Module};
use crate::label::{BLOCKS, FileNames, counted};
use crate::model::why::WhyLedger;
use crate::model::why::view::{DeviceView, SavedRow};
use crate::report::structured::known_line;
use crate::report::{ReportOptions, Top};

pub(super) const COLUMNS: &[Column] = &[
    Column::programs("device"),
    Column::all("live", "LIVE"),
    Column::all("at_peak", "AT PEAK"),
    Column::all("live_blocks", BLOCKS),
    Column::all("allocs", "ALLOCS"),
    Column::programs("file"),
    Column::programs("line"),
    Column::programs("function"),
    Column::all("module", "MODULE"),
    Column::wide("operations", "OPERATION", 1),
    Column::people("LINE"),
];

pub(super) fn notes(ledger: &WhyLedger) -> Vec<String> {
    let mut notes = vec![
        "What a forward pass made and a backward pass frees: without parameters, gradients and inputs. It is \
         inferred from when memory was freed; AT PEAK is when most was allocated on the device."
            .to_owned(),
    ];
    if ledger.heard().nodes {
        notes.push(
            "An operation is one that was done on the same stack: of a line that does several, all are named."
                .to_owned(),
        );
    } else {
        notes.push(
            "This recording does not name the operations of backward passes: they stand as \"-\"."
                .to_owned(),
        );
    }
    notes.extend(missing(ledger.heard()));
    notes
}

pub(super) fn grid(index: DeviceIndex, view: DeviceView<'_>, options: &ReportOptions) -> Grid {
    let mut saved = view.saved(options.grouping);
    saved.retain(|row| row.holding.live > 0 || row.holding.at_peak > 0 || row.holding.allocs > 0);
    let plain = FileNames::default();
    saved.sort_by_cached_key(|row| {
        let bytes = Reverse((row.holding.at_peak, row.holding.live, row.holding.allocs));
        let path = row.module.path().cloned();
        (bytes, path, plain.site(&row.site), row.operations.clone())
    });
    let most = match options.top {
        Top::All => saved.len(),
        Top::Rows(most) => most.min(saved.len()),
    };
    let frames = saved[..most].iter().filter_map(|row| row.site.frame());
    let names = FileNames::of(frames.map(|frame| &frame.file));
    let (shown, hidden) = saved.split_at(most);
    let mut rows: Vec<Row> = shown.iter().map(|it| row(index, it, &names)).collect();
    let hidden_rows = hidden.iter().map(|it| row(index, it, &names));
    rows.extend(hidden_rows.map(|row| row.seen(Seen::Programs)));
    if !hidden.is_empty() {
        let others = counted(hidden.len() as u64, "other row");
        rows.push(sum(index, hidden, format!("({others})")));
    }
    rows.push(sum(index, &saved, "(total saved for backward)".to_owned()));
    Grid {
        columns: COLUMNS,
        rows,
    }
}

fn row(index: DeviceIndex, row: &SavedRow, names: &FileNames) -> Row {
    let held = &row.holding;
    let frame = row.site.frame();
    let module = match &row.module {
        Module::Outside => "(outside of modules)",
        Module::Called(path) => path,
        Module::Unknown => "(not known)",
    };
    let operations = row.operations.iter().map(|name| name.to_string());
    Row::new(vec![
        Cell::Device(index),
        Cell::Bytes(held.live),
        Cell::Bytes(held.at_peak),
        Cell::Count(held.blocks),
        Cell::Count(held.allocs),
        frame.map_or(Cell::None, |frame| Cell::words(&frame.file)),
        frame
            .and_then(known_line)
            .map_or(Cell::None, |line| Cell::Count(line.into())),
        frame.map_or(Cell::None, |frame| Cell::words(&frame.function)),
        Cell::words(module),
        Cell::List(operations.collect()),
        Cell::Words(names.site(&row.site)),
    ])
}

fn sum(index: DeviceIndex, rows: &[SavedRow], what: String) -> Row {
    let total = |of: fn(&SavedRow) -> u64| rows.iter().map(of).fold(0, u64::saturating_add);
    let cells = vec![
        Cell::Device(index),
        Cell::Bytes(total(|row| row.holding.live)),
        Cell::Bytes(total(|row| row.holding.at_peak)),
        Cell::Count(total(|row| row.holding.blocks)),
        Cell::Count(total(|row| row.holding.allocs)),
        Cell::None,
        Cell::None,
        Cell::None,
        Cell::Words(what),
        Cell::Blank,
        Cell::Blank,
    ];
    Row::new(cells).seen(Seen::People)
}

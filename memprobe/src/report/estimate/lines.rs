//! Lines of an estimate, by their bytes at the peak.

use super::EstimateOptions;
use crate::estimate::{Estimate, LineAtPeak};
use crate::event::Bytes;
use crate::ledger::snapshot::Site;
use crate::report::cells;
use crate::view::table::{Column, Output, Table, columns};
use crate::view::{BLOCKS, FileNames, counted};

pub(super) struct EstimateEntry<'a> {
    site: Option<&'a Site>,
    name: String,
    at_peak: Bytes,
    blocks: u64,
    saved: Bytes,
}

fn columns<'a>() -> Vec<Column<EstimateEntry<'a>>> {
    columns![|row: EstimateEntry<'a>|
        // Without a line the name has the reason.
        data("name") => &*row.name,
        data("file") => cells::file(row.site),
        data("line") => cells::line(row.site),
        data("function") => cells::function(row.site),
        number("at_peak", "AT PEAK") => row.at_peak,
        number("blocks", BLOCKS) => row.blocks,
        number("saved_for_backward", "SAVED") => row.saved,
        label("LINE") => &*row.name,
    ]
    .into()
}

pub(super) fn table(estimate: &Estimate) -> Table<EstimateEntry<'_>> {
    let mut table = Table::new(columns());
    let names = FileNames::default();
    let rows = estimate.lines.iter().map(|line| row(line, &names));
    table.extend(Output::Data, rows);
    table
}

/// The first lines, and sums of the others and of all.
pub(super) fn shown<'a>(
    estimate: &'a Estimate,
    names: &FileNames,
    options: &EstimateOptions,
) -> Table<EstimateEntry<'a>> {
    let lines = &estimate.lines;
    let (shown, hidden) = lines.split_at(options.top.of(lines.len()));
    let mut table = Table::new(columns());
    table.extend(Output::Text, shown.iter().map(|line| row(line, names)));
    if !hidden.is_empty() {
        let others = counted(hidden.len() as u64, "other line");
        table.push(Output::Text, sum(hidden, format!("({others})")));
    }
    table.push(Output::Text, sum(lines, "(total)".to_owned()));
    table
}

fn row<'a>(line: &'a LineAtPeak, names: &FileNames) -> EstimateEntry<'a> {
    EstimateEntry {
        site: Some(&line.site),
        name: names.site(&line.site),
        at_peak: line.held,
        blocks: line.blocks,
        saved: line.saved,
    }
}

fn sum<'a>(lines: &[LineAtPeak], name: String) -> EstimateEntry<'a> {
    let total = |of: fn(&LineAtPeak) -> u64| lines.iter().map(of).fold(0, u64::saturating_add);
    EstimateEntry {
        site: None,
        name,
        at_peak: Bytes(total(|line| line.held.0)),
        blocks: total(|line| line.blocks),
        saved: Bytes(total(|line| line.saved.0)),
    }
}

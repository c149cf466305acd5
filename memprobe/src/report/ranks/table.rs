//! Rows of the imbalance of ranks, and the table of ranks.

use super::{RankDevice, RankFailure};
use crate::compare::ranks::{ImbalanceRow, RankBytes};
use crate::compare::{CompareBy, ComparedKey, MemoryByKey};
use crate::ledger::snapshot::Site;
use crate::report::RowLimit;
use crate::report::cells;
use crate::report::difference::keys::{
    category_of, file_names, head_of_table, key_of_table, kind_of, module_of, name_of, pass_of,
    site_of,
};
use crate::view::table::{Cell, Column, Output, Table, columns};
use crate::view::{BEFORE_ATTACH, clean, counted};

/// Memory of one key, or the allocator's total, in all ranks.
pub struct RankRow {
    by: &'static str,
    kind: &'static str,
    key: Option<ComparedKey>,
    name: String,
    pub ranks: RankBytes,
    least: String,
    most: String,
}

pub(super) fn columns(head: &'static str) -> Vec<Column<RankRow>> {
    columns![|row: RankRow|
        data("by") => row.by,
        data("kind") => row.kind,
        data("file") => cells::file(site_of(row.key.as_ref())),
        data("line") => cells::line(site_of(row.key.as_ref())),
        data("function") => cells::function(site_of(row.key.as_ref())),
        data("node") => cells::node(site_of(row.key.as_ref())),
        data("module") => module_of(row.key.as_ref()),
        data("pass") => pass_of(row.key.as_ref()),
        data("category") => category_of(row.key.as_ref()),
        number("spread", "SPREAD") => Cell::Bytes(row.ranks.spread()),
        number("least", "LEAST") => Cell::Bytes(row.ranks.least().bytes),
        text("least_rank", "IN") => &*row.least,
        number("most", "MOST") => Cell::Bytes(row.ranks.most().bytes),
        text("most_rank", "IN") => &*row.most,
        json("bytes") => Cell::list(row.ranks.bytes.iter().map(|bytes| Cell::Bytes(*bytes))),
        label(head) => &*row.name,
    ]
    .into()
}

/// All rows of a table: its keys, what is from before attach, and the total.
pub(super) fn rows(
    by: CompareBy,
    keys: &[ImbalanceRow],
    sums: &[MemoryByKey],
    ranks: &[RankDevice],
) -> Vec<RankRow> {
    let names = file_names(keys.iter().map(|row| &row.key));
    let row = |kind, name, key, bytes: RankBytes| {
        let rank = |at: usize| {
            ranks
                .get(at)
                .map_or_else(String::new, |rank| clean(&rank.name))
        };
        RankRow {
            by: key_of_table(by),
            kind,
            key,
            name,
            least: rank(bytes.least().rank),
            most: rank(bytes.most().rank),
            ranks: bytes,
        }
    };
    let own = keys.iter().map(|found| {
        let key = &found.key;
        let name = name_of(key, &names);
        row(kind_of(key), name, Some(key.clone()), found.ranks.clone())
    });
    let mut rows: Vec<RankRow> = own.collect();
    let all = |of: fn(&MemoryByKey) -> u64| RankBytes {
        bytes: sums.iter().map(of).collect(),
    };
    let before = all(|sums| sums.before_attach);
    if before.most().bytes > 0 {
        rows.push(row("before_attach", BEFORE_ATTACH.to_owned(), None, before));
    }
    let name = "(total of the allocator)".to_owned();
    rows.push(row("total", name, None, all(|sums| sums.allocated)));
    rows
}

/// The rows that differ between ranks, the largest spread first.
pub(super) fn text(by: CompareBy, rows: Vec<RankRow>, top: RowLimit) -> Table<RankRow> {
    let mut table = Table::new(columns(head_of_table(by)));
    let (rows, rest): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.key.is_some());
    let (mut different, equal): (Vec<_>, Vec<_>) =
        rows.into_iter().partition(|row| row.ranks.spread() > 0);
    let shown = match top {
        RowLimit::All => different.len(),
        RowLimit::Rows(most) => most.min(different.len()),
    };
    let hidden = different.split_off(shown);
    table.extend(Output::Text, different);
    for (rows, noun) in [(hidden, "other row"), (equal, "row equal in all ranks")] {
        if let Some(sum) = sum(rows, noun) {
            table.push(Output::Text, sum);
        }
    }
    table.extend(Output::Text, rest);
    table
}

/// Sum of rows, rank by rank.
fn sum(rows: Vec<RankRow>, noun: &str) -> Option<RankRow> {
    let number = rows.len() as u64;
    let name = match (number, noun) {
        (1, _) | (_, "other row") => format!("({})", counted(number, noun)),
        (number, _) => format!("({number} rows equal in all ranks)"),
    };
    let mut rows = rows.into_iter();
    let mut first = rows.next()?;
    let mut all_names: Vec<(usize, String)> = Vec::new();
    for row in rows {
        let bytes = first.ranks.bytes.iter_mut().zip(&row.ranks.bytes);
        bytes.for_each(|(sum, bytes)| *sum = sum.saturating_add(*bytes));
        all_names.push((row.ranks.least().rank, row.least));
        all_names.push((row.ranks.most().rank, row.most));
    }
    let named = |at: usize, own: &str| {
        let found = all_names.iter().find(|(rank, _)| *rank == at);
        found.map_or_else(|| own.to_owned(), |(_, name)| name.clone())
    };
    let (least, most) = (first.ranks.least().rank, first.ranks.most().rank);
    Some(RankRow {
        kind: cells::OTHERS,
        key: None,
        name,
        least: named(least, &first.least),
        most: named(most, &first.most),
        ..first
    })
}

fn failure<'a>(row: &&'a RankDevice) -> Option<&'a RankFailure> {
    row.failure.as_ref()
}

fn failed_site<'a>(row: &&'a RankDevice) -> Option<&'a Site> {
    Some(&failure(row)?.found.site)
}

fn since_start(row: &&RankDevice) -> Cell<'static> {
    let since = failure(row).and_then(|failure| failure.since_start);
    since.map_or(Cell::Unknown, Cell::Nanoseconds)
}

pub(super) fn ranks(ranks: &[RankDevice]) -> Table<&RankDevice> {
    let columns: Vec<Column<&RankDevice>> = columns![|row: &RankDevice|
        text("rank", "RANK") => &*row.name,
        number("device", "DEVICE") => row.device,
        number("gpu", "GPU") => row.gpu.as_deref(),
        number("capacity", "CAPACITY") => row.capacity,
        number("peak_allocated", "PEAK") => row.peak.allocated,
        number("peak_reserved", "RESERVED") => row.peak.reserved,
        data("allocated") => row.then.allocated,
        data("reserved") => row.then.reserved,
        number("ooms", "OUT OF MEMORY") => Cell::Count(row.ooms),
        number("first_oom_ns", "FIRST").priority(1) => since_start(row),
        data("first_oom_ms") => failure(row).and_then(|failure| failure.wall_ms),
        number("first_oom_bytes", "REQUEST").priority(1) => failure(row).map(|failure| failure.found.event.size),
        data("first_oom_file") => cells::file(failed_site(row)),
        data("first_oom_line") => cells::line(failed_site(row)),
        data("first_oom_function") => cells::function(failed_site(row)),
        number("first_oom_iteration", "IN ITERATION").priority(2) => failure(row).and_then(|failure| failure.iteration),
        number("allocated_at_failure", "AT FAILURE").priority(1) => row.at_failure.map(|totals| totals.allocated),
        data("reserved_at_failure") => row.at_failure.map(|totals| totals.reserved),
        text("recording", "RECORDING") => &*row.recording,
    ]
    .into();
    let mut table = Table::new(columns);
    table.extend(Output::All, ranks.iter());
    table
}

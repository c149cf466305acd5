//! Memory from before attach in the table of lines, by what the process's objects say of it.

use super::held::HeldRow;
use crate::event::Bytes;
use crate::ledger::snapshot::{BaselineGroup, BaselinePart, BeforeAttach};
use crate::view::table::{Cell, Output, Table};
use crate::view::{baseline_kind, baseline_owner, counted};

/// Kind of the row whose parts follow it.
const KIND: &str = "before_attach";

/// Most owners of a kind in text.
const MAX_OWNERS: usize = 5;

/// Adds the parts beneath the row of memory from before attach, in text.
pub(super) fn push_parts(table: &mut Table<HeldRow<'_>>, before: &BeforeAttach) {
    let mut rows = table.rows.iter();
    let Some(at) = rows.position(|entry| entry.row.kind == KIND) else {
        return;
    };
    let after = table.rows.split_off(at + 1);
    for part in before.parts() {
        let name = format!("  {}", baseline_kind(part.kind));
        table.push(Output::Text, row(name, part.live, part.blocks));
        push_owners(table, &part);
    }
    table.rows.extend(after);
}

fn push_owners(table: &mut Table<HeldRow<'_>>, part: &BaselinePart<'_>) {
    let has_names = part.groups.iter().any(|group| group.owner.name.is_some());
    if !has_names {
        return;
    }
    let (shown, hidden) = part.groups.split_at(part.groups.len().min(MAX_OWNERS));
    for group in shown {
        let name = format!("    {}", baseline_owner(&group.owner));
        table.push(Output::Text, row(name, group.live, Some(group.blocks)));
    }
    if !hidden.is_empty() {
        let sum = |of: fn(&BaselineGroup) -> u64| hidden.iter().map(|group| of(group)).sum();
        let name = format!("    ({})", counted(hidden.len() as u64, "other"));
        let blocks = Some(sum(|group| group.blocks));
        table.push(
            Output::Text,
            row(name, Bytes(sum(|group| group.live.0)), blocks),
        );
    }
}

fn row<'a>(name: String, live: Bytes, blocks: Option<u64>) -> HeldRow<'a> {
    HeldRow {
        name,
        live: live.into(),
        blocks,
        ..HeldRow::default()
    }
}

/// All parts, for JSON; absent if the process's objects were not read.
pub(super) fn cell(before: &BeforeAttach) -> Cell<'static> {
    if before.labeled.is_none() || before.live == Bytes(0) {
        return Cell::Absent;
    }
    Cell::list(before.parts().into_iter().map(|part| {
        let owners = part.groups.iter().map(|group| {
            Cell::Object(vec![
                (
                    "name",
                    group.owner.name.as_deref().map(str::to_owned).into(),
                ),
                (
                    "class",
                    Cell::if_known(group.owner.class.as_deref().map(str::to_owned)),
                ),
                ("live", group.live.into()),
                ("live_blocks", group.blocks.into()),
            ])
        });
        Cell::Object(vec![
            ("kind", part.kind.as_str().into()),
            ("live", part.live.into()),
            ("live_blocks", part.blocks.into()),
            ("owners", Cell::list(owners)),
        ])
    }))
}

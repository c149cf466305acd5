//! Rows beneath memory from before attach: its kinds, and the owners of each.

use std::sync::Arc;

use super::super::table_screen::{Fold, Query, RowOf, TableRow};
use super::LineList;
use super::rows::{LineData, LineFigures, LineKey, LineSubject};
use crate::event::Bytes;
use crate::ledger::snapshot::{BaselineGroup, BaselineOwner, BeforeAttach};

/// Returns the rows beneath the open row of memory from before attach, largest first.
pub(super) fn rows(before: &BeforeAttach, query: &Query<LineKey>) -> Vec<RowOf<LineList>> {
    let mut rows = Vec::new();
    for part in before.parts() {
        let key = LineKey::BaselineKind(part.kind);
        let fold = query.fold(has_owners(&part.groups), &key);
        let is_open = query.open.contains(&key);
        let subject = LineSubject::BaselineKind(part.kind);
        let data = LineData::new(figures(part.live, part.blocks), subject);
        rows.push(TableRow::leaf(key, data).at(1, fold));
        for group in part.groups.iter().filter(|_| is_open) {
            let owner = Arc::new(group.owner.clone());
            let key = LineKey::BaselineOwner(part.kind, Arc::clone(&owner));
            let subject = LineSubject::BaselineOwner(part.kind, owner);
            let data = LineData::new(figures(group.live, Some(group.blocks)), subject);
            rows.push(TableRow::leaf(key, data).at(2, Fold::Leaf));
        }
    }
    rows
}

/// Keys of all rows that can be opened at and beneath the row.
pub(super) fn keys(before: &BeforeAttach) -> Vec<LineKey> {
    let kinds = before.parts().into_iter();
    let kinds = kinds.filter(|part| has_owners(&part.groups));
    let kinds = kinds.map(|part| LineKey::BaselineKind(part.kind));
    [LineKey::BeforeAttach].into_iter().chain(kinds).collect()
}

fn has_owners(groups: &[&BaselineGroup]) -> bool {
    let nobody = BaselineOwner::default();
    groups.iter().any(|group| group.owner != nobody)
}

fn figures(live: Bytes, blocks: Option<u64>) -> LineFigures {
    LineFigures {
        live: Some(live.0.into()),
        blocks,
        ..LineFigures::default()
    }
}

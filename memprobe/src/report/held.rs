//! Rows of live memory: of a line or a tensor, and those that complete the allocator's total.

use std::rc::Rc;

use super::cells::{OTHERS, remainders};
use crate::event::{Bytes, DeviceIndex};
use crate::ledger::snapshot::{DeviceSnapshot, LineRow, ShapeRow, Site};
use crate::view::table::{Cell, Output, Table};
use crate::view::{FileNames, counted};

/// One row. `kind` is `others` for all hidden rows, and `before_attach` or `unaccounted` for what
/// completes the allocator's total.
#[derive(Clone, Default)]
pub(super) struct HeldRow<'a> {
    pub(super) device: Option<DeviceIndex>,
    pub(super) kind: &'static str,
    pub(super) site: Option<&'a Site>,
    pub(super) line: Option<&'a LineRow>,
    pub(super) shape: Option<&'a ShapeRow>,
    /// Name of a row that is no line or tensor.
    pub(super) name: String,
    pub(super) names: Rc<FileNames>,
    pub(super) live: Cell<'static>,
    pub(super) peak: Option<Bytes>,
    pub(super) blocks: Option<u64>,
    pub(super) allocs: Option<u64>,
    /// Allocated bytes of the device, for the row's share.
    pub(super) allocated: u64,
}

impl<'a> HeldRow<'a> {
    pub(super) fn of_line(line: &'a LineRow) -> Self {
        Self {
            kind: line.site.as_str(),
            site: Some(&line.site),
            line: Some(line),
            live: line.live.into(),
            peak: Some(line.peak),
            blocks: Some(line.live_blocks),
            allocs: Some(line.allocs),
            ..Self::default()
        }
    }

    /// The call site, or the name of a row without one.
    pub(super) fn site_name(&self) -> Cell<'_> {
        match self.site {
            Some(site) => self.names.site(site).into(),
            None => (&*self.name).into(),
        }
    }

    pub(super) fn share(&self) -> Cell<'static> {
        match self.live {
            Cell::Bytes(live) => Cell::Share(live, self.allocated),
            _ => Cell::Unknown,
        }
    }

    fn figures(&self) -> [u64; 3] {
        let live = match self.live {
            Cell::Bytes(live) => live,
            _ => 0,
        };
        [live, self.blocks.unwrap_or(0), self.allocs.unwrap_or(0)]
    }
}

/// Sum of rows.
pub(super) fn sum<'a>(rows: &[HeldRow<'a>], name: String) -> HeldRow<'a> {
    let [mut live, mut blocks, mut allocs] = [0_u64; 3];
    for row in rows {
        let [of_live, of_blocks, of_allocs] = row.figures();
        live = live.saturating_add(of_live);
        blocks = blocks.saturating_add(of_blocks);
        allocs = allocs.saturating_add(of_allocs);
    }
    HeldRow {
        kind: OTHERS,
        name,
        live: Cell::Bytes(live),
        blocks: Some(blocks),
        allocs: Some(allocs),
        ..HeldRow::default()
    }
}

/// Adds the first rows and the sum of the others, which have the name `noun`.
pub(super) fn push_top<'a>(
    table: &mut Table<HeldRow<'a>>,
    mut rows: Vec<HeldRow<'a>>,
    top: usize,
    noun: &str,
) {
    let hidden = rows.split_off(top);
    table.extend(Output::All, rows);
    if !hidden.is_empty() {
        let name = format!("({})", counted(hidden.len() as u64, noun));
        table.push(Output::All, sum(&hidden, name));
    }
}

/// Adds the bytes that no row has.
pub(super) fn push_remainders(table: &mut Table<HeldRow<'_>>, device: &DeviceSnapshot) {
    let before = &device.before_attach;
    for rest in remainders([before.live.0; 2], [device.unaccounted; 2]) {
        let is_before = rest.kind == "before_attach";
        let [live, _] = rest.bytes;
        let row = HeldRow {
            kind: rest.kind,
            name: rest.name.to_owned(),
            live,
            blocks: before.live_blocks().filter(|_| is_before),
            ..HeldRow::default()
        };
        table.push(Output::Flat, row);
    }
}

/// Sets what all rows of a device have in common.
pub(super) fn complete(
    table: &mut Table<HeldRow<'_>>,
    device: DeviceIndex,
    allocated: u64,
    names: FileNames,
) {
    let names = Rc::new(names);
    for entry in &mut table.rows {
        let row = &mut entry.row;
        (row.device, row.allocated) = (Some(device), allocated);
        row.names = names.clone();
    }
}

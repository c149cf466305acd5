//! Rows of live memory: of a line or a tensor, and those that complete the allocator's total.

use std::rc::Rc;

use super::cells::{self, OTHERS, remainders};
use super::lines::{callers, shown_callers};
use crate::event::{Bytes, DeviceIndex};
use crate::ledger::snapshot::{LineRow, PurposeInfo, Site};
use crate::view::table::{Cell, Output, Table};
use crate::view::{FileNames, LineCells, counted, pool_words};

/// One row. `kind` is `others` for all hidden rows, and `before_attach` or `unaccounted` for what
/// completes the allocator's total.
#[derive(Clone, Default)]
pub(super) struct HeldRow<'a> {
    pub(super) device: Option<DeviceIndex>,
    pub(super) kind: &'static str,
    pub(super) site: Option<&'a Site>,
    pub(super) line: Option<&'a LineRow>,
    pub(super) tensor: Option<&'a PurposeInfo>,
    /// Table of the row, if a report has several.
    pub(super) by: &'static str,
    pub(super) category: Option<&'static str>,
    pub(super) module: Option<String>,
    pub(super) pass: Option<&'static str>,
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
            Cell::Bytes(live) => Cell::share(live, self.allocated),
            _ => Cell::Unknown,
        }
    }
}

impl LineCells for HeldRow<'_> {
    fn device(&self) -> Option<DeviceIndex> {
        self.device
    }

    fn kind(&self) -> &'static str {
        self.kind
    }

    fn site(&self) -> Option<&Site> {
        self.site
    }

    fn line(&self) -> Option<&LineRow> {
        self.line
    }

    fn live(&self) -> Cell<'_> {
        self.live.clone()
    }

    fn peak(&self) -> Cell<'_> {
        self.peak.into()
    }

    fn blocks(&self) -> Option<u64> {
        self.blocks
    }

    fn allocs(&self) -> Option<u64> {
        self.allocs
    }

    fn share(&self) -> Cell<'_> {
        self.share()
    }

    fn name(&self) -> Cell<'_> {
        self.site_name()
    }

    fn trailing(&self) -> Cell<'_> {
        let callers = self.line.map(shown_callers).unwrap_or_default();
        let callers = callers
            .into_iter()
            .map(|frame| format!("<- {}", self.names.frame(frame)));
        let pools = self.line.and_then(pool_words);
        Cell::list(pools.into_iter().chain(callers))
    }

    fn callers(&self) -> Cell<'_> {
        self.line.map(|line| cells::frames(callers(line))).into()
    }
}

/// Sum of rows; a figure that one of them lacks is unknown.
pub(super) fn sum<'a>(rows: &[HeldRow<'a>], name: String) -> HeldRow<'a> {
    let live = rows.iter().map(|row| match row.live {
        Cell::Bytes(live) => live,
        _ => 0,
    });
    let count = |of: fn(&HeldRow<'_>) -> Option<u64>| {
        let mut rows = rows.iter().map(of);
        rows.try_fold(0_u64, |sum, number| Some(sum.saturating_add(number?)))
    };
    HeldRow {
        kind: OTHERS,
        name,
        live: Cell::Bytes(live.fold(0, u64::saturating_add)),
        blocks: count(|row| row.blocks),
        allocs: count(|row| row.allocs),
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

/// Adds the bytes that no row has; `blocks` are those from before attach.
pub(super) fn push_remainders(
    table: &mut Table<HeldRow<'_>>,
    output: Output,
    (before_attach, blocks): (Bytes, Option<u64>),
    unaccounted: i64,
) {
    for rest in remainders([before_attach.0; 2], [unaccounted; 2]) {
        let [live, _] = rest.bytes;
        let row = HeldRow {
            kind: rest.kind,
            name: rest.name.to_owned(),
            live,
            blocks: blocks.filter(|_| rest.kind == "before_attach"),
            ..HeldRow::default()
        };
        table.push(output, row);
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

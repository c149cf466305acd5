//! Columns and words of each breakdown of memory.

mod threads;

use super::cells::{Remainder, remainders};
use super::names::{BEFORE_OPENING, BLOCKS};
use super::table::{Cell, Column, Tone, columns};
use crate::attribution::tables::{Breakdown, BreakdownKey, BreakdownRow, DeviceBreakdown, Holding};
use crate::event::{Bytes, DeviceIndex};

/// Columns and words of a breakdown, for its report and its screen.
pub struct BreakdownView {
    /// A row in one word: the value of `report --by`, and the `kind` of a row in CSV and JSON.
    pub noun: &'static str,
    /// Help of that value.
    pub meaning: &'static str,
    /// Rows in one word: the name of the screen.
    pub plural: &'static str,
    /// Key that opens the screen: a letter that no other screen and no replay uses.
    pub key: &'static str,
    pub columns: &'static [Column<BreakdownEntry>],
    /// Returns the name of a key; the second argument is its name from an event.
    pub name: fn(u64, Option<&str>) -> String,
    /// Returns a text after that name for the details of a row.
    pub number: fn(u64) -> String,
    /// Note below the table of a report.
    pub legend: &'static str,
    /// Help on the terms of the screen.
    pub terms: &'static str,
}

impl BreakdownView {
    pub const fn of(breakdown: Breakdown) -> &'static Self {
        match breakdown {
            Breakdown::Thread => &threads::VIEW,
        }
    }
}

/// A row of a breakdown, a sum of rows, or bytes without one.
#[derive(Clone, Default)]
pub struct BreakdownEntry {
    pub device: Option<DeviceIndex>,
    /// Key of the row; `None` for a sum, and for bytes without a key.
    pub key: Option<u64>,
    pub kind: &'static str,
    pub name: String,
    /// Bytes now, and at the device's peak.
    pub bytes: [Cell<'static>; 2],
    pub peak: Option<Bytes>,
    /// Live blocks, and allocations.
    pub counts: Option<[u64; 2]>,
}

/// First columns of every breakdown.
const FIGURES: [Column<BreakdownEntry>; 6] = columns![|row: BreakdownEntry|
    data("device") => row.device,
    number("live", "LIVE").screen(11, 0).tone(Tone::Strong) => row.bytes[0].clone(),
    number("at_peak", "AT PEAK").screen(11, 44) => row.bytes[1].clone(),
    number("peak", "PEAK").priority(1).screen(11, 100) => row.peak,
    number("live_blocks", BLOCKS).screen(7, 56) => row.counts.map(|it| it[0]),
    number("allocs", "ALLOCS").priority(2).screen(9, 90) => row.counts.map(|it| it[1]),
];

impl BreakdownEntry {
    pub fn new(view: &BreakdownView, row: &BreakdownRow) -> Self {
        let (kind, key, name) = match row.key {
            BreakdownKey::Key(key) => {
                let name = (view.name)(key, row.name.as_deref());
                (view.noun, Some(key), name)
            }
            BreakdownKey::BeforeOpening => ("before_opening", None, BEFORE_OPENING.to_owned()),
            BreakdownKey::TooMany => ("too_many", None, "(too many to distinguish)".to_owned()),
        };
        Self {
            key,
            kind,
            ..Self::sum(&row.holding, name)
        }
    }

    pub fn sum(holding: &Holding, name: String) -> Self {
        Self {
            name,
            bytes: [holding.live, holding.at_peak].map(Cell::from),
            peak: holding.peak,
            counts: Some([holding.live_blocks, holding.allocs]),
            ..Self::default()
        }
    }

    /// Rows that complete the sums to the allocator's totals.
    pub fn remainders(device: &DeviceBreakdown) -> impl Iterator<Item = Self> {
        let before = device.before_attach.map(|bytes| bytes.0);
        let rest = remainders(before, device.unaccounted).into_iter();
        rest.map(|Remainder { kind, name, bytes }| Self {
            kind,
            name: name.to_owned(),
            bytes,
            ..Self::default()
        })
    }
}
